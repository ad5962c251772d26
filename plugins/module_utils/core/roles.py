# SPDX-License-Identifier: BSD-2-Clause
"""Which containers a session has, by its network mode and whether it is brokered. The one table of it."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

PROXY, ISOLATED, ROUTED = MODES = ("proxy", "isolated", "routed")
AGENT, CADDY, BROKER, GATEWAY = "agent", "caddy", "broker", "gateway"
#: The order in which containers are made and shown; those that a session lacks are left out.
CREATE = (CADDY, BROKER, GATEWAY, AGENT)
#: The order of teardown: who can still act for the workload goes first, who tells what it did goes after it.
STOP = (AGENT, CADDY, BROKER, GATEWAY)
#: Everything but the workload; their logs are the product's own: decisions, usage, starts and exits.
SERVICES = (CADDY, BROKER, GATEWAY)
#: Those of them that say what happens, and end with the workload. The gateway says nothing and stays until the close.
TELLING = (CADDY, BROKER)

_CADDY_NEEDS = {
    ISOLATED: "an isolated session has Caddy only for a broker's front, and this one has no broker",
    ROUTED: "a routed session has Caddy only for a broker's front, and this one has no broker",
}


def of(mode: str, brokered: bool) -> Tuple[str, ...]:
    """Roles of a session's containers, in the order in which they are made."""
    there = {
        CADDY: mode == PROXY or brokered,
        BROKER: brokered,
        GATEWAY: mode == ROUTED,
        AGENT: True,
    }
    return tuple(role for role in CREATE if there[role])


def absent(plan: Any, role: str) -> Optional[str]:
    """Why the session of this plan has no container of the role; None when it has one, or the plan does not say."""
    try:
        there, mode = {one["role"] for one in plan["containers"]}, str(plan["session"]["mode"])
    except (LookupError, TypeError):
        return None
    return None if role in there else _why(role, mode)


def _why(role: str, mode: str) -> Optional[str]:
    reasons: Dict[str, Optional[str]] = {
        CADDY: _CADDY_NEEDS.get(mode),
        BROKER: f"this {mode} session is without llm.broker",
        GATEWAY: None if mode == ROUTED else f"only routed sessions have a gateway, and this one is {mode}",
    }
    return reasons.get(role)
