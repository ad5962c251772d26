# SPDX-License-Identifier: BSD-4-Clause
"""Probes of routed mode on real Podman: what each of them guards is really broken, and verification finds it.

Every rule of the gateway is taken away once, and every route of the agent; both controls are broken in each way that
must not pass for a denial. `MUTATIONS` is part of the security model's table.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from support import addresses
from support.mutate import Plan, Run, added, mutated, without
from support.netns import wire_sh
from support.product import Home
from support.routed import ALLOWED, BLOCKED, RESOLVER, SITE, echo, routed, tcp, udp, verify

from asf_lib.core import controls
from asf_lib.engine import bringup, verification

pytestmark = [pytest.mark.podman]

BROKERED = {"llm": {"protocol": "openai", "mock": "hello"}}
RAW = {"capabilities": ["net_raw"]}


@dataclass(frozen=True)
class Case:
    """One way to break a session, and the verdicts that must follow."""

    name: str
    expect: dict[str, str]
    edit: Callable[[Plan], None] | None = None
    hooks: dict[str, Callable[[dict[str, int]], None]] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=routed)


def sh(role: str, script: str) -> dict[str, Callable[[dict[str, int]], None]]:
    """Run host tools in a container's network namespace once the session is wired."""
    return {"after_wire": lambda pids: (wire_sh(pids[role], script), None)[1]}


def first_in_forward(rule: str) -> dict[str, Callable[[dict[str, int]], None]]:
    return sh("gateway", f"nft 'insert rule inet asf forward {rule}'")


PASSED_BY = f"tcp dport {BLOCKED} ct state new ct mark set 1 accept"
ROUTE = f"{SITE} via 198.18.0.9 dev eth1"

CASES = (
    Case(
        "a-rule-that-lets-the-blocked-port-by",
        {"gateway-rules": "fail", "routed-block": "fail", "gateway-denied": "inconclusive"},
        hooks=first_in_forward(PASSED_BY),
    ),
    Case(
        "the-allowed-port-is-dropped",
        {"routed-allow": "inconclusive", "routed-block": "inconclusive", "gateway-silent": "inconclusive"},
        hooks=first_in_forward(f"tcp dport {ALLOWED} drop"),
    ),
    Case(
        "a-drop-that-nobody-counts",
        {"gateway-denied": "inconclusive", "gateway-rules": "fail"},
        hooks=first_in_forward(f"tcp dport {BLOCKED} drop"),
    ),
    Case(
        "datagrams-are-dropped",
        {"gateway-carried": "fail", "routed-udp": "warn"},
        hooks=first_in_forward("udp dport 53 drop"),
    ),
    Case(
        "no-rules",
        {"gateway-rules": "fail", "gateway-silent": "fail", "routed-allow": "inconclusive"},
        hooks=sh("gateway", "nft flush ruleset"),
    ),
    Case(
        "a-gateway-that-answers",
        {"gateway-silent": "fail", "gateway-rules": "fail"},
        hooks=sh(
            "gateway",
            "nft 'insert rule inet asf screen ip daddr 198.18.0.9 accept; insert rule inet asf input accept; "
            "insert rule inet asf output accept'",
        ),
    ),
    Case(
        "a-default-route",
        {"agent-routes": "fail", "net-routes": "fail", "unreach": "fail"},
        hooks=sh("agent", "ip route add default via 198.18.0.9 dev eth1"),
    ),
    Case(
        "a-wider-route",
        {"agent-routes": "fail", "net-routes": "fail", "unreach": "fail"},
        hooks=sh("agent", "ip route add 198.51.100.8/29 via 198.18.0.9 dev eth1"),
    ),
    Case(
        "a-route-through-caddy",
        {"agent-routes": "fail", "net-routes": "fail", "routed-allow": "inconclusive"},
        hooks=sh("agent", f"ip route replace {SITE} via 198.18.0.1 dev eth0"),
        manifest=routed(**BROKERED),
    ),
    Case(
        "no-forwarding",
        {"gateway-forwarding": "fail", "routed-allow": "inconclusive"},
        lambda plan: without(plan, "gateway", "--sysctl=net.ipv4.ip_forward=1"),
    ),
    Case(
        "agent-forwards",
        {"agent-forwarding": "fail"},
        lambda plan: added(plan, "agent", "--sysctl=net.ipv4.ip_forward=1"),
    ),
    Case("gateway-mapped", {"gateway-userns": "fail"}, lambda plan: without(plan, "gateway", "--userns=nomap")),
    Case("gateway-more-links", {"gateway-links": "fail"}, hooks=sh("gateway", "ip link add x0 type veth peer name x1")),
    Case(
        "gateway-two-ways-out",
        {"gateway-routes": "fail"},
        hooks=sh("gateway", "ip route add default via 198.18.0.10 dev agent0 onlink metric 50"),
    ),
    Case("gateway-listens", {"gateway-options": "fail"}, lambda plan: without(plan, "gateway", "--cap-drop=ALL")),
    Case(
        "no-icmp-sockets",
        {"routed-icmp": "inconclusive", "gateway-carried": "fail"},
        lambda plan: without(plan, "agent", "--sysctl=net.ipv4.ping_group_range=1000 1000"),
    ),
    Case(
        "a-closed-blocked-port",
        {"control-open": "inconclusive"},
        manifest=routed(tcp(addresses.REFUSES), control=verify(addresses.REFUSES)),
    ),
    Case(
        "a-host-that-is-not-reached",
        {"control-open": "inconclusive", "routed-allow": "inconclusive"},
        manifest=routed(tcp(addresses.BLACKHOLE), control=verify(addresses.BLACKHOLE)),
    ),
    Case(
        "more-than-net-raw",
        {"caps": "fail", "agent-options": "fail"},
        lambda plan: added(plan, "agent", "--cap-add=NET_BIND_SERVICE"),
        manifest=routed(**RAW),
    ),
    Case(
        "net-raw-not-held",
        {"caps": "fail", "sock-raw": "fail", "agent-options": "fail"},
        lambda plan: without(plan, "agent", "--cap-add=NET_RAW"),
        manifest=routed(**RAW),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mutation(home: Home, case: Case) -> None:
    home.agent("routed", case.manifest)
    with mutated(home, "routed", edit_plan=case.edit, **case.hooks) as broken:
        assert broken.error is not None, f"verified although broken: {broken}"
        found = {probe: broken.verdict(probe) for probe in case.expect}
        assert found == case.expect, str(broken)


@pytest.mark.parametrize("more", [{}, BROKERED, RAW], ids=["bare", "brokered", "net-raw"])
def test_untouched_sessions_are_verified(home: Home, more: dict[str, Any]) -> None:
    """The control of all the others."""
    home.agent("routed", routed(**more))
    with mutated(home, "routed") as whole:
        assert whole.error is None and whole.bad() == {}, str(whole)
        told = {name: whole.verdict(name) for name in MUTATIONS}
        assert set(told.values()) == {"pass"}, told
        assert "dropped" in whole.evidence("gateway-denied") and "network.allow[1]" in whole.evidence("gateway-carried")


def test_what_nobody_answers_is_said_and_does_not_stop_the_open(home: Home) -> None:
    silent = [tcp(), udp(SITE, [1234]), echo(addresses.BLACKHOLE)]
    home.agent("routed", routed(*silent))
    with mutated(home, "routed") as run:
        assert run.error is None, str(run)
        assert {run.verdict("routed-udp"), run.verdict("routed-icmp")} == {"warn"}
        assert run.evidence("routed-udp").startswith("inconclusive:")
        assert run.verdict("gateway-carried") == "pass"


def _gateway_rules(pid: int) -> list[dict[str, Any]]:
    listed = json.loads(wire_sh(pid, "nft -j -a list ruleset"))["nftables"]
    return [item["rule"] for item in listed if "rule" in item]


def _outside(run: Run) -> dict[str, str]:
    chosen = bringup.chosen(run.doc)
    return {r["id"]: r["verdict"] for r in verification.outside(run.podman, run.doc, chosen, agent_started=True)}


def test_every_rule_of_the_gateway_that_is_taken_away_is_missed(home: Home) -> None:
    home.agent("routed", routed(tcp(), udp(RESOLVER)))
    with mutated(home, "routed") as run:
        assert run.error is None, str(run)
        pid = run.pids["gateway"]
        plan = next(item["rules"] for item in run.doc.plan["wiring"]["nft"] if item["role"] == "gateway")
        document = json.dumps({"nftables": [{"flush": {"ruleset": None}}, *({"add": one} for one in plan)]})
        rules = _gateway_rules(pid)
        assert len(rules) == sum("rule" in one for one in plan) > 20
        for index, rule in enumerate(rules):
            gone = _gateway_rules(pid)[index]
            place = {key: gone[key] for key in ("family", "table", "chain", "handle")}
            wire_sh(pid, f"nft -j -f - <<'END'\n{json.dumps({'nftables': [{'delete': {'rule': place}}]})}\nEND")
            assert _outside(run)["gateway-rules"] == "fail", rule
            wire_sh(pid, f"nft -j -f - <<'END'\n{document}\nEND")
        assert _outside(run)["gateway-rules"] == "pass"


def test_every_route_of_the_agent_that_is_taken_away_is_missed(home: Home) -> None:
    home.agent("routed", routed(tcp(), udp(RESOLVER)))
    with mutated(home, "routed") as run:
        pid = run.pids["agent"]
        (routes,) = run.doc.plan["wiring"]["routes"]
        assert len(routes["to"]) == 2
        for cidr in [*routes["to"], "198.18.0.9/32"]:
            route = wire_sh(pid, f"ip route show {cidr}").strip()
            wire_sh(pid, f"ip route del {cidr}")
            assert _outside(run)["agent-routes"] == "fail", cidr
            wire_sh(pid, f"ip route add {route}")
            if cidr == "198.18.0.9/32":  # with it go those that lead through it
                wire_sh(pid, "\n".join(f"ip route replace {one} via 198.18.0.9 dev eth1" for one in routes["to"]))
        assert _outside(run)["agent-routes"] == "pass"


#: Probe -> the tests that show that it can fail; for those of tests/e2e/test_outside.py and test_gate.py see there.
MUTATIONS: dict[str, list[str]] = {
    name: [f"test_mutation[{case.name}]" for case in CASES if name in case.expect]
    for name in (
        *(name for name, _, _ in controls.PROBES),
        *("routed-allow", "routed-block", "routed-udp", "routed-icmp", "gateway-silent"),
    )
}


def test_every_probe_of_routed_mode_has_a_mutation() -> None:
    assert all(MUTATIONS.values()), MUTATIONS
