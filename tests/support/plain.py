# SPDX-License-Identifier: BSD-4-Clause
"""Playbooks under plain `ansible-playbook`, as somebody runs them who has never heard of asf-play."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support import product
from support.product import Home, Session

ROOT = Path(__file__).resolve().parents[2]
#: of the operator's environment: where collections and folders lie, and nothing about Ansible beyond it
_KEPT = ("HOME", "USER", "PATH", "LANG", "XDG_RUNTIME_DIR", "ANSIBLE_COLLECTIONS_PATH", "PYTHONPYCACHEPREFIX")
_RECAP = re.compile(r"^localhost +: (ok=.*)$", re.MULTILINE)


@dataclass
class Played:
    """What came of a run; `counts` is Ansible's recap (ok, changed, failed, …), empty when there was no play."""

    rc: int
    out: str
    err: str
    counts: dict[str, int]

    def __str__(self) -> str:
        return f"exit {self.rc}\n--- stdout\n{self.out[-6000:]}\n--- stderr\n{self.err[-3000:]}"


def play(playbook: str, session: Session, *args: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Played:
    """Run `ansible-playbook PLAYBOOK` on a session; `env` is added to the environment."""
    base = {name: os.environ[name] for name in _KEPT if name in os.environ}
    base |= _folders(session.home) | dict(env or {})
    argv = ["ansible-playbook", playbook, *session.selector(), *args]
    done = product.run(argv, env=base, cwd=cwd, timeout=240)
    found = _RECAP.search(done.out)
    pairs = (word.split("=") for word in found.group(1).split()) if found else ()
    return Played(done.rc, done.out, done.err, {name: int(value) for name, value in pairs})


def _folders(home: Home) -> dict[str, str]:
    return {"ASF_HOME": str(home.path), "XDG_STATE_HOME": str(home.state), **home.extra}
