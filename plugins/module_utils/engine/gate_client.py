# SPDX-License-Identifier: BSD-2-Clause
"""Talk to a waiting gate: read its report, say go, from the operator's side.

The gate listens on an abstract socket, which is scoped by the network namespace (unix(7)): nothing is mounted, no host
file is involved. ``SO_PEERCRED`` gives the gate's pid as this pid namespace sees it; it must be the pid chosen at init,
so that the report provably comes from there. What the report says is untrusted all the same.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Dict, Tuple

from ..core.errors import EngineError, GateError
from . import netns

Json = Dict[str, Any]

MAX_REPORT = 1 << 20
RETRY_S = 0.005


def _connect(name: str, pid: int, end: float) -> socket.socket:
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + name)
            break
        except OSError:
            sock.close()
            if time.monotonic() > end:
                raise
            time.sleep(RETRY_S)
    peer, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if peer != pid:
        raise ConnectionError(f"pid {peer} answers, not {pid}")
    return sock


def _line(sock: socket.socket, end: float) -> str:
    data = b""
    while not data.endswith(b"\n"):
        sock.settimeout(max(0.01, end - time.monotonic()))
        chunk = sock.recv(65536)
        if not chunk:
            raise ConnectionError("the gate closed the connection")
        data += chunk
        if len(data) > MAX_REPORT:
            raise ConnectionError("the gate's report is too long")
    return data.decode("utf-8", "replace")


def _talk(pid: int, name: str, answer: str, timeout: float) -> Tuple[str, str]:
    end = time.monotonic() + timeout
    sock = _connect(name, pid, end)
    report = _line(sock, end)
    reply = ""
    if answer:
        sock.sendall(answer.encode() + b"\n")
        reply = _line(sock, end).strip()
    sock.close()
    return report, reply


def report(pid: int, plan: Json, timeout: float = 15.0) -> Json:
    """The waiting gate's report. Raises GateError when it is silent, is not ``pid``, or says no JSON object."""
    name = plan["gate"]["socket"]
    try:
        text, _ = netns.in_net(pid, lambda: _talk(pid, name, "", timeout), timeout + 5)
        data = json.loads(text)
    except (EngineError, ValueError) as exc:
        raise GateError(
            f"the gate did not report within {timeout:g} s: {exc}",
            remedy="the workload was not started; the evidence folder has the container's last words",
        ) from None
    if not isinstance(data, dict):
        raise GateError("the gate's report is not a JSON object")
    return data


def go(pid: int, plan: Json, nonce: str, timeout: float = 15.0) -> None:
    """Let the gate that made the report with ``nonce`` start its workload. Raises GateError."""
    name = plan["gate"]["socket"]
    try:
        _, reply = netns.in_net(pid, lambda: _talk(pid, name, f"go {nonce}", timeout), timeout + 5)
    except EngineError as exc:
        raise GateError(f"the gate did not take go: {exc}", remedy="close the session and open it again") from None
    if reply != "ok":
        raise GateError(f"the gate did not take go: it answered {reply[:80]!r}")
