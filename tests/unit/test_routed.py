# SPDX-License-Identifier: BSD-4-Clause
"""What a plan makes of routed rules: refused where they meet this host, routes to what is declared and to no more."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
import yaml

from asf_lib.core import controls, formats, manifest, routed
from asf_lib.core.errors import ManifestError
from asf_lib.core.manifest import Manifest
from asf_lib.core.topology import topology
from asf_lib.engine import yamlload

RESERVED = [("198.18.0.0/24", "asf_session_cable_range"), ("198.18.1.0/24", "asf_session_uplink_range")]
HOST = ["127.0.0.1", "10.9.0.4", "203.0.113.9", "fe80::1"]


def read(allow: list[dict[str, Any]], address: str = "10.0.0.5") -> Manifest:
    control = {"cidr": f"{address}/32", "protocol": "tcp", "ports": [22]}
    network = {"mode": "routed", "allow": [control, *allow]}
    network["verify"] = {"address": address, "port": 22, "blocked_port": 23}
    text = yaml.safe_dump({"name": "a", "network": network}, sort_keys=False)
    return manifest.validate(yamlload.parse(text.encode(), "runtime.yml"), "runtime.yml")


def rule(cidr: str, protocol: str = "udp", **ports: Any) -> dict[str, Any]:
    return {"cidr": cidr, "protocol": protocol, **({"ports": [53]} if protocol != "icmp_echo" else {}), **ports}


def test_rules_that_meet_this_host_or_its_wires_are_all_named() -> None:
    agent = read([rule("198.18.0.0/16"), rule("10.9.0.0/24"), rule("198.18.1.3/32", "tcp"), rule("internet", "tcp")])
    with pytest.raises(ManifestError) as caught:
        routed.check(agent, RESERVED, HOST)
    found = {(p.key, p.found) for p in caught.value.problems}
    assert found == {
        ("network.allow[1].cidr", "198.18.0.0/16"),
        ("network.allow[2].cidr", "10.9.0.0/24"),
        ("network.allow[3].cidr", "198.18.1.3/32"),
    }
    assert all(p.file == "runtime.yml" and p.line and p.remedy for p in caught.value.problems)
    assert len(caught.value.problems) == 4, "the first of them meets both ranges"


def test_the_control_is_not_this_host() -> None:
    with pytest.raises(ManifestError) as caught:
        routed.check(read([], "10.9.0.4"), RESERVED, HOST)
    assert [p.key for p in caught.value.problems] == ["network.allow[0].cidr", "network.verify.address"]


def test_what_meets_nothing_is_accepted() -> None:
    routed.check(read([rule("10.9.1.0/24"), rule("198.18.2.0/24"), rule("internet", "icmp_echo")]), RESERVED, HOST)


def test_routes_are_the_declared_networks_joined() -> None:
    agent = read([rule("10.0.0.0/24"), rule("10.0.1.0/24", "tcp"), rule("10.0.1.0/24", "icmp_echo")])
    assert routed.routes(agent) == ["10.0.0.0/23"]


def test_internet_is_every_public_address_and_no_special_one() -> None:
    routes = [ipaddress.IPv4Network(text) for text in routed.routes(read([rule("internet")]))]
    assert all(net.prefixlen > 0 for net in routes), "never a default route"
    special = {*formats.SPECIAL, *map(ipaddress.IPv4Network, formats.NEVER_ROUTED)}
    control = ipaddress.IPv4Network("10.0.0.5/32")
    assert not any(net.overlaps(gap) for net in routes for gap in special if net != control)
    assert sum(net.num_addresses for net in routes) - 1 + sum(gap.num_addresses for gap in special) == 1 << 32
    for address in ("1.1.1.1", "8.8.8.8", "223.255.255.254"):
        assert any(ipaddress.IPv4Address(address) in net for net in routes)


def test_tuples_and_control_of_the_plan() -> None:
    agent = read([rule("internet", ports="any"), rule("10.1.0.0/16", "icmp_echo")])
    assert routed.tuples(agent) == [
        {"cidr": "10.0.0.5/32", "protocol": "tcp", "ports": [22], "key": "network.allow[0]"},
        {"cidr": "0.0.0.0/0", "protocol": "udp", "ports": "any", "key": "network.allow[1]"},
        {"cidr": "10.1.0.0/16", "protocol": "icmp_echo", "ports": "any", "key": "network.allow[2]"},
    ]
    assert routed.control(agent) == {"address": "10.0.0.5", "port": 22, "blocked_port": 23}


def test_the_gate_tries_one_target_for_each_rule() -> None:
    cable = topology("198.18.0.0/24", 28).gateway
    agent = read([rule("10.0.0.0/24", ports="any"), rule("10.1.0.0/16", "icmp_echo"), rule("10.2.0.9/32")])
    asked = routed.probes(agent, cable)
    assert (asked["allowed"], asked["blocked"]) == ("10.0.0.5:22", "10.0.0.5:23")
    assert asked["udp"] == ["10.0.0.5:9", "10.2.0.9:53"] and asked["icmp"] == ["10.1.0.1"]
    assert asked["via"] == "198.18.0.9" and asked["silent"][0] == "198.18.0.9:22"


def test_what_lies_beside_a_declared_network_is_not_reached() -> None:
    found = routed.beyond(read([rule("10.1.0.0/16")]), ["10.1.2.3:443", "198.18.1.2:443", "10.0.0.5:53"])
    assert set(found) == {f"{a}:443" for a in ("198.18.1.2", "10.0.0.4", "10.0.0.6", "10.0.255.255", "10.2.0.0")}
    assert routed.beyond(read([rule("internet")]), []), "special-purpose ranges lie beside public ones"


def test_a_host_that_carries_no_icmp_refuses_its_rules() -> None:
    agent = read([rule("10.1.0.0/16", "icmp_echo")])
    routed.check(agent, RESERVED, HOST, icmp=True)
    with pytest.raises(ManifestError) as caught:
        routed.check(agent, RESERVED, HOST, icmp=False)
    (problem,) = caught.value.problems
    assert problem.key == "network.allow[1].protocol" and "ping_group_range" in str(problem.remedy) and problem.line


# --- controls ------------------------------------------------------------------------------------------------------


def planned() -> dict[str, Any]:
    agent = read([rule("10.1.0.0/16"), rule("10.0.0.0/24", "tcp", ports=[80])])
    return {"network": {"tuples": routed.tuples(agent), "verify": routed.control(agent)}}


def test_a_closed_port_proves_nothing() -> None:
    both = {"10.0.0.5:22": "connected", "10.0.0.5:23": "connected"}
    assert controls.judge_open(planned(), both)["verdict"] == "pass"
    for end in both:
        for word in ("ECONNREFUSED", "timeout", "EHOSTUNREACH"):
            found = controls.judge_open(planned(), {**both, end: word})
            assert found["verdict"] == "inconclusive" and f"{end}: {word}" in found["evidence"]
    assert controls.judge_open(planned(), {})["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("after", "denied", "carried"),
    [
        ({"control-blocked": 3, "allow-0": 9, "allow-1": 1, "allow-2": 0}, "pass", "pass"),
        ({"control-blocked": 2, "allow-0": 9, "allow-1": 1}, "inconclusive", "pass"),
        ({"allow-0": 9, "allow-1": 1}, "inconclusive", "pass"),
        ({"control-blocked": 3, "allow-0": 4, "allow-1": 1}, "pass", "fail"),
        ({"control-blocked": 3, "allow-0": 9, "allow-1": 0}, "pass", "fail"),
        ({}, "inconclusive", "fail"),
    ],
)
def test_only_what_the_gateway_counted_meanwhile_counts(after: dict[str, int], denied: str, carried: str) -> None:
    """The third rule is TCP and not the control's: nobody tries it, so its counter may stay."""
    before = {"control-blocked": 2, "allow-0": 4, "allow-1": 0, "allow-2": 0}
    found = {one["id"]: one["verdict"] for one in controls.judge_counts(planned(), before, after)}
    assert found == {"gateway-denied": denied, "gateway-carried": carried}
