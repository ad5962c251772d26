# SPDX-License-Identifier: BSD-4-Clause
"""Outside probes on real Podman: what each of them guards is really broken, and verification fails by that probe.

Never the probe: a route is added, a rule removed, a cable replugged, a namespace shared, a mount swapped. `MUTATIONS`
says for every outside probe which test shows that it can fail; the security model's table is made of it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import addresses
from support.listeners import canary
from support.mutate import Plan, added, instead, mutated, rendered, without
from support.netns import wire_sh
from support.product import Home, podman, remove, sample_repo

from asf_lib.core import probes
from asf_lib.engine import observe

pytestmark = [pytest.mark.podman]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
BROKERED = {**PLAIN, "llm": {"protocol": "openai", "mock": "hello"}}
NO_NEW_PRIVILEGES = "--security-opt=no-new-privileges"
IPV6_OFF = ("--sysctl=net.ipv6.conf.all.disable_ipv6=1", "--sysctl=net.ipv6.conf.default.disable_ipv6=1")


def sh(role: str, script: str) -> Callable[[dict[str, int]], None]:
    """Run host tools in a container's network namespace."""

    def act(pids: dict[str, int]) -> None:
        wire_sh(pids[role], script)

    return act


@dataclass(frozen=True)
class Case:
    """One way to break a session, and the verdicts that must follow."""

    name: str
    expect: dict[str, str]
    edit: Callable[[Plan], None] | None = None
    hooks: dict[str, Callable[[dict[str, int]], None]] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=lambda: PLAIN)


def case(
    name: str, probe: str, edit: Callable[[Plan], None] | None = None, *, brokered: bool = False, **hooks: Any
) -> Case:
    """A case that one probe must fail."""
    return Case(name, {probe: "fail"}, edit, hooks, BROKERED if brokered else PLAIN)


REPLUG = (
    "ip link del eth0; ip link add eth0 type veth peer name x; ip addr add 198.18.0.2/32 peer 198.18.0.1 dev eth0; "
    "ip link set eth0 up"
)
NFT = "nft add rule inet asf input accept"


def shared_listener(plan: Plan) -> None:
    rendered(plan, "caddy/caddy.json")["apps"]["http"]["servers"]["l1"]["listen"].append(":9999")


def no_transparent_listener(plan: Plan) -> None:
    del rendered(plan, "caddy/caddy.json")["apps"]["asf_transparent"]


def name_elsewhere(plan: Plan) -> None:
    instead(plan, "agent", "--add-host=docs.example.com:", "--add-host=docs.example.com:203.0.113.9")


def strayed(role: str, interface: str, other: str) -> Callable[[dict[str, int]], None]:
    """N3: the cable of that interface is put aside, and one that looks alike leads into another container."""

    def act(pids: dict[str, int]) -> None:
        script = (
            f"ip link set {interface} down; ip link set {interface} name aside0; "
            f"ip link add {interface} arp off type veth peer name stray0 netns {pids[other]}; "
            f"ip link set {interface} up"
        )
        wire_sh(pids[role], script)

    return act


def names_of_the_host(plan: Plan) -> None:
    without(plan, "caddy", "--hostname=caddy")
    instead(plan, "caddy", "--uts=private", "--uts=host")


CASES = [
    case("a-second-link", "agent-links", after_wire=sh("agent", "ip link add x0 type veth peer name x1")),
    case("cable-replugged", "agent-links", after_start=sh("agent", REPLUG)),
    case("arp-on", "agent-links", after_wire=sh("agent", "ip link set eth0 arp on")),
    case("a-second-address", "agent-addresses", after_wire=sh("agent", "ip addr add 10.0.0.9/24 dev eth0")),
    case(
        "a-default-route", "agent-routes", after_wire=sh("agent", "ip route add default via 198.18.0.1 dev eth0 onlink")
    ),
    case(
        "a-route-to-the-broker",
        "agent-routes",
        brokered=True,
        after_wire=sh("agent", "ip route add 198.18.0.5/32 via 198.18.0.1 dev eth0 onlink"),
    ),
    case(
        "a-second-default-route",
        "caddy-routes",
        after_wire=sh("caddy", "ip route add default via 198.18.0.2 dev agent0 onlink metric 50"),
    ),
    case(
        "another-neighbour",
        "agent-neighbours",
        after_wire=sh("agent", "ip neigh replace 198.18.0.1 lladdr 02:00:00:00:00:99 nud permanent dev eth0"),
    ),
    case("cable-to-the-broker", "agent-peers", brokered=True, after_wire=strayed("agent", "eth0", "broker")),
    case("caddys-cable-to-the-broker", "caddy-peers", brokered=True, after_wire=strayed("caddy", "agent0", "broker")),
    case("ipv6-on", "agent-ipv6", lambda plan: without(plan, "agent", *IPV6_OFF)),
    case("no-rules", "caddy-rules", after_wire=sh("caddy", "nft flush ruleset")),
    case("a-rule-more", "caddy-rules", after_wire=sh("caddy", NFT)),
    case(
        "a-policy-of-accept", "caddy-rules", after_wire=sh("caddy", "nft 'chain inet asf forward { policy accept; }'")
    ),
    case("forwarding", "caddy-forwarding", after_wire=sh("caddy", "echo 1 > /proc/sys/net/ipv4/ip_forward")),
    case("names-of-the-host", "caddy-namespaces", names_of_the_host),
    case("operator-mapped", "broker-userns", lambda plan: without(plan, "broker", "--userns=nomap"), brokered=True),
    case("operator-mapped-in-caddy", "caddy-userns", lambda plan: without(plan, "caddy", "--userns=nomap")),
    case("caddy-may-gain-privileges", "caddy-confined", lambda plan: without(plan, "caddy", NO_NEW_PRIVILEGES)),
    case(
        "broker-unfiltered",
        "broker-confined",
        lambda plan: instead(plan, "broker", "--security-opt=seccomp=", "--security-opt=seccomp=unconfined"),
        brokered=True,
    ),
    case("more-descriptors", "caddy-limits", lambda plan: without(plan, "caddy", "--ulimit=nofile=16384:16384")),
    case("capabilities-kept", "caddy-options", lambda plan: without(plan, "caddy", "--cap-drop=ALL")),
    case("a-writable-root", "broker-options", lambda plan: without(plan, "broker", "--read-only"), brokered=True),
    case(
        "a-larger-home",
        "agent-mounts",
        lambda plan: instead(
            plan, "agent", "--tmpfs=/home/node:", "--tmpfs=/home/node:rw,nosuid,nodev,size=9g,mode=1777"
        ),
    ),
    case("a-mount-more", "agent-mounts", lambda plan: added(plan, "agent", "--tmpfs=/opt/more:rw,size=1m")),
    case("engine-tmpfs", "agent-mounts", lambda plan: without(plan, "agent", "--read-only-tmpfs=false")),
    case("another-resolver", "caddy-resolver", lambda plan: instead(plan, "caddy", "--dns=", "--dns=198.51.100.99")),
    case("a-listener-more", "caddy-listeners", shared_listener),
    case("a-name-more", "agent-names", lambda plan: added(plan, "agent", "--add-host=evil.example.com:198.18.0.1")),
    case("a-name-elsewhere", "agent-names", name_elsewhere),
    case(
        "a-name-in-caddy", "caddy-names", lambda plan: added(plan, "caddy", "--add-host=docs.example.com:203.0.113.9")
    ),
]


@pytest.mark.parametrize("broken", CASES, ids=lambda c: c.name)
def test_mutation(home: Home, broken: Case) -> None:
    home.agent("outside", broken.manifest)
    with mutated(home, "outside", edit_plan=broken.edit, **broken.hooks) as run:
        assert run.error is not None, f"verified although broken: {run}"
        for probe, verdict in broken.expect.items():
            assert run.verdict(probe) == verdict, f"{probe}\n{run}"


def test_without_its_transparent_listener_caddy_is_not_waited_for_in_vain(home: Home) -> None:
    """Before anything is probed, and it says which listener is missing."""
    home.agent("outside", PLAIN)
    with mutated(home, "outside", edit_plan=no_transparent_listener) as run:
        assert run.error is not None and "does not listen on 198.18.0.1:443" in str(run.error), run


def test_a_ro_grant_that_is_mounted_rw_fails(home: Home, tmp_path: Path) -> None:
    home.agent("outside", PLAIN)
    home.grant("outside", {"path": str(sample_repo(tmp_path / "repo")), "mode": "ro"})

    def writable(plan: Plan) -> None:
        args = next(c["args"] for c in plan["containers"] if c["role"] == "agent")
        place = next(i for i, word in enumerate(args) if "/workspace/repos/repo" in word)
        args[place] = args[place].replace(",readonly", "")

    with mutated(home, "outside", edit_plan=writable) as run:
        assert run.verdict("agent-mounts") == "fail", run


def test_f2_a_granted_folder_that_was_swapped_after_mounting_fails(home: Home, tmp_path: Path) -> None:
    home.agent("outside", PLAIN)
    repo = sample_repo(tmp_path / "repo")
    home.grant("outside", repo)

    def swap(pids: dict[str, int]) -> None:
        repo.rename(tmp_path / "away")
        repo.mkdir()

    with mutated(home, "outside", after_create=swap) as run:
        assert run.verdict("agent-mount-roots") == "fail", run


@pytest.mark.parametrize("kind", ["net", "ipc"])
def test_n3_a_process_of_another_container_in_its_namespaces_fails(kind: str, home: Home) -> None:
    home.agent("outside", PLAIN)
    lodgers: list[subprocess.Popen[str]] = []

    def move_in(pids: dict[str, int]) -> None:
        # A container is what has a pid namespace of its own; the helper that made it is the operator's.
        argv = ["nsenter", f"--{kind}=/proc/{pids['agent']}/ns/{kind}", "--", "unshare", "--pid", "--fork"]
        argv = ["podman", "unshare", *argv, "sh", "-c", "echo in; exec sleep 120"]
        lodgers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert lodgers[0].stdout is not None and lodgers[0].stdout.readline() == "in\n"

    try:
        with mutated(home, "outside", after_wire=move_in) as run:
            assert run.verdict("agent-alone") == "fail" and run.verdict("caddy-alone") == "pass", run
            assert kind in run.evidence("agent-alone"), run
    finally:
        for one in lodgers:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def test_n8_the_hosts_own_address_behind_a_missing_rule_is_seen_open(home: Home) -> None:
    home.agent("outside", PLAIN)
    opened = sh("caddy", "nft insert rule inet asf output accept")
    with canary(addresses.HOST, 443), mutated(home, "outside", after_wire=opened) as run:
        assert run.verdict("caddy-aliases") == "fail" and run.verdict("caddy-rules") == "fail", run


def test_a_process_that_is_not_the_one_chosen_at_init_fails(home: Home) -> None:
    """4.3 may start another process silently; a restarted container has no cable either."""
    home.agent("outside", PLAIN)
    names: list[str] = []

    def remember(plan: Plan) -> None:
        names.extend(c["name"] for c in plan["containers"] if c["role"] == "agent")

    def restart(pids: dict[str, int]) -> None:
        podman("restart", "-t", "1", names[0], check=False)

    with mutated(home, "outside", edit_plan=remember, live=restart) as run:
        assert run.error is not None and run.verdict("agent-identity") in ("fail", "inconclusive"), run


def test_l7_an_enforcement_point_that_died_aborts(home: Home) -> None:
    home.agent("outside", PLAIN)
    with mutated(home, "outside", after_start=lambda pids: os.kill(pids["caddy"], signal.SIGKILL)) as run:
        assert run.error is not None, run
        assert {v for p, v in run.bad().items() if p.startswith("caddy-")} == {"inconclusive"}, run


def test_n4_caddy_has_one_default_route_each_time(home: Home) -> None:
    """Twenty times, as the case says; only the container is made, that is where the route comes from."""
    home.agent("outside", PLAIN)
    with mutated(home, "outside") as run:
        spec = next(c for c in run.doc.plan["containers"] if c["role"] == "caddy")
        remove(*run.doc.names().values())
        for _ in range(20):
            podman(*spec["args"])
            podman("init", spec["name"])
            pid = int(podman("inspect", "-f", "{{.State.Pid}}", spec["name"]))
            routes = wire_sh(pid, "ip -4 route show default").strip().splitlines()
            remove(spec["name"])
            assert len(routes) == 1 and " dev tap0" in routes[0], routes


def test_untouched_sessions_are_verified(home: Home) -> None:
    home.agent("outside", BROKERED)
    with mutated(home, "outside") as run:
        assert run.error is None and run.bad() == {}, run
        assert observe.SEPARATE == probes.SEPARATE


#: Probe -> the tests that show that it can fail. Probes are judged per role by the same function.
MUTATIONS: dict[str, list[str]] = {}
for _case in CASES:
    for _probe in _case.expect:
        MUTATIONS.setdefault(_probe.partition("-")[2], []).append(f"test_mutation[{_case.name}]")
MUTATIONS["alone"] = ["test_n3_a_process_of_another_container_in_its_namespaces_fails"]
MUTATIONS["mount-roots"] = ["test_f2_a_granted_folder_that_was_swapped_after_mounting_fails"]
MUTATIONS["aliases"] = ["test_n8_the_hosts_own_address_behind_a_missing_rule_is_seen_open"]
MUTATIONS["identity"] = ["test_a_process_that_is_not_the_one_chosen_at_init_fails"]


def test_every_outside_probe_has_a_mutation() -> None:
    assert {probe.name for probe in probes.PROBES} == set(MUTATIONS)
