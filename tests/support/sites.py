# SPDX-License-Identifier: BSD-4-Clause
"""Listeners of the test world: TLS sites, plain HTTP, banners, and a catch-all for every other address and port.

Events: `accept` {conn, address, port, peer, canary}, then, when bytes arrive, `data` {conn, first}, `tls` {conn, sni}
or `tls-error`, `http` {conn, method, host, path, headers}, and at the end `closed` {conn, seconds, error}. `conn` is
the number of the accept event, `address` and `port` are what the client dialled.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support import addresses, forward
from support.authority import Authority
from support.chatgpt import ChatGptHandler
from support.logins import LoginHandler
from support.providers import Scripts
from support.recorder import Recorder
from support.wire import send_json

_SO_ORIGINAL_DST = 80  # <linux/netfilter_ipv4.h>
_IDLE_S = 300
_TLS_HANDSHAKE = 0x16

Connection = dict[str, Any]


class SiteHandler(BaseHTTPRequestHandler):
    """Any web site. GET / tells what was asked; POST echoes.

    /stream?interval=S never ends, /slow?seconds=S waits, /bytes?n=N is long, /status?code=N fails.
    """

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: the recorder has it all."""

    def do_GET(self) -> None:
        """Answer by path."""
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        self._record()
        special = {"/stream": self._stream, "/slow": self._slow, "/bytes": self._bytes, "/status": self._status}
        special.get(parts.path, self._about)(query)

    def do_POST(self) -> None:
        """Send the body back."""
        self._record()
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-type", self.headers.get("content-type") or "application/octet-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_PUT = do_GET

    def _record(self) -> None:
        info = self.server.info
        headers = {name.lower(): value for name, value in self.headers.items()}
        fields = {"method": self.command, "host": headers.get("host"), "path": self.path, "headers": headers}
        self.server.recorder.add("http", **info, **fields)

    def _about(self, query: dict[str, str]) -> None:
        del query
        info = self.server.info
        site = {"site": self.headers.get("host"), "sni": info.get("sni"), "address": info["address"], "path": self.path}
        send_json(self, 200, site, {"x-test-world": "site"})

    def _slow(self, query: dict[str, str]) -> None:
        time.sleep(float(query.get("seconds", "5")))
        self._about(query)

    def _status(self, query: dict[str, str]) -> None:
        send_json(self, int(query.get("code", "404")), {"site": self.headers.get("host")})

    def _bytes(self, query: dict[str, str]) -> None:
        count = int(query.get("n", "1000000"))
        self.send_response(200)
        self.send_header("content-length", str(count))
        self.end_headers()
        block = bytes(65536)
        while count > 0:
            self.wfile.write(block[: min(count, len(block))])
            count -= len(block)

    def _stream(self, query: dict[str, str]) -> None:
        """Chunks until the client or something between us cuts the connection."""
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        number = 0
        while True:
            line = f"line {number}\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            number += 1
            time.sleep(float(query.get("interval", "0.2")))


class _Context:
    """What a request handler finds as `self.server`."""

    def __init__(self, recorder: Recorder, scripts: Scripts, info: Connection) -> None:
        self.recorder = recorder
        self.scripts = scripts
        self.info = info


class Listener:
    """Accepts on one port of every address (or of `address`) and records what arrives."""

    def __init__(self, world: World, port: int, kind: str, family: int = socket.AF_INET) -> None:
        self._world = world
        self._handle: Callable[[socket.socket, Connection], None] = getattr(self, f"_{kind.replace('-', '_')}")
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self._socket.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
        self._socket.listen(128)
        threading.Thread(target=self._loop, daemon=True).start()

    def _loop(self) -> None:
        while True:
            connection, peer = self._socket.accept()
            address, port = _dialled(connection)
            info: Connection = {"address": address, "port": port, "peer": peer[0]}
            if address == addresses.ROUTER:  # World.settle of the client: everything accepted before it is recorded
                self._world.recorder.add("barrier", **info)
                connection.close()
                continue
            # here and not in the thread, so that the order of events is the order of connections
            info["conn"] = self._world.recorder.add("accept", canary=address not in addresses.EXPECTED, **info)
            threading.Thread(target=self._one, args=(connection, info), daemon=True).start()

    def _one(self, connection: socket.socket, info: Connection) -> None:
        recorder, began, error = self._world.recorder, time.monotonic(), None
        try:
            connection.settimeout(_IDLE_S)
            if first := connection.recv(16, socket.MSG_PEEK):
                recorder.add("data", first=first.hex(), **info)
                self._handle(connection, info)
        except OSError as caught:
            error = f"{type(caught).__name__}: {caught}"
        finally:
            with contextlib.suppress(OSError):
                connection.close()
            recorder.add("closed", seconds=round(time.monotonic() - began, 3), error=error, **info)

    def _tls(self, connection: socket.socket, info: Connection) -> None:
        if connection.recv(1, socket.MSG_PEEK)[0] != _TLS_HANDSHAKE:
            return self._echo(connection, info)
        tls = self._world.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        try:
            tls.do_handshake()
        except (ssl.SSLError, OSError) as error:
            self._world.recorder.add("tls-error", error=str(error), **info)
            raise
        info["sni"] = getattr(tls, "asked_name", None)
        self._world.recorder.add("tls", version=tls.version(), **info)
        try:
            self._http(tls, info)
        finally:
            with contextlib.suppress(OSError, ValueError):
                tls.unwrap() if tls.fileno() >= 0 else None
            tls.close()

    def _http(self, connection: socket.socket, info: Connection) -> None:
        handler = _handler(str(info["address"]))
        context = _Context(self._world.recorder, self._world.scripts, info)
        handler(connection, (info["peer"], 0), context)  # type: ignore[arg-type]

    def _secure_proxy(self, connection: socket.socket, info: Connection) -> None:
        with self._world.tls.wrap_socket(connection, server_side=True) as tls:
            info["sni"] = getattr(tls, "asked_name", None)
            self._proxy(tls, info)

    def _proxy(self, connection: socket.socket, info: Connection) -> None:
        forward.serve(connection, info, self._world.recorder)

    def _echo(self, connection: socket.socket, info: Connection) -> None:
        del info
        while block := connection.recv(65536):
            connection.sendall(b"echo:" + block)


class BannerListener(Listener):
    """A port whose server speaks first (22), or never (5432)."""

    def __init__(self, world: World, port: int, banner: bytes) -> None:
        self._banner = banner
        super().__init__(world, port, "echo")

    def _one(self, connection: socket.socket, info: Connection) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(self._banner)
        super()._one(connection, info)


def _handler(address: str) -> type[BaseHTTPRequestHandler]:
    """What answers HTTP at this address."""
    if address == addresses.CHATGPT:
        return ChatGptHandler
    return LoginHandler if address in addresses.PROVIDERS else SiteHandler


def _dialled(connection: socket.socket) -> tuple[str, int]:
    """The address and port that the client dialled, before nft's redirect."""
    address, port = connection.getsockname()[:2]
    if port == addresses.CATCH_ALL_PORT and connection.family == socket.AF_INET:
        raw = connection.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16)
        port, packed = struct.unpack("!2xH4s8x", raw)
        address = socket.inet_ntoa(packed)
    return address, port


def _datagrams(recorder: Recorder, port: int) -> None:
    """Record UDP datagrams to a port where nobody should send any (QUIC, NTP, everything else by redirect)."""
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("0.0.0.0", port))
    while True:
        data, peer = receiver.recvfrom(65536)
        recorder.add("datagram", port=port, peer=peer[0], first=data[:16].hex(), canary=True)


class World:
    """All listeners of the world's namespace but the resolver."""

    def __init__(self, recorder: Recorder, scripts: Scripts, authority: Authority) -> None:
        self.recorder = recorder
        self.scripts = scripts
        self.tls = authority.server_context()

    def start(self, ipv6: bool) -> None:
        """Bind everything.

        :raises OSError: a port is taken, or the namespace is not prepared
        """
        families = [socket.AF_INET] + ([socket.AF_INET6] if ipv6 else [])
        for family in families:
            for port in addresses.TLS_PORTS:
                Listener(self, port, "tls", family)
            for port in addresses.HTTP_PORTS:
                Listener(self, port, "http", family)
        for port, kind in addresses.PROXY_PORTS.items():
            Listener(self, port, kind)
        for port, banner in addresses.BANNER_PORTS.items():
            BannerListener(self, port, banner)
        Listener(self, addresses.CATCH_ALL_PORT, "echo")
        for port in addresses.CATCH_ALL_UDP_PORTS:
            threading.Thread(target=_datagrams, args=(self.recorder, port), daemon=True).start()
