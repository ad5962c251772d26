# SPDX-License-Identifier: BSD-2-Clause
"""Close the sessions whose workload has ended while nobody was attached.

There is no daemon. What ran has ended by itself by then (Caddy and the broker end with their cables); what is left is
dead containers, secrets and files. The next command that makes or removes sessions, open and close, takes them away:
here, and nowhere else. Commands that only look leave them, and show how they ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Mapping, Optional

from ..core import lifecycle
from ..core.errors import AsfError
from . import procs, state, teardown
from .inventory import Inventory
from .podman import Podman
from .state import Env


@dataclass(frozen=True)
class Swept:
    """One session that was closed, or could not be (``problem``). ``exit_code`` is the workload's, None if unknown."""

    session: str
    exit_code: Optional[int]
    evidence: Optional[str] = None
    head: Optional[str] = None
    reason: Optional[str] = None
    problem: Optional[str] = None

    def as_dict(self) -> Mapping[str, Any]:
        """``{session, exit_code, evidence, head, reason, problem}``; ``reason`` is why ASF ended the workload."""
        return dict(vars(self))

    def line(self) -> str:
        """The one line that the user is told."""
        how = "in a way that nobody saw" if self.exit_code is None else f"with code {self.exit_code}"
        how += f" ({self.reason})" if self.reason else ""
        if self.problem:
            return f"session {self.session} ended {how} and could not be closed: {self.problem}"
        return f"closed session {self.session}, whose workload ended {how}; evidence: {self.evidence}"


def _over(record: Optional[state.Record]) -> bool:
    """Whether a record is of a session that was live, and neither its workload nor anybody who attends it lives.

    Cheap, by ``/proc`` alone: Podman is asked only when there is something to sweep.
    """
    if record is None or record.get("state") != lifecycle.LIVE or procs.any_alive(state.controllers(record)):
        return False
    known = (record.get("containers") or {}).get("agent")
    pid, start = (known.get("pid"), known.get("start")) if isinstance(known, dict) else (None, None)
    return isinstance(pid, int) and isinstance(start, int) and procs.start_time(pid) != start


def ended(podman: Podman, but: str = "", env: Env = None) -> List[Swept]:
    """Close every ended session of this account's state folder except ``but``; whoever is busy with one keeps it.

    Raises nothing that concerns another session than the caller's: what could not be closed is told, and stays.
    """
    candidates = [one for one in sorted(state.recorded(env) - {but}) if _over(state.read(one, env))]
    found = []
    for session in candidates:
        try:
            with state.lock(session, env, timeout=0):
                swept = _close(podman, session, env)
        except AsfError:
            continue  # somebody else works on it
        found += [swept] if swept else []
    return found


def _close(podman: Podman, session: str, env: Env) -> Optional[Swept]:
    """Look again, now that nobody else can act, and close. A broken session is left to its user, who must know."""
    if not _over(state.read(session, env)):
        return None
    rows = state.sessions(podman, env, Inventory(podman))
    row = next((one for one in rows if one["session"] == session and one["state"] == lifecycle.ENDED), None)
    if row is None:
        return None
    try:
        report = teardown.teardown(podman, session, env=env)
    except (AsfError, OSError) as error:
        return Swept(session, row["exit_code"], problem=str(error))
    reasons = [one["reason"] for one in report.containers.values() if one.get("reason")]
    return Swept(session, row["exit_code"], report.evidence, report.head, *reasons[:1])
