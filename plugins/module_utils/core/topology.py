# SPDX-License-Identifier: BSD-2-Clause
"""The wires of a session: two point-to-point cables and Caddy's uplink, with fixed addresses.

Addresses come from one special-purpose range (RFC 2544, 198.18.0.0/15, is the default's home). Every session uses the
same ones: its namespaces are private, so there is nothing to allocate and nothing to collide.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

from .errors import PlanError

UPLINK_IF = "tap0"


@dataclass(frozen=True)
class End:
    """One end of a cable: the container's role, its interface, address (no prefix) and MAC."""

    role: str
    interface: str
    ip: str
    mac: str


@dataclass(frozen=True)
class Cable:
    """A veth pair; ``near`` is the confined container's end, ``far`` is Caddy's."""

    name: str
    near: End
    far: End

    def as_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "near": vars(self.near).copy(), "far": vars(self.far).copy()}


@dataclass(frozen=True)
class Topology:
    """Both cables (the broker's exists only in a brokered session) and the uplink's interface name."""

    cable_range: str
    agent: Cable
    broker: Cable
    uplink_if: str = UPLINK_IF


def _mac(ip: str) -> str:
    return "02:a5:f0:00:00:" + format(int(ip.rsplit(".", 1)[1]), "02x")


def _cable(network: ipaddress.IPv4Network, name: str, near_if: str, far_if: str, far: int, near: int) -> Cable:
    far_ip, near_ip = str(network[far]), str(network[near])
    return Cable(name, End(name, near_if, near_ip, _mac(near_ip)), End("caddy", far_if, far_ip, _mac(far_ip)))


def topology(cable_range: str) -> Topology:
    """Lay the cables in ``cable_range`` (an IPv4 CIDR of at least /29). Raises PlanError for anything else."""
    try:
        network = ipaddress.IPv4Network(cable_range)
    except ValueError as exc:
        raise PlanError(
            f"the cables' range is not an IPv4 network: {exc}",
            key="asf_network_cable_range",
            found=cable_range,
            remedy="give a CIDR such as 198.18.0.0/24",
        ) from None
    if network.prefixlen > 29:
        raise PlanError(
            "the cables' range is too small",
            key="asf_network_cable_range",
            found=cable_range,
            remedy="give at least a /29",
        )
    return Topology(
        str(network),
        _cable(network, "agent", "eth0", "agent0", 1, 2),
        _cable(network, "broker", "eth0", "broker0", 5, 6),
    )


def overlaps(cable_range: str, others: Sequence[str]) -> List[str]:
    """Those of ``others`` (addresses or CIDRs of the host: addresses, routes, resolver) that meet the range."""
    network = ipaddress.ip_network(cable_range)
    hits = []
    for text in others:
        other = ipaddress.ip_network(text, strict=False)
        if other.version == network.version and other.prefixlen > 0 and other.overlaps(network):
            hits.append(text)
    return hits
