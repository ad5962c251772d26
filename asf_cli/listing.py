# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play ls`` and ``asf-play doctor``: what there is, without Ansible."""

from __future__ import annotations

import argparse
import os
import sys

from . import document, errors, render

#: The fields of a row of ``ls --json`` that are promised (docs/cli.md); ``reasons`` comes on top.
_ROW = ("session", "agent", "name", "mode", "isolation", "state", "reasons")


def sessions(request: argparse.Namespace) -> int:
    """Show the sessions that still own something. With ``--json`` a list, empty when there is none."""
    from asf_lib.engine import state
    from asf_lib.engine.podman import Podman

    rows = [{key: row.get(key) for key in _ROW} for row in state.sessions(Podman())]
    if request.json:
        print(document.dump(rows))
    else:
        print("\n".join(render.sessions(rows, render.style(sys.stdout, os.environ))))
    return errors.OK


def doctor(request: argparse.Namespace) -> int:
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
