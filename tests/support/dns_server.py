# SPDX-License-Identifier: BSD-4-Clause
"""A scriptable DNS server (UDP and TCP) that records every query. Standard library only.

A zone entry is described at `addresses.default_zones`. Every query becomes an event `dns` with `name` (lower case),
`raw` (as sent), `type` (number), `server` (the address that was asked), `transport`, `peer` and `rcode`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

from support.addresses import Zone, default_zones
from support.recorder import Recorder

A, CNAME, AAAA = 1, 5, 28
_RCODES = {"NOERROR": 0, "SERVFAIL": 2, "NXDOMAIN": 3, "REFUSED": 5}
_NAMES = {number: name for name, number in _RCODES.items()}
_IP_PKTINFO = 8  # <linux/in.h>; not among the constants of Python 3.11
_CHASE = 8


class Zones:
    """The scripted names. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Zone] = default_zones()
        self._asked: dict[tuple[str, int], int] = {}

    def reset(self) -> None:
        """Back to the default names; alternations start again."""
        with self._lock:
            self._entries = default_zones()
            self._asked.clear()

    def put(self, name: str, entry: Zone | None) -> None:
        """Script a name (`*.` in front: all names below), or forget it with None."""
        with self._lock:
            name = name.lower().rstrip(".")
            self._entries.pop(name, None)
            self._asked = {key: count for key, count in self._asked.items() if key[0] != name}
            if entry is not None:
                self._entries[name] = entry

    def find(self, name: str, qtype: int) -> Zone | None:
        """The entry that answers now; alternating entries move on with each query."""
        with self._lock:
            key = next((key for key in _candidates(name) if key in self._entries), None)
            if key is None:
                return None
            entry = self._entries[key]
            steps: list[Zone] = entry.get("rotate") or entry.get("sequence") or []
            if not steps:
                return entry
            count = self._asked.get((key, qtype), 0)
            self._asked[key, qtype] = count + 1
            return steps[count % len(steps)] if "rotate" in entry else steps[min(count, len(steps) - 1)]


def _candidates(name: str) -> Iterator[str]:
    yield name
    labels = name.split(".")
    for start in range(1, len(labels)):
        yield "*." + ".".join(labels[start:])


def read_question(message: bytes) -> tuple[str, int, int]:
    """Name as sent, query type, and where the question ends.

    :raises ValueError: the message is no query with exactly one plain question
    """
    try:
        (count,) = struct.unpack_from(">H", message, 4)
        labels, at = [], 12
        while length := message[at]:
            labels.append(message[at + 1 : at + 1 + length].decode("latin-1"))
            at += 1 + length
        (qtype,) = struct.unpack_from(">H", message, at + 1)
    except (struct.error, IndexError) as error:
        raise ValueError("malformed query") from error
    if count != 1 or any(len(label) > 63 for label in labels):
        raise ValueError("not one plain question")
    return ".".join(labels), qtype, at + 5


def encode_name(name: str) -> bytes:
    """Wire form of a name without compression."""
    return b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label) + b"\0"


def _record(name: str, rtype: int, ttl: int, data: bytes) -> bytes:
    return encode_name(name) + struct.pack(">HHIH", rtype, 1, ttl, len(data)) + data


class Answerer:
    """Turns a query into an answer by the zones, and records it."""

    def __init__(self, recorder: Recorder, zones: Zones) -> None:
        self._recorder = recorder
        self._zones = zones

    def answer(self, message: bytes, **where: Any) -> bytes | None:
        """The response, or None when none is to be sent."""
        try:
            raw, qtype, end = read_question(message)
        except ValueError as error:
            self._recorder.add("dns", name=None, error=str(error), **where)
            return None
        name = raw.lower()
        silent, delay, rcode, records = self._resolve(name, qtype)
        shown = "silent" if silent else _NAMES[rcode]
        self._recorder.add("dns", name=name, raw=raw, type=qtype, rcode=shown, **where)
        time.sleep(delay)
        if silent:
            return None
        flags = 0x8180 | rcode  # response, recursion desired and available
        return message[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0) + message[12:end] + b"".join(records)

    def _resolve(self, name: str, qtype: int) -> tuple[bool, float, int, list[bytes]]:
        records: list[bytes] = []
        delay = 0.0
        for _ in range(_CHASE):
            entry = self._zones.find(name, qtype)
            if entry is None:
                return False, delay, _RCODES["NXDOMAIN"], records
            delay += float(entry.get("delay", 0))
            if entry.get("silent"):
                return True, delay, 0, []
            if rcode := entry.get("rcode"):
                return False, delay, _RCODES[rcode], records
            ttl = int(entry.get("ttl", 0))
            if target := entry.get("CNAME"):
                records.append(_record(name, CNAME, ttl, encode_name(target)))
                name = target.lower()
                continue
            records += _addresses(name, qtype, ttl, entry)
            return False, delay, 0, records
        return False, delay, _RCODES["SERVFAIL"], records


def _addresses(name: str, qtype: int, ttl: int, entry: Zone) -> list[bytes]:
    key, family = {A: ("A", socket.AF_INET), AAAA: ("AAAA", socket.AF_INET6)}.get(qtype, ("", socket.AF_INET))
    return [_record(name, qtype, ttl, socket.inet_pton(family, address)) for address in entry.get(key, [])]


class DnsServer:
    """Serves UDP and TCP on `address`:`port`. 0.0.0.0 answers from whatever address was asked, and records which."""

    def __init__(self, recorder: Recorder, zones: Zones, address: str = "0.0.0.0", port: int = 53) -> None:
        self._answerer = Answerer(recorder, zones)
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self._udp.bind((address, port))
        self._tcp = socket.create_server((address, port), backlog=64)
        self._sockets = (self._udp, self._tcp)

    def start(self) -> DnsServer:
        """Serve in background threads."""
        for loop in (self._udp_loop, self._tcp_loop):
            threading.Thread(target=loop, daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening."""
        for listener in self._sockets:
            # close() alone leaves a thread that blocks in accept() or recvmsg() listening on
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _udp_loop(self) -> None:
        while True:
            try:
                message, ancillary, _, peer = self._udp.recvmsg(4096, 128)
            except OSError:
                return
            if not ancillary:
                return  # shut down
            threading.Thread(target=self._udp_one, args=(message, ancillary, peer), daemon=True).start()

    def _udp_one(self, message: bytes, ancillary: list[tuple[int, int, bytes]], peer: tuple[str, int]) -> None:
        info = next(data for level, kind, data in ancillary if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO))
        asked = info[8:12]  # struct in_pktinfo: interface, local address, destination address
        where = {"server": socket.inet_ntoa(asked), "transport": "udp", "peer": peer[0]}
        if (response := self._answerer.answer(message, **where)) is None:
            return
        source = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("=i4s4s", 0, asked, b"\0\0\0\0"))
        try:
            self._udp.sendmsg([response], [source], 0, peer)
        except OSError:
            return  # stopped, or the client is gone

    def _tcp_loop(self) -> None:
        while True:
            try:
                connection, peer = self._tcp.accept()
            except OSError:
                return
            threading.Thread(target=self._tcp_one, args=(connection, peer), daemon=True).start()

    def _tcp_one(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        with connection:
            connection.settimeout(20)
            where = {"server": connection.getsockname()[0], "transport": "tcp", "peer": peer[0]}
            try:
                stream = connection.makefile("rb")
                while len(prefix := stream.read(2)) == 2:
                    message = stream.read(int.from_bytes(prefix, "big"))
                    if (response := self._answerer.answer(message, **where)) is not None:
                        connection.sendall(len(response).to_bytes(2, "big") + response)
            except OSError:
                return  # the client is gone
