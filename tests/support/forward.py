# SPDX-License-Identifier: BSD-4-Clause
"""An operator's proxy in the test world: CONNECT with Basic credentials, tunnels to the world's own addresses.

It resolves by the default names, without a query. Events: `proxy` {target, authorization, host, secure, status}. Names
that begin with `status-NNN.` get that status, `garbage.` and `flood.` what their names say, `hang.` nothing.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from typing import Any

from support import addresses
from support.recorder import Recorder


def serve(connection: socket.socket, info: dict[str, Any], recorder: Recorder) -> None:
    """One client, from its request to the end of its tunnel."""
    head = _head(connection)
    line, _, rest = head.partition("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (row.partition(":") for row in rest.splitlines())}
    target = line.split(" ")[1] if line.startswith("CONNECT ") else ""
    answer = _answer(target, fields)
    told = {"target": target, "authorization": fields.get("proxy-authorization"), "host": fields.get("host")}
    recorder.add("proxy", line=line, answer=answer[:40], secure="sni" in info, **told, **info)
    if answer == "hang":
        while connection.recv(4096):
            pass
    elif answer:
        connection.sendall(answer.encode())
    else:
        _tunnel(connection, target)


def _head(connection: socket.socket) -> str:
    data = b""
    while not data.endswith(b"\r\n\r\n") and len(data) < 16384:
        block = connection.recv(1)
        if not block:
            break
        data += block
    return data.decode(errors="replace")


def _answer(target: str, fields: dict[str, str]) -> str:
    """What is said instead of a tunnel; "" means a tunnel. An echo of the credentials must go no further (S4)."""
    first = target.split(".")[0]
    echo = f"X-Echo: {fields.get('proxy-authorization', '')}\r\n"
    if first.startswith("status-"):
        return f"HTTP/1.1 {first[7:]} {fields.get('proxy-authorization', 'x')}\r\n{echo}Content-Length: 0\r\n\r\n"
    if not fields.get("proxy-authorization", "").startswith("Basic "):
        return "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=x\r\n\r\n"
    flood = "HTTP/1.1 200 OK\r\nX-Long: " + "a" * 40000 + "\r\n\r\n"
    return {"garbage": "SSH-2.0-world\r\n\r\n", "flood": flood, "hang": "hang"}.get(first, "")


def _tunnel(connection: socket.socket, target: str) -> None:
    name, _, port = target.rpartition(":")
    entry = addresses.default_zones().get(name, {})
    address = (entry.get("A") or [addresses.SITE])[0]
    with socket.create_connection((address, int(port)), timeout=10) as far:
        far.settimeout(300)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):
            _relay(connection, far)


def _relay(connection: socket.socket, far: socket.socket) -> None:
    """Both directions in one thread: OpenSSL's connection must not be read and written by two at once.

    The client's end is passed on; the destination's ends the tunnel.
    """
    sinks = {connection: far, far: connection}
    while True:
        held = isinstance(connection, ssl.SSLSocket) and connection in sinks and connection.pending()
        ready = [connection] if held else select.select(list(sinks), [], [], 300)[0]
        if not ready:
            return
        for source in ready:
            block = source.recv(65536)
            if block:
                sinks[source].sendall(block)
            elif source is far:
                return
            else:
                far.shutdown(socket.SHUT_WR)
                del sinks[connection]
