# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play exec``: a command in a live session, started as its workload is (same environment, filter, capabilities).

Standard output is the command's alone, standard input is passed, the exit code is the command's.
"""

from __future__ import annotations

import argparse

from .. import attach, entering, options, target
from ..errors import CliError

USAGE = "asf-play exec [AGENT[.SESSION]] [-t] -- CMD…"
EXIT_CODES = """\
exit codes: the command's own; 128+n when signal n ended it; 64 wrong use, or no such session; 126, 127 the command
  cannot be run or found; 222 the session is not live
"""
EXAMPLES = """\
  asf-play exec claude -- git status
  asf-play exec claude.second -t -- vi notes.md
  asf-play exec -- ls -la                          when only one session lives
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    target.add_arguments(parser)
    parser.add_argument("-t", "--tty", action="store_true", help="with a terminal")
    options.raw_terminal(parser)


def run(request: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises CliError when the session is not live."""
    if request.command is None:
        raise CliError("exec needs a command after --", remedy="asf-play exec AGENT -- CMD…")
    if request.tty and not attach.have_terminal():
        raise CliError(
            "-t needs a terminal, and standard input and output are not one", key="-t", remedy="leave out -t"
        )
    container = entering.container(target.session(request))
    if request.tty:
        return entering.run_on_terminal(container, request.command, not request.raw_terminal)
    return entering.run(container, request.command, not request.raw_terminal)
