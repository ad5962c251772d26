# SPDX-License-Identifier: BSD-4-Clause
"""What is given to ip and nft, and in which order; nothing is run here."""

import json

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.core.topology import topology
from asf_lib.engine import netns, wiring

T = topology("198.18.0.0/24")
PIDS = {"agent": 11, "caddy": 12, "broker": 13}
RULES = [{"table": {"family": "inet", "name": "asf"}}, {"chain": {"family": "inet", "table": "asf", "name": "input"}}]
WIRING = {
    "cables": [T.agent.as_dict(), T.broker.as_dict()],
    "nft": [{"role": "caddy", "rules": RULES}],
    "uplinks": [{"role": "caddy", "interface": "tap0"}],
    "routes": [],
    "forward": [],
}


@pytest.fixture
def ran(monkeypatch):
    """Batches that would have been run; answers are given by the test."""
    batches, answers = [], []

    def commands(batch, timeout=20.0):
        batches.append(list(batch))
        if answers and isinstance(answers[0], Exception):
            raise answers[0]
        return answers or [""] * len(batch)

    monkeypatch.setattr(netns, "commands", commands)
    return batches, answers


def test_rules_come_before_every_cable(ran):
    """One batch in one process: no cable is ever there without the rules of its far end."""
    wiring.wire(PIDS, WIRING)
    (batch,) = ran[0]
    assert [(pid, argv[0]) for pid, argv, _ in batch] == [(12, "nft"), (11, "ip"), (12, "ip"), (13, "ip"), (12, "ip")]
    assert json.loads(batch[0][2]) == {"nftables": [{"add": rule} for rule in RULES]}


def test_the_near_end_makes_the_pair_with_arp_off_from_the_first_moment():
    near = T.agent.as_dict()["near"]
    far = T.agent.as_dict()["far"]
    lines = wiring._near_batch(T.agent.as_dict(), 12).splitlines()
    assert lines[0] == (
        f"link add {near['interface']} mtu 1500 address {near['mac']} arp off type veth "
        f"peer name {far['interface']} mtu 1500 address {far['mac']} arp off netns 12"
    )
    assert f"addr add {near['ip']}/32 peer {far['ip']} dev {near['interface']}" in lines
    assert lines[-1] == f"neigh replace {far['ip']} lladdr {far['mac']} nud permanent dev {near['interface']}"
    assert lines.index("link set lo up") > lines.index(f"link set {near['interface']} up")


def test_a_gateways_cable_carries_what_its_uplink_carries():
    """A smaller one would make fragments of an agent's datagrams, and the rules drop fragments."""
    assert wiring._near_batch(T.gateway.as_dict(), 12).count(" mtu 65520 ") == 2


def test_the_far_end_knows_the_near_one_and_nobody_else():
    near, far = T.broker.as_dict()["near"], T.broker.as_dict()["far"]
    assert wiring._far_batch(T.broker.as_dict()).splitlines() == [
        f"addr add {far['ip']}/32 peer {near['ip']} dev {far['interface']}",
        f"link set {far['interface']} up",
        f"neigh replace {near['ip']} lladdr {near['mac']} nud permanent dev {far['interface']}",
    ]


@pytest.mark.parametrize("cable", [T.agent.as_dict(), T.broker.as_dict()], ids=["agent", "broker"])
def test_no_batch_makes_a_route_or_switches_arp_on(cable):
    text = wiring._near_batch(cable, 12) + wiring._far_batch(cable)
    assert "route" not in text and "arp on" not in text and "default" not in text
    assert text.endswith("\n") and "\n\n" not in text


def test_plugged_looks_for_the_near_interface(ran):
    ran[1][:] = [json.dumps([{"ifname": "lo"}, {"ifname": "eth0"}]), json.dumps([{"ifname": "lo"}])]
    assert wiring.plugged(PIDS, WIRING["cables"]) == [True, False]


def test_a_kernel_that_cannot_is_told_with_a_remedy(ran):
    ran[1][:] = [EngineError("nft failed in a container's network namespace", rc=1, stderr="Operation not supported")]
    with pytest.raises(EngineError) as caught:
        wiring.wire(PIDS, WIRING)
    assert "doctor" in caught.value.remedy and caught.value.rc == 1
