# SPDX-License-Identifier: BSD-2-Clause
"""The outside half of routed mode's controls: what they show, from what was counted and what was reached.

That a packet got no answer shows nothing. A denial counts because the port is open when nobody stands in between, and
because the gateway's own counter says that it dropped the attempt; a rule counts because its counter went up.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, Mapping

from . import gateway
from .formats import INTERNET, destinations
from .probes import result

Json = Dict[str, Any]

#: Outside probes of this file, for the security model: name, invariant, what must be.
PROBES = (
    ("control-open", 3, "both ports of the control are open, with nothing in between"),
    ("gateway-denied", 2, "the gateway counted the attempt on the blocked port, and dropped it"),
    ("gateway-carried", 2, "each rule that was tried counted its packets"),
)
_DEFINED = {name: (invariant, expect) for name, invariant, expect in PROBES}


def _result(name: str, verdict: str, evidence: str) -> Json:
    invariant, expect = _DEFINED[name]
    return result(name, invariant, "outside", expect, verdict, evidence)


def judge_open(plan: Json, words: Mapping[str, str]) -> Json:
    """``words`` maps ``address:port`` of both ports to ``connected`` or to what went wrong, as the host saw it."""
    closed = [f"{end}: {words.get(end, 'not tried')}" for end in ends(plan) if words.get(end) != "connected"]
    if closed:
        why = "a port that is closed, or a host that is not reached, proves nothing about the policy: "
        return _result("control-open", "inconclusive", why + "; ".join(closed))
    return _result("control-open", "pass", f"connected from this host: {', '.join(ends(plan))}")


def ends(plan: Json) -> List[str]:
    """``address:port`` of the allowed and of the blocked port."""
    verify = plan["network"]["verify"]
    return [f"{verify['address']}:{verify[port]}" for port in ("port", "blocked_port")]


def judge_counts(plan: Json, before: Mapping[str, int], after: Mapping[str, int]) -> List[Json]:
    """Both arguments map names of the gateway's counters to packets, before and after the gate's probes."""
    grown = {name: after[name] - before.get(name, 0) for name in after}
    return [_denied(plan, grown), _carried(plan, grown)]


def _denied(plan: Json, grown: Mapping[str, int]) -> Json:
    end, packets = ends(plan)[1], grown.get(gateway.CONTROL)
    if packets is None:
        return _result("gateway-denied", "inconclusive", f"the gateway has no counter {gateway.CONTROL}")
    if packets < 1:
        return _result("gateway-denied", "inconclusive", f"the gateway dropped nothing that went to {end}")
    return _result("gateway-denied", "pass", f"dropped {packets} packet{'s' * (packets != 1)} to {end}")


def _carried(plan: Json, grown: Mapping[str, int]) -> Json:
    tried = _tried(plan)
    counts = [(plan["network"]["tuples"][index], grown.get(gateway.allow_counter(index), 0)) for index in tried]
    silent = [item["key"] for item, packets in counts if packets < 1]
    if silent:
        return _result("gateway-carried", "fail", "tried, and not counted: " + ", ".join(silent))
    told = ", ".join(f"{item['key']} {packets}" for item, packets in counts)
    return _result("gateway-carried", "pass", f"packets by rule: {told}")


def _tried(plan: Json) -> List[int]:
    """Places of the rules that the gate tries: every one of UDP and ICMP, and of TCP the control's own."""
    tuples, verify = plan["network"]["tuples"], plan["network"]["verify"]
    return [i for i, item in enumerate(tuples) if item["protocol"] != "tcp" or _covers(item, verify)]


def _covers(item: Json, verify: Json) -> bool:
    # a tuple of all of IPv4 stands for the public addresses alone
    cidr = INTERNET if item["cidr"] == "0.0.0.0/0" else item["cidr"]
    there = any(ipaddress.IPv4Address(verify["address"]) in network for network in destinations(cidr))
    return there and (item["ports"] == "any" or verify["port"] in item["ports"])
