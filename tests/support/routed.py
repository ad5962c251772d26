# SPDX-License-Identifier: BSD-4-Clause
"""Manifests of routed agents for the closed network: a site with open ports, a resolver that answers, and ICMP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support import addresses

SITE, RESOLVER = addresses.SITE, addresses.RESOLVER
ALLOWED, BLOCKED = 443, 8443  # both are open on the site

Rule = dict[str, Any]


def tcp(address: str = SITE, ports: Sequence[int] | str = (ALLOWED, 80)) -> Rule:
    """A rule for TCP; an address stands for itself alone."""
    return {"cidr": _cidr(address), "protocol": "tcp", "ports": ports if isinstance(ports, str) else list(ports)}


def udp(address: str = RESOLVER, ports: Sequence[int] | str = (53,)) -> Rule:
    """A rule for UDP."""
    return {**tcp(address, ports), "protocol": "udp"}


def echo(address: str = SITE) -> Rule:
    """A rule for ICMP echo."""
    return {"cidr": _cidr(address), "protocol": "icmp_echo"}


def _cidr(address: str) -> str:
    return address if "/" in address or address == "internet" else f"{address}/32"


def verify(address: str = SITE, port: int = ALLOWED, blocked_port: int = BLOCKED) -> Mapping[str, Any]:
    """Both controls."""
    return {"address": address, "port": port, "blocked_port": blocked_port}


def routed(*rules: Rule, control: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A manifest; without rules: TCP to the site, UDP to the resolver, ICMP to the site."""
    network = {
        "mode": "routed",
        "allow": list(rules) or [tcp(), udp(), echo()],
        "verify": dict(control or verify()),
    }
    runtime = {"mode": "service", "command": ["sleep", "600"]}
    return {"adapter": "generic", "runtime": runtime, "network": network, **more}
