# SPDX-License-Identifier: BSD-2-Clause
"""Which runs' evidence goes: by age, number and total size; never that of a session that owns something. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

DAY = 86_400


@dataclass(frozen=True)
class Retention:
    """How much evidence is kept: ``runs`` of all sessions together, ``days``, ``size`` in bytes. 0 means no bound."""

    runs: int = 500
    days: int = 180
    size: int = 4 * 1024**3


@dataclass(frozen=True)
class Kept:
    """One run that has a folder. ``size`` in bytes; ``live``: its session still owns something."""

    session: str
    run: str
    size: int
    live: bool = False

    @property
    def began(self) -> int:
        """Seconds since the epoch, as the run's name tells; a name that is no time is never too old."""
        try:
            began = datetime.strptime(self.run.partition("-")[0], "%Y%m%dT%H%M%SZ")
        except ValueError:
            return 1 << 62
        return int(began.replace(tzinfo=timezone.utc).timestamp())


def surplus(found: Sequence[Kept], limits: Retention, now: float) -> list[tuple[Kept, str]]:
    """What is to be removed, oldest first, and why: ``age``, ``count`` or ``size``. Live runs count and stay."""
    runs, size = len(found), sum(one.size for one in found)
    chosen: list[tuple[Kept, str]] = []
    for one in sorted(found, key=lambda one: (one.run, one.session)):
        if one.live:
            continue
        why = _why(one, runs, size, limits, now)
        if why:
            chosen.append((one, why))
            runs, size = runs - 1, size - one.size
    return chosen


def _why(one: Kept, runs: int, size: int, limits: Retention, now: float) -> str | None:
    if limits.days and now - one.began > limits.days * DAY:
        return "age"
    if limits.runs and runs > limits.runs:
        return "count"
    return "size" if limits.size and size > limits.size else None
