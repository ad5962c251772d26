# SPDX-License-Identifier: BSD-4-Clause
"""What ``docs/network.md`` and ``docs/egress.md`` say in figures and words is what the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asf_lib.core import policy
from asf_lib.core.topology import Cable, topology
from asf_lib.engine import home as homes

ROOT = Path(__file__).resolve().parents[2]
NETWORK, EGRESS = ((ROOT / "docs" / name).read_text() for name in ("network.md", "egress.md"))
GO = ROOT / "roles/egress_caddy/files/caddy/asf"
T = topology("198.18.0.0/24", 28)


def cells(text: str, first: str) -> list[str]:
    """The cells of the first table row that begins with this word."""
    row = next(line for line in text.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


@pytest.mark.parametrize("cable", [T.agent, T.broker, T.gateway], ids=lambda cable: cable.name)
def test_the_cables_of_the_table_are_those_of_the_topology(cable: Cable) -> None:
    _, far, far_ip, near, near_ip, _ = cells(NETWORK, cable.name)
    assert (far, far_ip) == (f"{cable.far.role} `{cable.far.interface}`", cable.far.ip)
    assert (near, near_ip) == (f"{cable.near.role} `{cable.near.interface}`", cable.near.ip)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("L1", f"{T.agent.far.ip}:{policy.L1_PORT}"),
        ("L1t", f"{T.agent.far.ip}:{policy.L1T_PORT}"),
        ("L2", f"{T.agent.far.ip}:{policy.L2_PORT}"),
        ("L3", f"{T.broker.far.ip}:{policy.L3_PORT}"),
    ],
)
def test_the_listeners_of_the_table_are_those_of_the_policy(name: str, address: str) -> None:
    assert cells(NETWORK, name)[1] == address
    assert f"{name} :{address.rpartition(':')[2]}" in re.sub(" +", " ", NETWORK), "the pictures agree"


def test_the_brokers_address() -> None:
    (row,) = [line for line in NETWORK.splitlines() if line.startswith("| broker |") and "LiteLLM" in line]
    assert f"{T.broker.near.ip}:{policy.BROKER_PORT}" in row


def test_every_reason_of_the_egress_page_is_caddys_and_none_is_left_out() -> None:
    source = (GO / "refusal.go").read_text() + (GO / "chain.go").read_text()
    words = set(re.findall(r'= +"((?:denied|limit)-[a-z-]+)"', source))
    words |= {"upstream-proxy-" + word for word in re.findall(r'reasonChainWord \+ "([a-z]+)"', source)}
    told = set(re.findall(r"`((?:denied|limit|upstream-proxy)-[a-z]+(?:-[a-z]+)*)`", EGRESS))
    assert told == words


def test_the_limits_are_caddys() -> None:
    text = (ROOT / "plugins/module_utils/core/policy.py").read_text()
    assert '"max_tunnels": 64' in text and '", l1, 256)' in text and '"idle_timeout": "5m"' in text
    assert "64 tunnels and 256 connections" in EGRESS and "five minutes" in EGRESS


def test_the_pages_are_linked() -> None:
    for page in ("README.md", "docs/getting-started.md"):
        assert "network.md" in (ROOT / page).read_text(), page


def test_the_example_is_an_agent_with_a_readme() -> None:
    found = homes.load_manifest(homes.Home(ROOT, "checkout", ROOT / "agents"), "isolated-worker")
    assert found.network.mode == "isolated" and found.brokered and found.mode == "interactive"
    assert "asf-play open.yml -e agent=isolated-worker" in (ROOT / "agents/isolated-worker/README.md").read_text()
