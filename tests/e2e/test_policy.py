# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play policy`` beside real sessions: it says what an open then does, and opens nothing itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import addresses, leaks
from support.product import Completed, Home, SessionFactory, asf_play

pytestmark = [pytest.mark.podman, pytest.mark.slow]

DOCS: dict[str, Any] = {"name": "docs.example.com", "private": [f"{addresses.SITE}/32"]}
NAMES: dict[str, Any] = {"network": {"allow_domains": [DOCS, {"name": "git.example.com", "ports": [8443]}]}}
ISOLATED: dict[str, Any] = {
    "adapter": "claude",
    "llm": {"provider": "anthropic", "mock": "hello"},
    "network": {"mode": "isolated"},
}


def _policy(home: Home, *words: str, **more: Any) -> Completed:
    done = asf_play("policy", *words, "--json", home=home, **more)
    assert done.rc == 0, done
    return done


def test_it_is_the_plan_of_the_open_and_creates_nothing(home: Home, session: SessionFactory) -> None:
    home.agent("pol", NAMES)
    name = session.new_name()
    said = _policy(home, "-e", "agent=pol", "-e", f"session={name}").json
    assert leaks.find(name) == [], "nothing of the session exists"
    assert not (home.state / "asf" / "evidence").exists(), "a look leaves no evidence"
    opened = session.open("pol", name=name)
    plan = json.loads((opened.evidence / "plan.json").read_text())["plan"]
    assert [one["to"] for one in said["destinations"]] == [one["name"] for one in plan["network"]["domains"]]
    assert said["listeners"] == plan["listeners"] and said["warnings"] == opened.document["warnings"]
    live = opened.wire_sh("caddy", "nft list ruleset")
    assert "dport { 443, 8443 } accept" in live and "tcp dport { 443, 8443 } accept" in said["rules"][0]["text"]
    assert _policy(home, opened.id).json["destinations"] == said["destinations"], "also while it lives"


@pytest.mark.parametrize("agent", ["claude", "demo", "isolated-worker", "python-agent"])
def test_every_shipped_agent_has_a_policy_without_a_key(home: Home, agent: str) -> None:
    found = _policy(home, agent).json
    assert found["agent"] == agent and found["front"], found
    words = asf_play("policy", agent, "--rules", home=home)
    assert words.rc == 0 and "the agent reaches" in words.out and "nftables of caddy" in words.out, words


def test_isolated_reaches_the_front_alone(home: Home) -> None:
    home.agent("iso", ISOLATED)
    found = _policy(home, "iso").json
    assert found["destinations"] == [] and found["resolver"] is None
    assert [one["name"] for one in found["listeners"]] == ["L2", "L3"]


@pytest.mark.parametrize(
    ("manifest", "key"),
    [
        ({"network": {"mode": "isolated", "allow_domains": ["docs.example.com"]}}, "network.allow_domains"),
        ({"network": {"mode": "routed", "allow_domains": ["docs.example.com"]}}, "network.allow_domains"),
        ({"network": {"allow_domains": ["10.0.0.1"]}}, "network.allow_domains[0]"),
    ],
    ids=["isolated-names", "routed-names", "literal"],
)
def test_contradictions_are_errors_as_at_open(home: Home, manifest: dict[str, Any], key: str) -> None:
    home.agent("pol", manifest)
    done = asf_play("policy", "pol", "--json", home=home)
    assert done.rc == 220 and key in [problem["key"] for problem in done.json["problems"]], done


def test_wrong_words(home: Home) -> None:
    home.agent("pol", NAMES)
    for words, found in (
        (["pool"], "did you mean pol"),
        ([], "no agent is named"),
        (["pol", "-e", "colour=red"], "changes no policy"),
        (["pol", "-e", "agent=other"], "named twice"),
    ):
        done = asf_play("policy", *words, home=home)
        assert done.rc in (64, 220) and found in done.err, (words, done)
