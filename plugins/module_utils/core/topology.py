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
#: Where ranges may lie: benchmarking, private and carrier's space (RFC 2544, 1918, 6598). Public ones would be cut off.
SPECIAL = tuple(
    map(ipaddress.IPv4Network, ("198.18.0.0/15", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"))
)


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


def _range(text: str, key: str, example: str) -> ipaddress.IPv4Network:
    """The network that a setting names, inside the special-purpose space. Raises PlanError that names ``key``."""

    def refuse(message: str) -> PlanError:
        return PlanError(message, key=key, found=text[:80], remedy=f"give a CIDR such as {example}")

    try:
        network = ipaddress.IPv4Network(text)
    except ValueError as exc:
        raise refuse(f"the range is not an IPv4 network: {exc}") from None
    if str(network) != text:
        raise refuse(f"the range must be written as {network}")
    if not any(network.subnet_of(space) for space in SPECIAL):
        raise refuse("the range is not inside " + ", ".join(map(str, SPECIAL)))
    return network


def topology(cable_range: str) -> Topology:
    """Lay the cables in ``cable_range`` (a special-purpose IPv4 CIDR, /29 or larger). Raises PlanError otherwise."""
    network = _range(cable_range, "asf_network_cable_range", "198.18.0.0/24")
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


def uplink_range(text: str) -> str:
    """The range behind Caddy's uplink, exactly a special-purpose /24 (its addresses are .2, .3, .100).

    Raises PlanError for anything else.
    """
    network = _range(text, "asf_network_uplink_range", "198.18.1.0/24")
    if network.prefixlen != 24:
        raise PlanError(
            "the uplink's range must be a /24",
            key="asf_network_uplink_range",
            found=text,
            remedy="give a CIDR such as 198.18.1.0/24",
        )
    return str(network)


def overlaps(cable_range: str, others: Sequence[str]) -> List[str]:
    """Those of ``others`` (addresses or CIDRs of the host: addresses, routes, resolver) that meet the range."""
    network = ipaddress.ip_network(cable_range)
    hits = []
    for text in others:
        other = ipaddress.ip_network(text, strict=False)
        if other.version == network.version and other.prefixlen > 0 and other.overlaps(network):
            hits.append(text)
    return hits
