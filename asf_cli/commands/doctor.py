# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play doctor``: what this host offers and lacks."""

from __future__ import annotations

import argparse
import os
import sys

from .. import document, errors, render

EXAMPLES = """\
  asf-play doctor
  asf-play doctor --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Show what the host offers and lacks; 223 when something that every session needs is missing."""
    from asf_lib.core import doctor as judge
    from asf_lib.engine import home, hostfacts

    verdicts = judge.verdicts(hostfacts.collect(home.load_settings(home.resolve()).resolver))
    ok, found = judge.ready(verdicts), [verdict.as_dict() for verdict in verdicts]
    if request.json:
        print(document.dump({"ok": ok, "checks": found}))
    else:
        print("\n".join(render.checks(found, render.style(sys.stdout, os.environ))))
    return errors.OK if ok else errors.HOST
