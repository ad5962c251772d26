# SPDX-License-Identifier: BSD-4-Clause
"""Routed sessions on real Podman, in a closed network with test hosts in a namespace of their own (N3, N8, N9, N10).

The agents hold raw sockets where the manifest says so, so packets of every kind come from where they would come from.
"""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import addresses
from support.client import World
from support.front import ask, chat
from support.product import Home, Session, SessionFactory, asf_play, podman
from support.routed import ALLOWED, BLOCKED, RESOLVER, SITE, echo, routed, tcp, udp, verify
from support.waiting import wait_for

from asf_lib.core.plan_network import UPLINK_MEMORY
from asf_lib.engine import usernet

pytestmark = [pytest.mark.podman, pytest.mark.slow]

_PACKETS = Path(__file__).resolve().parents[1] / "support/packets.py"
NET_RAW = f"{1 << 13:016x}"
RULES = (tcp(), udp(), echo())
PROXY: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [{"name": "docs.example.com", "private": ["198.51.100.0/24"]}]},
}


def packets(session: Session, name: str, **arguments: Any) -> Any:
    """Run a function of support/packets.py in the agent."""
    done = session.exec("python3", "-", name, json.dumps(arguments), stdin=_PACKETS.read_bytes())
    assert done.rc == 0, done
    return json.loads(done.out)


def counters(session: Session) -> dict[str, int]:
    """Packets of the gateway's named counters."""
    listed = json.loads(session.wire_sh("gateway", "nft -j list counters"))["nftables"]
    return {one["counter"]["name"]: one["counter"]["packets"] for one in listed if "counter" in one}


def capabilities(pid: int | str) -> set[str]:
    """Every capability set of a process, each once."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split()[1] for line in lines if line.startswith("Cap")}


@pytest.fixture(scope="module")
def plain(module_home: Home, module_session: SessionFactory) -> Session:
    """A routed session without a broker and without any capability."""
    module_home.agent("plain", routed(*RULES))
    return module_session.open("plain")


@pytest.fixture(scope="module")
def raw(module_home: Home, module_session: SessionFactory) -> Session:
    """A brokered routed session whose workload holds NET_RAW."""
    llm = {"protocol": "openai", "mock": "hello from the model"}
    module_home.agent("raw", routed(*RULES, llm=llm, capabilities=["net_raw"]))
    return module_session.open("raw")


def test_what_the_rules_allow_is_reached_and_nothing_else(plain: Session, world: World) -> None:
    since = world.mark()
    assert packets(plain, "dial", to=SITE, port=ALLOWED) == packets(plain, "dial", to=SITE, port=80) == "connected"
    assert packets(plain, "ask", to=RESOLVER, port=53) == "answered"
    assert packets(plain, "echo", to=SITE) == "answered"
    for port in (BLOCKED, 22, 5432):
        assert packets(plain, "dial", to=SITE, port=port) == "timeout", port
    assert packets(plain, "dial", to=RESOLVER, port=53) == "timeout", "UDP is declared there, not TCP"
    assert packets(plain, "ask", to=SITE, port=53) == "timeout", "TCP is declared there, not UDP"
    assert packets(plain, "echo", to=RESOLVER) == "timeout"
    world.settle()
    assert {(event["address"], event["port"]) for event in world.accepts(since)} == {(SITE, ALLOWED), (SITE, 80)}


def test_N10_what_carries_an_uplink_has_a_bound_of_memory(raw: Session) -> None:
    """It runs in no control group of the session: flows that the rules have lost sight of would cost the host."""
    path = podman("inspect", "--format", "{{.NetworkSettings.SandboxKey}}", raw.container("gateway")).strip()
    limits = {resource.prlimit(pid, resource.RLIMIT_DATA) for pid in usernet.carriers(raw.pid("gateway"), path)}
    assert limits == {(UPLINK_MEMORY, UPLINK_MEMORY)}


@pytest.mark.parametrize(
    "address", [addresses.PROVIDER, addresses.METADATA, addresses.HOST, "169.254.1.2", "198.18.1.2", "1.1.1.1"]
)
def test_N8_what_is_not_declared_has_no_route(plain: Session, address: str) -> None:
    assert packets(plain, "dial", to=address, port=443) == "ENETUNREACH"


def test_N9_without_a_grant_there_is_no_capability_and_no_raw_socket(plain: Session) -> None:
    assert capabilities(plain.pid("agent")) == {"0" * 16}
    done = plain.exec("python3", "-c", "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)")
    assert done.rc == 1 and "Function not implemented" in done.err, done


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split() or [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def test_N9_the_workload_holds_net_raw_and_nothing_else(raw: Session) -> None:
    gate = raw.pid("agent")
    (workload,) = _children(gate)
    assert capabilities(gate) == capabilities(workload) == {NET_RAW}
    assert all(capabilities(raw.pid(role)) == {"0" * 16} for role in ("caddy", "broker", "gateway"))
    assert any("NET_RAW" in str(warning) for warning in raw.document["warnings"]), "announced at open"
    done = raw.exec("python3", "-c", "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)")
    assert done.rc == 1 and "Function not implemented" in done.err, "raw IP, no frames"


def test_a_raw_scan_is_answered_for_what_is_declared_alone(raw: Session, world: World) -> None:
    since = world.mark()
    found = packets(raw, "scan", to=SITE, ports=[22, 80, ALLOWED, BLOCKED, 5432])
    assert {int(port) for port in found} == {80, ALLOWED}
    assert all(flags & 0x12 == 0x12 for flags in found.values()), "SYN and ACK"
    world.settle()
    assert {event["port"] for event in world.accepts(since)} <= {80, ALLOWED}


def test_a_connection_may_begin_with_ecn(raw: Session) -> None:
    ecn = 2 | 64 | 128
    assert [int(port) for port in packets(raw, "scan", to=SITE, ports=[80], flags=ecn)] == [80]


#: Packet of support/packets.py -> why the gateway dropped it.
REASONS = {
    "first-fragment": "fragment",
    "later-fragment": "fragment",
    "spoofed": "source",
    "spoofed-neighbour": "source",
    "options": "options",
    "syn-fin": ("flags", "invalid"),
    "null": ("flags", "invalid"),
    "xmas": ("flags", "invalid"),
    "ack": ("flags", "invalid"),
    "rst": ("flags", "invalid"),
    "gre": "unlisted",
}


def test_odd_packets_are_dropped_and_counted_by_reason(raw: Session, world: World) -> None:
    since, before = world.mark(), counters(raw)
    sent = packets(raw, "odd", to=SITE, port=ALLOWED)
    assert set(sent) == set(REASONS) and set(sent.values()) == {"sent"}, sent
    grown = {name: packets - before[name] for name, packets in counters(raw).items()}
    assert grown["drop-fragment"] == 2 and grown["drop-source"] == 2 and grown["drop-options"] == 1, grown
    assert grown["drop-flags"] + grown["drop-invalid"] == 5 and grown["drop-unlisted"] >= 1, grown
    assert grown["allow-0"] == 0
    world.settle()
    assert world.accepts(since) == []


def test_raw_packets_find_no_way_that_is_not_declared(raw: Session) -> None:
    targets = ["255.255.255.255", "224.0.0.251", addresses.METADATA, addresses.HOST, "10.0.0.1", "198.18.1.2"]
    found = packets(raw, "elsewhere", targets=targets)
    assert set(found.values()) <= {"ENETUNREACH", "EACCES"}, found


def test_a_brokered_agent_reaches_the_front_as_well(raw: Session) -> None:
    (answer,) = ask(raw, chat())
    assert answer.status == 200 and "hello from the model" in answer.body, answer
    assert packets(raw, "dial", to="198.18.0.1", port=3128) == "ECONNREFUSED", "there is no L1"
    assert packets(raw, "dial", to=SITE, port=ALLOWED) == "connected"


def test_verify_finds_a_live_session_as_planned(raw: Session, plain: Session) -> None:
    for opened in (raw, plain):
        done = opened.play("verify.yml")
        assert done.rc == 0, done
        told = {probe["id"]: probe["verdict"] for probe in done.json["probes"]}
        assert {told[name] for name in ("control-open", "gateway-denied", "gateway-carried", "routed-block")} == {
            "pass"
        }


def test_opening_again_changes_nothing(plain: Session) -> None:
    done = plain.play("open.yml", "--detach")
    assert done.rc == 0 and done.json["changed"] is False, done


def test_side_by_side_with_a_proxy_session(plain: Session, module_home: Home, module_session: SessionFactory) -> None:
    """N3: same addresses, and neither is seen from the other."""
    module_home.agent("proxied", PROXY)
    proxied = module_session.open("proxied")
    assert packets(proxied, "dial", to=SITE, port=ALLOWED) == "ENETUNREACH"
    assert packets(proxied, "dial", to="198.18.0.1", port=3128) == "connected"
    assert packets(plain, "dial", to="198.18.0.1", port=3128) == "ENETUNREACH"
    assert packets(plain, "dial", to=SITE, port=ALLOWED) == "connected"
    assert proxied.close().rc == 0
    assert packets(plain, "dial", to=SITE, port=ALLOWED) == "connected"


def test_a_mode_is_changed_by_the_manifest_alone(session: SessionFactory, home: Home) -> None:
    home.agent("changing", PROXY)
    opened = session.open("changing")
    assert opened.close().rc == 0
    home.agent("changing", routed(tcp()))
    again = session.open("changing", name=opened.name)
    assert packets(again, "dial", to=SITE, port=ALLOWED) == "connected"
    assert again.play("close.yml").rc == 0 and not again.owns()


def test_without_its_gateway_the_session_is_broken_and_says_so(session: SessionFactory, home: Home) -> None:
    home.agent("routed", routed(tcp()))
    opened = session.open("routed")
    podman("kill", opened.container("gateway"))
    found = wait_for(lambda: _state(opened) == "broken" and _status(opened), 60, "status to say broken", 0.2)
    assert "the gateway container is dead" in json.dumps(found), found
    assert packets(opened, "dial", to=SITE, port=ALLOWED) == "ENETUNREACH", "the cable went with the gateway"
    assert opened.play("verify.yml").rc != 0
    assert opened.close().rc == 0 and not opened.owns()


def _status(opened: Session) -> Any:
    return opened.play("status.yml").json["status"]


def _state(opened: Session) -> str:
    rows = asf_play("ls", "--json", home=opened.home).json
    return next((str(row["state"]) for row in rows if row["session"] == opened.id), "gone")


def test_the_gateway_waits_for_the_close(session: SessionFactory, home: Home) -> None:
    """A workload's end takes the cable, not the counters: they live in the gateway's namespace."""
    home.agent("brief", routed(tcp(), runtime={"mode": "service", "command": ["true"]}))
    opened = session.open("brief")
    wait_for(lambda: _state(opened) == "ended", 60, "ls to say ended", 0.2)
    wait_for(lambda: "agent0" not in opened.wire_sh("gateway", "ip -o link"), 60, "the cable to be gone", 0.2)
    assert opened.inspect("gateway")["State"]["Status"] == "running"
    assert _status(opened)["routed"]["lost"] is None
    assert opened.close().rc == 0 and not opened.owns()


@pytest.mark.parametrize("host", ["REFUSES", "BLACKHOLE"])
def test_a_control_that_is_not_open_is_no_proof(session: SessionFactory, home: Home, host: str) -> None:
    address = getattr(addresses, host)
    home.agent("unproved", routed(tcp(address), control=verify(address)))
    done, tried = session.attempt("unproved")
    assert done.rc != 0 and done.json is not None and not tried.owns(), done
    assert "control-open" in done.json["error"]["message"], done
    assert (
        "proves nothing about the policy" in done.json["error"]["found"]
        and f"{address}:" in done.json["error"]["found"]
    )


def test_the_shipped_scanner_works_once_its_addresses_are_replaced(session: SessionFactory, home: Home) -> None:
    """`agents/routed-scanner` names documentation addresses, as its README says; the test replaces them."""
    shipped = Path(__file__).resolve().parents[2] / "agents/routed-scanner/runtime.yml"
    text = shipped.read_text().replace("192.0.2.0/24", "198.51.100.8/30").replace("192.0.2.10", SITE)
    manifest = yaml.safe_load(text.replace("192.0.2.53", RESOLVER))
    assert manifest["capabilities"] == ["net_raw"]
    manifest["runtime"] = {"mode": "service", "command": ["sleep", "600"]}
    home.agent("routed-scanner", {key: value for key, value in manifest.items() if key != "name"})
    opened = session.open("routed-scanner")
    assert {int(p) for p in packets(opened, "scan", to=SITE, ports=[22, 80, ALLOWED, BLOCKED])} == {22, 80, ALLOWED}


@pytest.mark.parametrize("how", ["closed", "ended"])
def test_what_the_gateway_counted_is_in_the_evidence(session: SessionFactory, home: Home, how: str) -> None:
    """Whoever ends the session: its owner, or the workload itself before anybody closes it."""
    script = f"import socket; socket.create_connection(('{SITE}', {ALLOWED}), 10).close()"
    then = "; import time; time.sleep(600)" if how == "closed" else ""
    home.agent("counted", routed(tcp(), runtime={"mode": "service", "command": ["python3", "-c", script + then]}))
    opened = session.open("counted")
    if how == "ended":
        wait_for(lambda: _state(opened) == "ended", 60, "ls to say ended", 0.2)
    else:
        wait_for(lambda: counters(opened)["allow-0"] > 8, 60, "the workload's own connection to be counted", 0.2)
    assert opened.close().rc == 0 and not opened.owns()
    told = json.loads((opened.evidence / "routed.json").read_text())
    assert told["lost"] is None, told
    assert told["rules"][0]["packets"] > 8 and told["control"]["packets"] >= 1, told


def test_as_many_rules_as_a_manifest_may_have(session: SessionFactory, home: Home) -> None:
    """Each has its route and its counter, and those of UDP are all tried: an answer of the gate must hold them."""
    near = [tcp(f"10.77.{number}.1") for number in range(98)]
    far = [udp(RESOLVER, [20000 + number]) for number in range(100)]
    home.agent("many", routed(tcp(), tcp("internet"), *near, *far))
    opened = session.open("many")
    assert packets(opened, "dial", to=SITE, port=ALLOWED) == "connected"
    assert len(_status(opened)["routed"]["rules"]) == 200


def test_whoever_follows_a_session_is_done_when_its_workload_is(session: SessionFactory, home: Home) -> None:
    """The gateway stays until the close, and nobody waits for it."""
    home.agent("followed", routed(tcp(), runtime={"mode": "service", "command": ["sleep", "3"]}))
    opened = session.open("followed")
    followed = asf_play("events", opened.id, "--follow", "--json", home=home, timeout=60)
    assert followed.rc == 0, followed
    assert opened.inspect("gateway")["State"]["Status"] == "running"
    assert opened.close().rc == 0 and not opened.owns()
