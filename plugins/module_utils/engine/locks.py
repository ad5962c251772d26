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
            with contextlib.suppress(OSError):
                if _same(handle, path):  # else somebody took the folder away, and this is another one's
                    os.unlink(path)
            os.close(handle)


def acquire(handle: int, path: str, what: str, timeout: float, shared: bool = False) -> None:
    """Take the lock of an open file or folder that is not a lock's own; it goes with the descriptor.

    Raises EngineError as ``hold`` does.
    """
    wait = _Wait(path, what, timeout)
    while not _flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
        wait.more(handle)


def _taken(path: str, what: str, timeout: float) -> int:
    wait = _Wait(path, what, timeout)
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _flock(handle, fcntl.LOCK_EX):
                wait.more(handle)
            elif _same(handle, path):  # else its last holder has removed it meanwhile
                _sign(handle)
                taken, handle = handle, -1
                return taken
        finally:
            if handle >= 0:
                os.close(handle)


class _Wait:
    """Waiting for one lock: silent at first, then told, then given up."""

    def __init__(self, path: str, what: str, timeout: float) -> None:
        self._path, self._what, self._timeout = path, what, timeout
        self._begun, self._told = time.monotonic(), False

    def more(self, handle: int) -> None:
        """A moment more. Raises EngineError (``busy``) when it was long enough."""
        waited = time.monotonic() - self._begun
        if waited > self._timeout:
            raise _busy(self._path, self._what, _holder(handle), self._timeout)
        if waited > PATIENCE and not self._told:
            self._told = True
            notices.say(f"waiting for {self._what}, which is held by {_holder(handle)}")
        time.sleep(_POLL)


def _flock(handle: int, mode: int) -> bool:
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
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
    """The holder in words: as the file says while that process lives, else as the kernel does."""
    try:
        known = json.loads(os.pread(handle, _MAX_READ, 0))
    except (OSError, ValueError):
        known = None
    who: Optional[procs.Identity] = procs.Identity.from_dict(known)
    if who is not None and procs.alive(who):
        return f"process {who.pid} ({known.get('command') or 'unknown'}) since {known.get('since')}"
    pid = _kernels(handle)
    return f"process {pid} ({procs.command(pid) or 'unknown'})" if pid else "a process that cannot be seen from here"


def _kernels(handle: int) -> Optional[int]:
    """Pid that holds the lock of a file, as proc_locks(5) has it; None when it lives in another pid namespace."""
    found = os.fstat(handle)
    key = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as table:
            rows = [line.split() for line in table if "->" not in line]
    except OSError:
        return None
    return next((int(row[4]) for row in rows if row[1] == "FLOCK" and row[5] == key and int(row[4]) > 0), None)


def _busy(path: str, what: str, who: str, timeout: float) -> EngineError:
    return EngineError(
        f"another command works on {what} for more than {timeout:g} s: {who}",
        file=path,
        key="session",
        found=who,
        remedy="wait for it or end it",
        code="busy",
    )
