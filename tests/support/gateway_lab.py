# SPDX-License-Identifier: BSD-4-Clause
"""Agent, gateway and outside as three network namespaces of one process, joined by veth pairs, with real rules loaded.

The process becomes root of a user namespace of its own; everything ends with it. Neither end has an address: nothing
there answers by itself, frames are written and read as they are.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from support.oracle import AGENT, AGENT_MAC, ELSEWHERE, GATEWAY, GATEWAY_MAC, UPLINK, Packet, to_bytes

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_OUTGOING = 4  # a packet socket also sees what it sends
_ALL = 0x0003
_libc = ctypes.CDLL(None, use_errno=True)
_ROUTER_MAC, _UPLINK_MAC = "02:a5:f0:00:01:02", "02:a5:f0:00:01:64"
_THIRD_MAC = "02:a5:f0:00:02:01"
Json = dict[str, Any]


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args):
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def run(*argv: str, text: str = "") -> str:
    """A command in the current namespace. Raises RuntimeError with what it said."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def become_root() -> None:
    """A user namespace in which this (single-threaded) process is root."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", _NEWUSER | _NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")


def _mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


class Lab:
    """`agent` and `outside` are packet sockets on the two ends; `gateway` is the current namespace."""

    def __init__(self) -> None:
        become_root()
        self.ports = iter(range(1024, 32768))  # connection tracking remembers flows: no two tests share a source port
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
        ends = {}
        for name in ("agent", "outside", "third"):
            _call("unshare", _NEWNET)
            ends[name] = os.open("/proc/self/ns/net", os.O_RDONLY)
            _call("setns", self.home, _NEWNET)
        self._links(ends)
        self.agent = self._socket(ends["agent"], "eth1")
        self.outside = self._socket(ends["outside"], "out0")
        self.third = self._socket(ends["third"], "third0")

    def _links(self, ends: dict[str, int]) -> None:
        for key in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            Path("/proc/sys/net", key).write_text("1", encoding="ascii")
        lines = []
        for near, mac, far, far_mac, end in (
            ("agent0", GATEWAY_MAC, "eth1", AGENT_MAC, "agent"),
            ("tap0", _UPLINK_MAC, "out0", _ROUTER_MAC, "outside"),
            ("other0", _THIRD_MAC, "third0", "02:a5:f0:00:02:02", "third"),
        ):
            peer = f"peer name {far} address {far_mac} arp off netns /proc/{os.getpid()}/fd/{ends[end]}"
            lines += [f"link add {near} address {mac} arp off type veth {peer}", f"link set {near} addrgenmode none"]
            lines += [f"link set {near} up"]
        lines += [
            f"addr add {GATEWAY}/32 peer {AGENT} dev agent0",
            f"neigh replace {AGENT} lladdr {AGENT_MAC} nud permanent dev agent0",
            f"addr add {UPLINK}/24 dev tap0",
            f"neigh replace 198.18.1.2 lladdr {_ROUTER_MAC} nud permanent dev tap0",
            "route add default via 198.18.1.2",
            f"route add {ELSEWHERE} dev other0",
        ]
        run("ip", "-batch", "-", text="\n".join(lines) + "\n")
        run("ip", "-6", "route", "add", "default", "dev", "tap0")

    def _socket(self, namespace: int, interface: str) -> socket.socket:
        _call("setns", namespace, _NEWNET)
        run("ip", "link", "set", interface, "addrgenmode", "none", "up")
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL))
        sock.bind((interface, _ALL))
        sock.setblocking(False)
        _call("setns", self.home, _NEWNET)
        return sock

    def load(self, rules: list[Json]) -> None:
        """Rules in place of those before; flows of before are forgotten by their ports, which tests use once."""
        document = {"nftables": [{"flush": {"ruleset": None}}, *({"add": o} for o in rules)]}
        run("nft", "-j", "-f", "-", text=json.dumps(document))

    def listing(self) -> list[Json]:
        return list(json.loads(run("nft", "-j", "list", "ruleset"))["nftables"])

    def counters(self) -> dict[str, int]:
        """Packets by counter's name."""
        found = json.loads(run("nft", "-j", "list", "counters"))["nftables"]
        return {o["counter"]["name"]: int(o["counter"]["packets"]) for o in found if "counter" in o}

    def notes(self) -> dict[str, int]:
        """Packets by element of the log sets: `SET PROTOCOL ADDRESS [PORT]`."""
        out = {}
        for found in (o["set"] for o in self.listing() if "set" in o):
            for elem in (e["elem"] for e in found.get("elem", [])):
                out[" ".join([found["name"], *map(str, elem["val"]["concat"])])] = int(elem["counter"]["packets"])
        return out

    def send(self, end: socket.socket, packet: Packet) -> None:
        """Put a packet on the wire at an end; its `mac` counts at the agent's alone."""
        kind = 0x86DD if packet.version == 6 else 0x0800
        source, target = {
            self.agent: (AGENT_MAC, packet.mac),
            self.outside: (_ROUTER_MAC, _UPLINK_MAC),
            self.third: ("02:a5:f0:00:02:02", _THIRD_MAC),
        }[end]
        end.send(_mac(target) + _mac(source) + struct.pack("!H", kind) + to_bytes(packet))

    def seen(self, end: socket.socket, wait: float = 0.0) -> list[bytes]:
        """IP packets that arrived at an end; at most `wait` seconds for the first."""
        out = []
        while select.select([end], [], [], 0 if out else wait)[0]:
            frame, address = end.recvfrom(65535)
            multicast = frame[12:14] == b"\x86\xdd" and frame[38] == 0xFF  # the ends' own kernels look for neighbours
            if address[2] != _OUTGOING and frame[12:14] in (b"\x08\x00", b"\x86\xdd") and not multicast:
                out.append(frame[14:])
        return out

    def expect(self, end: socket.socket, count: int, timeout: float = 30.0) -> list[bytes]:
        """IP packets at an end: `count` of them, fewer when the time is over, more when there are more."""
        out: list[bytes] = []
        until(lambda: out.extend(self.seen(end, 0.05)) or len(out) >= count, timeout)
        return out


def ident(packet: bytes) -> int:
    """The number by which a packet was sent: IPv4's identification, the last bits of IPv6's flow label."""
    return int.from_bytes(packet[4:6], "big") if packet[0] >> 4 == 4 else int.from_bytes(packet[2:4], "big")


def until(check: Any, timeout: float = 30.0) -> Any:
    """Ask again until the answer is true, or the time is over; the last answer."""
    end = time.monotonic() + timeout
    while not (answer := check()) and time.monotonic() < end:
        time.sleep(0.01)
    return answer
