# SPDX-License-Identifier: BSD-4-Clause
"""``reset.yml`` on a terminal: the volumes are shown with their sizes, and the question comes before Ansible starts."""

from __future__ import annotations

import argparse
import sys

from . import asking, render

_CONFIRM = "asf_reset_confirm"


def confirmed(request: argparse.Namespace) -> bool:
    """Whether to go on. Sets the role's variable where ``--yes`` or the answer confirms; without a terminal, and with
    ``--check``, it goes on unconfirmed: the module then lists the volumes and refuses, or says what it would do."""
    if request.yes:
        request.variables[_CONFIRM] = True
    if request.check or _CONFIRM in request.variables:
        return True
    if request.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    from asf_lib.engine import statevolumes
    from asf_lib.engine.podman import Podman

    found = statevolumes.find(Podman(), request.variables["agent"], request.variables.get("session", ""))
    if not found:
        return True
    print("\n".join(render.safe(one.text(), 300) for one in found), file=sys.stderr)
    if not asking.yes(f"remove {'this volume' if len(found) == 1 else f'these {len(found)} volumes'} for good?"):
        print("nothing was removed", file=sys.stderr)
        return False
    request.variables[_CONFIRM] = True
    return True
