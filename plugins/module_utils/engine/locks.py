# SPDX-License-Identifier: BSD-2-Clause
"""Locks between the commands of one account, by flock(2): the kernel gives them up with their holder, so none is stale.

A lock's file says who holds it; whoever waits is told that after ``PATIENCE`` seconds. What the file says is believed
only while that very process lives (case L1: it may name a stranger). The file goes when the lock is given up.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from typing import Any, Iterator, Optional

from ..core.errors import EngineError
from . import dirs, notices, procs
from .dirs import Env

#: Seconds of silent waiting.
PATIENCE = 1.0
_POLL = 0.02
_MAX_READ = 4096
#: Locks that a thread holds, and how often: the one of its outermost caller serves all inside it.
_held: dict[tuple[str, int, int], int] = {}


@contextlib.contextmanager
def hold(name: str, what: str, env: Env, timeout: float) -> Iterator[None]:
    """Hold the lock ``name``; ``what`` is it in words, ``timeout`` in seconds. Who holds it may take it again.

    Raises EngineError (``busy``) with the holder when somebody else has it for too long.
    """
    path = str(dirs.private(dirs.run_dir(env) / "locks") / f"{name}.lock")
    key = (path, os.getpid(), threading.get_ident())
    handle = None if _held.get(key) else _taken(path, what, timeout)
    _held[key] = _held.get(key, 0) + 1
    try:
        yield
    finally:
        _held[key] -= 1
        if handle is not None:
            with contextlib.suppress(OSError):  # somebody took the folder away: nothing to remove
                os.unlink(path)
            os.close(handle)


def _taken(path: str, what: str, timeout: float) -> int:
    begun, told = time.monotonic(), False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if _flock(handle):
            if _same(handle, path):
                _sign(handle)
                return handle
            os.close(handle)  # its last holder has removed it meanwhile
            continue
        waited = time.monotonic() - begun
        who = _holder(handle)
        os.close(handle)
        if waited > timeout:
            raise _busy(path, what, who, timeout)
        if waited > PATIENCE and not told:
            told = True
            notices.say(f"waiting for {what}, which is held by {who}")
        time.sleep(_POLL)


def _flock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(handle: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    """Write down who holds it. A full disk must not keep anybody from closing a session."""
    who = procs.identity()
    known: dict[str, Any] = {**(who.as_dict() if who else {}), "command": procs.command()}
    text = json.dumps({**known, "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode("ascii", "replace")[:_MAX_READ], 0)


def _holder(handle: int) -> str:
    """The holder in words, as far as the file is to be believed."""
    try:
        known = json.loads(os.pread(handle, _MAX_READ, 0))
    except (OSError, ValueError):
        known = None
    who: Optional[procs.Identity] = procs.Identity.from_dict(known)
    if who is None or not procs.alive(who):
        return "another process, which has not said who it is"
    return f"process {who.pid} ({known.get('command') or 'unknown'}) since {known.get('since')}"


def _busy(path: str, what: str, who: str, timeout: float) -> EngineError:
    return EngineError(
        f"another command works on {what} for more than {timeout:g} s: {who}",
        file=path,
        key="session",
        found=who,
        remedy="wait for it or end it",
        code="busy",
    )
