# SPDX-License-Identifier: BSD-4-Clause
"""Entering the network namespaces of rootless containers, independently of the product's own code for it."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(RuntimeError):
    """The function failed inside the namespace; the text is what it raised."""


def _setns(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def forked(function: Callable[[], Any], timeout: float = 30) -> Any:
    """Run `function` in a single-threaded child (setns needs that) and return its JSON-able result.

    :raises NamespaceError: the function raised, or took longer than `timeout` seconds
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _child(function, reader, writer)
    os.close(writer)
    data = b""
    try:
        while select.select([reader], [], [], timeout)[0]:
            if not (block := os.read(reader, 65536)):
                break
            data += block
        else:
            os.kill(child, signal.SIGKILL)
            raise NamespaceError(f"no answer within {timeout} s")
    finally:
        os.close(reader)
        os.waitpid(child, 0)
    answer = json.loads(data or b'{"error": "the child died"}')
    if "error" in answer:
        raise NamespaceError(answer["error"])
    return answer["result"]


def _child(function: Callable[[], Any], reader: int, writer: int) -> None:
    """Never returns: the parent's test run must not go on twice."""
    try:
        os.close(reader)
        try:
            answer = {"result": function()}
            text = json.dumps(answer)
        except BaseException as error:
            text = json.dumps({"error": repr(error)})
        view = memoryview(text.encode())
        while view:
            view = view[os.write(writer, view) :]
    finally:
        os._exit(0)


def in_netns(pid: int, function: Callable[[], Any], timeout: float = 30) -> Any:
    """Run `function` in the user and network namespace of a container's process `pid`, with all capabilities there."""

    def enter() -> Any:
        # both before the first setns: afterwards /proc/PID/ns of an initialized container cannot be opened any more
        user, net = (os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("user", "net"))
        _setns(user, _CLONE_NEWUSER)
        _setns(net, _CLONE_NEWNET)
        return function()

    return forked(enter, timeout)


def in_userns_root(script: str, timeout: float = 30) -> str:
    """Run a shell script as root of the rootless parent user namespace, which has capabilities over every container's.

    :raises NamespaceError: it failed; the text has its stderr
    """
    pause = Path(os.environ["XDG_RUNTIME_DIR"], "libpod/tmp/pause.pid").read_text().strip()

    def run() -> list[Any]:
        user = os.open(f"/proc/{pause}/ns/user", os.O_RDONLY)
        _setns(user, _CLONE_NEWUSER)
        done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, timeout=timeout, check=False)
        return [done.returncode, done.stdout, done.stderr]

    code, out, err = forked(run, timeout + 5)
    if code:
        raise NamespaceError(f"exit {code}: {err.strip()}")
    return str(out)


def wire_sh(pid: int, script: str, timeout: float = 30) -> str:
    """Run a shell script (ip, nft, sysctl…) in the network namespace of `pid`: how tests break a session's wiring."""
    quoted = "'" + script.replace("'", "'\\''") + "'"
    return in_userns_root(f"exec nsenter -t {int(pid)} -n sh -euc {quoted}", timeout)
