# SPDX-License-Identifier: BSD-2-Clause
"""The wires of a session: point-to-point cables and private uplinks, with fixed addresses.

Addresses come from one special-purpose range (RFC 2544, 198.18.0.0/15, is the default's home). Every session uses the
same ones: its namespaces are private, so there is nothing to allocate and nothing to collide.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Tuple

from .errors import PlanError

UPLINK_IF = "tap0"
#: That of slirp4netns' and pasta's links. A gateway's cable has the same: it forwards packets, and with a smaller one
#: an agent's datagrams would become fragments, which are dropped, and a stream would cost its user-mode network more.
UPLINK_MTU = 65520
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
    """A veth pair; ``near`` is the confined container's end, ``far`` the enforcer's."""

    name: str
    near: End
    far: End
    mtu: int = 1500

    def as_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "near": vars(self.near).copy(), "far": vars(self.far).copy(), "mtu": self.mtu}


@dataclass(frozen=True)
class Topology:
    """Every cable that a session may have, whether it has it or not, and the uplinks' interface name.

    Uplinks lie in namespaces of their own, so all have the same name and range.
    """

    cable_range: str
    agent: Cable
    broker: Cable
    gateway: Cable
    uplink_if: str = UPLINK_IF


def _mac(ip: str) -> str:
    return "02:a5:f0:00:00:" + format(int(ip.rsplit(".", 1)[1]), "02x")


def _cable(
    network: ipaddress.IPv4Network, name: str, far: Tuple[str, str], near: Tuple[str, str], at: int, mtu: int = 1500
) -> Cable:
    """``far`` and ``near`` are role and interface; ``at`` is the number of the far end's address, the near's follows.

    Numbers count past the range where it is too small for a cable that this session does not have.
    """
    far_ip, near_ip = (str(network.network_address + number) for number in (at, at + 1))
    return Cable(name, End(*near, near_ip, _mac(near_ip)), End(*far, far_ip, _mac(far_ip)), mtu)


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


def topology(cable_range: str, longest: int = 29) -> Topology:
    """Lay the cables in ``cable_range``, a special-purpose IPv4 CIDR with a prefix of at most ``longest``: 28 with the
    gateway's cable, else 29. Raises PlanError otherwise.
    """
    network = _range(cable_range, "asf_session_cable_range", "198.18.0.0/24")
    if network.prefixlen > longest:
        raise PlanError(
            "the cables' range is too small",
            key="asf_session_cable_range",
            found=cable_range,
            remedy=f"give at least a /{longest}",
        )
    return Topology(
        str(network),
        _cable(network, "agent", ("caddy", "agent0"), ("agent", "eth0"), 1),
        _cable(network, "broker", ("caddy", "broker0"), ("broker", "eth0"), 5),
        _cable(network, "gateway", ("gateway", "agent0"), ("agent", "eth1"), 9, UPLINK_MTU),
    )


def uplink_range(text: str) -> str:
    """The range behind Caddy's uplink, exactly a special-purpose /24 (its addresses are .2, .3, .100).

    Raises PlanError for anything else.
    """
    network = _range(text, "asf_session_uplink_range", "198.18.1.0/24")
    if network.prefixlen != 24:
        raise PlanError(
            "the uplink's range must be a /24",
            key="asf_session_uplink_range",
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
