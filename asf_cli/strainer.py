# SPDX-License-Identifier: BSD-4-Clause
"""Output of the sandbox that has no terminal of its own, and ends on the user's all the same: filtered there, too.

A pipe or a file gets every byte as it is; a terminal obeys whoever writes to it (``termfilter``), however it came by.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from . import bridge, termfilter

_BLOCK = 65536
#: Seconds for the last output of a program that has ended, where something else still holds its pipe.
_DRAIN = 0.2


@contextmanager
def streams(filtered: bool, handles: Sequence[int]) -> Iterator[list[int]]:
    """Descriptors that a program may write to instead of ``handles``: a terminal is replaced by a filtered pipe."""
    lock = threading.Lock()
    found = [_Outlet(one, lock) if filtered and os.isatty(one) else None for one in handles]
    try:
        yield [one if outlet is None else outlet.inlet for one, outlet in zip(handles, found, strict=True)]
    finally:
        outlets = [outlet for outlet in found if outlet is not None]
        for outlet in outlets:
            outlet.drain()
        # Only now: what one stream writes last would come after the other's end.
        times = sum(outlet.restore() for outlet in outlets)
        if times:
            with suppress(OSError):
                print(bridge.kept_back(times), file=sys.stderr)


class _Outlet:
    """``inlet`` is the writing end of a pipe; a thread passes on what comes. The lock keeps sequences in one piece."""

    def __init__(self, terminal: int, lock: threading.Lock) -> None:
        self._terminal, self._lock = terminal, lock
        self._filter = termfilter.Filter(ascii_only=bridge.speaks_utf8(os.environ) is False)
        self._ending = threading.Event()
        self._read, self.inlet = os.pipe()
        self._thread = threading.Thread(target=self._work, name="strainer", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Everything was written: show the rest."""
        os.close(self.inlet)
        self._ending.set()
        self._thread.join()
        os.close(self._read)

    def restore(self) -> int:
        """Put the terminal back; returns the attempts on the clipboard."""
        self._put(self._filter.restore())
        return self._filter.clipboard

    def _work(self) -> None:
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while True:
            if not poll.poll(_DRAIN * 1000):
                if self._ending.is_set():
                    return
                continue
            data = os.read(self._read, _BLOCK)
            if not data:
                return
            self._put(self._filter.feed(data))

    def _put(self, data: bytes) -> None:
        with self._lock, suppress(OSError):  # a terminal that is gone must not keep the program from its end
            while data:
                data = data[os.write(self._terminal, data) :]
