# SPDX-License-Identifier: BSD-2-Clause
"""A container's log as it grows, until the container ends. Nothing polls: inotify tells of new rows, pidfds of the end.

The log of Caddy and of the broker belongs to uids that only the rootless parent user namespace can read, so a forked
process reads it there and writes it into a pipe (``netns``). conmon writes the last rows a moment after the container's
first process has ended, and starts a full log over under a new inode (``--log-size-max``): both are followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
from typing import Iterator, Optional, Sequence

from . import netns, procs
from .logs import Joiner, Line, opened

# inotify(7)
_IN_MODIFY, _IN_ATTRIB, _IN_MOVE_SELF, _IN_DELETE_SELF = 0x2, 0x4, 0x800, 0x400
_MASK = _IN_MODIFY | _IN_ATTRIB | _IN_MOVE_SELF | _IN_DELETE_SELF
#: Most seconds that conmon may take for the last rows; milliseconds of a wait that should not be needed.
_LAST = 2000
#: Most reads of 64 KiB for one answer, so that a flood does not keep the caller from showing what came.
_CHUNKS = 64
_LIBC = ctypes.CDLL(None, use_errno=True)


class Follower:
    """What a container has written and writes. ``fileno`` is readable when ``lines`` has something new.

    ``pid`` is the container's first process. Use it as a context manager: a forked process belongs to it.
    """

    def __init__(self, path: str, pid: int) -> None:
        self.ended = False
        self._joiner = Joiner()
        self._rest = b""
        self._fd, write_end = os.pipe()
        os.set_blocking(self._fd, False)
        monitor = procs.parent(pid)
        self._child = os.fork()
        if self._child == 0:
            os.close(self._fd)
            _body(path, [one for one in (pid, monitor) if one], write_end)
        os.close(write_end)

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)

    def fileno(self) -> int:
        """For ``select``."""
        return self._fd

    def lines(self) -> Iterator[Line]:
        """What is there now, at most some MiB at once; ``ended`` is set once the log is over."""
        for _ in range(_CHUNKS):
            try:
                chunk = os.read(self._fd, 1 << 16)
            except BlockingIOError:
                return
            if not chunk:
                self.ended = True
                yield from self._joiner.rest()
                return
            *rows, self._rest = (self._rest + chunk).split(b"\n")
            self._rest = self._rest[: Joiner.LONGEST]
            for row in rows:
                yield from self._joiner.feed(row.decode("utf-8", "replace"))


def _body(path: str, pids: Sequence[int], write_end: int) -> None:
    """The forked reader; never returns."""
    try:
        # Ctrl-C is the caller's to deal with; the reader goes when its pipe does.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        netns.enter_parent_user()
        _tail(path, pids, write_end)
        os._exit(0)
    except BaseException:
        os._exit(1)


def _tail(path: str, pids: Sequence[int], write_end: int) -> None:
    notify, ends = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), _pidfds(pids)
    handle = _watched(notify, path)
    last: Optional[int] = None
    while True:
        _copy(handle, write_end)
        if last == 0:
            return
        if _replaced(handle, path):
            _copy(handle, write_end)  # what came before it was replaced
            os.close(handle)
            handle = _watched(notify, path)
            continue
        if not ends:
            last = 0
            continue
        poll = select.poll()
        poll.register(notify, select.POLLIN)
        poll.register(write_end, 0)  # tells of a reader that is gone
        for one in ends:
            poll.register(one, select.POLLIN)
        ready = dict(poll.poll(last))
        if write_end in ready:
            return
        if not ready:
            last = 0  # conmon said nothing for long enough
        with contextlib.suppress(BlockingIOError):
            os.read(notify, 1 << 16)
        gone = [one for one in ends if one in ready]
        ends = [one for one in ends if one not in gone]
        last = _LAST if gone and last is None else last


def _pidfds(pids: Sequence[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(os.pidfd_open(pid))
    return found


def _watched(notify: int, path: str) -> int:
    """The log at its start; the watch comes first, so that nothing is missed between."""
    _LIBC.inotify_add_watch(notify, os.fsencode(path), _MASK)
    return opened(path)


def _replaced(handle: int, path: str) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False  # removed with its container: what is open can be read to its end
    return found.st_ino != os.fstat(handle).st_ino


def _copy(handle: int, write_end: int) -> None:
    while chunk := os.read(handle, 1 << 16):
        while chunk:
            chunk = chunk[os.write(write_end, chunk) :]
