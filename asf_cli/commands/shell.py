# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play shell``: a terminal in a live session.

An interactive workload that nobody is attached to is what the user wants back: after a lost terminal, or after leaving
it. Otherwise, and with ``--new``, it is one more shell beside the workload, whose end ends nothing else.
"""

from __future__ import annotations

import argparse
import os
import sys

from .. import attach, entering, errors, opening, options, render, seat, target, variables
from ..errors import CliError
from ..progress import Progress

EXAMPLES = """\
  asf-play shell                                   when only one session lives
  asf-play shell claude.second                     back to its workload, or one more shell
  asf-play shell claude --new                      one more shell, in any case
"""
#: The words of one more shell; ``$SHELL`` of the workload (core/workload.py).
_SHELL = ("/bin/bash", "-l")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    target.add_arguments(parser)
    parser.add_argument("--new", action="store_true", help="a new shell, even when nobody is attached to the workload")
    options.raw_terminal(parser)


def run(request: argparse.Namespace) -> int:
    """Give the user a terminal in the session; returns the shell's exit code, or the workload's."""
    if not attach.have_terminal():
        raise CliError(
            "shell needs a terminal, and standard input and output are not one",
            remedy="asf-play exec AGENT -- CMD… runs a command without",
        )
    session = target.session(request)
    container = entering.container(session)
    if not request.new:
        held = opening.Held(session, {})
        if held.plan["workload"]["interactive"]:
            with seat.take(session) as place:
                if place.free:
                    return _back(request, held, place)
    _say(f"a new shell in session {session}; its end leaves the session running")
    return entering.run_on_terminal(container, _SHELL, not request.raw_terminal)


def _back(request: argparse.Namespace, held: opening.Held, place: seat.Seat) -> int:
    """Attach to the waiting workload; when it ends, the session is closed, as ``open.yml`` does it."""
    told = place.told()
    _say(f"back to the workload of session {held.session}{f' ({told})' if told else ''}; its end closes the session;")
    _say(f"{attach.LEAVE} leaves it running; asf-play shell --new starts a shell beside it")
    held.join()
    place.note("attached")
    streams = attach.Streams(stdin=True, filtered=not request.raw_terminal)
    ending = attach.attach(held.podman, held.target(), streams)
    place.note(ending.how)
    if ending.how != "exit" or ending.code is None:
        _say(attach.describe(ending, held.session))
        return opening.LEFT.get(ending.how, errors.OK)
    return _closed(request, held.session, ending.code)


def _closed(request: argparse.Namespace, session: str, code: int) -> int:
    agent, _, name = session.partition(".")
    progress = Progress(sys.stderr)
    given = {**variables.parse(request.extra), "agent": agent, "session": name}
    closing = opening.close(argparse.Namespace(variables=given, verbosity=0), progress)
    progress.close()
    opening.show_closing(closing, progress.style)
    return code or (errors.CLEANUP if closing.outcome.failed else errors.OK)


def _say(text: str) -> None:
    """One line; nobody may be there to read it."""
    try:
        print(render.safe(text), file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
