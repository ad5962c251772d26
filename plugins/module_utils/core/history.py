# SPDX-License-Identifier: BSD-2-Clause
"""What happened in a session, in the order of time, out of what it leaves: record, verification, logs, cleanup. Pure.

An event is ``{"at": seconds since the epoch or None, "event": word, …}``; the words are ``WORDS``. What a workload can
influence (hosts, details) is data, bounded by ``decisions`` and escaped where it is shown.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WORDS = ("opened", "verified", "started", "exited", "restarted", "refused", "ended", "closed")
_REFUSED = ("listener", "host", "port", "target", "reason", "key")


#: RFC 3339, as records have it, and as conmon writes it: the host's local time with its offset, nanoseconds.
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?\Z", re.ASCII)


def seconds(stamp: Any) -> float | None:
    """Seconds since the epoch of a time as records and logs (RFC 3339; without an offset UTC) or decisions (a number)
    have it; None for anything else."""
    if isinstance(stamp, (int, float)) and not isinstance(stamp, bool):
        return float(stamp)
    match = _STAMP.match(str(stamp))
    if match is None:
        return None
    moment, fraction, zone = match.groups()
    try:
        found = datetime.datetime.fromisoformat(moment + ("+00:00" if zone in (None, "Z") else zone))
    except ValueError:
        return None
    return found.timestamp() + float(fraction or 0)


def life(
    record: Mapping[str, Any], verification: Mapping[str, Any] | None, cleanup: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """The steps of the session itself. ``record`` may be empty: then the cleanup report says when it was opened."""
    done = cleanup or {}
    opened = {key: record[key] for key in ("mode", "isolation") if record.get(key)}
    steps = [
        (record.get("created") or done.get("created"), "opened", opened),
        ((verification or {}).get("at"), "verified", _verdicts(verification)),
        (record.get("started") or done.get("started"), "started", {}),
    ]
    found = [{"at": seconds(at), "event": word, **more} for at, word, more in steps if at]
    if cleanup is not None:
        found += [{"at": None, "event": "ended", "exit_code": code} for code in _codes(cleanup)]
        left = cleanup.get("left") or []
        found.append({"at": seconds(cleanup.get("at")), "event": "closed", **({"left": left} if left else {})})
    return found


def _verdicts(verification: Mapping[str, Any] | None) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for probe in (verification or {}).get("probes") or []:
        word = str(probe.get("verdict"))
        counts[word] = counts.get(word, 0) + 1
    return {"ok": (verification or {}).get("ok"), "verdicts": counts}


def _codes(cleanup: Mapping[str, Any]) -> list[int]:
    """The workload's exit code, when it ended by itself."""
    rows = (cleanup.get("containers") or {}).values()
    agents = [row for row in rows if isinstance(row, Mapping) and row.get("role") == "agent"]
    return [row["exit_code"] for row in agents if isinstance(row.get("exit_code"), int)]


def supervised(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ends and new starts of Caddy and of the broker (case B8); their first start is part of opening."""
    found = []
    for one in records:
        base = {"at": seconds(one.get("ts")), "program": str(one.get("name", "?"))}
        if one.get("event") == "start" and one.get("start") != 1:
            found.append({**base, "event": "restarted"})
        elif one.get("event") == "exit":
            found.append({**base, "event": "exited", "status": str(one.get("status", ""))})
    return found


def refused(records: Iterable[Mapping[str, Any]], probe: str = "") -> list[dict[str, Any]]:
    """Refusals of Caddy, without those about the host ``probe`` (ASF's own question)."""
    found = []
    for one in records:
        if one.get("decision") == "deny" and (not probe or one.get("host") != probe):
            told = {key: one[key] for key in _REFUSED if one.get(key) not in (None, "")}
            count = one.get("count", 1)
            found.append({"at": seconds(one.get("ts")), "event": "refused", **told, "count": count})
    return found


def ordered(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By time; those without a time where they belong by their word. The same refusal in a row becomes one event."""
    rows = sorted((dict(one) for one in events), key=_place)
    found: list[dict[str, Any]] = []
    for row in rows:
        if found and row["event"] == "refused" and _same(found[-1], row):
            found[-1]["count"] += row["count"]
            found[-1]["last"] = row["at"]
        else:
            found.append(row)
    return found


def _place(event: Mapping[str, Any]) -> tuple[int, float, int]:
    """What ends a session stands last: the time of the workload's end is not kept."""
    rank = WORDS.index(event["event"])
    at = event.get("at")
    return (rank if event["event"] in ("ended", "closed") else 0, at if at is not None else float("inf"), rank)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    keys: Sequence[str] = ("event", *_REFUSED)
    return all(one.get(key) == other.get(key) for key in keys)
