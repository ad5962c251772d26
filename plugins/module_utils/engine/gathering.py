# SPDX-License-Identifier: BSD-2-Clause
"""What a teardown keeps of containers before they go: decisions, supervision, usage, how each ended, last words."""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..core import decisions, lifecycle
from ..core.errors import AsfError
from ..core.lifecycle import Container
from ..core.redact import Redactor
from ..core.roles import SERVICES
from . import inventory, lastwords, logbirth, logs
from .evidencefs import Evidence
from .podman import Podman

Details = Mapping[str, inventory.Detail]
#: The gate's exit code when ``limits.time`` is over; timeout(1) uses it as well.
TIME_OVER = 124
#: Seconds that a stopped service's last lines may take from its pipe to its log.
DRAIN = 1.0


@dataclass
class Gathered:
    """``containers`` by name: role, status before, exit code, last words; ``notes``: what could not be kept and why."""

    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    decisions: dict[str, dict[str, int]] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Time:
    """``limits.time`` of a session that was live: its seconds (0: none) and when go was said (epoch)."""

    seconds: int = 0
    since: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Time:
        """As the session's record has it."""
        limit = record.get("time_limit")
        try:
            since = calendar.timegm(time.strptime(str(record.get("started")), "%Y-%m-%dT%H:%M:%SZ"))
        except (ValueError, OverflowError):
            return cls()
        return cls(limit if isinstance(limit, int) else 0, since)

    def over(self, one: Container, detail: inventory.Detail | None) -> bool:
        """Whether it ended this container: by the gate's code, and not before its time by Podman's clock.

        The workload may use that code as well; that it lasted so long is what nobody can pretend.
        """
        lasted = detail.finished - self.since if detail else -1
        return bool(self.seconds) and one.exit_code == TIME_OVER and lasted >= self.seconds - 1


def _ending(one: Container, known: Details, time_limit: Time) -> dict[str, Any]:
    """How a container was found. One that still ran is ended by ASF; its code would say nothing about the workload."""
    ended = not one.alive and one.exit_code is not None
    detail = known.get(one.id)
    found = {
        "role": one.role,
        "before": one.status,
        "exit_code": one.exit_code if ended else None,
        "oom_killed": bool(detail and detail.oom_killed) if ended else None,
    }
    if ended and one.role == "agent" and time_limit.over(one, detail):
        found["reason"] = f"limits.time: {time_limit.seconds} s were over"
    return found


def _troubled(one: Container, opening: bool) -> bool:
    """True when the container's last words matter: the open did not get to its end, or a service was found dead that
    had not ended by itself, with code 0, because the workload had.

    A live workload's output is its own and is never kept.
    """
    return opening or (one.role in SERVICES and not one.alive and one.exit_code != 0)


def _lines(podman: Podman, wanted: Sequence[Container], known: Details, found: Gathered) -> dict[str, list[str]]:
    """Log lines by container name. A log that cannot be read is noted and must not keep a session alive."""
    lines: dict[str, list[str]] = {}
    for one in wanted:
        path = known[one.id].log if one.id in known else ""
        if one.role not in SERVICES and not path:
            continue  # an interactive workload's terminal is not logged
        try:
            lines[one.name] = _drained(podman, one, path)
        except AsfError as error:
            found.notes.append(f"logs not collected: {error.message}")
    return lines


def _drained(podman: Podman, one: Container, path: str) -> list[str]:
    """A log's lines. conmon writes a moment after the process ended: a service that ASF just stopped has said its last
    when its supervisor's exit is there (within ``DRAIN`` seconds), and with it the decisions of tunnels that were cut.
    """
    end = time.monotonic() + DRAIN
    while True:
        found = logs.lines(podman, one.id, path)
        supervised = any('"asf":"supervisor"' in line for line in found[:1])
        said = any('"event":"exit"' in line for line in found[-3:])
        if not (supervised and one.alive) or said or time.monotonic() > end:
            return found
        time.sleep(0.02)


def _words(
    podman: Podman,
    secrets: Sequence[str],
    troubled: Sequence[Container],
    lines: Mapping[str, list[str]],
    found: Gathered,
) -> None:
    said = [one for one in troubled if lines.get(one.name)]
    if not said:
        return
    try:
        known: Redactor = lastwords.redactor(podman, secrets)
    except (AsfError, OSError, ValueError, LookupError, TypeError) as error:
        found.notes.append(f"last words not kept: the secrets to be taken out are unknown ({type(error).__name__})")
        return
    for one in said:
        found.containers[one.name]["last_words"] = lastwords.of(lines[one.name], known)


def lines_lost(found: decisions.Parsed) -> bool:
    """Whether a service's log lost its beginning: its first line is the supervisor's first start, and the engine starts
    a full log over (k8s-file, ``max-size``).
    """
    first = any(event.get("event") == "start" and event.get("start") == 1 for event in found.supervisor)
    return bool(found.decisions or found.usage or found.supervisor) and not first


_LOST = {
    "caddy": "decisions are not complete: Caddy's log met its bound and its beginning is lost",
    "broker": "usage by model is not complete: the broker's log met its bound and its beginning is lost",
}


def _uncounted(parsed: Mapping[str, decisions.Parsed]) -> list[str]:
    """Caddy counts what repeats, and tells the numbers at the end of an interval or its own; one that was killed, or
    crashed, takes them along.
    """
    caddy = parsed.get("caddy")
    if caddy is None or not caddy.decisions:
        return []
    bad = [event for event in caddy.supervisor if event.get("event") == "exit" and event.get("status") != "code 0"]
    what = "decisions may not be complete: what Caddy had only counted went with it"
    return [f"{what} ({', '.join(str(event.get('status')) for event in bad[:5])})"] if bad else []


def _bounded(
    parsed: Mapping[str, decisions.Parsed], removal: lifecycle.Removal, known: Details, record: Mapping[str, Any]
) -> list[str]:
    """What was lost because a log met its bound, one sentence each."""
    notes = [_LOST[role] for role, one in parsed.items() if role in _LOST and lines_lost(one)]
    notes += _uncounted(parsed)
    agents = [one for one in removal.containers if one.role not in SERVICES]
    return notes + [
        f"output of container {name} met the bound of its log: what it said first is no longer there"
        for name in logbirth.replaced(agents, known, record.get("containers") or {})
    ]


def gather(
    podman: Podman, removal: lifecycle.Removal, known: Details, evidence: Evidence, record: Mapping[str, Any]
) -> Gathered:
    """Turn logs into evidence. Raises nothing but what a full disk does."""
    opening = record.get("state") == lifecycle.OPENING  # the session never became live
    time_limit = Time.of(record)
    found = Gathered({one.name: _ending(one, known, time_limit) for one in removal.containers})
    troubled = [one for one in removal.containers if _troubled(one, opening)]
    wanted = [one for one in removal.containers if one.role in SERVICES or one in troubled]
    lines = _lines(podman, wanted, known, found)
    _words(podman, removal.secrets, troubled, lines, found)
    parsed = {
        one.role: decisions.parse(lines[one.name])
        for one in removal.containers
        if one.role in SERVICES and one.name in lines
    }
    found.notes += _bounded(parsed, removal, known, record)
    # A repeated teardown finds no containers: what the first one has written stays.
    with evidence.together():
        _write(evidence, parsed, found)
    return found


def _write(evidence: Evidence, parsed: Mapping[str, decisions.Parsed], found: Gathered) -> None:
    if "caddy" in parsed:
        evidence.write_lines("decisions.jsonl", parsed["caddy"].decisions, parsed["caddy"].dropped)
        if parsed["caddy"].requests:
            evidence.write_lines("requests.jsonl", parsed["caddy"].requests)
        found.decisions = decisions.counts(parsed["caddy"].decisions)
    if parsed:
        events = [{"role": role, **event} for role, one in parsed.items() for event in one.supervisor]
        evidence.write_lines("supervisor.jsonl", events)
        found.restarts = decisions.restarts(events)
        passed = parsed["caddy"].decisions if "caddy" in parsed else []
        reported = parsed["broker"].usage if "broker" in parsed else None
        counted = parsed["caddy"].counted if "caddy" in parsed else None
        evidence.write("usage.json", decisions.usage(passed, reported, counted))
