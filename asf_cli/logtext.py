# SPDX-License-Identifier: BSD-4-Clause
"""Lines of logs: bounds, times, redaction, and decisions as text."""

from __future__ import annotations

import collections
import datetime
import re
import time
from collections.abc import Mapping
from typing import Any

from .errors import CliError
from .render import Style, fit, safe

#: Characters of one line that are shown.
LONGEST = 4000
_SPAN = re.compile(r"(\d{1,9})([smhd])\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def limit(word: str) -> int | None:
    """The value of ``-n``: a number, or None for ``all``. Raises CliError."""
    if word == "all":
        return None
    if word.isdecimal() and len(word) < 10:
        return int(word)
    raise CliError("-n wants a number of lines, or all", key="-n", found=word[:40])


def since(word: str | None, now: float | None = None) -> float | None:
    """The value of ``--since`` as seconds since the epoch. Raises CliError."""
    if word is None:
        return None
    match = _SPAN.match(word)
    if match:
        return (time.time() if now is None else now) - int(match.group(1)) * _UNITS[match.group(2)]
    found = seconds(word)
    if found is None:
        raise CliError(
            "--since wants a length of time or a time",
            key="--since",
            found=word[:40],
            remedy="10m, 2h, or 2026-01-31T12:00:00Z",
        )
    return found


def seconds(stamp: object) -> float | None:
    """Seconds since the epoch of an ISO 8601 time; one without a zone is UTC."""
    try:
        found = datetime.datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()


def stamp(at: object) -> str:
    """Seconds since the epoch as ISO 8601, UTC, milliseconds; empty when it is no such number."""
    if not isinstance(at, (int, float)) or not 0 <= at < 1e11:
        return ""
    found = datetime.datetime.fromtimestamp(at, datetime.UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def young(when: str, oldest: float | None) -> bool:
    """Whether a line belongs to what ``--since`` asks for; one whose time is unknown does."""
    if oldest is None:
        return True
    found = seconds(when)
    return found is None or found >= oldest


class Last:
    """The last lines of what was there before; ``open`` until they were taken."""

    def __init__(self, most: int | None) -> None:
        self.open = True
        self._lines: collections.deque[dict[str, Any]] = collections.deque(maxlen=most)
        self._seen = 0

    def add(self, line: dict[str, Any]) -> None:
        self._seen += 1
        self._lines.append(line)

    @property
    def left_out(self) -> int:
        return self._seen - len(self._lines)

    def close(self) -> list[dict[str, Any]]:
        """The lines that are kept."""
        self.open = False
        return list(self._lines)


def redactor(podman: Any, session: str) -> Any:
    """Takes the session's secrets and the operator's out of what is shown. Raises CliError when they are unknown."""
    from asf_lib.core.errors import AsfError
    from asf_lib.core.redact import Redactor
    from asf_lib.engine import sessionlogs

    from .secrets import values

    try:
        own = sessionlogs.redactor(podman, session)
    except (AsfError, OSError, ValueError, LookupError, TypeError) as error:
        raise CliError(
            "the session's secrets cannot be read, so they cannot be taken out of its logs",
            key="session",
            found=f"{type(error).__name__}: {error}"[:300],
            remedy="close the session; its evidence is redacted",
            code="engine",
        ) from error
    return _Both(own, Redactor(values()))


class _Both:
    """Two redactors, one after the other."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def text(self, text: str) -> str:
        """The text without the secrets of any."""
        for part in self._parts:
            text = part.text(text)
        return text


_DECISIONS = {"allow": "green", "deny": "red"}


def decision(record: Mapping[str, Any], style: Style) -> str:
    """One decision as one line: time, verdict, listener, what was asked for, reason, the manifest's key."""
    if "dropped" in record and "decision" not in record:
        return f"… {safe(record['dropped'], 20)} decisions are not kept"
    verdict = safe(record.get("decision"), 8)
    port = record.get("port")
    many = "(many names)" if record.get("others") else "-"
    asked = f"{record.get('host')}:{port}" if record.get("host") else str(record.get("target") or many)
    words = [
        stamp(record.get("ts")),
        safe(record.get("listener"), 4),
        safe(record.get("method"), 16),
        safe(asked, 300),
        safe(record.get("reason"), 40),
        safe(record.get("key"), 120),
        f"x{record['count']}" if isinstance(record.get("count"), int) else "",
    ]
    head, rest = words[0], " ".join(word for word in words[1:] if word)
    line = fit(f"{head} {verdict:<5} {rest}", style.width, style)
    return line.replace(f" {verdict} ", f" {style.paint(verdict, _DECISIONS.get(verdict, 'yellow'))} ", 1)
