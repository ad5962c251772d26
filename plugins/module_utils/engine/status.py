# SPDX-License-Identifier: BSD-2-Clause
"""What there is to say about sessions, read back from Podman, ``/proc`` and the state folder. Changes nothing."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Mapping, Optional

from ..core import decisions, history
from ..core.errors import EngineError
from ..core.lifecycle import Container
from ..core.roles import CADDY, SERVICES
from . import counters, evidencefs, inventory, logs, state
from .dirs import Env
from .podman import Podman
from .state import Record

#: Fields of one row of the list of sessions.
ROW = (
    *("session", "agent", "name", "mode", "isolation", "state", "reasons", "exit_code"),
    *("created", "age_s", "requests", "denied", "tokens", "cost_usd"),
)
_UNKNOWN = {name: None for name in ("requests", "denied", "tokens", "cost_usd")}
Numbers = Mapping[str, Any]
#: Hosts that are told by name.
_HOSTS = 20
#: Flows and denials of a gateway that are told one by one.
_ROWS = 20


def sessions(podman: Podman, env: Env = None) -> list[dict[str, Any]]:
    """All sessions of this account that still own something, one row each (``ROW``), by ID. Raises EngineError."""
    listed = inventory.Inventory(podman)
    found = state.sessions(podman, env, listed)
    numbers = _numbers(listed.containers)
    return [_row(one, state.read(one["session"], env), numbers.get(one["session"])) for one in found]


def _row(base: Mapping[str, Any], record: Optional[Record], numbers: Optional[Numbers]) -> dict[str, Any]:
    created = (record or {}).get("created")
    return {**base, "created": created, "age_s": _since(created), **(numbers or _UNKNOWN)}


def rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the list, out of full descriptions."""
    return [{name: one[name] for name in ROW} for one in found]


def _counts(content: bytes) -> list[int]:
    """Requests, refusals, tokens and cost (in millionths of a dollar) in Caddy's log; -1: nothing was used yet."""
    used = decisions.spent(content)
    spent = [-1, -1] if used is None else [decisions.tokens(used), round(1e6 * used.get("cost_usd", 0))]
    return [*decisions.tally(content, decisions.DENIED_NAME), *spent]


def _numbers(containers: list[Container]) -> dict[str, Numbers]:
    """What Caddy has counted, by session, without requests of ASF's own probe; only of sessions whose Caddy lives."""
    owner = str(os.getuid())
    paths = {
        one.session: path
        for one in containers
        if one.role == "caddy" and one.alive and one.owner == owner and (path := logs.path_of(one.pid, one.id))
    }
    try:
        found = logs.summed(paths, _counts)
    except EngineError:
        return {}  # the list says "unknown"; what a session is does not hang on it
    return {
        session: {
            "requests": asked,
            "denied": denied,
            "tokens": None if tokens < 0 else tokens,
            "cost_usd": None if cost < 0 else cost / 1e6,
        }
        for session, (asked, denied, tokens, cost) in found.items()
    }


def _since(stamp: Any) -> Optional[int]:
    """Seconds since a time as records have it (``2026-01-31T12:00:00Z``)."""
    then = history.seconds(stamp)
    return None if then is None else max(0, int(time.time() - then))


def _plan(record: Record, env: Env) -> Mapping[str, Any]:
    """The plan as the session was opened with; empty when it cannot be read."""
    try:
        with open(str(record.get("plan")), "rb") as handle:
            document = json.loads(handle.read())
    except (OSError, ValueError):
        document = evidencefs.peek(record["session"], record.get("evidence"), "plan.json", env)
    plan = document.get("plan") if isinstance(document, dict) else None
    return plan if isinstance(plan, dict) else {}


def _container(one: Container) -> dict[str, Any]:
    return {
        "role": one.role,
        "name": one.name,
        "id": one.id,
        "status": one.status,
        "pid": one.pid,
        "alive": one.alive,
        "exit_code": one.exit_code,
    }


def _paths(podman: Podman, containers: list[Container]) -> dict[str, str]:
    """Where the containers' logs lie, by ID. Podman is asked only for those whose conmon does not tell."""
    found = {one.id: logs.path_of(one.pid, one.id) for one in containers if one.alive}
    silent = [one.id for one in containers if not found.get(one.id)]
    if silent:
        args = ["container", "inspect", "--format", inventory.DETAILS_FORMAT, *silent]
        told = inventory.details(podman.run(args, check=False).stdout)
        found.update({name: one.log for name, one in told.items()})
    return found


def _logs(podman: Podman, containers: list[Container], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Decisions by reason and by host, restarts of the supervised programs (case B8) and what the model's use cost, out
    of the live logs."""
    services = [one for one in containers if one.role in SERVICES]
    paths = _paths(podman, services)
    parsed = [decisions.parse(logs.lines(podman, one.id, paths.get(one.id, ""))) for one in services]
    made = [record for one in parsed for record in one.decisions]
    asked = [record for record in made if record.get("host") != decisions.DENIED_NAME]
    decides = any(one.role == CADDY for one in services)  # where nobody decides, there is no number of requests
    return {
        "requests": sum(map(decisions.weight, asked)) if decides else None,
        "denied": sum(decisions.weight(one) for one in asked if one.get("decision") == "deny") if decides else None,
        "decisions": decisions.counts(made),
        "hosts": decisions.by_host(asked, _HOSTS),
        "restarts": decisions.restarts(event for one in parsed for event in one.supervisor),
        **_used(next((one.counted for one in parsed if one.counted), None), manifest),
    }


def _used(counted: Optional[Mapping[str, Any]], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What went to the model so far, and what the manifest's budgets leave of it; None before the first request."""
    limits = (manifest.get("llm") or {}).get("limits") or {}
    spent = counted or {}
    used = {"tokens_per_session": decisions.tokens(spent), "usd_per_session": spent.get("cost_usd", 0)}
    left = {name: max(0, round(limits[name] - used[name], 6)) for name in used if name in limits}
    return {
        "tokens": decisions.tokens(spent) if counted else None,
        "cost_usd": spent.get("cost_usd") if counted else None,
        "inference": {**spent, "limits": dict(limits), "left": left} if counted or limits else None,
    }


def _verified(record: Record, env: Env) -> Optional[dict[str, Any]]:
    """When the session was verified last, and how that ended."""
    report = evidencefs.peek(record["session"], record.get("evidence"), "verification.json", env) if record else None
    if not isinstance(report, dict):
        return None
    verdicts: dict[str, int] = {}
    for probe in report.get("probes") or []:
        verdict = str(probe.get("verdict"))
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    return {"at": report.get("at"), "ok": report.get("ok"), "verdicts": verdicts}


def _granted(plan: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """What the plan gives to the workload: repositories, names, limits, and the seconds of time that are left."""
    manifest = plan.get("manifest") or {}
    seconds = (plan.get("gate") or {}).get("time_s") or None
    gone = _since(record.get("started"))
    network = plan.get("network") or {}
    return {
        "grants": [
            {"path": repo.get("path"), "mode": "rw" if repo.get("rw") else "ro", "target": repo.get("target")}
            for repo in plan.get("repos") or []
        ],
        "domains": [one.get("name") for one in network.get("domains") or []],
        "limits": manifest.get("limits") or {},
        "time_left_s": max(0, seconds - gone) if seconds and gone is not None else None,
    }


def session(podman: Podman, name: str, env: Env = None) -> Optional[dict[str, Any]]:
    """One session in full; None when nothing of it exists. Raises EngineError when Podman cannot be asked."""
    listed = inventory.Inventory(podman)
    known = {row["session"]: row for row in state.sessions(podman, env, listed)}
    if name not in known:
        return None
    record = state.read(name, env) or {}
    owner = str(os.getuid())
    containers = [one for one in listed.of(name).containers if one.session == name and one.owner == owner]
    plan = _plan(record, env) if record else {}
    labels: Mapping[str, str] = next((one.labels for one in containers), {})
    return {
        **_row(known[name], record, None),
        "started": record.get("started"),
        "verified": _verified(record, env),
        "step": record.get("step"),
        "controllers": record.get("controllers", []),
        "containers": [_container(one) for one in containers],
        "secrets": list(listed.of(name).secrets),
        "evidence": record.get("evidence"),
        "plan": record.get("plan"),
        "plan_digest": record.get("plan_digest") or labels.get("asf.plan"),
        "revision": plan.get("revision"),
        "warnings": plan.get("warnings", []),
        "routed": counters.of(plan, containers, _ROWS),
        **_granted(plan, record),
        **_logs(podman, containers, plan.get("manifest") or {}),
    }
