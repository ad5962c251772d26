# SPDX-License-Identifier: BSD-2-Clause
"""The report of one session as one HTML file: no script, no external resource, everything escaped. Pure.

Host names, log lines and error texts come from the workload (invariant 10): each goes through ``escape.html``, which
also bounds it and makes control and bidi characters visible. The only style is the constant below, allowed by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from . import report_svg, roles
from .decisions import TOKENS
from .escape import html as escaped
from .report import DERIVED, MAX_ACTIONS, MAX_EVENTS, mapping, number, rows, sealed_head, summary
from .report_style import STYLE

MAX_PROBES = 1000
MAX_WORDS = 40
_MARKS = {"pass": "pass", "warn": "warn", "allow": "pass", "deny": "warn", "ok": "pass"}
Columns = Sequence[str]


def render(documents: Mapping[str, Any]) -> bytes:
    """The whole file, ASCII. ``documents``: see ``report.summary``."""
    told = {**summary(documents), "head": sealed_head(documents)}
    plan = mapping(mapping(documents.get("plan.json")).get("plan"))
    body = [
        _header(told),
        _cards(told),
        _section("Topology", report_svg.render(plan) + _network(plan)),
        _section("Probes", _probes(documents, told)),
        _section("Decisions", _decisions(documents, told)),
        *([_section("Gateway", _gateway(told))] if told["routed"] else []),
        _section("Usage", _usage(told)),
        _section("Repositories", _repositories(plan)),
        _section("Cleanup", _cleanup(documents, told)),
        _section("Evidence", _evidence(told)),
    ]
    return _page(f"ASF session {told['session']}", "".join(body)).encode("ascii", "xmlcharrefreplace")


def _page(title: str, body: str) -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


# --- pieces --------------------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{body}\n</section>\n"


def _table(columns: Columns, lines: Iterable[Sequence[object]], limit: int = 300) -> str:
    """A table; ``columns`` that end in ``#`` hold numbers. The first cell of a line may be a verdict."""
    numbers = [name.endswith("#") for name in columns]
    head = "".join(
        f'<th scope="col"{_class("number" if right else "")}>{name.rstrip("#")}</th>'
        for name, right in zip(columns, numbers)
    )
    found = "".join(
        f"<tr>{''.join(_cell(cell, right, limit) for cell, right in zip(line, numbers))}</tr>\n" for line in lines
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{found}</tbody></table></div>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


class _Mark(str):
    """A verdict or decision, shown as a coloured word."""


class _Whole(str):
    """A short text that is not to be broken into lines."""


def _cell(value: object, right: bool, limit: int) -> str:
    if isinstance(value, _Mark):
        return f"<td>{_mark(value)}</td>"
    if isinstance(value, _Whole):
        return f'<td class="whole">{escaped(value, 40)}</td>'
    if right:
        return f'<td class="number">{escaped(_amount(value), 40)}</td>'
    return f"<td>{escaped('' if value is None else value, limit)}</td>"


def _mark(word: str) -> str:
    return f'<span class="mark {_MARKS.get(word, "fail")}">{escaped(word, 20)}</span>'


def _amount(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace(",", "\u2009")  # thin space, SI style
    return "" if value is None else str(value)


def _note(text: str) -> str:
    return f'<p class="quiet">{escaped(text, 600)}</p>'


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escaped(title, 100)}</summary>\n{body}\n</details>"


def _list(texts: Iterable[object], limit: int = 400) -> str:
    return "<ul>" + "".join(f"<li>{escaped(text, limit)}</li>\n" for text in texts) + "</ul>"


def _clock(value: Any) -> str:
    """A decision's time: seconds since the epoch, or an RFC 3339 text, as UTC."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11:
        return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return str(value)[:19].replace("T", " ") if isinstance(value, str) else ""


def _bytes(value: object) -> str:
    size = number(value)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


# --- sections ------------------------------------------------------------------------------------------------------


def _header(told: Mapping[str, Any]) -> str:
    when = [f"{word} {_clock(told[word])} UTC" for word in ("opened", "closed") if told[word]]
    words = [told["mode"] and f"mode {told['mode']}", told["isolation"], *when]
    line = " · ".join(escaped(word, 80) for word in words if word)
    name = escaped(told["session"] or "?", 130)
    return f'<header>\n<p class="quiet">ASF session</p>\n<h1>{name}</h1>\n<p>{line}</p>\n</header>\n'


def _cards(told: Mapping[str, Any]) -> str:
    cards = [_card("verification", *_verified(told)), _card("decisions", *_decided(told))]
    usage = mapping(told["usage"])
    counted = mapping(mapping(usage.get("front")).get("counted"))
    total = counted or mapping(usage.get("total"))  # without a request the front has told nothing
    if total:
        note = _spent(counted) if counted else "no tokens reported"
        cards.append(_card("requests to models", "", _amount(total.get("requests")), note))
    cards.append(_card("cleanup", *_cleaned(told)))
    return f'<div class="cards">\n{"".join(cards)}</div>\n'


def _spent(counted: Mapping[str, Any]) -> str:
    """Tokens and cost as the front counted them."""
    used = int(sum(number(counted.get(name)) for name in TOKENS))
    words = [f"{_amount(used)} tokens" if used else "no tokens"]
    words += [f"${number(counted.get('cost_usd')):.4f}"] if counted.get("cost_usd") else []
    words += (
        [f"{_amount(counted['unpriced_requests'])} without a known price"] if counted.get("unpriced_requests") else []
    )
    return ", ".join(words)


def _card(title: str, kind: str, figure: str, note: str) -> str:
    return (
        f'<div class="card"><p class="quiet">{title}</p><p class="figure {kind}">{escaped(figure, 40)}</p>'
        f'<p class="quiet">{escaped(note, 120)}</p></div>\n'
    )


def _verified(told: Mapping[str, Any]) -> tuple[str, str, str]:
    found = told["verification"]
    if found is None:
        return "fail", "none", "there is no verification report"
    note = ", ".join(f"{count} {verdict}" for verdict, count in sorted(found["verdicts"].items()))
    return ("pass", "passed", note) if found["ok"] else ("fail", "did not pass", note)


def _decided(told: Mapping[str, Any]) -> tuple[str, str, str]:
    if told["decisions"] is None:
        return "", "none", "there was no way out, or nothing was recorded"
    totals = told["decisions"]["totals"]
    sums = {word: sum(int(number(count)) for count in mapping(totals.get(word)).values()) for word in ("allow", "deny")}
    return "", f"{_amount(sums['allow'])} allowed", f"{_amount(sums['deny'])} denied"


def _cleaned(told: Mapping[str, Any]) -> tuple[str, str, str]:
    if told["left"] is None:
        return "fail", "not closed", "there is no cleanup report"
    if told["left"]:
        return "fail", f"{len(told['left'])} left", "see below"
    return "pass", "nothing left", f"{len(told['actions'])} actions"


def _network(plan: Mapping[str, Any]) -> str:
    network = mapping(plan.get("network"))
    lines = [
        (row.get("name"), ", ".join(map(str, row.get("ports") or [])), row.get("tls"), row.get("key"))
        for row in rows(network.get("domains"))
    ]
    parts = [_table(("declared name", "ports", "TLS", "manifest key"), lines)] if lines else []
    llm = mapping(plan.get("llm"))
    if llm:
        via = "embedded model, no provider" if llm.get("mock") else f"provider {llm.get('provider')}"
        parts.append(_note(f"Inference: {llm.get('protocol')}, {via}."))
    warnings = plan.get("warnings")
    if isinstance(warnings, list) and warnings:
        parts += ["<h3>Said at open</h3>", _list(warnings[:MAX_ACTIONS])]
    return "".join(parts)


def _probes(documents: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    if told["verification"] is None:
        return _note("There is no verification report: the session was not verified.")
    probes = rows(mapping(documents.get("verification.json")).get("probes"))
    columns = ("verdict", "probe", "inv.", "expectation", "found")
    parts = [_note(f"Last verified {_clock(told['verification']['at'])} UTC; what did not pass stands first.")]
    bad = [probe for probe in probes if probe.get("verdict") != "pass"][:MAX_PROBES]
    if bad:
        parts.append(_table(columns, map(_probe, bad)))
    for vantage in ("outside", "inside"):
        seen = [probe for probe in probes if probe.get("vantage") == vantage and probe.get("verdict") == "pass"]
        if seen:
            parts.append(
                _folded(f"{len(seen)} passed, seen from {vantage}", _table(columns, map(_probe, seen[:MAX_PROBES])))
            )
    return "".join(parts)


def _probe(probe: Mapping[str, Any]) -> tuple[object, ...]:
    said = probe.get("evidence")
    text = ", ".join(f"{key}={value}" for key, value in said.items()) if isinstance(said, Mapping) else said
    return _Mark(probe.get("verdict")), probe.get("id"), probe.get("invariant"), probe.get("expect"), text


def _decisions(documents: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    found = told["decisions"]
    if found is None:
        absent = roles.absent(mapping(documents.get("plan.json")).get("plan"), roles.CADDY)
        return _note(f"There are none: {absent or 'Caddy left no log, or it was not collected'}.")
    columns = (
        "decision",
        "listener",
        "destination",
        "port",
        "reason",
        "times#",
        "up#",
        "down#",
        "first (UTC)",
        "last (UTC)",
    )
    lines = [_destination(row) for row in found["destinations"]]
    parts = [_table(columns, lines, 120)] if lines else [_note("Nothing was asked for.")]
    parts.append(_note("asf-denied.invalid and /asf/control are what ASF itself asks for when it verifies."))
    if found["more_destinations"]:
        parts.append(_note(f"{found['more_destinations']} more destinations are not shown; decisions.jsonl has them."))
    if found["not_kept"]:
        parts.append(_note(f"{found['not_kept']} decisions are counted in usage.json and not kept one by one."))
    reasons = [
        (_Mark(word), reason, count)
        for word, group in sorted(mapping(found["totals"]).items())
        for reason, count in sorted(mapping(group).items(), key=lambda item: -number(item[1]))
    ]
    if reasons:
        parts.append(_folded("By reason", _table(("decision", "reason", "times#"), reasons[:MAX_EVENTS])))
    return "".join(parts)


def _destination(row: Mapping[str, Any]) -> tuple[object, ...]:
    times = (_Whole(_clock(row["first"])), _Whole(_clock(row["last"])))
    carried = (_bytes(row["up"]), _bytes(row["down"]), *times)
    what = (row["listener"], row["destination"], row["port"], _Whole(row["reason"]), row["count"])
    return (_Mark(row["decision"]), *what, *carried)


def _gateway(told: Mapping[str, Any]) -> str:
    found = mapping(told["routed"])
    if found.get("lost"):
        return _note(f"Its counters are lost: {found['lost']}")
    allowed = [
        (row.get("key"), row.get("cidr"), row.get("protocol"), _ports(row.get("ports")), *_amounts(row))
        for row in rows(found.get("rules"))
    ]
    dropped = [(row.get("reason"), *_amounts(row)) for row in rows(found.get("drops")) if number(row.get("packets"))]
    parts = [_table(("rule", "network", "protocol", "ports", "packets#", "bytes#"), allowed[:MAX_EVENTS])]
    parts.append(
        _table(("dropped because", "packets#", "bytes#"), dropped) if dropped else _note("Nothing was dropped.")
    )
    for title, name in (("New flows", "flows"), ("What was dropped, by destination", "denials")):
        lines = [
            (row.get("protocol"), row.get("address"), row.get("port"), *_amounts(row)) for row in rows(found.get(name))
        ]
        if lines:
            table = _table(("protocol", "address", "port", "packets#", "bytes#"), lines[:MAX_EVENTS])
            parts.append(_folded(f"{title} ({len(lines)})", table))
    if found.get("full"):
        parts.append(_note("The log of flows or denials was full: what came later is counted and not noted."))
    return "".join(parts)


def _ports(value: Any) -> str:
    return ", ".join(str(port) for port in value[:MAX_EVENTS]) if isinstance(value, list) else str(value)


def _amounts(row: Mapping[str, Any]) -> tuple[object, object]:
    return row.get("packets"), _bytes(row.get("bytes"))


def _usage(told: Mapping[str, Any]) -> str:
    usage = mapping(told["usage"])
    if not usage:
        return _note("Nothing was recorded.")
    parts = []
    carried = [_carried(name, row) for name, row in mapping(usage.get("listeners")).items()]
    if carried:
        parts.append(_table(("listener", "decisions#", "denied#", "up#", "down#", "seconds#"), carried[:MAX_EVENTS]))
    routes = rows(mapping(usage.get("front")).get("routes"))
    if routes:
        lines = [(row.get("route"), row.get("status"), *_carried("", row)[1:]) for row in routes[:MAX_EVENTS]]
        columns = ("route", "status", "requests#", "denied#", "up#", "down#", "seconds#")
        parts.append(_folded("Requests to the front", _table(columns, lines, 120)))
    counted = mapping(mapping(usage.get("front")).get("counted"))
    if counted:
        kinds = ("requests#", "in#", "from a cache#", "into a cache#", "out#", "cost (USD)#", "without a price#")
        words = ("requests", *TOKENS, "cost_usd", "unpriced_requests")
        parts.append(_table(kinds, [tuple(counted.get(word) for word in words)]))
        parts.append(
            _note("Counted by the front for llm.limits: tokens as reported, or estimated; cost by list prices.")
        )
    models = list(mapping(usage.get("models")).items())[:MAX_EVENTS]
    if models:
        told_by = ("requests", "seconds", "input_tokens", "output_tokens", "cost_usd")
        lines = [(name, *(mapping(row).get(word) for word in told_by)) for name, row in models]
        parts.append(
            _table(("model", "requests#", "seconds#", "input tokens#", "output tokens#", "cost (USD)#"), lines, 120)
        )
        parts.append(_note("Tokens and cost as provider and broker reported them; empty is not reported."))
    return "".join(parts) or _note("Nothing passed.")


def _carried(name: str, row: Any) -> tuple[object, ...]:
    found = mapping(row)
    amounts = (found.get("decisions"), found.get("denied"), _bytes(found.get("up")), _bytes(found.get("down")))
    return (name, *amounts, found.get("seconds"))


def _repositories(plan: Mapping[str, Any]) -> str:
    granted = [(row.get("name"), row.get("path"), "rw" if row.get("rw") else "ro") for row in rows(plan.get("repos"))]
    if not granted:
        return _note("None was granted.")
    return _table(("name", "path", "mode"), granted[:MAX_EVENTS]) + _note(
        "What changed in them is not shown: ASF runs no git in a folder that an agent can write."
    )


def _cleanup(documents: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    if told["left"] is None:
        return _note("There is no cleanup report: the session was not closed, or its close was killed.")
    parts = []
    if told["left"]:
        parts.append("<h3>Left</h3>" + _list(told["left"][:MAX_ACTIONS]))
    columns = ("container", "role", "found", "exit code", "out of memory")
    held = list(told["containers"].items())[:MAX_EVENTS]
    lines = [
        (name, *(mapping(row).get(word) for word in ("role", "before", "exit_code", "oom_killed")))
        for name, row in held
    ]
    parts.append(_table(columns, lines) if lines else "")
    for name, row in held:
        words = mapping(row).get("last_words")
        if isinstance(words, list) and words:
            text = "\n".join(escaped(line, 300) for line in words[-MAX_WORDS:])
            parts.append(f"<h3>Last words of {escaped(name, 130)}</h3><pre>{text}</pre>")
    events = rows(documents.get("supervisor.jsonl"))[:MAX_EVENTS]
    if events:
        named = ("ts", "role", "event", "status", "start")
        table = _table(("time (UTC)", "service", "event", "status", "start"), [_event(row, named) for row in events])
        parts.append(_folded("Starts and exits of Caddy and the broker", table))
    parts.append(_folded(f"{len(told['actions'])} actions", _list(told["actions"])))
    return "".join(parts)


def _event(row: Mapping[str, Any], named: Sequence[str]) -> tuple[object, ...]:
    return (_Whole(_clock(row.get("ts"))), *(row.get(word) for word in named[1:]))


def _evidence(told: Mapping[str, Any]) -> str:
    chain = told["chain"]
    lines = [(file, sha256) for file, sha256 in chain["files"].items() if file not in DERIVED]
    return (
        f"<p>Head of the chain up to this report: <code>{escaped(told['head'], 64)}</code></p>"
        + _note(
            "This report is made of the files below and sealed after them: the head that close prints covers it too. "
            "asf-play evidence verify checks all of it."
        )
        + _folded("Files and their SHA-256", _table(("file", "SHA-256"), lines[:MAX_EVENTS]))
        + _note(f"Run {told['run']}, plan {told['plan_digest']}.")
    )
