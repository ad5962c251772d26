# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play``: from the words of the command line to an exit code."""

from __future__ import annotations

import argparse
import os
import sys

from . import commands, errors, parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line (``sys.argv`` when None); returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = _guarded(words)
        sys.stdout.flush()
    except BrokenPipeError:
        return _reader_gone()
    return code


def _guarded(words: list[str]) -> int:
    try:
        return _carry_out(parser.parse(words))
    except SystemExit as stop:  # --help, --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        _failed(errors.CliError("interrupted", code="interrupted"), words)
        return errors.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        return _failed(error, words)


def _carry_out(request: argparse.Namespace) -> int:
    if request.verb == "playbook":
        from .play import play

        return play(request)
    return int(commands.module(request.verb).run(request))


def _reader_gone() -> int:
    """Whoever read standard output is gone (``| head``): nothing to say, and nobody to say it to."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + 13


def _failed(error: Exception, words: list[str]) -> int:
    """Say what went wrong: as a document with ``--json``, for people otherwise; a traceback only with ``-vvv``."""
    fields = errors.fields(error)
    if parser.wants_traceback(words):
        import traceback

        traceback.print_exc()
    if parser.wants_json(words):
        from . import document

        print(document.dump(document.failure(fields)))
    else:
        from . import render

        print("\n".join(render.error(fields, render.style(sys.stderr, os.environ))), file=sys.stderr)
    return errors.exit_code(fields)
