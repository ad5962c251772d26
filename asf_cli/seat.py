# SPDX-License-Identifier: BSD-4-Clause
"""Who sits at the terminal of a session's workload, and how the last one left.

A file in the session's run folder, locked by whoever is attached: the kernel gives the lock up with the process, so a
killed ``asf-play`` leaves a seat that is free and says that nobody got up from it. It goes with the session.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAME = "terminal.json"
_LIMIT = 4096


class Seat:
    """``free``: nobody else has it, the caller does now. ``before``: what the last one wrote (``how``, ``time``)."""

    def __init__(self, handle: int | None, free: bool, before: dict[str, Any]) -> None:
        self.free = free
        self.before = before
        self._handle = handle

    def note(self, how: str) -> None:
        """Write down ``attached``, or how the caller left. Only the seat's holder does."""
        if self.free and self._handle is not None:
            row = {"how": how, "pid": os.getpid(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, json.dumps(row).encode("ascii"), 0)

    def by(self) -> str:
        """Who has it, for people, when it is not free."""
        return f" (asf-play, pid {self.before['pid']})" if isinstance(self.before.get("pid"), int) else ""

    def told(self) -> str:
        """What is known of the last one, for people; empty when there was none."""
        how, when = self.before.get("how"), self.before.get("time")
        if how == "detached":
            return f"left with Ctrl-] at {when}"
        if how == "attached":
            return f"its terminal was lost: asf-play (pid {self.before.get('pid')}) was killed after {when}"
        return f"its terminal was lost at {when}" if how in ("hangup", "terminated") else ""


@contextmanager
def take(session: str) -> Iterator[Seat]:
    """Take the seat while the block runs, if it is free. Without the session's run folder nothing is known of it."""
    from asf_lib.engine import state

    path = state.run_folder(session) / _NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield Seat(None, True, {})
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield Seat(handle, free, _read(handle))
    finally:
        os.close(handle)


def _read(handle: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(handle, _LIMIT, 0))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
