# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play policy``: the same plan as an open, read off and put into words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asf_cli import policytext, render
from asf_lib.core import effective as core
from asf_lib.core.errors import GrantError, ManifestError
from asf_lib.engine import hostfacts, preview
from tests.support import schemas
from tests.unit import test_upstream
from tests.unit.test_plan import BROKERED, LIMITS, SETTINGS, build

ROOT = Path(__file__).resolve().parents[2]
ISOLATED = (
    "name: a\nadapter: claude\nllm: {provider: anthropic, models: [opus]}\nsecrets: {files: [a.env]}\n"
    "network: {mode: isolated}\nenv: {GREETING: hello}\n"
)
BARE = "name: a\nnetwork: {mode: isolated}\n"
ROUTED = (
    "name: a\nnetwork:\n  mode: routed\n"
    "  allow: [{cidr: 203.0.113.0/24, protocol: tcp, ports: [22, 80]}, {cidr: 198.51.100.7/32, protocol: icmp_echo}]\n"
    "  verify: {address: 203.0.113.9, port: 22, blocked_port: 25}\ncapabilities: [net_raw]\n"
)
DROPPED = BROKERED.replace("[docs.example.com,", "[docs.example.com, api.anthropic.com,")


def policy(text: str = BROKERED) -> dict[str, Any]:
    images = {**SETTINGS.images, "gateway": "localhost/asf/gateway:1"}
    plan = build(text, settings=replace(SETTINGS, images=images, limits={**LIMITS, "gateway": LIMITS["caddy"]}))
    return core.effective(plan, plan["warnings"], [])


def words(found: dict[str, Any], rules: bool = False) -> str:
    return "\n".join(policytext.lines(found, render.Style(), rules))


@pytest.mark.parametrize(
    "text", [BROKERED, DROPPED, ISOLATED, BARE, ROUTED], ids=["proxy", "dropped", "isolated", "bare", "routed"]
)
def test_every_mode_has_words_and_a_document_of_the_schema(text: str) -> None:
    found = policy(text)
    assert not schemas.problems(json.loads(json.dumps(found)), "cli-policy")
    assert all(line.isprintable() for line in words(found, rules=True).splitlines())


def test_a_line_for_each_destination_with_its_key() -> None:
    said = words(policy())
    assert "docs.example.com tcp port 443, server name checked, also without a proxy on port 443 (by L1)" in said
    assert "git.example.com tcp port 443, 8443, bytes not looked at, may resolve to 10.1.2.0/24 (by L1)" in said
    assert "network.allow_domains[1]" in said and "api.anthropic.com tcp port 443" in said
    assert "/workspace/repos/x rw from /home/op/x" in said and "repos[0]" in said
    assert "capabilities: none" in said and "secret provider (ANTHROPIC_API_KEY) is held by broker" in said


def test_what_brokering_drops_is_told() -> None:
    assert policy(DROPPED)["dropped"] == [
        {"name": "api.anthropic.com", "key": "network.allow_domains[1]", "why": core._dropped(build(DROPPED))[0]["why"]}
    ]
    assert "not api.anthropic.com" in words(policy(DROPPED))


def test_isolated_reaches_the_front_or_nothing() -> None:
    brokered, bare = policy(ISOLATED), policy(BARE)
    assert [one["who"] for one in brokered["destinations"]] == ["broker"] and brokered["front"]["models"] == ["opus"]
    assert (bare["front"], bare["resolver"], bare["rules"], bare["cables"], bare["secrets"]) == (None, None, [], [], [])
    assert "the agent reaches\n  nothing" in words(bare) and "there is no front" in words(bare)


def test_routed_shows_tuples_both_controls_the_gateways_rules_and_the_capability() -> None:
    found = policy(ROUTED)
    said = words(found, rules=True)
    assert "203.0.113.0/24 tcp port 22, 80 (by gateway)" in said and "network.allow[0]" in said
    assert "198.51.100.7/32 icmp_echo (by gateway)" in said and "capabilities: net_raw" in said
    assert "verified: 203.0.113.9:22 must be allowed, and port 25 must not be" in said
    assert [one["role"] for one in found["rules"]] == ["gateway"] and "nftables of gateway" in said
    assert found["front"] is None and found["listeners"] == []


def test_routed_tells_the_internet_as_public_addresses_and_what_is_never_routed() -> None:
    found = policy(ROUTED.replace("198.51.100.7/32, protocol: icmp_echo", "internet, protocol: udp, ports: any"))
    said = words(found)
    assert found["destinations"][1]["to"] == "internet"
    assert "internet (all public addresses) udp any port (by gateway)  network.allow[1]" in said
    assert "0.0.0.0/0" not in said
    assert "the agent has no resolver" in said and "never routed: this host's own addresses" in said


def test_the_rules_are_those_of_the_plan() -> None:
    plan = build()
    assert "tcp dport { 443, 8443 } accept" in policy()["rules"][0]["text"]
    assert "nftables of caddy" in words(policy(), rules=True) and "nftables" not in words(policy())
    assert [one["role"] for one in policy()["rules"]] == [one["role"] for one in plan["wiring"]["nft"]]


def test_an_upstream_proxy_moves_the_check_of_addresses_and_says_so() -> None:
    plan = test_upstream.proxied(test_upstream.PLAIN % test_upstream.SECRET)
    said = words(core.effective(plan, plan["warnings"], []))
    assert "every tunnel goes through https://proxy.example.com:3129 (TLS to it, login from PROXY_LOGIN)" in said
    assert "that proxy resolves the names and checks the addresses, not ASF" in said
    assert "secret upstream (PROXY_LOGIN) is held by caddy" in said


def test_nothing_from_a_manifest_reaches_the_terminal_raw() -> None:
    found = policy(ISOLATED)
    found["destinations"][0]["to"] = "evil\x1b]0;title\x07.example.com"
    assert "\x1b" not in words(found) and "\x07" not in words(found)


# --- without an engine -----------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CACHE_HOME", "HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))
    (tmp_path / "root/agents/a").mkdir(parents=True)
    return tmp_path / "root"


def _preview(root: Path, text: str, **given: Any) -> tuple[dict[str, Any], list[Any], list[str]]:
    (root / "agents/a/runtime.yml").write_text(text)
    return preview.compute(preview.inputs(str(ROOT), {"agent": "a", "asf_home": str(root), **given}), None)


def test_it_works_where_neither_podman_nor_images_nor_secrets_are(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostfacts, "_SECCOMP", ("/nowhere",))
    monkeypatch.setattr(hostfacts, "resolvers", lambda: [])
    monkeypatch.setattr(hostfacts.hostprograms, "told", lambda name: None)
    plan, _, assumed = _preview(root, BROKERED)
    said = "\n".join(assumed)
    for fact in ("Podman is not installed", "slirp4netns is assumed", "no resolver was found", "seccomp", "a.env"):
        assert fact in said, said
    found = core.effective(plan, [], assumed)
    assert not schemas.problems(json.loads(json.dumps(found)), "cli-policy")
    assert not list((root.parent / "XDG_STATE_HOME").rglob("plan.json")), "a preview records nothing"


def test_it_is_the_plan_of_an_open(root: Path) -> None:
    plan, _, _ = _preview(root, BROKERED)
    again, _, _ = _preview(root, BROKERED, llm_mock="true", session="other")
    assert plan["session"]["id"] == "a.main" and again["session"]["id"] == "a.other" and again["llm"]["mock"] is True


def test_contradictions_are_errors(root: Path) -> None:
    with pytest.raises(ManifestError):
        _preview(root, "name: a\nnetwork: {mode: isolated, allow_domains: [docs.example.com]}\n")
    (root / "agents/a/repos.yml").write_text("repos: [/nowhere/at/all]\n")
    with pytest.raises(GrantError):
        _preview(root, BROKERED)


def test_the_shipped_defaults_are_those_of_the_role() -> None:
    import yaml

    role = yaml.safe_load((ROOT / "roles/session/defaults/main.yml").read_text())
    usual = preview.inputs(str(ROOT), {"agent": "a"})
    files = [yaml.safe_load((ROOT / name).read_text()) for name in preview.DEFAULTS]
    assert preview.defaults(str(ROOT)) == {key: value for one in files for key, value in one.items()}
    assert (
        usual.cable_range == role["asf_session_cable_range"] and usual.uplink_range == role["asf_session_uplink_range"]
    )
    assert usual.session == role["asf_session_name"] and usual.limits["agent"]["memory"] == 4 << 30
