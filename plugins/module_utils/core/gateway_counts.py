# SPDX-License-Identifier: BSD-2-Clause
"""What the gateway's rules have counted and noted, out of a listing of them (libnftables-json(5)). Pure.

Addresses and ports of flows and denials were chosen by the workload. They are numbers in the kernel's own spelling, and
no more of them than the log sets hold (``gateway.LOG_SIZE``).
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from . import gateway

Json = Dict[str, Any]

_EMPTY: Json = {
    "lost": None,
    "rules": [],
    "drops": [],
    "control": None,
    "flows": [],
    "denials": [],
    "more": {},
    "full": [],
}
_LOGS = {"flows": ("flows", "flows-icmp"), "denials": ("denials", "denials-other")}


def lost(why: str) -> Json:
    """The document for counters that are gone: they lived and died with the gateway's namespace."""
    return {**_EMPTY, "lost": why}


def told(objects: Sequence[Json], tuples: Sequence[Mapping[str, Any]], most: int = gateway.LOG_SIZE) -> Json:
    """The counters of a listing.

    ``rules``: a row per tuple with the packets and bytes, both ways, of the flows that it let in; ``drops``: a row per
    reason; ``control``: packets to ``network.verify``'s blocked port that were dropped; ``flows`` and ``denials``: a
    row per protocol, address and port with the number of packets that began a flow, or were dropped, the most frequent
    first, ``most`` at the most; ``more``: how many rows are left out; ``full``: log sets that took no more rows.
    Raises KeyError when the rules are not the gateway's.
    """
    counts = {o["counter"]["name"]: _count(o["counter"]) for o in objects if "counter" in o}
    found = {o["set"]["name"]: [_row(e) for e in o["set"].get("elem", [])] for o in objects if "set" in o}
    out: Json = {
        **_EMPTY,
        "rules": [{**_tuple(row), **counts[gateway.allow_counter(i)]} for i, row in enumerate(tuples)],
        "drops": [{"reason": reason, **counts["drop-" + reason]} for reason in gateway.REASONS],
        "control": counts[gateway.CONTROL],
        "full": [name for name in gateway.SETS if len(found[name]) >= gateway.LOG_SIZE],
        "more": {},
    }
    for name, sets in _LOGS.items():
        rows = sorted((row for part in sets for row in found[part]), key=_order)
        out[name], out["more"][name] = rows[:most], max(0, len(rows) - most)
    return out


def _tuple(row: Mapping[str, Any]) -> Json:
    return {name: row[name] for name in ("key", "cidr", "protocol", "ports")}


def _count(body: Mapping[str, Any]) -> Json:
    return {"packets": int(body["packets"]), "bytes": int(body["bytes"])}


def _row(item: Mapping[str, Any]) -> Json:
    body = item["elem"]
    key: List[Any] = body["val"]["concat"]
    port = int(key[2]) if len(key) > 2 else None
    age = max(0, gateway.LOG_SECONDS - int(body.get("expires", gateway.LOG_SECONDS)))
    return {"protocol": str(key[0]), "address": str(key[1]), "port": port, **_count(body["counter"]), "age_s": age}


def _order(row: Json) -> Any:
    return -row["packets"], row["protocol"], row["address"], row["port"] or 0
