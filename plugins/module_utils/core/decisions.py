# SPDX-License-Identifier: BSD-2-Clause
"""Log lines of Caddy and of the broker, turned into records of the evidence. Pure.

Four kinds of lines count: Caddy's egress decisions (``msg: decision``), the front's usage (``msg: usage``), the
supervisor's events (``asf: supervisor``) and the broker's usage (``asf: usage``). Host names and details come from the
workload: they are kept as data, bounded, and escaped only where they are shown (invariant 10).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: A decision's fields: name, type, longest text. 253 characters is the longest host name; a longer one is cut.
_DECISION: tuple[tuple[str, type, int], ...] = (
    ("listener", str, 16),
    ("method", str, 16),
    ("host", str, 260),
    ("port", int, 0),
    ("target", str, 260),
    ("status", int, 0),
    ("decision", str, 8),
    ("reason", str, 40),
    ("detail", str, 200),
    ("key", str, 120),
    ("addr", str, 64),
    ("up", int, 0),
    ("down", int, 0),
    ("ms", int, 0),
    ("count", int, 0),
    ("others", bool, 0),
    ("first", float, 0),
    ("last", float, 0),
)
_EVENT: tuple[tuple[str, type, int], ...] = (
    ("name", str, 16),
    ("event", str, 16),
    ("pid", int, 0),
    ("status", str, 32),
    ("after_ms", int, 0),
    ("start", int, 0),
    ("error", str, 200),
)
_USAGE: tuple[tuple[str, type, int], ...] = (
    ("model", str, 120),
    ("status", int, 0),
    ("input_tokens", int, 0),
    ("output_tokens", int, 0),
    ("cost_usd", float, 0),
    ("ms", int, 0),
)
_SO_FAR: tuple[tuple[str, type, int], ...] = (
    ("requests", int, 0),
    ("input_tokens", int, 0),
    ("output_tokens", int, 0),
    ("cost_usd", float, 0),
)
#: What the front has counted in the whole session, as every line of its usage says.
_COUNTED: tuple[tuple[str, type, int], ...] = (
    ("requests", int, 0),
    ("input_tokens", int, 0),
    ("cached_tokens", int, 0),
    ("cache_write_tokens", int, 0),
    ("output_tokens", int, 0),
    ("cost_usd", float, 0),
    ("unpriced_requests", int, 0),
)
TOKENS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
#: One request to a model, as the front tells it.
_REQUEST: tuple[tuple[str, type, int], ...] = (
    ("model", str, 120),
    ("status", int, 0),
    ("outcome", str, 40),
    *((name, int, 0) for name in TOKENS),
    ("estimated", bool, 0),
    ("cost_usd", float, 0),
    ("ms", int, 0),
    ("first_ms", int, 0),
)
_LONGEST_LINE = 16_384
#: The name that ASF's own denial probe asks for; declaring it would make the probe meaningless.
DENIED_NAME = "asf-denied.invalid"
#: A line that stands for several decisions; the fields come in this order.
_SEVERAL = re.compile(rb'"decision":"(allow|deny)"[^\n]*?,"count":(\d{1,12})')
#: What follows in a line about a host: the decision, and of how many when it stands for several.
_OUTCOME = rb'[^\n]*?"decision":"(allow|deny)"(?:[^\n]*?,"count":(\d{1,12}))?'
#: Routes of the front, models and hosts that are told apart in the usage; a workload names them as it likes.
_MOST_ROUTES, _MOST_MODELS, _MOST_HOSTS = 100, 100, 100
_OTHERS = "(others)"
_TOKENS = ("input_tokens", "output_tokens", "cost_usd")


@dataclass
class Parsed:
    """Records in the order of the log. ``other`` counts lines of no known kind (they are not kept).

    ``requests`` are the front's lines of usage; ``counted`` is what it said last about the session's tokens, None when
    it said nothing.
    """

    decisions: list[dict[str, Any]] = field(default_factory=list)
    supervisor: list[dict[str, Any]] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    counted: dict[str, Any] | None = None
    other: int = 0
    dropped: int = 0


def _value(raw: Any, kind: type, longest: int) -> Any:
    """The value as the kind, or None. Numbers that arrive as text (ports do) count when they are plain digits."""
    if kind is bool:
        return True if raw is True else None
    if kind is str:
        return raw[:longest] if isinstance(raw, str) else str(raw)[:longest] if isinstance(raw, (int, float)) else None
    if isinstance(raw, str) and raw.isascii() and raw.isdigit() and len(raw) < 19:
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, (int, float)) or raw != raw or abs(raw) > 1e18:
        return None
    return round(float(raw), 6) if kind is float else int(raw)


def _record(raw: Mapping[str, Any], fields: Sequence[tuple[str, type, int]]) -> dict[str, Any]:
    found = {"ts": _time(raw.get("ts"))}
    for name, kind, longest in fields:
        if raw.get(name) is not None:
            found[name] = _value(raw[name], kind, longest)
    return {name: value for name, value in found.items() if value is not None}


def _used(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the broker, with the sums of its process so far."""
    record, sums = _record(raw, _USAGE), raw.get("so_far")
    return {**record, "so_far": _record(sums, _SO_FAR)} if isinstance(sums, Mapping) else record


def _time(raw: Any) -> Any:
    """Seconds since the epoch (zap) or an RFC 3339 text (supervisor), as it was."""
    return raw[:40] if isinstance(raw, str) else _value(raw, float, 0)


def parse(lines: Iterable[str], limit: int = 200_000) -> Parsed:
    """Read log lines; more than ``limit`` records are counted in ``dropped`` and not kept."""
    found = Parsed()
    for text in lines:
        raw = _json(text)
        if raw is None:
            found.other += 1
        elif raw.get("msg") == "usage" and isinstance(raw.get("so_far"), Mapping):
            found.counted = _record(raw["so_far"], _COUNTED)
            found.requests.append(_record(raw, _REQUEST))
        elif len(found.decisions) + len(found.supervisor) + len(found.usage) >= limit:
            found.dropped += weight(raw)
        elif raw.get("asf") == "supervisor":
            found.supervisor.append(_record(raw, _EVENT))
        elif raw.get("asf") == "usage":
            found.usage.append(_used(raw))
        elif raw.get("msg") == "decision":
            found.decisions.append(_record(raw, _DECISION))
        else:
            found.other += 1
    return found


def _json(text: str) -> dict[str, Any] | None:
    text = text.strip()
    if not text.startswith("{") or len(text) > _LONGEST_LINE:
        return None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None


def weight(record: Mapping[str, Any]) -> int:
    """How many decisions a record stands for: Caddy writes what repeats as one line with their number."""
    count = record.get("count", 1)
    return count if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 10**15 else 1


def counts(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Number of decisions by decision and reason: ``{"allow": {"ok": 3}, "deny": {"denied-name": 1}}``."""
    found: dict[str, dict[str, int]] = {}
    for record in records:
        reasons = found.setdefault(str(record.get("decision", "?")), {})
        reason = str(record.get("reason", "?"))
        reasons[reason] = reasons.get(reason, 0) + weight(record)
    return found


def by_host(records: Iterable[Mapping[str, Any]], limit: int) -> dict[str, dict[str, int]]:
    """Decisions by host, the most asked first: ``{"docs.example": {"allow": 3, "deny": 0}}``.

    Those beyond ``limit`` stand under ``""``, as do decisions that name no host (the front's, those only counted).
    """
    found: dict[str, dict[str, int]] = {}
    for record in records:
        row = found.setdefault(str(record.get("host", "")), {"allow": 0, "deny": 0})
        decision = "deny" if record.get("decision") == "deny" else "allow"
        row[decision] += weight(record)
    ordered = sorted(found.items(), key=lambda one: (not one[0], -sum(one[1].values()), one[0]))
    told = dict(ordered[:limit])
    for _, row in ordered[limit:]:
        rest = told.setdefault("", {"allow": 0, "deny": 0})
        for decision, number in row.items():
            rest[decision] += number
    return told


def tally(content: bytes, probe: str = "") -> tuple[int, int]:
    """``(decisions, refusals)`` in Caddy's log as it is, without those about the host ``probe`` (ASF's own question).

    Counts texts instead of reading each line, which is a hundred times quicker. Inside a JSON text a quotation mark is
    escaped, so nothing that a workload sends looks like one of these.
    """
    asked, denied = content.count(b'"msg":"decision"'), content.count(b'"decision":"deny"')
    if b',"count":' in content:
        for decision, number in _SEVERAL.findall(content):
            asked += int(number) - 1
            denied += int(number) - 1 if decision == b"deny" else 0
    own = b'"host":"%s"' % probe.encode()
    if probe and own in content:
        # Where enforcement is broken the probe's question is allowed, so the decision is looked at as well.
        for decision, number in re.findall(re.escape(own) + _OUTCOME, content):
            asked -= int(number or 1)
            denied -= int(number or 1) if decision == b"deny" else 0
    return asked, denied


def spent(content: bytes) -> dict[str, Any] | None:
    """What the front had counted for the session by its last line of usage in Caddy's log; None without such a line.

    Inside a JSON text a quotation mark is escaped, so nothing that a workload sends looks like one.
    """
    at = content.rfind(b'"msg":"usage"')
    while at >= 0:
        begin = content.rfind(b"\n", 0, at) + 1
        end = content.find(b"\n", at)
        line = content[begin : end if end >= 0 else len(content)]
        raw = _json(line[line.find(b"{") :].decode("utf-8", "replace"))
        if raw is not None and isinstance(raw.get("so_far"), Mapping):
            return _record(raw["so_far"], _COUNTED)
        at = content.rfind(b'"msg":"usage"', 0, begin)  # one that is being written
    return None


def tokens(counted: Mapping[str, Any]) -> int:
    """Tokens of all kinds."""
    return sum(int(counted.get(name) or 0) for name in TOKENS)


def restarts(events: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How often each supervised program was started again (case B8): its starts after the first."""
    found: dict[str, int] = {}
    for event in events:
        if event.get("event") == "start":
            name = str(event.get("name", "?"))
            found[name] = found.get(name, -1) + 1
    return found


def usage(
    caddy: Sequence[Mapping[str, Any]],
    broker: Sequence[Mapping[str, Any]] | None,
    counted: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document ``usage.json``: what passed Caddy, what the broker reported, and what the front has ``counted``.

    ``broker`` is None without one.
    """
    front = [record for record in caddy if str(record.get("listener", "")).startswith("L2")]
    return {
        "version": 1,
        "decisions": counts(caddy),
        "listeners": {name: _carried(group) for name, group in sorted(_grouped(caddy, _listener).items())},
        "hosts": _hosts(caddy),
        "front": None if broker is None else {**_carried(front), "routes": _routes(front), "counted": counted},
        **_models(broker),
    }


def _hosts(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Decisions that name a host, the most asked first; those beyond ``_MOST_HOSTS`` together, with the host None."""
    groups = _grouped((record for record in records if record.get("host")), lambda record: str(record["host"]))
    ordered = sorted(groups, key=lambda name: (-sum(map(weight, groups[name])), name))
    rows: list[dict[str, Any]] = [{"host": name, **_carried(groups[name])} for name in ordered[:_MOST_HOSTS]]
    rest = [record for name in ordered[_MOST_HOSTS:] for record in groups[name]]
    return [*rows, {"host": None, **_carried(rest)}] if rest else rows


def _grouped(records: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def _listener(record: Mapping[str, Any]) -> str:
    return str(record.get("listener", "?"))


def _carried(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Number, bytes towards the destination (``up``) and back (``down``), and time of some decisions."""
    return {
        "decisions": sum(map(weight, records)),
        "denied": sum(weight(record) for record in records if record.get("decision") == "deny"),
        "up": sum(int(record.get("up") or 0) for record in records),
        "down": sum(int(record.get("down") or 0) for record in records),
        "seconds": round(sum(int(record.get("ms") or 0) for record in records) / 1000, 3),
    }


def _routes(front: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Requests to the front by route and status, the busiest first. A refused one's path is the workload's own text."""

    def route(record: Mapping[str, Any]) -> tuple[str, int | None]:
        allowed = record.get("decision") == "allow" and record.get("target")
        name = f"{record.get('method', '')} {record['target']}" if allowed else f"refused: {record.get('reason', '?')}"
        return name, record.get("status")

    rows = [
        {"route": name, "status": status, **_carried(group)} for (name, status), group in _grouped(front, route).items()
    ]
    return sorted(rows, key=lambda row: (-row["decisions"], row["route"], row["status"] or 0))[:_MOST_ROUTES]


def _models(records: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Requests by status (0: none came), seconds, tokens and spend, in total and by model; null: nobody reported it."""
    if records is None:
        return {"total": None, "models": None}
    groups = _grouped(records, lambda record: str(record.get("model", "?")))
    told = set(sorted(groups, key=lambda name: -len(groups[name]))[:_MOST_MODELS])
    groups = _grouped(records, lambda record: name if (name := str(record.get("model", "?"))) in told else _OTHERS)
    return {"total": _total(records), "models": {name: _sums(group) for name, group in groups.items()}}


def _total(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all records. Where every line has its process's sums, those count: a full log has lost lines."""
    found, sums = _sums(records), [record["so_far"] for record in records if "so_far" in record]
    if not sums or len(sums) < len(records):
        return found
    following = [one.get("requests", 0) for one in sums[1:]] + [0]
    last = [one for one, after in zip(sums, following) if after <= one.get("requests", 0)]  # of each process
    for name in ("requests", *_TOKENS):
        told = [one[name] for one in last if name in one]
        found[name] = round(sum(told), 6) if told else found[name]
    return found


def _sums(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seconds = sum(int(record.get("ms") or 0) for record in records) / 1000
    statuses = {
        str(status): len(group)
        for status, group in sorted(_grouped(records, lambda record: record.get("status", 0)).items())
    }
    found: dict[str, Any] = {"requests": len(records), "statuses": statuses, "seconds": round(seconds, 3)}
    for name in _TOKENS:
        told = [record[name] for record in records if name in record]
        found[name] = round(sum(told), 6) if told else None
    return found
