# SPDX-License-Identifier: BSD-4-Clause
"""Isolated sessions on real Podman: nothing at all, or one cable to the front (N1, N2, N3, N8, L1, L2, L6, L7).

Three sessions are shared: `bare` has no broker, `embedded` one with the embedded model, `provided` one whose provider
is a fake. Then every command that looks at sessions, mutations of what keeps them isolated, and modes side by side.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from support import addresses, probe_tools
from support.client import World
from support.front import Request, ask, chat, message
from support.mutate import Plan, arguments, mutated, rendered
from support.netns import wire_sh
from support.product import Home, Session, SessionFactory, asf_play, podman
from support.waiting import wait_for

pytestmark = [pytest.mark.podman, pytest.mark.slow]

PRIVATE = ["198.51.100.0/24"]
SERVICE: dict[str, Any] = {"adapter": "generic", "runtime": {"mode": "service", "command": ["sleep", "600"]}}
BARE = {**SERVICE, "network": {"mode": "isolated"}}
EMBEDDED = {**BARE, "llm": {"protocol": "openai", "mock": "the embedded model speaks"}}
PROVIDED = {
    **BARE,
    "llm": {"protocol": "anthropic", "provider": "anthropic", "private": PRIVATE},
    "secrets": {"files": ["anthropic.env"]},
}
PROXY = {**SERVICE, "network": {"allow_domains": [{"name": "docs.example.com", "private": PRIVATE}]}}
L1, L2, L3 = ("198.18.0.1", 3128), ("198.18.0.1", 4000), ("198.18.0.5", 3129)
ELSEWHERE = [
    (addresses.SITE, 443),
    (addresses.PROVIDER, 443),
    (addresses.HOST, 22),
    (addresses.HOST_PUBLIC, 443),
    (addresses.RESOLVER, 53),
    (addresses.METADATA, 80),
    ("169.254.1.2", 443),
    ("198.18.1.2", 443),
    L3,
    ("198.18.0.6", 4000),
    ("2001:db8::10", 443),
]
NO_PATH = ("unreachable", "no-host", "no-address")


@pytest.fixture(scope="module")
def bare(module_home: Home, module_session: SessionFactory) -> Session:
    """The workload alone."""
    module_home.agent("iso-bare", BARE)
    return module_session.open("iso-bare")


@pytest.fixture(scope="module")
def embedded(module_home: Home, module_session: SessionFactory) -> Session:
    """Front, broker, embedded model."""
    module_home.agent("iso-embedded", EMBEDDED)
    return module_session.open("iso-embedded")


@pytest.fixture(scope="module")
def provided(module_home: Home, module_session: SessionFactory) -> Session:
    """Front, broker, a provider behind L3."""
    module_home.agent("iso-provided", PROVIDED)
    return module_session.open("iso-provided")


def roles(session: Session) -> set[str]:
    """Roles of the session's containers, by Podman's labels."""
    form = '{{index .Labels "asf.role"}} {{index .Labels "asf.mode"}}'
    rows = podman("ps", "--filter", f"label=asf.session={session.id}", "--format", form).splitlines()
    assert {row.split()[1] for row in rows} == {"isolated"}
    return {row.split()[0] for row in rows}


def status(session: Session) -> dict[str, Any]:
    """What `asf-play status` says of it."""
    done = asf_play("status", session.id, "--json", home=session.home)
    assert done.rc == 0 and done.json, done
    found: dict[str, Any] = done.json["status"]
    return found


def links(session: Session, role: str) -> set[str]:
    found = json.loads(session.wire_sh(role, "ip -j link show up"))
    return {one["ifname"] for one in found}


def reached(session: Session, targets: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """What of the targets the workload does not get "no path" for, over TCP and UDP."""
    found = {}
    for host, port in targets:
        for kind in ("tcp", "udp"):
            how = session.probe(kind, host=host, port=port)
            if how not in NO_PATH:
                found[(host, port)] = f"{kind} {how}"
    return found


# --- nothing at all ---------------------------------------------------------------------------------------------------


def test_bare_is_the_workload_and_loopback(bare: Session) -> None:
    assert roles(bare) == {"agent"} and links(bare, "agent") == {"lo"}
    assert bare.wire_sh("agent", "ip -4 route show; ip -6 route show; ip neigh show").strip() == ""
    env = bare.exec("env").out
    assert "proxy" not in env.lower() and "front" not in bare.exec("cat", "/etc/hosts").out


def test_n1_n8_bare_reaches_nothing_and_nobody_hears_of_it(bare: Session, world: World) -> None:
    mark = world.mark()
    assert reached(bare, [*ELSEWHERE, L1, L2]) == {}
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []


# --- the one path -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["embedded", "provided"])
def test_brokered_has_one_cable_and_no_forward_proxy(name: str, request: pytest.FixtureRequest) -> None:
    session: Session = request.getfixturevalue(name)
    assert roles(session) == {"agent", "caddy", "broker"} and links(session, "agent") == {"lo", "eth0"}
    assert session.wire_sh("agent", "ip -4 route show").split()[0] == L2[0]
    assert session.probe("tcp", host=L2[0], port=L2[1]) == "open"
    assert session.probe("tcp", host=L1[0], port=L1[1]) == "refused"  # a reset by Caddy's rules
    assert reached(session, ELSEWHERE) == {}
    assert "proxy" not in session.exec("env").out.lower()


def test_with_the_embedded_model_nobody_has_a_way_out(embedded: Session, world: World) -> None:
    mark = world.mark()
    (answer,) = ask(embedded, chat())
    assert answer.status == 200 and "the embedded model speaks" in answer.body
    assert links(embedded, "caddy") == {"lo", "agent0", "broker0"} and links(embedded, "broker") == {"lo", "eth0"}
    assert "default" not in embedded.wire_sh("caddy", "ip route show table all")
    for role in ("caddy", "broker"):
        tried = embedded.in_netns(role, lambda: [probe_tools.tcp(*target, 2) for target in ELSEWHERE[:8]], 60)
        assert "open" not in tried, tried
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []


def test_the_provider_is_reached_by_l3_alone(provided: Session, world: World) -> None:
    mark = world.mark()
    (answer,) = ask(provided, message())
    assert answer.status == 200, answer
    assert len(world.provider_requests(mark, timeout=10)) == 1
    assert world.dns_names(mark) == {"api.anthropic.com"}
    asked = provided.in_netns("broker", lambda: probe_tools.connect(L3, "docs.example.com:443"), 30)
    assert (asked["status"], asked["headers"]["x-asf-proxy"]) == (403, "denied-name")
    assert {one["listener"] for one in provided.decisions()} <= {"L2", "L3"}


def test_the_front_takes_no_connect(provided: Session, world: World) -> None:
    """L6: what answers on the only path does not forward for anybody."""
    mark = world.mark()
    targets = ["docs.example.com:443", "api.anthropic.com:443"]
    answers = ask(provided, *(Request(target, method="CONNECT") for target in targets))
    assert all(answer.status >= 400 for answer in answers), answers
    world.settle()
    assert world.accepts(mark) == []


# --- every command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bare", "embedded", "provided"])
def test_opening_again_and_checking_change_nothing(name: str, request: pytest.FixtureRequest) -> None:
    session: Session = request.getfixturevalue(name)
    for more in ([], ["--check"]):
        done = session.play("open.yml", "--detach", *more)
        assert done.rc == 0 and done.json["changed"] is False, done
    done = session.play("verify.yml")
    assert done.rc == 0 and done.json["changed"] is False, done
    assert {one["verdict"] for one in done.json["probes"]} <= {"pass"}, done


def test_status_and_ls_say_the_mode(bare: Session, embedded: Session) -> None:
    listed = {row["session"]: row for row in asf_play("ls", "--json", home=bare.home).json}
    for session in (bare, embedded):
        row = status(session)
        assert (row["state"], row["mode"], row["reasons"]) == ("live", "isolated", [])
        assert (listed[session.id]["state"], listed[session.id]["mode"]) == ("live", "isolated")
        assert asf_play("status", session.id, home=session.home).rc == 0


@pytest.mark.parametrize("log", ["caddy", "decisions", "broker"])
def test_a_log_that_the_mode_does_not_have_is_said_with_the_mode(log: str, bare: Session) -> None:
    done = asf_play("logs", bare.id, log, home=bare.home)
    assert done.rc == 64, done
    assert "isolated" in done.err and f"has no {'caddy' if log == 'decisions' else log}" in done.err, done


def test_events_of_a_session_without_services(bare: Session) -> None:
    done = asf_play("events", bare.id, "--json", home=bare.home)
    assert done.rc == 0, done
    assert {one["event"] for one in done.json["events"]} == {"opened", "verified", "started"}


def test_logs_of_the_workload(home: Home, session: SessionFactory) -> None:
    home.agent("iso-says", {**BARE, "runtime": {"mode": "service", "command": ["sh", "-c", "echo said; sleep 600"]}})
    opened = session.open("iso-says")
    wait_for(lambda: "said" in asf_play("logs", opened.id, home=home).out, 30, "the workload's line")


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("manifest", [BARE, EMBEDDED], ids=["bare", "embedded"])
def test_close_leaves_evidence_and_nothing_else(manifest: dict[str, Any], home: Home, session: SessionFactory) -> None:
    home.agent("iso-close", manifest)
    opened = session.open("iso-close")
    done = opened.close()
    assert done.rc == 0 and not opened.owns(), done
    again = opened.close()
    assert again.rc == 0 and again.json["changed"] is False, again
    shown = asf_play("evidence", "verify", opened.id, home=home)
    assert shown.rc == 0, shown
    page = (opened.evidence / "report.html").read_text()
    drawn = page.partition("<svg")[2].partition("</svg>")[0]
    assert ">agent<" in drawn and (">Caddy<" in drawn) == (manifest is EMBEDDED) and ">outside<" not in drawn, drawn
    assert ("has Caddy only for" in page) == (manifest is BARE)
    assert (opened.evidence / "decisions.jsonl").exists() == (manifest is EMBEDDED)
    assert asf_play("events", opened.id, home=home).rc == 0


def test_l1_a_workload_that_ends_is_swept(home: Home, session: SessionFactory) -> None:
    """Without services, the session ends with its agent, and the next open takes it away."""
    home.agent("iso-ends", BARE)
    ended = session.open("iso-ends", command=["sh", "-c", "exit 7"])

    def state() -> Any:
        rows = {row["session"]: row for row in asf_play("ls", "--json", home=home).json}
        return (rows.get(ended.id) or {}).get("state")

    wait_for(lambda: state() == "ended", 30, "the session's end")
    home.agent("iso-next", BARE)
    session.open("iso-next")
    assert state() is None and not ended.owns()


def test_l1_a_killed_agent_is_found_broken_or_ended_and_closed(home: Home, session: SessionFactory) -> None:
    home.agent("iso-killed", EMBEDDED)
    opened = session.open("iso-killed")
    os.kill(opened.pid("caddy"), signal.SIGKILL)
    row = wait_for(
        lambda: (found := status(opened))["state"] == "broken" and found,
        30,
        "a broken session",
    )
    assert any("caddy" in reason for reason in row["reasons"]), row
    assert opened.close().rc == 0 and not opened.owns()


def test_l2_without_its_record_it_is_found_by_label_and_closed(home: Home, session: SessionFactory) -> None:
    home.agent("iso-lost", BARE)
    opened = session.open("iso-lost")
    (home.state / "asf" / "live" / f"{opened.id}.json").unlink()
    row = status(opened)
    assert (row["state"], row["mode"]) == ("broken", "isolated")
    assert opened.close().rc == 0 and not opened.owns()


# --- from mode to mode ------------------------------------------------------------------------------------------------


def test_switching_modes_needs_only_the_manifest(home: Home, session: SessionFactory) -> None:
    """The state volume stays, and only a wider mode warns of it."""
    state = {"filesystem": {"state": [{"key": "data", "target": "/home/node/data"}]}}
    name, warned = session.new_name(), []
    for manifest in (PROXY, BARE, EMBEDDED, PROXY):
        home.agent("iso-switch", {**manifest, **state})
        opened = session.open("iso-switch", name=name)
        done = opened.exec("sh", "-c", "date >> /home/node/data/uses; wc -l < /home/node/data/uses")
        warned.append(any("was last used where" in json.dumps(one) for one in opened.document["warnings"]))
        assert done.out.strip() == str(len(warned)), done
        assert opened.close().rc == 0
    assert warned == [False, False, False, True]


def test_n3_sessions_of_different_modes_side_by_side(home: Home, session: SessionFactory) -> None:
    """Same addresses in each: what one may reach, the other may not."""
    home.agent("iso-one", BARE)
    home.agent("iso-two", PROXY)
    isolated, proxied = session.open("iso-one"), session.open("iso-two")
    assert proxied.probe("tcp", host=L1[0], port=L1[1]) == "open"
    assert isolated.probe("tcp", host=L1[0], port=L1[1]) in NO_PATH
    for one in (isolated, proxied):
        assert one.play("verify.yml").rc == 0
    assert isolated.close().rc == 0
    assert proxied.play("verify.yml").rc == 0


# --- what keeps it isolated, broken -----------------------------------------------------------------------------------


def _sh(role: str, script: str) -> dict[str, Any]:
    return {"after_wire": lambda pids: wire_sh(pids[role], script)}


def _also_l1(plan: Plan) -> None:
    """Caddy serves a forward proxy that the plan does not have."""
    servers = rendered(plan, "caddy/caddy.json")["apps"]["http"]["servers"]
    exit_ = servers["l3"]
    servers["l1"] = {**exit_, "listen": ["198.18.0.1:3128"]}


def _way_out(plan: Plan) -> None:
    """Caddy's container gets a private network although nothing is to be reached."""
    args = arguments(plan, "caddy")
    args[args.index("--network=none")] = "--network=slirp4netns:cidr=198.18.1.0/24,enable_ipv6=false"


def _agents_way_out(plan: Plan) -> None:
    args = arguments(plan, "agent")
    args[args.index("--network=none")] = "--network=slirp4netns:cidr=198.18.1.0/24,enable_ipv6=false"


TO_NOBODY = "ip link add eth0 type veth peer name x0; ip addr add 198.18.0.2/32 peer 198.18.0.1 dev eth0; "

MUTATIONS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, str]]] = [
    ("bare-a-link", BARE, _sh("agent", TO_NOBODY), {"agent-links": "fail"}),
    (
        "bare-a-cable",
        BARE,
        _sh("agent", TO_NOBODY + "ip link set eth0 up"),
        {"agent-links": "fail", "net-links": "fail"},
    ),
    (
        "bare-a-route",
        BARE,
        _sh("agent", "ip route add 203.0.113.0/24 dev lo"),
        {"agent-routes": "fail", "net-routes": "fail"},
    ),
    (
        "bare-a-path",
        BARE,
        _sh("agent", "ip route add default dev lo"),
        {"agent-routes": "fail", "net-routes": "fail", "unreach": "fail"},
    ),
    ("bare-a-network", BARE, {"edit_plan": _agents_way_out}, {"agent-links": "fail", "agent-options": "fail"}),
    ("bare-deaf", BARE, _sh("agent", "ip link set lo down"), {"loopback": "inconclusive", "unreach": "inconclusive"}),
    (
        "brokered-a-route",
        EMBEDDED,
        _sh("agent", "ip route add 198.18.0.5/32 via 198.18.0.1 dev eth0 onlink"),
        {"agent-routes": "fail", "net-routes": "fail"},
    ),
    (
        "brokered-a-second-cable",
        EMBEDDED,
        _sh("agent", "ip link add eth1 arp off type veth peer name x1; ip link set eth1 up"),
        {"agent-links": "fail", "net-links": "fail"},
    ),
    (
        "brokered-a-forward-proxy",
        EMBEDDED,
        {"edit_plan": _also_l1},
        {"caddy-listeners": "fail"},
    ),
    (
        "brokered-an-open-forward-proxy",
        EMBEDDED,
        {"edit_plan": _also_l1, **_sh("caddy", "nft insert rule inet asf input iifname agent0 tcp dport 3128 accept")},
        {"caddy-listeners": "fail", "caddy-rules": "fail", "closed": "fail"},
    ),
    (
        "embedded-a-way-out",
        EMBEDDED,
        {"edit_plan": _way_out},
        {"caddy-links": "fail", "caddy-routes": "fail", "caddy-options": "fail"},
    ),
    (
        "provided-a-port-more",
        PROVIDED,
        _sh("caddy", "nft insert rule inet asf output oifname tap0 tcp dport 22 accept"),
        {"caddy-rules": "fail"},
    ),
    (
        "brokered-caddy-gone",  # L6, L7
        EMBEDDED,
        {"after_start": lambda pids: os.kill(pids["caddy"], signal.SIGKILL)},
        {"reach": "inconclusive", "front-control": "inconclusive", "closed": "inconclusive"},
    ),
]


@pytest.mark.parametrize(("name", "manifest", "broken", "expect"), MUTATIONS, ids=[one[0] for one in MUTATIONS])
def test_mutation(
    name: str, manifest: dict[str, Any], broken: dict[str, Any], expect: dict[str, str], home: Home
) -> None:
    home.agent("iso-broken", manifest)
    with mutated(home, "iso-broken", **broken) as run:
        assert run.error is not None, f"verified although broken: {run}"
        assert {probe: run.verdict(probe) for probe in expect} == expect, str(run)


def test_a_gate_that_is_asked_nothing_does_not_start(home: Home) -> None:
    """A plan that would pass by emptiness is none."""
    home.agent("iso-empty", BARE)

    def empty(plan: Plan) -> None:
        rendered(plan, "gate.json")["probes"]["unreach"] = []

    with mutated(home, "iso-empty", edit_plan=empty) as run:
        assert run.error is not None and "probes.unreach" in str(run.error), str(run)


@pytest.mark.parametrize("manifest", [BARE, EMBEDDED, PROVIDED], ids=["bare", "embedded", "provided"])
def test_untouched_sessions_are_verified(manifest: dict[str, Any], home: Home) -> None:
    home.agent("iso-whole", manifest)
    with mutated(home, "iso-whole") as run:
        assert run.error is None and run.bad() == {}, str(run)
        assert run.verdict("front-control") == ("none" if manifest is BARE else "pass")
        assert run.verdict("loopback") == run.verdict("unreach") == "pass"
        assert run.verdict("proxy-deny") == run.verdict("proxy-allow") == "none"
