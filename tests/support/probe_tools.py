# SPDX-License-Identifier: BSD-4-Clause
"""Raw network tools for tests. Standard library only, one file, and no state: importable in a test (or in a container's
network namespace through netns.in_netns), and runnable inside an agent, where nothing of ours is installed:

    python3 - NAME '{"argument": …}' < probe_tools.py      prints one JSON value

Every function takes and returns plain JSON values; bytes are latin-1 text, which carries every byte unchanged.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import struct
import sys
import time
from typing import Any

Address = list[Any]  # [host, port]


def _outcome(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    names = {
        errno.ECONNREFUSED: "refused",
        errno.ENETUNREACH: "unreachable",
        errno.EHOSTUNREACH: "no-host",
        errno.ECONNRESET: "reset",
        errno.EADDRNOTAVAIL: "no-address",
        errno.EAFNOSUPPORT: "no-family",
        errno.EPERM: "not-permitted",
        errno.EACCES: "not-permitted",
        errno.ENOSYS: "no-syscall",
    }
    number = error.errno or 0
    return names.get(number, errno.errorcode.get(number, repr(error)))


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def tcp(host: str, port: int, timeout: float = 3) -> str:
    """Connect: open, refused, unreachable, no-host, timeout, reset or another error's name."""
    try:
        with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout)
            probe.connect((host, port))
            return "open"
    except OSError as error:
        return _outcome(error)


def udp(host: str, port: int, data: str = "asf-probe", timeout: float = 1) -> str:
    """Send one datagram: answered, silent (sent, no answer), refused (ICMP came back), unreachable, …"""
    try:
        with socket.socket(_family(host), socket.SOCK_DGRAM) as probe:
            probe.settimeout(timeout)
            probe.connect((host, port))
            probe.send(data.encode("latin-1"))
            probe.recv(4096)
            return "answered"
    except TimeoutError:
        return "silent"
    except OSError as error:
        return _outcome(error)


def ping(host: str, timeout: float = 1) -> str:
    """ICMP echo by an unprivileged ping socket: answered, silent, unreachable, not-permitted, …"""
    six = ":" in host
    protocol = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    try:
        with socket.socket(_family(host), socket.SOCK_DGRAM, protocol) as probe:
            probe.settimeout(timeout)
            probe.connect((host, 0))
            probe.send(struct.pack("!BBHHH", 128 if six else 8, 0, 0, 0, 1))
            probe.recv(1024)
            return "answered"
    except TimeoutError:
        return "silent"
    except OSError as error:
        return _outcome(error)


def open_socket(family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> str:
    """Whether a socket can be made: open or the error's name. AF_VSOCK is 40, AF_PACKET 17."""
    try:
        socket.socket(family, kind, protocol).close()
        return "open"
    except OSError as error:
        return _outcome(error)


def vsock(cid: int = 2, port: int = 22, timeout: float = 2) -> str:
    """Connect to a vsock address (2: the hypervisor's host)."""
    try:
        with socket.socket(40, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout)
            probe.connect((cid, port))
            return "open"
    except OSError as error:
        return _outcome(error)


def _query(name: str, qtype: int) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label)
    return struct.pack(">HHHHHH", os.getpid() & 0xFFFF, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, qtype, 1)


def dns(
    server: str, name: str, qtype: int = 1, over: str = "udp", port: int = 53, timeout: float = 2
) -> dict[str, Any]:
    """Ask `server`: {outcome: answered, rcode, answers} or {outcome: silent | refused | unreachable | …}."""
    query = _query(name, qtype)
    kind = socket.SOCK_DGRAM if over == "udp" else socket.SOCK_STREAM
    try:
        with socket.socket(_family(server), kind) as probe:
            probe.settimeout(timeout)
            probe.connect((server, port))
            probe.sendall(query if over == "udp" else struct.pack(">H", len(query)) + query)
            answer = probe.recv(4096)
    except TimeoutError:
        return {"outcome": "silent"}
    except OSError as error:
        return {"outcome": _outcome(error)}
    answer = answer if over == "udp" else answer[2:]
    if len(answer) < 12:
        return {"outcome": "closed"}
    return {"outcome": "answered", "rcode": answer[3] & 15, "answers": struct.unpack(">H", answer[6:8])[0]}


def _receive(stream: socket.socket, limit: float, head_only: bool) -> tuple[bytes, str]:
    """Read until the end, the deadline, or (head_only) the blank line. Second: closed, open or reset."""
    deadline, data = time.monotonic() + limit, b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return data, "open"
        stream.settimeout(left)
        try:
            block = stream.recv(1 if head_only else 65536)
        except TimeoutError:
            return data, "open"
        except OSError as error:
            return data, _outcome(error)
        if not block:
            return data, "closed"
        data += block
        if head_only and data.endswith(b"\r\n\r\n"):
            return data, "head"


def _parsed(raw: bytes) -> dict[str, Any]:
    """Status line, headers (lower case) and body of the first response in `raw`."""
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    headers = [line.split(":", 1) for line in lines[1:] if ":" in line]
    return {
        "status": int(words[1]) if len(words) > 1 and words[1].isdigit() else 0,
        "phrase": words[2] if len(words) > 2 else "",
        "headers": {name.lower(): value.strip() for name, value in headers},
        "body": body.decode("latin-1"),
        "responses": raw.count(b"HTTP/1."),
    }


def connect_request(target: str, extra: str = "", host: str | None = None, method: str = "CONNECT") -> str:
    """The bytes of a CONNECT request, exactly as given: nothing is checked or normalised."""
    return f"{method} {target} HTTP/1.1\r\nHost: {target if host is None else host}\r\n{extra}\r\n"


def connect_raw(proxy: Address, data: str, then: str = "", timeout: float = 10) -> dict[str, Any]:
    """Send raw bytes to a proxy. When it answers 200, send `then` through the tunnel and read what comes.

    Result: status, phrase, headers, body (of a refusal), responses (how many status lines came), end (closed, open or
    an error's name), tunnel (bytes that came through it), seconds; or {"status": 0, "end": …} when there was no answer.
    """
    began = time.monotonic()
    try:
        stream = socket.create_connection((proxy[0], proxy[1]), timeout)
    except OSError as error:
        return {"status": 0, "end": _outcome(error), "seconds": time.monotonic() - began}
    with stream:
        stream.sendall(data.encode("latin-1"))
        head, end = _receive(stream, timeout, head_only=True)
        result = _parsed(head)
        if result["status"] == 200:
            if then:
                stream.sendall(then.encode("latin-1"))
            tunnel, end = _receive(stream, timeout if then else 0.2, head_only=False)
            result["tunnel"] = tunnel.decode("latin-1")
        elif end == "head":
            rest, end = _receive(stream, 2, head_only=False)
            result = _parsed(head + rest)
    return {**result, "end": end, "seconds": round(time.monotonic() - began, 3)}


def connect(proxy: Address, target: str, **more: Any) -> dict[str, Any]:
    """`connect_raw` with a plain CONNECT for `target`."""
    return connect_raw(proxy, connect_request(target), **more)


def _context(cafile: str | None) -> ssl.SSLContext:
    if cafile:
        return ssl.create_default_context(cafile=cafile)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the policy under test is the proxy's; names are checked where a CA is given
    return context


def tls_through(
    proxy: Address, target: str, sni: str | None = "", path: str = "/", cafile: str | None = None, timeout: float = 10
) -> dict[str, Any]:
    """CONNECT, TLS inside (`sni`: "" means the target's name, None sends none), one GET.

    Result: as connect_raw for a refusal; else status 200 and tls (ok, or the error) and answer (the site's response).
    """
    stream = socket.create_connection((proxy[0], proxy[1]), timeout)
    with stream:
        stream.sendall(connect_request(target).encode("latin-1"))
        head, end = _receive(stream, timeout, head_only=True)
        result = _parsed(head)
        if result["status"] != 200:
            rest, end = _receive(stream, 2, head_only=False)
            return {**_parsed(head + rest), "end": end}
        stream.settimeout(timeout)
        name = target.rsplit(":", 1)[0] if sni == "" else sni
        try:
            tls = _context(cafile).wrap_socket(stream, server_hostname=name)
            tls.sendall(f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            answer, end = _receive(tls, timeout, head_only=False)
        except OSError as error:
            return {**result, "tls": type(error).__name__, "end": _outcome(error)}
        return {**result, "tls": "ok", "answer": _parsed(answer), "end": end}


def hold_tunnel(proxy: Address, target: str, seconds: float = 60) -> dict[str, Any]:
    """Open a tunnel to a site, ask for its endless stream, and read until something cuts it (P15).

    Says "receiving" on stderr when the first bytes have come: that the site has sent them is no proof of it.
    """
    with socket.create_connection((proxy[0], proxy[1]), 10) as stream:
        stream.sendall(connect_request(target).encode("latin-1"))
        head, _ = _receive(stream, 10, head_only=True)
        tls = _context(None).wrap_socket(stream, server_hostname=target.rsplit(":", 1)[0])
        tls.sendall(f"GET /stream HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        began = time.monotonic()
        first = tls.recv(65536)
        print("receiving" if first else "nothing", file=sys.stderr, flush=True)
        data, end = _receive(tls, seconds, head_only=False)
        received, lasted = len(first) + len(data), round(time.monotonic() - began, 3)
        return {**_parsed(head), "received": received, "end": end, "seconds": lasted}


def http(address: Address, raw: str, timeout: float = 10) -> dict[str, Any]:
    """Send a raw HTTP request to any listener; result as connect_raw for a refusal, with the raw text of the answer."""
    try:
        with socket.create_connection((address[0], address[1]), timeout) as stream:
            stream.sendall(raw.encode("latin-1"))
            data, end = _receive(stream, timeout, head_only=False)
    except OSError as error:
        return {"status": 0, "end": _outcome(error)}
    return {**_parsed(data), "end": end, "raw": data.decode("latin-1")}


def alert(address: Address, data: str, timeout: float = 15) -> dict[str, Any]:
    """Send bytes to a TLS listener and read to the end: alert (its number, or None), got, end."""
    try:
        with socket.create_connection((address[0], address[1]), timeout) as stream:
            stream.sendall(data.encode("latin-1"))
            got, end = _receive(stream, timeout, head_only=False)
    except OSError as error:
        return {"alert": None, "got": "", "end": _outcome(error)}
    found = got[6] if len(got) == 7 and got[:5] == b"\x15\x03\x03\x00\x02" else None
    return {"alert": found, "got": got.decode("latin-1"), "end": end}


def tls_direct(host: str, port: int = 443, sni: str | None = "", timeout: float = 10) -> dict[str, Any]:
    """TLS without a proxy, one GET: {tls: ok, answer} or {tls: the error's text}. `sni`: "" means the host's name."""
    name = host if sni == "" else sni
    try:
        with socket.create_connection((host, port), timeout) as stream:
            tls = _context(None).wrap_socket(stream, server_hostname=name)
            tls.sendall(f"GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            answer, _ = _receive(tls, timeout, head_only=False)
    except OSError as error:
        return {"tls": str(error)}
    return {"tls": "ok", "answer": _parsed(answer)}


def process_status(pid: str = "self") -> dict[str, str]:
    """/proc/PID/status as a map: CapEff and its siblings, NoNewPrivs, Seccomp, Uid, …"""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}


def network() -> dict[str, Any]:
    """Links, IPv4 routes, IPv6 addresses and resolver of this network namespace, from /proc."""

    def lines(path: str) -> list[str]:
        try:
            with open(path, encoding="utf-8") as file:
                return file.read().splitlines()
        except OSError:
            return []

    links = [line.split(":")[0].strip() for line in lines("/proc/net/dev")[2:]]
    routes = [line.split() for line in lines("/proc/net/route")[1:]]
    return {
        "links": links,
        "default_routes": [route[0] for route in routes if route[1] == "00000000" and route[7] == "00000000"],
        "routes": [route[:3] for route in routes],
        "ipv6": [line.split()[0] for line in lines("/proc/net/if_inet6") if not line.endswith(" lo")],
        "ipv6_routes": [line.split()[9] for line in lines("/proc/net/ipv6_route") if line.split()[9] != "lo"],
        "resolv_conf": lines("/etc/resolv.conf"),
    }


if __name__ == "__main__":
    arguments = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    print(json.dumps(globals()[sys.argv[1]](**arguments)))
