# SPDX-License-Identifier: BSD-4-Clause
"""Which session a playbook is about when its command line leaves that open, said on standard error."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from . import document, render, target
from .errors import OK
from .nearmiss import near

#: Shipped playbooks about a session that exists already.
ABOUT_ONE = ("verify.yml", "close.yml", "status.yml")


def settle(request: argparse.Namespace, shipped: str) -> int | None:
    """Complete the request's ``agent`` and ``session``. An exit code when there is nothing to run.

    Nothing named means the only session there is. For ``verify.yml`` an agent alone may mean the only session it has;
    for ``close.yml`` it always means ``main``: closed twice, it must not close another one. Raises CliError.
    """
    given = request.variables
    if shipped not in ABOUT_ONE or ("agent" in given and shipped != "verify.yml"):
        return None
    if "agent" in given and _recorded(given):
        return None
    known = _rows()
    if shipped == "close.yml" and not known:
        return _nothing(request)
    if shipped == "status.yml" and ("session" not in given and len(known) != 1):
        return None  # it lists all
    chosen = target.choose(given, known)
    agent, _, name = chosen.partition(".")
    if (agent, name) != (given.get("agent"), given.get("session", "main")):
        print(f"session {render.safe(chosen)}: {_why(given)}", file=sys.stderr)
    request.variables = {**given, "agent": agent, "session": name}
    return None


def _recorded(given: dict[str, Any]) -> bool:
    from asf_lib.engine import state

    return state.has_record(f"{given['agent']}.{given.get('session', 'main')}")


def _why(given: dict[str, Any]) -> str:
    if "agent" in given:
        return f"the only one of agent {given['agent']}"
    return f"the only one of the name {given['session']}" if "session" in given else "the only one that exists"


def _nothing(request: argparse.Namespace) -> int:
    if request.json:
        print(document.dump(document.nothing("close.yml", "no session exists")))
    else:
        print("no session exists: nothing to close")
    return OK


def hint(session: str) -> list[str]:
    """Lines about what may have been meant by a session that owns nothing; none when no other one is alike."""
    meant = near(session, [str(row["session"]) for row in _rows() if row["session"] != session]).strip()
    style = render.style(sys.stderr, os.environ)
    return [render.warning(f"there is no session {session}; {meant}", style)] if meant else []


def _rows() -> list[dict[str, Any]]:
    from asf_lib.engine import state
    from asf_lib.engine.podman import Podman

    return state.sessions(Podman())
