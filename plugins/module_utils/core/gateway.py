# SPDX-License-Identifier: BSD-2-Clause
"""Rules of the gateway's network namespace in ``routed`` mode, as nftables JSON in a stable order. Pure.

A packet from the agent's cable meets, in this order: ``screen`` (before defragmentation and connection tracking: shape,
source and destination that no rule could allow), ``forward`` (one rule per declared tuple, for new flows; what belongs
to a flow that such a rule let in), ``admit`` (bounds, the log of flows, the rule's counter). What is refused ends in
``refuse``, which notes it and drops it. The flow's mark says which tuple let it in: a packet of a flow without one is
dropped, whatever connection tracking calls it, and only marked flows are masqueraded. The gateway itself takes no
packet and sends none.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .formats import NEVER_ROUTED, SPECIAL, is_special
from .nftables import (
    ACCEPT,
    DROP,
    any_of,
    base_chain,
    chain,
    cidr,
    counter,
    ct,
    field,
    log_set,
    match,
    meta,
    note,
    payload,
    rule,
    table,
)
from .topology import Cable

Json = Dict[str, Any]

#: Flows at a time, per protocol. slirp4netns needs 240 kB of the host's memory for an established TCP flow (measured,
#: docs/routed.md), outside of every cgroup of the session: this is what bounds it.
FLOWS = {"tcp": 1024, "udp": 1024, "icmp": 256}
#: Elements of a log set, and seconds that one stays after its first packet (a day).
LOG_SIZE, LOG_SECONDS = 4096, 86400

#: Why packets were dropped: counters ``drop-REASON``, and what each means.
REASONS = {
    "interface": "came by, or would leave by, another link than the cable and the uplink",
    "ipv6": "not IPv4",
    "fragment": "a fragment",
    "options": "IP options",
    "source": "a source address that is not the agent's",
    "ttl": "a TTL that ends at the gateway",
    "broadcast": "broadcast",
    "multicast": "multicast",
    "own": "the session's wires, link-local and loopback space, this host",
    "special": "a special-purpose range that no rule names",
    "invalid": "belongs to no flow (stray, wrong checksum, impossible flags)",
    "flags": "TCP that begins no connection",
    "unlisted": "no rule allows it",
    "limit": "more flows at a time than allowed",
    "return": "came from outside and belongs to no flow of the agent",
    "input": "meant for the gateway itself",
    "output": "sent by the gateway itself",
}
CONTROL = "control-blocked"
_PORTS = ("inet_proto", "ipv4_addr", "inet_service")
#: Log sets: ``flows`` and ``denials`` of TCP and UDP by protocol, address and port; the others without a port.
SETS = {"flows": _PORTS, "flows-icmp": _PORTS[:2], "denials": _PORTS, "denials-other": _PORTS[:2]}
_LOCAL = ("127.0.0.0/8", "169.254.0.0/16")
_MULTICAST = "224.0.0.0/4"
_TARGET = (payload("ip", "protocol"), payload("ip", "daddr"))


def allow_counter(index: int) -> str:
    """Name of the counter of the tuple at this place of the plan's ``network.tuples``."""
    return f"allow-{index}"


def rules(
    cable: Cable,
    uplink_if: str,
    uplink_ip: str,
    own: Sequence[str],
    tuples: Sequence[Mapping[str, Any]],
    verify: Optional[Mapping[str, Any]] = None,
) -> List[Json]:
    """The whole ruleset, in load order.

    ``cable`` joins agent (near) and gateway (far); ``uplink_ip`` is the gateway's address on ``uplink_if``; ``own`` are
    CIDRs that are never reached, whatever is allowed: the cables' and the uplink's range, the host's own addresses.
    ``tuples`` and ``verify`` are the plan's ``network.tuples`` and ``network.verify``.
    """
    inside, outside = meta("iifname", cable.far.interface), meta("iifname", uplink_if)
    out, to_agent = meta("oifname", uplink_if), meta("oifname", cable.far.interface)
    marks = {"map": {"key": {"ct": {"key": "mark"}}, "data": {"set": _marks(tuples)}}}
    return [
        table(),
        *[counter(allow_counter(index)) for index in range(len(tuples))],
        *[counter("drop-" + reason) for reason in REASONS],
        counter(CONTROL),
        *[log_set(name, key, LOG_SIZE, LOG_SECONDS) for name, key in SETS.items()],
        base_chain("screen", "prerouting", -450),
        chain("refuse"),
        chain("admit"),
        *[base_chain(hook, hook) for hook in ("forward", "input", "output")],
        base_chain("masquerade", "postrouting", 100, kind="nat", policy="accept"),
        *_screen(cable, inside, outside, uplink_ip, own, tuples),
        *_refuse(verify),
        *_admit(marks),
        *_known(inside, outside, out, to_agent, marks),
        *[_allow(index, item) for index, item in enumerate(tuples)],
        _drop("forward", "unlisted", noted=True),
        _drop("input", "input"),
        _drop("output", "output"),
        rule("masquerade", out, field("ip", "saddr", cable.near.ip), ct("mark", 0, "!="), {"masquerade": None}),
    ]


def _marks(tuples: Sequence[Mapping[str, Any]]) -> List[List[Any]]:
    """Pairs of a flow's mark and the counter of the tuple that let it in. Mark 0 is that of a flow nobody let in."""
    return [[index + 1, allow_counter(index)] for index in range(len(tuples))]


def _drop(place: str, reason: str, *when: Json, noted: bool = False) -> Json:
    """Drop what matches, counted under its reason; ``noted``: its destination is written down as well."""
    return rule(place, *when, {"counter": "drop-" + reason}, {"goto": {"target": "refuse"}} if noted else DROP)


def _to(networks: Sequence[str], op: str = "==") -> Json:
    """Match the destination. Joined, because the kernel refuses a set of ranges that overlap."""
    joined = ipaddress.collapse_addresses(map(ipaddress.IPv4Network, networks))
    return field("ip", "daddr", any_of([cidr(str(network)) for network in joined]), op)


def _screen(
    cable: Cable,
    inside: Json,
    outside: Json,
    uplink_ip: str,
    own: Sequence[str],
    tuples: Sequence[Mapping[str, Any]],
) -> List[Json]:
    fragment = match({"&": [payload("ip", "frag-off"), 0x3FFF]}, 0, "!=")  # "more fragments" or an offset
    foreign = meta("iifname", cable.far.interface, "!=")
    return [
        _drop("screen", "ipv6", meta("nfproto", "ipv6")),
        _drop("screen", "fragment", fragment),
        _drop("screen", "options", field("ip", "hdrlength", 5, ">")),
        rule("screen", outside, field("ip", "daddr", uplink_ip), ACCEPT),
        _drop("screen", "interface", foreign),
        _drop("screen", "source", field("ip", "saddr", cable.near.ip, "!=")),
        # Not forwarded, but connection tracking would take a FIN or RST in it for a flow's end: what lives on behind
        # the uplink would count no more.
        _drop("screen", "ttl", field("ip", "ttl", 2, "<")),
        _drop("screen", "broadcast", meta("pkttype", "host", "!=")),
        _drop("screen", "broadcast", field("ip", "daddr", "255.255.255.255")),
        _drop("screen", "multicast", _to([_MULTICAST])),
        _drop("screen", "own", _to([*own, *_LOCAL]), noted=True),
        _drop("screen", "special", *_special(tuples), noted=True),
        rule("screen", inside, ACCEPT),
    ]


def _special(tuples: Sequence[Mapping[str, Any]]) -> List[Json]:
    """Special-purpose destinations but those that some tuple names."""
    barred = [str(network) for network in SPECIAL] + list(NEVER_ROUTED)
    named = [str(item["cidr"]) for item in tuples if is_special(ipaddress.IPv4Network(item["cidr"]))]
    return [_to(barred), *([_to(named, "!=")] if named else [])]


def _refuse(verify: Optional[Mapping[str, Any]]) -> List[Json]:
    """Note the destination and drop. A full set ends its own rule only; the drop is a rule of its own."""
    ported = meta("l4proto", any_of(["tcp", "udp"]))
    other = meta("l4proto", {"set": ["tcp", "udp"]}, "!=")
    out = [
        rule("refuse", ported, note("denials", *_TARGET, payload("th", "dport"))),
        rule("refuse", other, note("denials-other", *_TARGET)),
    ]
    if verify is not None:
        control = [field("ip", "daddr", verify["address"]), field("tcp", "dport", verify["blocked_port"])]
        out.append(rule("refuse", *control, {"counter": CONTROL}))
    return [*out, rule("refuse", DROP)]


def _admit(marks: Json) -> List[Json]:
    """The last part of every tuple: the mark is set, the flow is new."""
    ported = meta("l4proto", any_of(["tcp", "udp"]))
    return [
        *[
            _drop("admit", "limit", meta("l4proto", protocol), {"ct count": {"val": most, "inv": True}}, noted=True)
            for protocol, most in FLOWS.items()
        ],
        rule("admit", ported, note("flows", *_TARGET, payload("th", "dport"))),
        rule("admit", meta("l4proto", "icmp"), note("flows-icmp", *_TARGET)),
        rule("admit", {"counter": marks}, ACCEPT),
    ]


def _known(inside: Json, outside: Json, out: Json, to_agent: Json, marks: Json) -> List[Json]:
    """What belongs to a flow, both ways, then what no tuple is asked about. A mark without a counter ends the rule."""
    states = match({"ct": {"key": "state"}}, ["established", "related"], "in")
    state, counted = {"ct": {"key": "state"}}, {"counter": marks}
    begins = match({"&": [payload("tcp", "flags"), ["fin", "syn", "rst", "ack"]]}, "syn", "!=")
    return [
        rule("forward", outside, to_agent, ct("direction", "reply"), states, counted, ACCEPT),
        _drop("forward", "return", outside),
        _drop("forward", "invalid", match(state, "invalid", "in"), noted=True),
        rule("forward", inside, out, ct("direction", "original"), match(state, "established", "in"), counted, ACCEPT),
        _drop("forward", "interface", meta("oifname", out["match"]["right"], "!="), noted=True),
        _drop("forward", "flags", match(state, "new", "in"), begins, noted=True),
    ]


def _allow(index: int, item: Mapping[str, Any]) -> Json:
    """One tuple: a new flow gets its mark and goes on to ``admit``.

    A tuple that covers a special-purpose range without naming it does not reach it, even where another names it.
    """
    network = ipaddress.IPv4Network(item["cidr"])
    covered = [str(special) for special in SPECIAL if special.subnet_of(network) and special != network]
    where = [_to([str(network)])] if network.prefixlen else []
    where += [_to(covered, "!=")] if covered else []
    new = match({"ct": {"key": "state"}}, "new", "in")
    mark: Json = {"mangle": {"key": {"ct": {"key": "mark"}}, "value": index + 1}}
    return rule("forward", new, *where, *_kind(item), mark, {"goto": {"target": "admit"}})


def _kind(item: Mapping[str, Any]) -> List[Json]:
    if item["protocol"] == "icmp_echo":
        return [field("icmp", "type", "echo-request"), field("icmp", "code", 0)]
    if item["ports"] == "any":
        return [meta("l4proto", item["protocol"])]
    return [field(item["protocol"], "dport", any_of(sorted(item["ports"])))]
