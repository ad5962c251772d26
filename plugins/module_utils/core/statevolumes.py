# SPDX-License-Identifier: BSD-2-Clause
"""Decisions about an agent's state volumes: which may be cleared, and whether egress is wider than at the last use.

A state volume carries what one session wrote to the next. Written under a narrow policy and read under a wide one it is
a way out for what the narrow session saw; so the wider open says so (docs/manifest.md, ``filesystem.state``).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .formats import is_special
from .roles import PROXY, ROUTED


@dataclass(frozen=True)
class StateVolume:
    """One volume. ``name`` is Podman's; ``bytes`` is None when it was not measured; ``used_by`` says who uses it."""

    name: str
    agent: str
    session: str
    key: str
    bytes: int | None = None
    used_by: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**vars(self), "used_by": list(self.used_by)}

    def text(self) -> str:
        """One line: the name, what it is, how large it is."""
        return f"{self.name} ({self.key} of {self.agent}.{self.session}, {size(self.bytes)})"


def size(count: int | None) -> str:
    """A number of bytes as people read it."""
    if count is None:
        return "size unknown"
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def owned(rows: Iterable[Mapping[str, Any]], owner: int, agent: str, session: str = "") -> list[StateVolume]:
    """The agent's state volumes out of ``podman volume ls --format json``; ``session`` narrows it. Sorted by name.

    By labels alone: a foreign volume with a name like ASF's is none.
    """
    found = []
    for row in rows:
        labels = row.get("Labels") or {}
        if (
            labels.get("asf.volume") == "state"
            and labels.get("asf.owner") == str(owner)
            and labels.get("asf.agent") == agent
            and session in ("", labels.get("asf.name"))
        ):
            name, of = str(row.get("Name", "")), str(labels.get("asf.name", ""))
            found.append(StateVolume(name, agent, of, name.rpartition(".")[2]))
    return sorted(found, key=lambda one: one.name)


def reach(plan: Mapping[str, Any]) -> list[str]:
    """What the agent may reach under this plan, sorted: ``HOST:PORT``, in routed mode ``CIDR PROTOCOL PORT``."""
    mode, network = plan["session"]["mode"], plan["network"]
    if mode == ROUTED:
        return sorted(
            f"{one['cidr']} {one['protocol']} {port}"
            for one in network["tuples"]
            for port in (["any"] if one["protocol"] == "icmp_echo" or one["ports"] == "any" else one["ports"])
        )
    names = plan["manifest"]["network"].get("allow_domains") or () if mode == PROXY else ()
    return sorted(f"{one['name']}:{port}" for one in names for port in one["ports"])


def wider(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """What may be reached now and could not be reached at the last use."""
    return sorted(one for one in set(now) - set(before) if not any(_covers(old, one) for old in before))


def _covers(old: str, new: str) -> bool:
    """Whether a routed rule of the last use holds this one: the protocol, its addresses, its port."""
    had, wants = old.split(" "), new.split(" ")
    if len(had) != 3 or len(wants) != 3 or had[1] != wants[1] or had[2] not in ("any", wants[2]):
        return False
    outer, inner = ipaddress.IPv4Network(had[0]), ipaddress.IPv4Network(wants[0])
    # A range does not reach the special-purpose ranges inside of it (core/gateway.py), so it does not cover them.
    return inner.subnet_of(outer) and (is_special(outer) or not is_special(inner))
