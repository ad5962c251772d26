# SPDX-License-Identifier: BSD-2-Clause
"""What there is to say about sessions, read back from Podman, ``/proc`` and the state folder. Changes nothing."""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, Optional

from ..core import decisions
from ..core.lifecycle import Container
from . import inventory, logs, state
from .podman import Podman
from .state import Env, Record


def sessions(podman: Podman, env: Env = None) -> list[dict[str, Any]]:
    """All sessions that still own something: ``{session, agent, name, mode, isolation, state, reasons}``."""
    return state.sessions(podman, env)


def rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the list, out of full descriptions."""
    names = ("session", "agent", "name", "mode", "isolation", "state", "reasons")
    return [{name: one[name] for name in names} for one in found]


def _plan(record: Record, env: Env) -> Mapping[str, Any]:
    """The plan as the session was opened with; empty when it cannot be read."""
    try:
        with open(str(record.get("plan")), "rb") as handle:
            document = json.loads(handle.read())
    except (OSError, ValueError):
        document = state.evidence_of(record, env=env).read("plan.json") if record.get("evidence") else None
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


def _logs(podman: Podman, containers: list[Container], known: Mapping[str, inventory.Detail]) -> dict[str, Any]:
    """Decisions by reason and restarts of the supervised programs (case B8), out of the live logs."""
    parsed = [
        decisions.parse(logs.lines(podman, one.id, known[one.id].log if one.id in known else ""))
        for one in containers
        if one.role in ("caddy", "broker")
    ]
    return {
        "decisions": decisions.counts(record for one in parsed for record in one.decisions),
        "restarts": decisions.restarts(event for one in parsed for event in one.supervisor),
    }


def session(podman: Podman, name: str, env: Env = None) -> Optional[dict[str, Any]]:
    """One session in full; None when nothing of it exists. Raises EngineError when Podman cannot be asked."""
    listed = inventory.Inventory(podman, name)
    known = {row["session"]: row for row in state.sessions(podman, env, listed)}
    if name not in known:
        return None
    record = state.read(name, env) or {}
    owner = str(os.getuid())
    containers = [one for one in listed.of(name).containers if one.session == name and one.owner == owner]
    plan = _plan(record, env) if record else {}
    labels: Mapping[str, str] = next((one.labels for one in containers), {})
    return {
        **known[name],
        "created": record.get("created"),
        "step": record.get("step"),
        "controllers": record.get("controllers", []),
        "containers": [_container(one) for one in containers],
        "secrets": list(listed.of(name).secrets),
        "evidence": record.get("evidence"),
        "plan": record.get("plan"),
        "plan_digest": record.get("plan_digest") or labels.get("asf.plan"),
        "warnings": plan.get("warnings", []),
        **_logs(podman, containers, listed.details),
    }
