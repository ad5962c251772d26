# SPDX-License-Identifier: BSD-4-Clause
"""One session as text for people. Pure; every string is escaped (invariant 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .render import Style, dollars, fit, safe, span, table, warning, wrapped

_KINDS = (("input", "in"), ("cached", "cached"), ("cache_write", "put into a cache"), ("output", "out"))
_STATES = {"live": "green", "opening": "yellow", "closing": "yellow", "ended": "yellow", "broken": "red"}


def session(found: Mapping[str, Any], style: Style) -> list[str]:
    """Everything that ``engine/status.py`` tells of one session."""
    state = safe(found.get("state"), 20)
    lines = [f"{style.paint(safe(found.get('session'), 130), 'bold')}  {style.paint(state, _STATES.get(state, 'red'))}"]
    for reason in found.get("reasons") or []:
        lines += wrapped(f"  {safe(reason, 300)}", style)
    for name, text in _facts(found):
        lines += [fit(f"  {name:<10} {safe(text, 300)}", style.width, style)] if text else []
    lines += _containers(found, style)
    lines += _decisions(found, style)
    lines += _routed(found.get("routed"), style)
    return lines + [warning(text, style) for text in found.get("warnings") or []]


def _facts(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    age = span(found.get("age_s"))
    rows = [
        ("opened", f"{_text(found, 'created')}{f' ({age} ago)' if age else ''}" if found.get("created") else ""),
        ("started", _text(found, "started")),
        ("verified", _verified(found.get("verified"))),
        ("mode", f"{_text(found, 'mode')}, {_text(found, 'isolation')}"),
        ("step", _text(found, "step") if found.get("state") not in ("live", "ended") else ""),
        ("controller", ", ".join(f"pid {one.get('pid')}" for one in found.get("controllers") or [])),
        ("limits", _limits(found)),
        ("names", ", ".join(str(name) for name in found.get("domains") or [])),
        ("requests", f"{found['requests']}, {found.get('denied')} denied" if found.get("requests") is not None else ""),
        ("model", _inference(found.get("inference"))),
        ("restarts", ", ".join(f"{name} {count}" for name, count in (found.get("restarts") or {}).items())),
        ("evidence", _text(found, "evidence")),
        ("plan", _text(found, "plan_digest") + (f" (revision {found['revision']})" if found.get("revision") else "")),
    ]
    grants = [f"{one.get('path')} ({one.get('mode')}) at {one.get('target')}" for one in found.get("grants") or []]
    at = next(index for index, row in enumerate(rows) if row[0] == "names")
    rows[at:at] = [("grant", text) for text in grants]
    if found.get("state") not in ("opening", "closing"):
        rows = [row for row in rows if row[0] != "controller"]
    return rows


def _text(found: Mapping[str, Any], key: str) -> str:
    return str(found.get(key) or "")


def _verified(report: object) -> str:
    if not isinstance(report, Mapping):
        return ""
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted((report.get("verdicts") or {}).items()))
    return f"{report.get('at')} ({verdicts})"


def _limits(found: Mapping[str, Any]) -> str:
    limits = {key: value for key, value in (found.get("limits") or {}).items() if value is not None}
    words = [f"{name} {value}" for name, value in limits.items() if name != "time"]
    if "time" in limits:
        left = f" ({span(found['time_left_s'])} left)" if found.get("time_left_s") is not None else ""
        words.append(f"time {span(limits['time'])}{left}")
    return ", ".join(words)


def _inference(found: object) -> str:
    """Requests, tokens and cost, and what the budgets leave."""
    if not isinstance(found, Mapping):
        return ""
    used = found if found.get("requests") is not None else {}
    words = [f"{used.get('requests', 0)} requests"]
    words += [f"{used.get(f'{key}_tokens', 0)} tokens {word}" for key, word in _KINDS if used.get(f"{key}_tokens")]
    words += [dollars(used.get("cost_usd"))] if used.get("cost_usd") is not None else []
    words += [f"{used['unpriced_requests']} requests without a known price"] if used.get("unpriced_requests") else []
    left = found.get("left") or {}
    words += [f"{left['tokens_per_session']} tokens left"] if "tokens_per_session" in left else []
    words += [f"{dollars(left['usd_per_session'])} left"] if "usd_per_session" in left else []
    return ", ".join(words)


def _containers(found: Mapping[str, Any], style: Style) -> list[str]:
    rows = [
        (
            one.get("role"),
            "alive" if one.get("alive") else "dead",
            one.get("status"),
            one.get("pid") or "",
            "" if one.get("exit_code") is None else one.get("exit_code"),
        )
        for one in found.get("containers") or []
    ]
    return _titled("", ("container", "measured", "podman", "pid", "exit"), rows, style)


def _decisions(found: Mapping[str, Any], style: Style) -> list[str]:
    reasons = [
        (number, decision, reason)
        for decision, counts in sorted((found.get("decisions") or {}).items())
        for reason, number in sorted(counts.items(), key=lambda one: -one[1])
    ]
    hosts = [(row.get("allow"), row.get("deny"), host or "-") for host, row in (found.get("hosts") or {}).items()]
    return [
        *_titled("", ("number", "decision", "reason"), reasons, style),
        *_titled("", ("allowed", "denied", "host"), hosts, style),
    ]


def _routed(found: Any, style: Style) -> list[str]:
    """What a gateway has counted: by rule, by reason, and what was let in or dropped most often."""
    if not isinstance(found, Mapping):
        return []
    if found.get("lost"):
        return [warning(f"the gateway's counters are lost: {found['lost']}", style)]
    rules = [
        (row.get("packets"), row.get("bytes"), row.get("protocol"), row.get("cidr"), _ports(row.get("ports")))
        for row in found.get("rules") or []
    ]
    drops = [(row.get("packets"), row.get("reason")) for row in found.get("drops") or [] if row.get("packets")]
    out = _titled("", ("packets", "bytes", "allowed", "network", "ports"), rules, style)
    out += _titled("", ("packets", "dropped"), drops, style)
    for name, title in (("flows", "new flow to"), ("denials", "dropped, to")):
        rows = [
            (row.get("packets"), row.get("protocol"), row.get("address"), row.get("port") or "")
            for row in found.get(name) or []
        ]
        out += _titled("", ("packets", "", title, "port"), rows, style)
        more = (found.get("more") or {}).get(name)
        out += [f"  and {more} more"] if more else []
    return out


def _ports(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _titled(title: str, head: Sequence[str], rows: Sequence[Sequence[object]], style: Style) -> list[str]:
    return [title, *table(head, rows, style)] if rows else []
