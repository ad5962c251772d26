# SPDX-License-Identifier: BSD-4-Clause
"""The gateway's rules in the real kernel against a model that knows no rules: support/oracle.py (P12, N3, N10)."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from support import oracle, schemas
from support.gateway_lab import Lab, ident, until
from support.netns import forked
from support.oracle import ACK, FIN, ICMP, PSH, RST, SYN, TCP, UDP, Packet, Policy

from asf_lib.core import gateway, gateway_counts, nftables
from asf_lib.core.topology import Cable, End

CABLE = Cable(
    "gateway",
    End("agent", "eth1", oracle.AGENT, oracle.AGENT_MAC),
    End("gateway", "agent0", oracle.GATEWAY, oracle.GATEWAY_MAC),
)
Json = dict[str, Any]


def rules(policy: Policy) -> list[Json]:
    return gateway.rules(CABLE, "tap0", oracle.UPLINK, oracle.OWN, policy.tuples)


#: Where packets from a link that is none of the session's try to go.
_FOREIGN = ("8.8.8.8", oracle.UPLINK, oracle.AGENT, oracle.GATEWAY)
#: Drops whose destination is noted, and the number of the first packet of flows that exist.
_NOTED = ("own", "special", "invalid", "interface", "flags", "unlisted")
_LATER = 30000
_NAMES = {TCP: "tcp", UDP: "udp", ICMP: "icmp", 2: "igmp", 41: "ipv6", 50: "esp", 89: "ospf"}


def _note(log: str, packet: Packet) -> str:
    """An element of a log set as `Lab.notes` names it."""
    if packet.protocol in (TCP, UDP):
        return f"{log} {_NAMES[packet.protocol]} {packet.target} {packet.dport}"
    return f"{log}-{'icmp' if log == 'flows' else 'other'} {_NAMES[packet.protocol]} {packet.target}"


class Trial:
    """One policy in the kernel and in the model: packets are sent, and both must agree on what came through."""

    def __init__(self, lab: Lab, policy: Policy, patience: float) -> None:
        self.lab, self.policy, self.patience = lab, policy, patience
        self.want: Counter[str] = Counter()
        self.noted: Counter[str] = Counter()
        self.wrong: list[str] = []
        for end in (lab.agent, lab.outside):
            lab.seen(end)

    def stage(self, end: Any, arrives: Any, packets: list[tuple[Packet, str]]) -> dict[int, bytes]:
        """Send packets with the model's verdicts from one end; what arrived at the other, by number."""
        for packet, verdict in packets:
            self.lab.send(end, packet)
            if verdict.startswith("allow"):
                self.want["allow-" + verdict.split()[1]] += 1
            elif verdict not in oracle.UNCOUNTED:
                self.want["drop-" + verdict] += 1
            if end is self.lab.agent and verdict in _NOTED:
                self.noted[_note("denials", packet)] += 1
            elif end is self.lab.agent and verdict.startswith("allow") and packet.ident < _LATER:
                self.noted[_note("flows", packet)] += 1
        found: dict[int, bytes] = {}
        expected = {packet.ident for packet, verdict in packets if verdict.startswith("allow")}

        def settled() -> bool:
            found.update({ident(data): data for data in self.lab.seen(arrives)})
            return expected <= set(found) and not self.differences()

        until(settled, self.patience)
        for packet, verdict in packets:
            if (packet.ident in found) != (packet.ident in expected):
                self.wrong.append(f"{verdict}, but {'passed' if packet.ident in found else 'dropped'}: {packet}")
        self.wrong += [f"unknown packet {data[:40].hex()}" for n, data in found.items() if n not in self._sent(packets)]
        return found

    @staticmethod
    def _sent(packets: list[tuple[Packet, str]]) -> set[int]:
        return {packet.ident for packet, _ in packets}

    def differences(self) -> list[str]:
        got = {k: v for k, v in self.lab.counters().items() if v and k != "drop-output"}
        names = sorted(set(got) | set(self.want))
        return [
            f"{n}: {got.get(n, 0)} counted, {self.want[n]} expected" for n in names if got.get(n, 0) != self.want[n]
        ]

    def finish(self) -> list[str]:
        """Every disagreement: packets, counters, and what stands in the log sets."""
        got = self.lab.notes()
        notes = [
            f"{key}: noted {got.get(key, 0)} times, {self.noted[key]} expected"
            for key in sorted(set(got) | set(self.noted))
            if got.get(key, 0) != self.noted[key]
        ]
        return self.wrong + self.differences() + notes


def _outbound(rng: random.Random, policy: Policy, lab: Lab, count: int) -> list[tuple[Packet, str]]:
    packets = [oracle.random_packet(rng, policy, 1 + n, next(lab.ports)) for n in range(count)]
    packets += [Packet(1 + count + n, to, UDP, next(lab.ports), 53) for n, to in enumerate(oracle.TARGETS)]
    return [(packet, oracle.decide(packet, policy)) for packet in packets]


def _answers(opened: list[tuple[Packet, str]], first: int) -> list[tuple[Packet, str]]:
    """From outside: answers to what was let in, and beside each something that is no answer."""
    out: list[tuple[Packet, str]] = []
    for packet, verdict in opened:
        back = replace(
            Packet(0, oracle.UPLINK, packet.protocol, packet.dport, packet.sport, source=packet.target),
            **{"seq": 5000, "ack": packet.seq + 1, "kind": 0},
        )
        if packet.protocol == ICMP:
            back.sport = packet.sport
        translated = replace(packet, source=oracle.UPLINK)
        stranger = "8.8.8.9" if packet.target != "8.8.8.9" else "8.8.8.10"
        number = first + 4 * len(out)
        choices = [
            (replace(back, flags=SYN | ACK), verdict),
            (replace(back, source=stranger, flags=SYN | ACK), "input"),
            (replace(back, target=oracle.AGENT), "interface"),
            (Packet(0, oracle.UPLINK, ICMP, kind=3, code=3, source=packet.target, quoted=translated), verdict),
            (Packet(0, oracle.UPLINK, ICMP, kind=3, code=3, source=packet.target, quoted=packet), "input"),
            (replace(back, flags=SYN, protocol=TCP, sport=7, dport=22), "input"),
            (replace(back, fragment=0x2000, flags=SYN | ACK), "fragment"),
        ]
        out += [(replace(p, ident=number + n), v) for n, (p, v) in enumerate(choices)]
    return out


def _later(opened: list[tuple[Packet, str]], first: int) -> list[tuple[Packet, str]]:
    """From the agent again, in flows that were answered."""
    out: list[tuple[Packet, str]] = []
    for packet, verdict in opened:
        number = first + len(out)
        again = replace(packet, ident=number)
        if packet.protocol == TCP:
            going = replace(again, flags=ACK | PSH, seq=packet.seq + 1, ack=5001, data=b"hello")
            out += [(going, verdict), (replace(going, ident=number + 1, flags=SYN | FIN), "invalid")]
            out += [(replace(going, ident=number + 2, sport=packet.sport ^ 0x8000, flags=ACK), "flags")]
            out += [(replace(going, ident=number + 3, source="198.18.0.2"), "source")]
        else:
            out.append((again, verdict))
            quoted = Packet(1, oracle.AGENT, packet.protocol, packet.dport, packet.sport, source=packet.target)
            error = Packet(number + 1, packet.target, ICMP, kind=3, code=3, quoted=quoted)
            out += [(error, "unlisted")] if packet.protocol == UDP else []
    return out


def _plain(packet: Packet) -> bool:
    """An opener whose flow goes on in the ordinary way."""
    return packet.flags == SYN and not packet.data and not packet.options and packet.ttl > 2


def trial(lab: Lab, policy: Policy, seed: int, count: int, patience: float = 3) -> tuple[int, list[str]]:
    """Number of packets, and every disagreement between the model and the rules that are loaded.

    `patience`: seconds that the kernel gets for a stage; it matters only when they disagree. With none, the first
    disagreement ends the trial.
    """
    rng = random.Random(seed)
    run = Trial(lab, policy, patience)
    outbound = _outbound(rng, policy, lab, count)
    found = run.stage(lab.agent, lab.outside, outbound)
    for number, data in found.items():
        if data[12:16] != bytes(map(int, oracle.UPLINK.split("."))):
            run.wrong.append(f"packet {number} left with its own source address")
    if not patience and (run.wrong or run.differences()):
        return len(outbound), run.finish()
    opened = [(p, v) for p, v in outbound if v.startswith("allow") and _plain(p)][:12]
    answers = _answers(opened, 10000)
    run.stage(lab.outside, lab.agent, answers)
    run.stage(
        lab.third, lab.outside, [(Packet(20000 + n, to, UDP, 9, 53), "interface") for n, to in enumerate(_FOREIGN)]
    )
    later = _later(opened, _LATER)
    run.stage(lab.agent, lab.outside, later)
    return len(outbound) + len(answers) + len(_FOREIGN) + len(later), run.finish()


def test_kernel_and_model_agree_on_generated_packets_over_generated_policies():
    def work() -> list[Any]:
        lab, sent, wrong = Lab(), 0, []
        for seed in range(24):
            policy = oracle.random_policy(random.Random(seed))
            lab.load(rules(policy))
            number, found = trial(lab, policy, seed, 100)
            sent += number
            wrong += [f"seed {seed}: {text}" for text in found]
        return [sent, wrong[:40]]

    sent, wrong = forked(work, 60)
    assert not wrong, "\n".join(wrong)
    assert sent >= 1000


_WIDE = Policy(
    [
        {"cidr": "8.8.0.0/16", "protocol": "tcp", "ports": [80, 443]},
        {"cidr": "0.0.0.0/0", "protocol": "udp", "ports": [53]},
        {"cidr": "10.1.0.0/16", "protocol": "icmp_echo", "ports": "any"},
        {"cidr": "9.9.9.0/24", "protocol": "udp", "ports": "any"},
        {"cidr": "198.51.100.0/24", "protocol": "tcp", "ports": [443]},
        {"cidr": oracle.ELSEWHERE, "protocol": "tcp", "ports": "any"},
    ]
)
#: What may be taken away without any packet of these trials noticing, and why.
_BACKED = {
    "screen iifname agent0 accept [0]": "all other links were dealt with before",
    "refuse drop": "a chain that ends here ends in the drop policy of the hook",
    "admit l4proto tcp ct count over 1024 counter drop-limit goto refuse": "a test of its own",
    "admit l4proto udp ct count over 1024 counter drop-limit goto refuse": "a test of its own",
    "admit l4proto icmp ct count over 256 counter drop-limit goto refuse": "a test of its own",
    "forward iifname tap0 counter drop-return drop": "connection tracking hands over nothing else from outside",
    "output counter drop-output drop": "policy; what the kernel itself would like to send is not predicted",
}


def _mutants(whole: list[Json]) -> list[tuple[str, list[Json]]]:
    """Rule sets with one rule missing, or one condition of a rule missing, each with what was taken away.

    Conditions: those of `screen` and of the tuples' rules. Those on flows in the others repeat each other on purpose.
    """
    out = []
    for place, item in enumerate(whole):
        if "rule" not in item:
            continue
        body = item["rule"]
        line = (
            f"{body['chain']} " + nftables.as_text([{"chain": {"name": body["chain"]}}, item]).splitlines()[1].strip()
        )
        if "ct mark set 6" in line:
            continue  # of ELSEWHERE, which no packet may reach: it leaves by another link
        out.append((line, whole[:place] + whole[place + 1 :]))
        for index, expr in enumerate(body["expr"]):
            tuple_ = any("mangle" in e for e in body["expr"]) and index > 0
            if "match" in expr and (body["chain"] == "screen" or tuple_):
                wider = {"rule": {**body, "expr": body["expr"][:index] + body["expr"][index + 1 :]}}
                out.append((f"{line} [{index}]", [*whole[:place], wider, *whole[place + 1 :]]))
    return out


@pytest.mark.timeout(150)
def test_a_rule_set_with_one_rule_or_one_condition_less_is_caught():
    def work() -> list[Any]:
        lab, unseen = Lab(), []
        whole = rules(_WIDE)
        mutants = _mutants(whole)
        for name, mutant in mutants:
            for seed in (1, 2):
                lab.load(mutant)
                if trial(lab, _WIDE, seed, 120, 3 if name in _BACKED else 0)[1]:
                    break
            else:
                unseen.append(name)
        return [len(mutants), unseen]

    count, unseen = forked(work, 120)
    assert count > 50
    assert sorted(unseen) == sorted(_BACKED), "\n".join(unseen)


_WEB = Policy(
    [
        {"cidr": "8.8.8.0/24", "protocol": "tcp", "ports": "any"},
        {"cidr": "8.8.8.8/32", "protocol": "udp", "ports": [53]},
    ]
)


def _half_open(lab: Lab, count: int, target: str = "8.8.8.8") -> list[bytes]:
    """SYNs that nobody answers; what of them arrived outside."""
    out = []
    for number in range(count):
        lab.send(lab.agent, Packet(number, target, TCP, next(lab.ports), 80))
        if number % 50 == 49:
            out += lab.seen(lab.outside, 0.2 if not out else 0)
    return out + lab.seen(lab.outside)


def _established(lab: Lab, port: int) -> Packet:
    """A connection; returned is what the agent sends in it."""
    syn = Packet(1, "8.8.8.8", TCP, port, 443)
    lab.send(lab.agent, syn)
    answer = Packet(2, oracle.UPLINK, TCP, 443, port, SYN | ACK, source="8.8.8.8", seq=5000, ack=1001)
    lab.send(lab.outside, answer)
    going = replace(syn, ident=3, flags=ACK | PSH, seq=1001, ack=5001, data=b"still here")
    lab.send(lab.agent, going)
    assert len(lab.expect(lab.outside, 2)) == 2 and len(lab.expect(lab.agent, 1)) == 1
    return replace(going, seq=1011)


def test_a_flood_of_half_open_connections_ends_at_the_bound_and_disturbs_no_flow():
    def work() -> Json:
        lab = Lab()
        lab.load(rules(_WEB))
        going = _established(lab, next(lab.ports))
        passed = len(_half_open(lab, 1500))
        until(lambda: sum(lab.counters().values()) >= 1500 + 3)
        passed += len(lab.seen(lab.outside))
        lab.send(lab.agent, going)
        lab.send(lab.agent, Packet(4, "8.8.8.8", UDP, next(lab.ports), 53))
        after = [ident(data) for data in lab.expect(lab.outside, 2)]
        counted, noted = lab.counters(), lab.notes()
        return {"passed": passed, "after": after, "counted": counted, "noted": noted.get("denials tcp 8.8.8.8 80")}

    seen = forked(work, 50)
    most = gateway.FLOWS["tcp"]
    assert seen["passed"] == most - 1, "one flow is the established one"
    assert seen["counted"]["drop-limit"] == 1500 - (most - 1) == seen["noted"]
    assert seen["after"] == [3, 4], "an established connection and another protocol go on"
    assert seen["counted"]["allow-0"] == 3 + (most - 1) + 1 and seen["counted"]["allow-1"] == 1


def test_connections_that_ended_do_not_count_towards_the_bound():
    """4000 connections that are refused at once: a scan of closed ports is not stopped by its own past."""

    def work() -> list[int]:
        lab, passed = Lab(), 0
        lab.load(rules(_WEB))
        for _ in range(80):
            for packet in _half_open(lab, 50):
                passed += 1
                port = int.from_bytes(packet[20:22], "big")
                reset = Packet(1, oracle.UPLINK, TCP, 80, port, RST | ACK, source="8.8.8.8", seq=0, ack=1001)
                lab.send(lab.outside, reset)
            lab.seen(lab.agent, 0.2)
        return [passed + len(lab.seen(lab.outside, 0.1)), lab.counters()["drop-limit"]]

    assert forked(work, 50) == [4000, 0]


def test_a_reset_that_never_leaves_the_gateway_does_not_end_a_flow_for_the_bound():
    """Its TTL ends here: what was opened behind the uplink stays open there, and has to count."""

    def work() -> list[int]:
        lab, passed = Lab(), 0
        lab.load(rules(_WEB))
        for _ in range(30):
            for packet in _half_open(lab, 50):
                passed += 1
                port = int.from_bytes(packet[20:22], "big")
                lab.send(lab.agent, Packet(2, "8.8.8.8", TCP, port, 80, RST, seq=1001, ttl=1))
            lab.seen(lab.outside, 0.0)
        until(lambda: lab.counters()["drop-limit"] >= 1500 - gateway.FLOWS["tcp"])
        counted = lab.counters()
        return [passed, counted["drop-limit"], counted["drop-ttl"]]

    most = gateway.FLOWS["tcp"]
    assert forked(work, 50) == [most, 1500 - most, most]


def test_the_log_of_denials_is_bounded_and_a_full_one_changes_no_verdict():
    def work() -> list[Any]:
        lab = Lab()
        lab.load(rules(_WEB))
        for number in range(6000):
            lab.send(lab.agent, Packet(number, "9.9.9.9", UDP, 9, 1 + number))
        passed = lab.seen(lab.outside)
        until(lambda: lab.counters()["drop-unlisted"] == 6000)
        return [len(passed), lab.counters()["drop-unlisted"], len(lab.notes())]

    assert forked(work, 50) == [0, 6000, gateway.LOG_SIZE]


def test_counters_and_logs_are_read_back_with_their_rules_and_bounds():
    def work() -> list[Json]:
        lab = Lab()
        tuples = [{**row, "key": f"network.allow[{index}]"} for index, row in enumerate(_WEB.tuples)]
        control = {"address": "8.8.8.9", "port": 80, "blocked_port": 22}
        lab.load(gateway.rules(CABLE, "tap0", oracle.UPLINK, oracle.OWN, tuples[1:], control))
        for number, port in enumerate((53, 53, 54)):
            lab.send(lab.agent, Packet(number, "8.8.8.8", UDP, next(lab.ports), port, data=b"x"))
        lab.send(lab.agent, Packet(9, "8.8.8.9", TCP, next(lab.ports), 22))
        lab.send(lab.agent, Packet(10, "8.8.8.9", 50))
        until(lambda: lab.counters()["drop-unlisted"] == 3)
        return [gateway_counts.told(lab.listing(), tuples[1:]), gateway_counts.told(lab.listing(), tuples[1:], 2)]

    whole, cut = forked(work, 30)
    assert whole["rules"] == [{**_WEB.tuples[1], "key": "network.allow[1]", "packets": 2, "bytes": 58}]
    drops = {r["reason"]: r["packets"] for r in whole["drops"] if r["packets"] and r["reason"] != "output"}
    assert drops == {"unlisted": 3} and len(whole["drops"]) == len(gateway.REASONS)
    assert whole["control"] == {"packets": 1, "bytes": 40}
    rows = [(r["protocol"], r["address"], r["port"], r["packets"]) for r in whole["flows"] + whole["denials"]]
    assert rows == [
        ("udp", "8.8.8.8", 53, 2),
        ("esp", "8.8.8.9", None, 1),
        ("tcp", "8.8.8.9", 22, 1),
        ("udp", "8.8.8.8", 54, 1),
    ]
    assert all(0 <= r["age_s"] < 60 for r in whole["flows"] + whole["denials"])
    assert whole["more"] == {"flows": 0, "denials": 0} and whole["full"] == [] and whole["lost"] is None
    assert len(cut["denials"]) == 2 and cut["more"] == {"flows": 0, "denials": 1}
    file = {"version": 1, "session": "a.b", "at": "2026-01-31T12:00:00Z", **whole}
    assert schemas.problems(file, "evidence-routed") == []


def test_a_listing_that_is_not_the_gateways_is_no_counter():
    with pytest.raises(KeyError):
        gateway_counts.told([{"counter": {"name": "allow-0", "packets": 1, "bytes": 1}}], [])
    lost = {"version": 1, "session": "a.b", "at": "x", **gateway_counts.lost("it was dead")}
    assert schemas.problems(lost, "evidence-routed") == []
