# SPDX-License-Identifier: BSD-4-Clause
"""Caddy's rules in the real kernel, against a workload that chooses its packets' source (N3, N9)."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

from support import oracle
from support.gateway_lab import Lab
from support.netns import forked
from support.oracle import UDP, Packet

from asf_lib.core import policy
from asf_lib.core.topology import Cable, End, topology

RESOLVER = "8.8.8.8"
CABLE = Cable(
    "agent",
    End("agent", "eth1", oracle.AGENT, oracle.AGENT_MAC),
    End("caddy", "agent0", oracle.GATEWAY, oracle.GATEWAY_MAC),
)
RULES = policy.nft(
    replace(topology("198.18.0.0/24"), agent=CABLE), [4000], False, policy.Uplink(RESOLVER, ["198.18.1.0/24"], [443])
)


def _answers(rules: list[dict[str, Any]]) -> list[str]:
    """What a program in Caddy's namespace that asks its resolver takes for an answer, the agent's being first."""
    lab = Lab()
    lab.load(rules)
    asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    asker.bind((oracle.UPLINK, 0))
    asker.connect((RESOLVER, 53))
    asker.settimeout(5)
    asker.send(b"question")
    port, found = asker.getsockname()[1], []
    for end, text in ((lab.agent, b"forged"), (lab.outside, b"genuine")):
        lab.send(end, Packet(1, oracle.UPLINK, UDP, 53, port, source=RESOLVER, data=text))
    while not found or found[-1] != "genuine":
        found.append(asker.recv(100).decode())
    return found


def test_an_agent_cannot_answer_in_the_resolvers_name() -> None:
    assert forked(lambda: _answers(RULES), 20) == ["genuine"]


def test_without_the_rules_about_foreign_packets_it_could() -> None:
    """Connection tracking does not ask which link a packet came by: the control of the test above."""
    lax = [one for one in RULES if not any(e.get("match", {}).get("op") == "!=" for e in _parts(one))]
    assert len(RULES) - len(lax) == 2
    assert forked(lambda: _answers(lax), 20) == ["forged", "genuine"]


def _parts(one: dict[str, Any]) -> list[dict[str, Any]]:
    return list(one.get("rule", {}).get("expr", []))
