# SPDX-License-Identifier: BSD-4-Clause
"""The event log of the test world: everything that arrives is written here, in order."""

from __future__ import annotations

import threading
import time
from typing import Any

Event = dict[str, Any]


class Recorder:
    """Append-only list of events. Thread-safe; readers may wait for an event instead of polling."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._next = 1
        self._changed = threading.Condition()

    def add(self, kind: str, **fields: Any) -> int:
        """Append an event and return its number. Numbers grow for ever, also over `clear`."""
        with self._changed:
            number = self._next
            self._next += 1
            self._events.append({"n": number, "time": time.time(), "kind": kind, **fields})
            self._changed.notify_all()
            return number

    def clear(self) -> None:
        """Forget all events."""
        with self._changed:
            self._events.clear()

    def mark(self) -> int:
        """Number of the last event: pass it as `since` to see only what came later."""
        with self._changed:
            return self._next - 1

    def select(self, kind: str | None, since: int, match: dict[str, Any]) -> list[Event]:
        """Events of `kind` (any when None) after `since` whose fields equal all of `match`."""
        with self._changed:
            return self._select(kind, since, match)

    def wait(self, kind: str | None, since: int, match: dict[str, Any], timeout: float) -> list[Event]:
        """As `select`, but wait up to `timeout` seconds until there is at least one."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not (found := self._select(kind, since, match)):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    return self._select(kind, since, match)
            return found

    def _select(self, kind: str | None, since: int, match: dict[str, Any]) -> list[Event]:
        return [
            event
            for event in self._events
            if event["n"] > since
            and kind in (None, event["kind"])
            and all(event.get(key) == value for key, value in match.items())
        ]
