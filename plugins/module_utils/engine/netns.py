# SPDX-License-Identifier: BSD-2-Clause
"""Enter the namespaces of the operator's own containers, from outside.

Every container of a rootless operator lives in user namespaces below the one that Podman's pause process holds; who
enters that one is uid 0 there, with capabilities over all its children (user_namespaces(7)), and may run the host's own
``ip`` and ``nft`` in a child's network namespace. What enters is a forked process: single-threaded as setns(2) demands
for user namespaces, without any descriptor but its result pipe, with a deadline, and its answer is plain JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ..core.errors import EngineError

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
MAX_ANSWER = 8 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int, kind: int) -> None:
    if _LIBC.setns(fd, kind):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def pause_pid() -> int:
    """Pid of Podman's pause process for this account. Raises EngineError when there is none."""
    path = os.path.join(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"), "libpod/tmp/pause.pid")
    try:
        with open(path, encoding="ascii") as handle:
            pid = int(handle.read().strip())
        os.stat(f"/proc/{pid}/ns/user")
        return pid
    except (OSError, ValueError) as exc:
        raise EngineError(
            f"Podman's pause process was not found: {exc}",
            file=path,
            remedy="run `podman info` once as this account; `asf-play doctor` says more",
        ) from None


def enter_parent_user() -> None:
    """Become uid 0 of the rootless parent user namespace. Only in a forked process."""
    fd = os.open(f"/proc/{pause_pid()}/ns/user", os.O_RDONLY)
    _setns(fd, CLONE_NEWUSER)
    os.close(fd)


def enter_net(pid: int) -> None:
    """Join the network namespace of process ``pid``, after :func:`enter_parent_user`."""
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    _setns(fd, CLONE_NEWNET)
    os.close(fd)


def unshare_net() -> None:
    """Go into a new network namespace that ends with this process, after :func:`enter_parent_user`."""
    if _LIBC.unshare(CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def _close_from(first: int) -> None:
    """Close every descriptor from ``first`` up; the kernel's list, because the limit may have been lowered since."""
    try:
        names = os.listdir("/proc/self/fd")
    except PermissionError:  # an undumpable process's is root's (proc(5)); close_range(2) needs no list
        os.closerange(first, 1 << 20)
        return
    for fd in map(int, names):
        if fd >= first:
            with contextlib.suppress(OSError):  # that of the listing itself is closed already
                os.close(fd)


def _child(work: Callable[[], Any], write_end: int) -> None:
    """Body of the forked process; never returns."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        keep = os.dup2(write_end, 3)
        _close_from(4)
        answer = {"ok": work()}
        data = json.dumps(answer).encode()
    except BaseException as exc:  # the parent gets every failure as text, whatever it is
        keep = 3
        data = json.dumps({"err": f"{type(exc).__name__}: {exc}"[:2000]}).encode()
    try:
        while data:
            data = data[os.write(keep, data) :]
    finally:
        os._exit(0)


def forked(work: Callable[[], Any], timeout: float = 20.0, who: str = "a helper in a container's namespaces") -> Any:
    """Run ``work`` in a forked process and return its JSON-able answer; seconds. Raises EngineError.

    ``who`` is what errors call that process.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _child(work, write_end)
    os.close(write_end)
    try:
        data = _read_all(read_end, time.monotonic() + timeout)
    except BaseException as exc:
        _kill_group(pid)
        if isinstance(exc, TimeoutError):
            raise EngineError(f"{who} did not answer within {timeout:g} s") from None
        raise
    finally:
        os.close(read_end)
        os.waitpid(pid, 0)
    try:
        answer = json.loads(data)
    except ValueError:
        raise EngineError(f"{who} ended without an answer") from None
    if "err" in answer:
        raise EngineError(f"{who} failed: {answer['err']}")
    return answer["ok"]


def _kill_group(pid: int) -> None:
    """End the forked process and what it started. It may not have made its group yet, so both sides make it."""
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _read_all(fd: int, end: float) -> bytes:
    data = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise TimeoutError
        chunk = os.read(fd, 65536)
        if not chunk:
            return data
        data += chunk
        if len(data) > MAX_ANSWER:
            raise EngineError(f"a helper in a container's namespaces answered more than {MAX_ANSWER >> 20} MiB")


def in_net(pid: int, work: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Run ``work`` in the network namespace of ``pid``, as uid 0 of the parent user namespace."""

    def inside() -> Any:
        enter_parent_user()
        enter_net(pid)
        return work()

    return forked(inside, timeout)


Command = Tuple[int, Sequence[str], Optional[str]]  # pid whose network namespace, argv, stdin


def commands(batch: Sequence[Command], timeout: float = 20.0) -> List[str]:
    """Run host programs in network namespaces, in order, from one forked process; returns their stdout.

    The first that fails ends the batch with EngineError, which carries its words.
    """
    steps = [(pid, list(argv), stdin) for pid, argv, stdin in batch]

    def inside() -> Any:
        enter_parent_user()
        outs = []
        for pid, argv, stdin in steps:
            done = subprocess.run(
                ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *argv],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
            )
            if done.returncode:
                return {"argv": argv, "rc": done.returncode, "stderr": done.stderr[-2000:]}
            outs.append(done.stdout)
        return outs

    answer = forked(inside, timeout + 5)
    if isinstance(answer, dict):
        raise EngineError(
            f"{answer['argv'][0]} failed in a container's network namespace",
            cmd=list(answer["argv"]),
            rc=int(answer["rc"]),
            stderr=str(answer["stderr"]),
        )
    return [str(out) for out in answer]


def try_connect(targets: Sequence[Tuple[str, int]], timeout: float = 0.4) -> List[str]:
    """TCP connects, all at once, from wherever the caller is; per target ``open``, ``timeout`` or the error's name."""
    import errno

    pending = {}
    results = ["timeout"] * len(targets)
    poller = select.poll()
    for index, target in enumerate(targets):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        code = sock.connect_ex(target)
        if code not in (0, errno.EINPROGRESS):
            results[index] = errno.errorcode.get(code, str(code))
            sock.close()
            continue
        pending[sock.fileno()] = (index, sock)
        poller.register(sock, select.POLLOUT)
    end = time.monotonic() + timeout
    while pending and time.monotonic() < end:
        for fd, _ in poller.poll(max(1, int((end - time.monotonic()) * 1000))):
            index, sock = pending.pop(fd)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            results[index] = errno.errorcode.get(code, str(code)) if code else "open"
            poller.unregister(fd)
            sock.close()
    return results
