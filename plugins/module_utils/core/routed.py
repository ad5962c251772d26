# SPDX-License-Identifier: BSD-2-Clause
"""What of a plan is ``routed`` mode's own: declared tuples against this host's addresses, and the routes to them."""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from .errors import ManifestError, Problem
from .formats import INTERNET, destinations
from .manifest import Manifest

Json = Dict[str, Any]

#: What the probes of UDP rules send to: a rule for any port is tried at this one (discard, RFC 863).
ANY_PORT = 9


def check(manifest: Manifest, reserved: Sequence[Tuple[str, str]], host: Sequence[str]) -> None:
    """Refuse rules that would reach what is never reached. Raises ManifestError with all of them, each at its line.

    ``reserved`` holds ``(CIDR, setting)`` of the cables' and the uplink's range; ``host`` the host's own addresses.
    ``internet`` is left out: special-purpose ranges are not part of it, and the rules drop the host's public ones.
    """
    problems = [*_rules(manifest, reserved, host), *_control(manifest, reserved, host)]
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


def _control(manifest: Manifest, reserved: Sequence[Tuple[str, str]], host: Sequence[str]) -> Iterator[Problem]:
    control = manifest.network.verify
    if control is not None and control.address in host:
        remedy = "name a host that is reached over the network"
        message = "the control is this host itself, which no agent reaches"
        yield _problem(manifest, "network.verify.address", message, control.address, remedy)


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
