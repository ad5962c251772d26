# SPDX-License-Identifier: BSD-4-Clause
"""Rendered policy: what Caddy, LiteLLM and nftables are given."""

import json

from asf_lib.core import nftables, policy
from asf_lib.core.topology import topology

T = topology("198.18.0.0/24")
DOCS = policy.Destination("docs.example.com", [443], "required", [], "network.allow_domains[0]")
PROVIDER = policy.Destination("api.example.com", [8443], "required", ["10.1.0.0/16"], "llm.base_url")


def rules(brokered=True, **change):
    args = {
        "resolver": "198.51.100.53",
        "barred": ["198.18.1.0/24", "192.0.2.7"],
        "ports": [443, 8443, 443],
    }
    return policy.nft(T, [3128, 4000] if brokered else [3128], brokered, policy.Uplink(**{**args, **change}))


def test_every_chain_drops_by_default():
    chains = {o["chain"]["name"]: o["chain"]["policy"] for o in rules() if "chain" in o}
    assert chains == {"input": "drop", "forward": "drop", "output": "drop"}


def test_each_cable_is_limited_to_its_own_source_address_and_ports():
    text = nftables.as_text(rules())
    assert "iifname agent0 ip saddr 198.18.0.2 ip daddr 198.18.0.1 tcp dport { 3128, 4000 } accept" in text
    assert "iifname broker0 ip saddr 198.18.0.6 ip daddr 198.18.0.5 tcp dport 3129 accept" in text
    assert "reject with tcp reset" in text


def test_what_is_not_between_a_cables_ends_is_dropped_before_it_counts_as_established():
    """N3: with NET_RAW an agent can answer in the name of the broker or of the resolver."""
    lines = [line.strip() for line in nftables.as_text(rules()).splitlines()]
    established = lines.index("ct state established,related accept")
    for link, source, own in (("agent0", "198.18.0.2", "198.18.0.1"), ("broker0", "198.18.0.6", "198.18.0.5")):
        for foreign in (f"ip saddr != {source}", f"ip daddr != {own}"):
            assert lines.index(f"iifname {link} {foreign} drop") < established


def test_without_a_broker_nothing_of_it_stands_in_the_rules():
    text = nftables.as_text(rules(brokered=False))
    assert "broker0" not in text and "4000" not in text


def test_the_hosts_addresses_are_barred_before_any_port_is_allowed():
    lines = nftables.as_text(rules()).splitlines()
    barred = next(i for i, line in enumerate(lines) if "192.0.2.7" in line)
    allowed = next(i for i, line in enumerate(lines) if line.endswith("tcp dport { 443, 8443 } accept"))
    assert barred < allowed and lines[barred].endswith("admin-prohibited")


def test_no_declared_name_means_no_port_out():
    lines = nftables.as_text(rules(ports=[])).splitlines()
    assert not [line for line in lines if "oifname tap0 tcp dport" in line]


def test_canonical_form_ignores_handles_set_order_and_metainfo():
    want = rules()
    listed = [{"metainfo": {"version": "1"}}] + json.loads(json.dumps(want))
    for number, item in enumerate(listed[1:]):
        next(iter(item.values()))["handle"] = number
        for expr in item.get("rule", {}).get("expr", []):
            right = expr.get("match", {}).get("right")
            if isinstance(right, dict) and "set" in right:
                right["set"].reverse()
    assert nftables.canonical(listed) == nftables.canonical(want)


def test_neighbouring_addresses_are_one_range_as_nft_lists_them():
    """Measured: an anonymous set with a prefix is an interval set, in which the kernel merges neighbours."""
    want = rules(barred=["198.51.100.1", "198.51.100.2", "169.254.0.0/16", "192.0.2.8"])
    listed = json.loads(
        json.dumps(want).replace('"198.51.100.1", "198.51.100.2"', '{"range": ["198.51.100.1", "198.51.100.2"]}')
    )
    assert listed != want
    assert nftables.canonical(listed) == nftables.canonical(want)
    wider = rules(barred=["198.51.100.1", "198.51.100.3", "169.254.0.0/16", "192.0.2.8"])
    assert nftables.canonical(wider) != nftables.canonical(want)


def test_canonical_form_keeps_a_changed_or_added_rule_apart():
    want, got = nftables.canonical(rules()), rules()
    assert nftables.canonical(got + [got[-1]]) != want
    assert nftables.canonical(got[:-1]) != want
    assert nftables.canonical(got + [{"table": {"family": "ip", "name": "other"}}]) != want


def test_caddy_without_broker_has_l1_alone_and_no_admin():
    config = policy.caddy("a.main", T, [DOCS], [], None, ["198.18.0.0/24"], "198.51.100.53")
    assert config["admin"] == {"disabled": True, "config": {"persist": False}}
    assert list(config["apps"]["http"]["servers"]) == ["l1"]


def test_l3_lists_the_provider_and_nothing_else():
    front = policy.Front("anthropic", ["m-*"], ["web_search"], {"request_bytes": 9, "tokens_per_session": 7})
    config = policy.caddy("a.main", T, [DOCS], [PROVIDER], front, [], "198.51.100.53")
    servers = config["apps"]["http"]["servers"]
    l3 = servers["l3"]["routes"][0]["handle"][0]
    assert [p["name"] for p in l3["policy"]] == ["api.example.com"]
    assert servers["l3"]["listen"] == ["198.18.0.5:3129"] and servers["l1"]["listen"] == ["198.18.0.1:3128"]
    l2 = servers["l2"]["routes"][0]["handle"][0]
    assert l2["upstream"] == "198.18.0.6:4000"
    assert (l2["models"], l2["hosted_tools"], l2["request_bytes"]) == (["m-*"], ["web_search"], 9)
    assert l2["limits"] == {"tokens_per_session": 7} and l2["state_file"] == policy.STATE_FILE


def test_litellm_has_references_instead_of_keys_and_never_calls_out_by_itself():
    config = policy.litellm("anthropic", "https://llm.example.com", False)
    assert config["model_list"] == [
        {
            "model_name": "*",
            "litellm_params": {
                "model": "anthropic/*",
                "api_key": "os.environ/ASF_PROVIDER_KEY",
                "api_base": "https://llm.example.com",
            },
        }
    ]
    assert config["general_settings"]["disable_model_info_refresh"] is True
    assert config["litellm_settings"]["telemetry"] is False


def test_the_embedded_model_needs_no_provider():
    config = policy.litellm(None, None, True)
    assert config["litellm_settings"]["custom_provider_map"][0]["provider"] == "asfmock"
    assert "ASF_PROVIDER_KEY" not in json.dumps(config)
