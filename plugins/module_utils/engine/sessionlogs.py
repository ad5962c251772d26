# SPDX-License-Identifier: BSD-2-Clause
"""The logs of one session's containers, found without Podman where the record and ``/proc`` tell enough.

A session's own secrets are taken out of everything that is shown: a library's message may quote the key it was given.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from ..core import lifecycle, roles
from ..core.redact import Redactor
from . import evidencefs, inventory, lastwords, logs, procs, state
from .dirs import Env
from .podman import Podman


class Source(NamedTuple):
    """One container's log. ``path`` is empty when the engine keeps no file (an interactive workload's terminal)."""

    container: str
    pid: int
    path: str

    @property
    def alive(self) -> bool:
        """Whether more may come."""
        return self.pid > 0 and procs.start_time(self.pid) is not None


def plan_of(session: str, env: Env = None) -> Any:
    """The session's plan, living or closed, as data; None when there is none left. Makes nothing."""
    record = state.read(session, env) or {}
    newest = [str(one) for one in evidencefs.runs(session, env)[-1:]]
    document = evidencefs.peek(session, record.get("evidence") or next(iter(newest), None), "plan.json", env)
    return document.get("plan") if isinstance(document, dict) else None


def absent(session: str, role: str, env: Env = None) -> Optional[str]:
    """Why the session has no container of this role, by its plan; None where it has one, or nobody knows."""
    return roles.absent(plan_of(session, env), role)


def source(podman: Podman, session: str, role: str, env: Env = None) -> Optional[Source]:
    """The log of the session's container of that role; None when there is no such container. Raises EngineError."""
    recorded: Any = (state.read(session, env) or {}).get("containers") or {}
    if recorded and role not in recorded:
        return None  # a mode without it: Podman need not be asked
    known: Any = recorded.get(role) or {}
    pid, name = known.get("pid"), f"asf-{session}-{role}"
    if isinstance(pid, int) and procs.start_time(pid) == known.get("start"):
        path = logs.path_of(pid, str(known.get("id")))
        if path:
            return Source(name, pid, path)
    form = "{{.State.Pid}} " + inventory.DETAILS_FORMAT
    result = podman.run(["container", "inspect", "--format", form, name], check=False)
    if result.rc:
        return None
    number, _, rest = result.stdout.partition(" ")
    found = next(iter(inventory.details(rest).values()), None)
    return Source(name, int(number) if number.isdigit() else 0, found.log if found else "")


def redactor(podman: Podman, session: str) -> Redactor:
    """Redactor of the secrets that the session has. Raises EngineError, OSError, ValueError, LookupError, TypeError."""
    names = podman.run(["secret", "ls", "--noheading", "--format", "{{.Name}}"]).stdout.split()
    return lastwords.redactor(podman, lifecycle.secrets_of(session, names))


def read(podman: Podman, found: Source) -> list[logs.Line]:
    """All lines that are kept."""
    return logs.read(podman, found.container, found.path)
