# SPDX-License-Identifier: BSD-4-Clause
"""Rules of the gateway: what stands in them for which tuples. What the kernel makes of them: test_gateway_kernel.py."""

import json

import pytest

from asf_lib.core import gateway, nftables
from asf_lib.core.topology import Cable, End

CABLE = Cable(
    "gateway",
    End("agent", "eth1", "198.18.0.10", "02:a5:f0:00:00:0a"),
    End("gateway", "agent0", "198.18.0.9", "02:a5:f0:00:00:09"),
)
OWN = ["198.18.0.0/24", "198.18.1.0/24", "192.0.2.7"]


def row(cidr, protocol="tcp", ports=(443,)):
    return {"cidr": cidr, "protocol": protocol, "ports": ports if ports == "any" else list(ports), "key": "k"}


def rules(*tuples, verify=None):
    return gateway.rules(CABLE, "tap0", "198.18.1.100", OWN, tuples, verify)


def text(*tuples, verify=None):
    return nftables.as_text(rules(*tuples, verify=verify))


def test_every_hook_of_packets_drops_by_default():
    chains = [o["chain"] for o in rules() if "chain" in o and o["chain"].get("type") == "filter"]
    assert {c["hook"] for c in chains} == {"prerouting", "forward", "input", "output"}
    assert {c["policy"] for c in chains} == {"drop"}


@pytest.mark.parametrize(
    ("item", "line"),
    [
        (row("8.8.0.0/16"), "ip daddr 8.8.0.0/16 tcp dport 443"),
        (row("8.8.8.8/32", "udp", (123, 53)), "ip daddr 8.8.8.8 udp dport { 53, 123 }"),
        (row("8.8.8.8/32", "udp", "any"), "ip daddr 8.8.8.8 l4proto udp"),
        (row("10.0.0.0/8", "icmp_echo", "any"), "ip daddr 10.0.0.0/8 icmp type echo-request icmp code 0"),
    ],
)
def test_a_tuple_becomes_one_rule_for_new_flows(item, line):
    assert f"  ct state new {line} ct mark set 1 goto admit\n" in text(item)


def test_a_wide_tuple_leaves_out_the_special_ranges_that_it_covers_silently():
    """Even where another tuple names one of them: each tuple reaches what it says by itself."""
    lines = text(row("0.0.0.0/0", "udp", (53,)), row("10.1.0.0/16")).splitlines()
    wide = next(line for line in lines if "ct mark set 1" in line)
    assert "ip daddr != { 10.0.0.0/8, 100.64.0.0/10," in wide
    special = next(line for line in lines if line.endswith("counter drop-special goto refuse"))
    assert "ip daddr != 10.1.0.0/16" in special


def test_the_sessions_wires_and_the_hosts_addresses_are_refused_before_any_tuple():
    whole = text(row("198.18.0.0/15"))
    assert "{ 127.0.0.0/8, 169.254.0.0/16, 192.0.2.7, 198.18.0.0/23 } counter drop-own goto refuse" in whole


def test_only_marked_flows_are_masqueraded_and_only_on_the_uplink():
    assert "  oifname tap0 ip saddr 198.18.0.10 ct mark != 0 masquerade\n" in text(row("8.8.8.8/32"))


def test_every_drop_is_counted_and_every_counter_is_used():
    found = rules(row("8.8.8.8/32"), verify={"address": "8.8.8.8", "port": 443, "blocked_port": 22})
    declared = {o["counter"]["name"] for o in found if "counter" in o}
    used = json.dumps([o for o in found if "rule" in o])
    assert [name for name in sorted(declared) if f'"{name}"' not in used] == []
    silent = [o["rule"] for o in found if "rule" in o and {"drop": None} in o["rule"]["expr"]]
    assert [r["chain"] for r in silent if not any("counter" in e for e in r["expr"])] == ["refuse"]


def test_the_control_is_counted_where_packets_are_dropped():
    whole = text(row("8.8.8.8/32"), verify={"address": "8.8.8.8", "port": 443, "blocked_port": 22})
    assert "  ip daddr 8.8.8.8 tcp dport 22 counter control-blocked\n  drop\n" in whole


def test_the_same_tuples_give_the_same_document():
    items = [row("8.8.8.8/32"), row("9.9.9.0/24", "udp", "any")]
    assert json.dumps(rules(*items)) == json.dumps(rules(*items))


def test_what_packets_leave_behind_is_no_difference_but_a_rule_is():
    want = rules(row("8.8.8.8/32"))
    listed = json.loads(json.dumps(want))
    for item in listed:
        if "counter" in item:
            item["counter"].update(packets=7, bytes=420, handle=3)
        if "set" in item:
            item["set"].update(flags=["timeout", "dynamic"], elem=[{"elem": {"val": "x"}}])
    assert nftables.canonical(listed) == nftables.canonical(want)
    for index, item in enumerate(want):
        if "rule" in item or "set" in item or "counter" in item:
            assert nftables.canonical(want[:index] + want[index + 1 :]) != nftables.canonical(want)
    larger = json.loads(json.dumps(want).replace('"size": 4096', '"size": 8192'))
    assert nftables.canonical(larger) != nftables.canonical(want)


def test_flag_masks_and_icmp_codes_are_the_same_in_both_spellings_of_nft():
    want = rules(row("8.8.8.8/32", "icmp_echo", "any"))
    older = json.dumps(want).replace('"field": "code"}}, "right": 0', '"field": "code"}}, "right": "net-unreachable"')
    newer = json.dumps(want).replace('["fin", "syn", "rst", "ack"]', '{"|": ["fin", "syn", "rst", "ack"]}')
    assert older != json.dumps(want) != newer
    assert nftables.canonical(json.loads(older)) == nftables.canonical(json.loads(newer)) == nftables.canonical(want)
