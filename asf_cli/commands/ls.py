# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play ls``: the sessions that still own something."""

from __future__ import annotations

import argparse
import os
import sys

from .. import document, errors, render

EXAMPLES = """\
  asf-play ls
  asf-play ls --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Show the sessions that still own something. With ``--json`` a list, empty when there is none."""
    from asf_lib.engine import status
    from asf_lib.engine.podman import Podman

    rows = status.rows(status.sessions(Podman()))
    if request.json:
        print(document.dump(rows))
    else:
        print("\n".join(render.sessions(rows, render.style(sys.stdout, os.environ))))
    return errors.OK
