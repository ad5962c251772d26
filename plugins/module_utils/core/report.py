# SPDX-License-Identifier: BSD-2-Clause
"""What a session's evidence says, as bounded plain data: for `evidence show`, the HTML report and JUnit. Pure.

Input are the documents of one evidence folder by file name (``.json`` as data, ``.jsonl`` as a list of records). Any of
them may be missing or be of another shape than it should: what cannot be read is left out, and never raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import evidence
from .decisions import counts, restarts, weight

Json = dict[str, Any]

#: Most rows that a report shows of a list; what is left out is counted.
MAX_DESTINATIONS = 100
MAX_EVENTS = 100
MAX_ACTIONS = 200
#: Files that are made from the others, and sealed after them.
DERIVED = ("report.html", "junit.xml")


def mapping(value: Any) -> Mapping[str, Any]:
    """The value when it is a mapping, an empty one otherwise."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list; nothing when it is none."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def number(value: Any) -> float:
    """The value when it is a number, 0 otherwise."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0


def summary(documents: Mapping[str, Any]) -> Json:
    """``session, run, agent, mode, isolation, opened, closed, plan_digest, verification, decisions, usage, containers,
    restarts, actions, left, chain {head, files}``; null is what the evidence does not tell."""
    plan = mapping(mapping(documents.get("plan.json")).get("plan"))
    chain = mapping(documents.get(evidence.CHAIN))
    session = mapping(plan.get("session"))
    cleanup = mapping(documents.get("cleanup.json"))
    return {
        "session": chain.get("session") or session.get("id"),
        "run": chain.get("run"),
        "agent": session.get("agent"),
        "mode": session.get("mode"),
        "isolation": session.get("isolation"),
        "opened": opened(str(chain.get("run") or "")),
        "closed": cleanup.get("at"),
        "plan_digest": mapping(documents.get("plan.json")).get("digest"),
        "verification": _verification(documents.get("verification.json")),
        "decisions": decided(documents),
        "usage": documents.get("usage.json"),
        "routed": documents.get("routed.json"),
        "containers": dict(mapping(cleanup.get("containers"))),
        "restarts": restarts(rows(documents.get("supervisor.jsonl"))),
        "actions": _texts(cleanup.get("actions"))[:MAX_ACTIONS],
        "left": _texts(cleanup.get("left")) if cleanup else None,
        "chain": _chain(rows(chain.get("entries"))),
    }


def opened(run: str) -> str | None:
    """When a run began, as its name tells: ``20260102T030405Z-abcd`` is ``2026-01-02T03:04:05Z``."""
    day, _, clock = run.partition("T")
    if len(day) != 8 or not day.isdigit() or not clock[:6].isdigit():
        return None
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{clock[:2]}:{clock[2:4]}:{clock[4:6]}Z"


def _texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _chain(entries: Sequence[Mapping[str, Any]]) -> Json:
    files = {str(entry.get("file")): entry.get("sha256") for entry in entries}
    return {"head": evidence.head(entries) if entries and "head" in entries[-1] else None, "files": files}


def sealed_head(documents: Mapping[str, Any]) -> str:
    """Head of the chain before the report: the same whenever it is made again."""
    entries = rows(mapping(documents.get(evidence.CHAIN)).get("entries"))
    heads = [str(entry.get("head")) for entry in entries if entry.get("file") not in DERIVED]
    return heads[-1] if heads else "none"


def _verification(document: Any) -> Json | None:
    if not isinstance(document, Mapping):
        return None
    verdicts: dict[str, int] = {}
    probes = rows(document.get("probes"))
    for probe in probes:
        verdict = str(probe.get("verdict", "?"))
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    return {
        "ok": document.get("ok") is True,
        "at": document.get("at"),
        "seconds": document.get("seconds"),
        "verdicts": verdicts,
        "not_passed": [dict(probe) for probe in probes if probe.get("verdict") != "pass"],
    }


def decided(documents: Mapping[str, Any]) -> Json | None:
    """Decisions by decision and reason (those that were only counted included), and by destination."""
    records = rows(documents.get("decisions.jsonl"))
    usage = mapping(documents.get("usage.json"))
    if "decisions.jsonl" not in documents and not usage:
        return None
    whole = [record for record in records if "decision" in record]
    totals = usage.get("decisions") if isinstance(usage.get("decisions"), Mapping) else counts(whole)
    groups = _destinations(whole)
    return {
        "totals": totals,
        "destinations": groups[:MAX_DESTINATIONS],
        "more_destinations": max(0, len(groups) - MAX_DESTINATIONS),
        "not_kept": int(sum(number(record.get("dropped")) for record in records)),
    }


def _destinations(records: Iterable[Mapping[str, Any]]) -> list[Json]:
    """What was asked for, by destination and reason: what was denied first, then the most frequent."""
    found: dict[tuple[str, ...], Json] = {}
    for record in records:
        name = _destination(record)
        port = "" if record.get("port") is None else str(record["port"])
        key = (str(record.get("listener", "?")), name, port, str(record["decision"]), str(record.get("reason", "?")))
        row = found.get(key)
        if row is None:
            first = record.get("first", record.get("ts"))
            row = {**dict(zip(("listener", "destination", "port", "decision", "reason"), key)), "count": 0}
            row.update(up=0, down=0, first=first, last=first, key=record.get("key"))
            found[key] = row
        row["count"] += weight(record)
        row["up"] += int(number(record.get("up")))
        row["down"] += int(number(record.get("down")))
        row["last"] = record.get("last", record.get("ts"))
    return sorted(found.values(), key=lambda row: (row["decision"] != "deny", -row["count"], row["destination"]))


def _destination(record: Mapping[str, Any]) -> str:
    if record.get("others") is True:
        return "(many names)"
    return str(record.get("host") or record.get("target") or "")
