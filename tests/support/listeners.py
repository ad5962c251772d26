# SPDX-License-Identifier: BSD-4-Clause
"""Listeners of a test's own, in the test's own network namespace: services of the operator's host that no session may
reach (its public address, its loopback, the user-mode network's aliases). The world's listeners are elsewhere."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Canary:
    """A TCP and a UDP socket that record who came."""

    def __init__(self, address: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        #: peers of TCP connections and of datagrams, in order
        self.peers: list[str] = []
        self._tcp = socket.create_server((address, port), family=family, backlog=64)
        self.port = int(self._tcp.getsockname()[1])
        self._udp = socket.socket(family, socket.SOCK_DGRAM)
        self._udp.bind((address, self.port))
        for loop in (self._accept, self._receive):
            threading.Thread(target=loop, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._tcp.accept()
            except OSError:
                return
            self.peers.append(peer[0])
            connection.close()

    def _receive(self) -> None:
        while True:
            try:
                _, peer = self._udp.recvfrom(4096)
            except OSError:
                return
            if peer is None:
                return  # shut down
            self.peers.append(peer[0])

    def close(self) -> None:
        """Stop listening."""
        for listener in (self._tcp, self._udp):
            # close() alone leaves a thread that blocks in accept() or recvfrom() listening on
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@contextlib.contextmanager
def canary(address: str, port: int = 0) -> Iterator[Canary]:
    """A canary for the length of a block; its `peers` must stay empty, and `port` says where it listens."""
    listener = Canary(address, port)
    try:
        yield listener
    finally:
        listener.close()
