# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play status``: what there is to know about one session, or the list of all. Changes nothing."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from .. import document, errors, render, sessionview, target

EXAMPLES = """\
  asf-play status                  all sessions
  asf-play status claude           one session: containers, restarts, decisions, limits, evidence
  asf-play status claude.second --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    target.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Show one session, or all when none is named. Raises CliError for a session that does not exist."""
    from asf_lib.engine import status
    from asf_lib.engine.podman import Podman

    given, podman = target.named(request), Podman()
    if not given:
        rows = status.rows(status.sessions(podman))
        content: dict[str, Any] = {"ok": True, "session": None, "status": None, "sessions": rows}
    else:
        name = target.session(request)
        found = status.session(podman, name)
        if found is None:
            raise target.unknown(name, [])  # it went between the two looks
        content = {"ok": True, "session": name, "status": found, "sessions": status.rows([found])}
    if request.json:
        print(document.dump(content))
        return errors.OK
    style = render.style(sys.stdout, os.environ)
    lines = sessionview.session(content["status"], style) if content["status"] else render.sessions(rows, style)
    print("\n".join(lines))
    return errors.OK
