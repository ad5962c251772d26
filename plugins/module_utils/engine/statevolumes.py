# SPDX-License-Identifier: BSD-2-Clause
"""State volumes on this host: found by label, measured, cleared; and what their last session could reach."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import AsfError, PlanError
from ..core.statevolumes import StateVolume, owned, reach, size, wider
from . import dirs, evidencefs, state
from .podman import Podman

#: Seconds for measuring one; a workload decides how many files lie in it.
_DEADLINE = 20
_LIST = ["volume", "ls", "--filter", "label=asf.volume=state", "--format", "json"]


class Outcome(NamedTuple):
    """``volumes`` were found, ``removed`` are names of those that went; ``actions`` are sentences."""

    changed: bool
    volumes: list[StateVolume]
    removed: list[str]
    actions: list[str]


def find(podman: Podman, agent: str, session: str = "") -> list[StateVolume]:
    """The agent's state volumes with size and users; ``session`` narrows it to one session's."""
    rows = podman.json(_LIST)
    places = {str(row.get("Name")): str(row.get("Mountpoint", "")) for row in rows}
    found = owned(rows, os.getuid(), agent, session)
    sessions = {row["session"]: row["state"] for row in state.sessions(podman)} if found else {}
    return [
        dataclasses.replace(
            one,
            bytes=_measure(podman, places[one.name]),
            used_by=(*_containers(podman, one.name), *_session(one, sessions)),
        )
        for one in found
    ]


def _containers(podman: Podman, volume: str) -> list[str]:
    said = podman.run(["ps", "--all", "--filter", f"volume={volume}", "--format", "{{.Names}}"]).stdout
    return [f"container {name}" for name in said.split()]


def _session(one: StateVolume, sessions: Mapping[str, str]) -> list[str]:
    """A session that owns something may be about to make the container that uses it."""
    name = f"{one.agent}.{one.session}"
    return [f"session {name} ({sessions[name]})"] if name in sessions else []


def _measure(podman: Podman, place: str) -> int | None:
    """Bytes on disk, as the root of the operator's user namespace sees them; links are not followed."""
    with contextlib.suppress(AsfError, ValueError, IndexError):
        argv = ["unshare", "du", "--summarize", "--block-size=1", "--one-file-system", "--", place]
        return int(podman.run(argv, timeout=_DEADLINE).stdout.split()[0])
    return None


def clear(podman: Podman, agent: str, session: str = "", *, confirmed: bool, check: bool = False) -> Outcome:
    """Remove the agent's state volumes; ``check`` only says so. Nothing happens unless all of them are free.

    Raises PlanError when one is in use, or when it is not confirmed; both name all of them with their sizes.
    """
    with contextlib.ExitStack() as held:
        for name in sorted({volume.session for volume in owned(podman.json(_LIST), os.getuid(), agent, session)}):
            held.enter_context(state.lock(f"{agent}.{name}"))
        found = find(podman, agent, session)
        if not found:
            return Outcome(False, [], [], [f"{agent} has no state volume"])
        _refuse_used(found)
        if check:
            return Outcome(True, found, [], [f"would remove {one.text()}" for one in found])
        if not confirmed:
            raise PlanError(
                f"this removes for good what {agent} keeps between sessions: " + "; ".join(o.text() for o in found),
                key="asf_reset_confirm",
                remedy="confirm it: --yes (asf-play), or -e asf_reset_confirm=true",
                code="confirm",
            )
        for one in found:
            podman.run(["volume", "rm", one.name])
            _record(one.name).unlink(missing_ok=True)
    names = [one.name for one in found]
    return Outcome(True, found, names, [f"removed {one.text()}" for one in found])


def _refuse_used(found: Sequence[StateVolume]) -> None:
    used = [one for one in found if one.used_by]
    if used:
        raise PlanError(
            "in use: " + "; ".join(f"{one.text()} by {', '.join(one.used_by)}" for one in used),
            key="agent",
            remedy=f"close it first: asf-play close.yml -e agent={used[0].agent} -e session={used[0].session}",
            code="in-use",
        )


# --- what the last session could reach ---------------------------------------------------------------------------


def _record(name: str) -> Path:
    return dirs.state_dir() / "volumes" / f"{name}.json"


def widened(plan: Mapping[str, Any]) -> list[dict[str, str]]:
    """A warning for each state volume of the plan whose last session could reach less than this one may."""
    warnings = []
    for volume in plan["volumes"]:
        before = _last(str(volume["name"]))
        new = [] if before is None else wider(before, reach(plan))
        if new:
            names = ", ".join(new[:5]) + (f" and {len(new) - 5} more" if len(new) > 5 else "")
            warnings.append(
                {
                    "key": "filesystem.state",
                    "message": f"the volume {volume['key']} was last used where {names} could not be reached: what "
                    "that session kept in it can leave by there. `asf-play reset.yml` clears it",
                }
            )
    return warnings


def _last(name: str) -> list[str] | None:
    """What the volume's last session could reach; None when that is not known."""
    try:
        data = json.loads(_record(name).read_text(encoding="utf-8"))
        return [str(one) for one in data["reach"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(plan: Mapping[str, Any]) -> None:
    """Record what the session of this plan may reach, for the next one that uses its volumes."""
    for volume in plan["volumes"]:
        path = _record(str(volume["name"]))
        dirs.private(path.parent)
        evidencefs.atomic(path, (json.dumps({"reach": reach(plan)}) + "\n").encode("ascii"))


__all__ = ["Outcome", "StateVolume", "clear", "find", "remember", "size", "widened"]
