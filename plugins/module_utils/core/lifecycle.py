# SPDX-License-Identifier: BSD-2-Clause
"""What state a session is in, what it owns, and what teardown may remove (invariant 6). Pure.

A session is known by its record (state folder) and by the labels of its resources (Podman); either may be missing
(case L2). Ownership is the label ``asf.session`` *and* ``asf.owner`` for containers and volumes; a secret belongs to a
session by its exact name, because Podman lists secrets without labels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import roles

OPENING, LIVE, CLOSING, BROKEN, ENDED = STATES = ("opening", "live", "closing", "broken", "ended")

LABEL_SESSION = "asf.session"
LABEL_OWNER = "asf.owner"
LABEL_ROLE = "asf.role"
LABEL_VOLUME = "asf.volume"

#: What Podman calls a container whose end it saw; only then its exit code means anything.
OVER = ("exited", "stopped")

_SECRET = re.compile(r"asf-([a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*)-(token|master|provider|upstream|key)\Z")


@dataclass(frozen=True)
class Container:
    """One container as Podman lists it. ``alive``, ``monitored`` (by its conmon) and ``links`` (names of its network
    interfaces, None when unknown) are measured in ``/proc``: Podman goes on saying what it last heard. ``seen`` is
    False when Podman says that it is over and not when it ended: then Podman has only reset what it knew.
    """

    id: str
    name: str
    role: str
    session: str
    owner: str
    status: str
    pid: int
    alive: bool
    start: int | None = None
    exit_code: int | None = None
    monitored: bool = True
    links: frozenset[str] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    seen: bool = True


@dataclass(frozen=True)
class Volume:
    """One volume as Podman lists it."""

    name: str
    session: str
    owner: str
    kind: str


@dataclass(frozen=True)
class Survey:
    """What exists that may belong to one session."""

    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    secrets: tuple[str, ...] = ()
    run_folder: bool = False
    record: bool = False

    def empty(self) -> bool:
        """True when there is nothing at all, not even a record."""
        return not (self.containers or self.volumes or self.secrets or self.run_folder or self.record)


@dataclass(frozen=True)
class Removal:
    """What teardown takes away, and what it leaves with the reason, one sentence each."""

    containers: tuple[Container, ...]
    volumes: tuple[str, ...]
    secrets: tuple[str, ...]
    kept: tuple[str, ...]

    def empty(self) -> bool:
        """True when Podman holds nothing to remove."""
        return not (self.containers or self.volumes or self.secrets)


def secret_session(name: str) -> tuple[str, str] | None:
    """``(session, role)`` of a secret's name, or None when the name is not of ASF's form.

    A role has no dash, so the last dash splits without doubt: ``asf-a.b-token`` is of ``a.b``, never of ``a.b-token``.
    """
    match = _SECRET.match(name)
    return (match.group(1), match.group(2)) if match else None


def secrets_of(session: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that belong to the session, sorted."""
    found = ((name, secret_session(name)) for name in names)
    return tuple(sorted(name for name, parts in found if parts is not None and parts[0] == session))


def _rank(container: Container) -> tuple[int, str]:
    role = container.role
    # A helper (probe, copy) acts for nobody: with the agent, first.
    return (roles.STOP.index(role) if role in roles.STOP else 0, container.name)


def removal(session: str, owner: int, survey: Survey) -> Removal:
    """Decide what goes. State volumes stay (only ``reset.yml`` clears them); what somebody else owns stays."""
    kept: list[str] = []
    containers = []
    for container in survey.containers:
        if container.session == session and container.owner == str(owner):
            containers.append(container)
        else:
            kept.append(
                f"container {container.name} not removed because its labels do not say that it belongs to "
                f"session {session} of uid {owner}"
            )
    volumes = []
    for volume in survey.volumes:
        if volume.kind == "state":
            kept.append(f"volume {volume.name} not removed because it holds state that outlives sessions")
        elif volume.session == session and volume.owner == str(owner):
            volumes.append(volume.name)
        else:
            kept.append(f"volume {volume.name} not removed because it is not this session's")
    return Removal(
        tuple(sorted(containers, key=_rank)),
        tuple(sorted(volumes)),
        secrets_of(session, survey.secrets),
        tuple(kept),
    )


def left(session: str, owner: int, survey: Survey) -> list[str]:
    """What is still there after a teardown; empty when all is gone."""
    rest = removal(session, owner, survey)
    found = [f"container {container.name}" for container in rest.containers]
    found += [f"volume {name}" for name in rest.volumes] + [f"secret {name}" for name in rest.secrets]
    return found + (["run folder"] if survey.run_folder else [])


def _wanted(record: Mapping[str, Any]) -> Mapping[str, Any]:
    wanted = record.get("containers")
    return wanted if isinstance(wanted, Mapping) else {}


def problems(record: Mapping[str, Any] | None, containers: Sequence[Container]) -> list[str]:
    """Why a session that should be live is not, one sentence each; the workload's own end is no problem.

    The services end by themselves, with code 0, when the workload has (their cables are gone). Which there are, the
    record tells: a session without Caddy lives as long as its agent does.
    """
    if record is None:
        return ["its record is missing; its resources were found by label"]
    by_role = {container.role: container for container in containers}
    over = ended(by_role.get("agent"))
    found = []
    for role, known in _wanted(record).items():
        container = by_role.get(role)
        if container is None:
            found.append(f"the {role} container is gone")
            continue
        if over and not container.alive:
            if role != "agent" and container.exit_code not in (0, None):
                found.append(f"the {role} container did not end with the workload: exit code {container.exit_code}")
        elif not container.alive:
            found.append(f"the {role} container is dead (Podman says {container.status})")
        elif container.alive and _replaced(known, container):
            found.append(f"the {role} container was restarted behind ASF's back: it has no cables")
        elif container.alive and not container.monitored:
            found.append(f"the {role} container's monitor (conmon) is dead: what it logs and how it ends is lost")
        elif container.alive and _cut_off(known, container):
            found.append(f"the {role} container's way out (slirp4netns or pasta) is dead: no declared name is reached")
    return found


def ended(agent: Container | None) -> bool:
    """True when the workload's container is there and Podman knows that it ended: then it has its exit code.

    A dead process of which Podman still says that it runs (its conmon was killed) ended as well, but how nobody knows;
    the same holds after a reboot or a wedge, when Podman 5 lists it as exited with code 0.
    """
    return agent is not None and not agent.alive and agent.status in OVER and agent.seen


def _cut_off(known: Any, container: Container) -> bool:
    """True when the user-mode network is gone, and with it the interface that the record names."""
    wanted = known.get("uplink") if isinstance(known, Mapping) else None
    return bool(wanted) and container.links is not None and wanted not in container.links


def _replaced(known: Any, container: Container) -> bool:
    """True when another process than the one chosen at init is the container's first."""
    if not isinstance(known, Mapping) or not isinstance(known.get("pid"), int):
        return False
    if known["pid"] != container.pid:
        return True
    start = known.get("start")
    return isinstance(start, int) and container.start is not None and start != container.start


def state(record: Mapping[str, Any] | None, containers: Sequence[Container], controller_alive: bool) -> str:
    """State of a session that has a record or resources.

    ``opening`` and ``closing`` last as long as a controller lives; without one the session is ``broken`` (case L1), as
    is everything that has resources and no record (case L2). A workload that ended by itself leaves ``ended``, whatever
    became of its services: nothing can be broken any more.
    """
    said = record.get("state") if record is not None else None
    if said in (OPENING, CLOSING):
        return str(said) if controller_alive else BROKEN
    if record is None or said not in (LIVE, ENDED):
        return BROKEN
    agent = next((container for container in containers if container.role == "agent"), None)
    if ended(agent):
        return ENDED
    return BROKEN if agent is None or problems(record, containers) else LIVE
