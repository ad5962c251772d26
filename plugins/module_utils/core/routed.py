# SPDX-License-Identifier: BSD-2-Clause
"""What of a plan is ``routed`` mode's own: declared tuples against this host's addresses, and the routes to them."""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .errors import ManifestError, Problem
from .formats import INTERNET, destinations, never_routed
from .manifest import Manifest, Tuple4
from .topology import Cable

Json = Dict[str, Any]

#: What the probes of UDP rules send to: a rule for any port is tried at this one (discard, RFC 863).
ANY_PORT = 9
#: How many addresses beside declared networks are tried at most.
EDGES = 32


def check(manifest: Manifest, reserved: Sequence[Tuple[str, str]], host: Sequence[str], icmp: bool = True) -> None:
    """Refuse rules that would reach what is never reached, or that this host cannot carry. Raises ManifestError with
    all of them, each at its line.

    ``reserved`` holds ``(CIDR, setting)`` of the cables' and the uplink's range; ``host`` the host's own addresses;
    ``icmp`` says whether the user-mode network can carry ICMP echo.
    ``internet`` is left out: special-purpose ranges are not part of it, and the rules drop the host's public ones.
    """
    problems = [*_rules(manifest, reserved, host), *_control(manifest, host), *_icmp(manifest, icmp)]
    if problems:
        raise ManifestError(problems)


def _rules(manifest: Manifest, reserved: Sequence[Tuple[str, str]], host: Sequence[str]) -> Iterator[Problem]:
    for rule in manifest.network.allow:
        if rule.cidr == INTERNET:
            continue
        network = ipaddress.IPv4Network(rule.cidr)
        for cidr, setting in reserved:
            if network.overlaps(ipaddress.IPv4Network(cidr)):
                message = f"the rule meets {cidr}, which the session's own wires use"
                remedy = f"narrow it, or set {setting} to a range that nothing needs"
                yield _problem(manifest, f"{rule.key}.cidr", message, rule.cidr, remedy)
        own = [a for a in host if ":" not in a and ipaddress.IPv4Address(a) in network]
        if own:
            message = f"the rule covers an address of this host, {own[0]}, which no agent reaches"
            remedy = "narrow it so that this host's own addresses lie outside"
            yield _problem(manifest, f"{rule.key}.cidr", message, rule.cidr, remedy)


def _control(manifest: Manifest, host: Sequence[str]) -> Iterator[Problem]:
    control = manifest.network.verify
    if control is not None and control.address in host:
        remedy = "name a host that is reached over the network"
        message = "the control is this host itself, which no agent reaches"
        yield _problem(manifest, "network.verify.address", message, control.address, remedy)


def _icmp(manifest: Manifest, able: bool) -> Iterator[Problem]:
    for rule in manifest.network.allow:
        if rule.protocol == "icmp_echo" and not able:
            message = "this host's user-mode network carries no ICMP echo: this account may open no ICMP socket"
            remedy = "widen the host's net.ipv4.ping_group_range to the account's group, or remove the rule"
            yield _problem(manifest, f"{rule.key}.protocol", message, rule.protocol, remedy)


def _problem(manifest: Manifest, key: str, message: str, found: str, remedy: str) -> Problem:
    line, column = manifest.marks.get(key, (None, None))
    return Problem(message, manifest.file, line, column, key, found, None, remedy)


def tuples(manifest: Manifest) -> List[Json]:
    """The plan's ``network.tuples``: what the gateway lets through, in the manifest's order."""
    return [
        {
            "cidr": "0.0.0.0/0" if rule.cidr == INTERNET else rule.cidr,
            "protocol": rule.protocol,
            "ports": "any" if rule.ports is None else list(rule.ports),
            "key": rule.key,
        }
        for rule in manifest.network.allow
    ]


def routes(manifest: Manifest) -> List[str]:
    """CIDRs that the agent gets a route to: the declared ones, joined where they touch; never the default route."""
    networks = [net for rule in manifest.network.allow for net in destinations(rule.cidr)]
    return [str(net) for net in ipaddress.collapse_addresses(networks)]


def control(manifest: Manifest) -> Json:
    """The plan's ``network.verify``: one port that is allowed and one that is not, of one host."""
    verify = manifest.network.verify
    assert verify is not None  # the manifest's rules need it in this mode
    return {"address": verify.address, "port": verify.port, "blocked_port": verify.blocked_port}


# --- probes ----------------------------------------------------------------------------------------------------

#: Ports of the gateway that must not answer, not even by a refusal.
SILENT = (22, 53, 80, 443)


def probes(manifest: Manifest, cable: Cable) -> Json:
    """What the gate tries: both controls, one target for each UDP and ICMP rule, the gateway's own ports."""
    verify = control(manifest)
    udp = [f"{_target(rule, manifest)}:{(rule.ports or (ANY_PORT,))[0]}" for rule in _of(manifest, "udp")]
    return {
        "allowed": f"{verify['address']}:{verify['port']}",
        "blocked": f"{verify['address']}:{verify['blocked_port']}",
        "udp": udp,
        "icmp": [_target(rule, manifest) for rule in _of(manifest, "icmp_echo")],
        "silent": [f"{cable.far.ip}:{port}" for port in SILENT],
        "routes": routes(manifest),
        "via": cable.far.ip,
    }


def _of(manifest: Manifest, protocol: str) -> List[Tuple4]:
    return [rule for rule in manifest.network.allow if rule.protocol == protocol]


def _target(rule: Tuple4, manifest: Manifest) -> str:
    """An address that a rule allows: the control's where it can be, else the first host of its first network."""
    verify, networks = control(manifest)["address"], destinations(rule.cidr)
    if any(ipaddress.IPv4Address(verify) in network for network in networks):
        return str(verify)
    network = networks[0]
    return str(network.network_address + (1 if network.prefixlen < 31 else 0))


def beyond(manifest: Manifest, addresses: Sequence[str]) -> List[str]:
    """Those of the addresses (``IPv4:port``) that no declared network covers, and the neighbours of each network."""
    networks = [ipaddress.IPv4Network(text) for text in routes(manifest)]
    edges = [net.network_address - 1 for net in networks] + [net.broadcast_address + 1 for net in networks]
    asked = [*addresses, *(f"{edge}:443" for edge in edges[:EDGES])]
    found = [text for text in asked if not any(_address(text) in net for net in networks)]
    return [text for text in found if not never_routed(f"{_address(text)}/32") or text in addresses]


def _address(text: str) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(text.rpartition(":")[0])
