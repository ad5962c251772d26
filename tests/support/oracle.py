# SPDX-License-Identifier: BSD-4-Clause
"""A small model of what the gateway must do with one packet, written from the words of the design, not from the rules.

`decide` knows nothing of nftables. It is given a packet as it lies on the wire (`Packet`) and a policy (`Policy`), and
says `allow N` (the tuple that lets it in) or the reason for a drop. Reasons without a counter of their own (the kernel
drops the packet by itself before any rule) are in `UNCOUNTED`.
"""

from __future__ import annotations

import ipaddress
import random
import struct
from dataclasses import dataclass, field
from typing import Any

AGENT, GATEWAY, UPLINK = "198.18.0.10", "198.18.0.9", "198.18.1.100"
AGENT_MAC, GATEWAY_MAC = "02:a5:f0:00:00:0a", "02:a5:f0:00:00:09"
OWN = ["198.18.0.0/24", "198.18.1.0/24", "198.51.100.1"]
ELSEWHERE = "203.0.113.0/24"  # the test's gateway has a route for it that leaves by a third link
TCP, UDP, ICMP = 6, 17, 1
FIN, SYN, RST, PSH, ACK, URG, ECE, CWR = (1 << bit for bit in range(8))
UNCOUNTED = ("checksum", "other-mac")

_LOCAL = ["127.0.0.0/8", "169.254.0.0/16"]
_SPECIAL = [
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24"),
    *("192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4"),
]


@dataclass
class Packet:
    """One IPv4 packet from the agent's end of the cable (version 6: an IPv6 one with the same transport part)."""

    ident: int
    target: str
    protocol: int = TCP
    sport: int = 0
    dport: int = 0
    flags: int = SYN
    kind: int = 8
    code: int = 0
    source: str = AGENT
    tos: int = 0
    ttl: int = 64
    fragment: int = 0  # the header's field: 0x2000 more fragments, 0x1fff offset in 8 bytes
    options: bytes = b""
    mac: str = GATEWAY_MAC
    seq: int = 1000
    ack: int = 0
    data: bytes = b""
    version: int = 4
    bad_sum: str = ""  # "ip" or "transport"
    quoted: Packet | None = None  # what an ICMP error is about


@dataclass
class Policy:
    tuples: list[dict[str, Any]] = field(default_factory=list)


def _inside(address: str, networks: list[str]) -> bool:
    ip = ipaddress.IPv4Address(address)
    return any(ip in ipaddress.IPv4Network(network) for network in networks)


def _special_for(cidr: str, address: str) -> bool:
    """Whether the address lies in a special-purpose range that the network covers without lying inside it."""
    network, ip = ipaddress.IPv4Network(cidr), ipaddress.IPv4Address(address)
    hits = [ipaddress.IPv4Network(text) for text in _SPECIAL if ip in ipaddress.IPv4Network(text)]
    return bool(hits) and not any(network.subnet_of(hit) for hit in hits)


def shape(packet: Packet, policy: Policy) -> str | None:
    """The reason for which a packet is refused whatever flow it may belong to, or None."""
    named = [t["cidr"] for t in policy.tuples if not _special_for(t["cidr"], packet.target)]
    checks = (
        ("other-mac", packet.mac not in (GATEWAY_MAC, "ff:ff:ff:ff:ff:ff")),
        ("ipv6", packet.version == 6),
        ("checksum", packet.bad_sum == "ip"),
        ("fragment", packet.fragment & 0x3FFF != 0),
        ("options", packet.options != b""),
        ("source", packet.source != AGENT),
        ("ttl", packet.ttl <= 1),
        ("broadcast", packet.mac != GATEWAY_MAC or packet.target == "255.255.255.255"),
        ("multicast", _inside(packet.target, ["224.0.0.0/4"])),
        ("own", _inside(packet.target, OWN + _LOCAL)),
        ("special", _inside(packet.target, _SPECIAL) and not _inside(packet.target, named)),
    )
    return next((reason for reason, wrong in checks if wrong), None)


def opens(packet: Packet) -> str | None:
    """Why a packet that belongs to no flow cannot begin one, or None."""
    if packet.bad_sum == "transport" and packet.protocol in (TCP, UDP, ICMP):
        return "invalid"
    if packet.protocol == ICMP:
        return None if packet.kind in (8, 13, 15, 17) else "invalid"
    if packet.protocol == TCP:
        bare = packet.flags & (FIN | SYN | RST | ACK | URG)
        if bare in (SYN, SYN | URG):
            return None
        return "flags" if bare in (ACK, ACK | URG) else "invalid"
    return None


def covers(row: dict[str, Any], packet: Packet) -> bool:
    """Whether one declared tuple is about this packet."""
    number = {"tcp": TCP, "udp": UDP, "icmp_echo": ICMP}[row["protocol"]]
    if number != packet.protocol or not _inside(packet.target, [row["cidr"]]):
        return False
    if _special_for(row["cidr"], packet.target):
        return False
    if number == ICMP:
        return packet.kind == 8 and packet.code == 0
    return row["ports"] == "any" or packet.dport in row["ports"]


def decide(packet: Packet, policy: Policy) -> str:
    """What must become of a packet that belongs to no flow: `allow N` or the reason of the drop."""
    refused = shape(packet, policy)
    if refused:
        return refused
    refused = opens(packet)
    if refused == "invalid":
        return refused
    if _inside(packet.target, [ELSEWHERE]):
        return "interface"
    if refused:
        return refused
    index = next((i for i, row in enumerate(policy.tuples) if covers(row, packet)), None)
    return "unlisted" if index is None else f"allow {index}"


# ---- packets as bytes


def _checksum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    return ~total & 0xFFFF


def _packed(address: str) -> bytes:
    return ipaddress.IPv4Address(address).packed


def _transport(packet: Packet) -> tuple[bytes, int]:
    """The transport part without its checksum, and where that stands (-1: it has none)."""
    if packet.protocol == TCP:
        head = struct.pack(
            "!HHIIBBHHH", packet.sport, packet.dport, packet.seq, packet.ack, 0x50, packet.flags, 65535, 0, 0
        )
        return head + packet.data, 16
    if packet.protocol == UDP:
        return struct.pack("!HHHH", packet.sport, packet.dport, 8 + len(packet.data), 0) + packet.data, 6
    if packet.protocol == ICMP:
        if packet.quoted is not None:
            return struct.pack("!BBHI", packet.kind, packet.code, 0, 0) + to_bytes(packet.quoted), 2
        return struct.pack("!BBHHH", packet.kind, packet.code, 0, packet.sport, 1) + packet.data.ljust(12, b"."), 2
    return b"payload." + packet.data, -1


def to_bytes(packet: Packet) -> bytes:
    """The packet from its IP header on."""
    body, place = _transport(packet)
    if place >= 0:
        pseudo = _packed(packet.source) + _packed(packet.target) + struct.pack("!BBH", 0, packet.protocol, len(body))
        value = _checksum(body if packet.protocol == ICMP else pseudo + body)
        value ^= 0x5555 if packet.bad_sum == "transport" else 0
        body = body[:place] + struct.pack("!H", value) + body[place + 2 :]
    if packet.version == 6:
        source, target = (b"\x20\x01\x0d\xb8" + b"\0" * 11 + bytes([n]) for n in (1, 2))
        return (
            struct.pack("!IHBB", 0x60000000 | packet.ident, len(body), packet.protocol, packet.ttl)
            + source
            + target
            + body
        )
    options = packet.options + b"\0" * (-len(packet.options) % 4)
    length = 20 + len(options)
    head = struct.pack(
        "!BBHHHBBH4s4s",
        *(
            0x40 | length // 4,
            packet.tos,
            length + len(body),
            packet.ident,
            packet.fragment,
            packet.ttl,
            packet.protocol,
        ),
        *(0, _packed(packet.source), _packed(packet.target)),
    )
    value = _checksum(head + options) ^ (0x5555 if packet.bad_sum == "ip" else 0)
    return head[:10] + struct.pack("!H", value) + head[12:] + options + body


# ---- generated policies and packets

_PLACES = (
    *("8.8.8.8/32", "8.8.0.0/16", "9.9.9.0/24", "1.0.0.0/8", "0.0.0.0/0", "128.0.0.0/1", "10.1.0.0/16", "10.1.2.3/32"),
    *("198.51.100.0/24", "198.51.100.16/28", "192.168.0.0/16", "198.19.0.0/16", ELSEWHERE, "100.64.7.0/24"),
)
_PORTS = (22, 53, 80, 443, 8443)
_ODD_FLAGS = (
    *(SYN, SYN | ECE | CWR, SYN | PSH, SYN | URG, SYN | FIN, SYN | RST, SYN | ACK, ACK, ACK | PSH, FIN, FIN | ACK, RST),
    *(RST | ACK, 0, FIN | PSH | URG, 0xFF, ECE, SYN | FIN | ECE),
)
#: Addresses that no rule or only an exact one may reach, and the edges of those that rules are made of.
TARGETS = (
    *(
        "8.8.8.8",
        "8.8.4.4",
        "8.9.0.0",
        "9.9.9.0",
        "9.9.9.255",
        "1.2.3.4",
        "200.1.1.1",
        "10.1.2.3",
        "10.1.255.255",
        "10.2.0.0",
    ),
    *("198.51.100.16", "198.51.100.31", "198.51.100.32", "198.51.100.1", "192.168.1.1", "172.16.0.1", "203.0.113.7"),
    *(
        "198.19.0.1",
        "198.18.0.1",
        "198.18.0.9",
        "198.18.1.2",
        "198.18.1.100",
        "198.18.1.255",
        "100.64.7.9",
        "192.0.2.1",
    ),
    *("127.0.0.1", "127.255.0.1", "169.254.169.254", "0.0.0.0", "0.1.2.3", "224.0.0.1", "239.1.2.3", "255.255.255.255"),
    "240.0.0.1",
)


def random_policy(rng: random.Random) -> Policy:
    rows = []
    for _ in range(rng.randint(1, 10)):
        protocol = rng.choice(("tcp", "tcp", "udp", "icmp_echo"))
        ports: Any = "any" if protocol == "icmp_echo" or rng.random() < 0.3 else rng.sample(_PORTS, rng.randint(1, 4))
        rows.append({"cidr": rng.choice(_PLACES), "protocol": protocol, "ports": ports})
    return Policy(rows)


def _aimed(rng: random.Random, policy: Policy, ident: int, sport: int) -> Packet:
    """A packet at a declared tuple or beside it."""
    row = rng.choice(policy.tuples)
    network = ipaddress.IPv4Network(row["cidr"])
    target = str(network[rng.randrange(network.num_addresses)])
    number = {"tcp": TCP, "udp": UDP, "icmp_echo": ICMP}[row["protocol"]]
    if rng.random() < 0.2:  # the address of one tuple, protocol and port of another
        row = rng.choice(policy.tuples)
        number = {"tcp": TCP, "udp": UDP, "icmp_echo": ICMP}[row["protocol"]]
    port = rng.choice(_PORTS if row["ports"] == "any" or rng.random() < 0.2 else row["ports"])
    return Packet(ident, target, number, sport, port)


def _odd(rng: random.Random, packet: Packet) -> None:
    """Make one thing unusual about a packet; some of it changes nothing about the decision."""
    changes: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("flags", _ODD_FLAGS),
        ("flags", _ODD_FLAGS),
        ("tos", (0x01, 0x02, 0x03, 0xB8, 0xFF)),
        ("fragment", (0x2000, 0x0001, 0x1FFF, 0x2003, 0x4000, 0x8000)),
        ("source", ("198.18.0.2", "198.18.0.11", "8.8.8.8", "127.0.0.1", "0.0.0.0", GATEWAY, UPLINK)),
        ("options", (b"\x83\x07\x04\x08\x08\x08\x08", b"\x01", b"\x07\x07\x04\0\0\0\0", b"\x94\x04\0\0")),
        ("mac", ("ff:ff:ff:ff:ff:ff", "02:a5:f0:00:00:99")),
        ("ttl", (1, 2, 255)),
        ("version", (6,)),
        ("bad_sum", ("ip", "transport")),
        ("protocol", (TCP, UDP, ICMP, 2, 41, 50, 89)),
        ("kind", (0, 3, 4, 5, 11, 12, 13, 15, 17, 30)),
        ("code", (1, 9)),
        ("target", TARGETS),
        ("target", TARGETS),
        ("dport", (1, 23, 444, 65535)),
        ("data", (b"x", b"y" * 1200)),
    )
    name, values = rng.choice(changes)
    setattr(packet, name, rng.choice(values))


def random_packet(rng: random.Random, policy: Policy, ident: int, sport: int) -> Packet:
    """A packet with zero to two oddities. `ident` is its IP identification, `sport` makes its flow its own."""
    packet = _aimed(rng, policy, ident, sport)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
        _odd(rng, packet)
    return packet
