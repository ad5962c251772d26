# SPDX-License-Identifier: BSD-2-Clause
"""What a session leaves (invariant 9): names, bounds and the chain of digests. Pure; ``engine/evidencefs.py`` writes.

The chain has one entry per write. ``head`` of an entry is the SHA-256 of the previous head, the file's name and the
SHA-256 of its content. Whoever knows the last head (printed at close, appended to an index outside the folder) can tell
whether a file was changed afterwards; somebody who can write both folder and index can forge both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .decisions import weight

#: Files of an evidence folder; ``chain.json`` names the others and is not part of the chain.
FILES = (
    "plan.json",
    "revisions.jsonl",
    "rotations.jsonl",
    "verification.json",
    "decisions.jsonl",
    "supervisor.jsonl",
    "usage.json",
    "requests.jsonl",
    "routed.json",
    "cleanup.json",
    "report.html",
    "junit.xml",
)
CHAIN = "chain.json"
GENESIS = "0" * 64

#: Most bytes of one file, most records of one list, most characters of one string.
MAX_BYTES = 8 * 1024 * 1024
MAX_RECORDS = 20_000
MAX_TEXT = 4_000
#: A plan holds whole policy files as text; they are ASF's own.
MAX_PLAN_TEXT = 512 * 1024
_MAX_DEPTH = 24


def digest(content: bytes) -> str:
    """SHA-256 as 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def document(obj: Any) -> bytes:
    """A JSON document of the evidence: sorted, indented, ASCII (nothing in it can move a cursor), final newline."""
    return (json.dumps(obj, indent=1, sort_keys=True, ensure_ascii=True) + "\n").encode("ascii")


def line(obj: Any) -> bytes:
    """One record of a ``.jsonl`` file."""
    return (json.dumps(obj, sort_keys=True, ensure_ascii=True, separators=(",", ":")) + "\n").encode("ascii")


def bounded(obj: Any, max_text: int = MAX_TEXT, max_items: int = MAX_RECORDS) -> tuple[Any, int]:
    """A copy of plain data with bounded strings, lists and depth, and how many parts were cut or dropped."""
    dropped = 0

    def walk(part: Any, depth: int) -> Any:
        nonlocal dropped
        if isinstance(part, str):
            if len(part) <= max_text:
                return part
            dropped += 1
            return part[: max_text - 1] + "…"
        if isinstance(part, (Mapping, list, tuple)) and depth >= _MAX_DEPTH:
            dropped += 1
            return "…"
        if isinstance(part, Mapping):
            pairs = list(part.items())
            dropped += max(0, len(pairs) - max_items)
            return {str(key)[:max_text]: walk(value, depth + 1) for key, value in pairs[:max_items]}
        if isinstance(part, (list, tuple)):
            dropped += max(0, len(part) - max_items)
            return [walk(value, depth + 1) for value in part[:max_items]]
        return part

    return walk(obj, 0), dropped


def bounded_document(obj: Any, max_text: int = MAX_TEXT) -> bytes:
    """A document within ``MAX_BYTES``. What was cut is counted in ``dropped``; of a huge one only the size is kept."""
    kept, dropped = bounded(obj, max_text)
    if dropped:
        kept = {**kept, "dropped": dropped} if isinstance(kept, dict) else {"value": kept, "dropped": dropped}
    content = document(kept)
    if len(content) <= MAX_BYTES:
        return content
    return document({"dropped": dropped + 1, "bytes": len(content), "sha256": digest(content)})


def bounded_lines(records: Sequence[Any], dropped: int = 0) -> bytes:
    """Records as lines within ``MAX_RECORDS`` and ``MAX_BYTES``: first and last ones, ``{"dropped": n}`` between.

    Allowed decisions are kept before all others, and the first of each destination before these: no flood hides where
    something went. ``dropped`` counts what the caller has left out already. A record with a ``count`` stands for many.
    """
    lines = [line(bounded(record)[0]) for record in records]
    kept = _kept(records, lines)
    lost = [place for place in range(len(lines)) if place not in kept]
    dropped += sum(weight(records[place]) for place in lost)
    gap = lost[0] if lost else min(len(lines), MAX_RECORDS // 2)
    middle = [line({"dropped": dropped})] if dropped else []
    head, tail = ([lines[place] for place in sorted(kept) if (place < gap) is before] for before in (True, False))
    return b"".join(head + middle + tail)


def _kept(records: Sequence[Any], lines: Sequence[bytes]) -> set[int]:
    """Places of the records that are kept."""
    allowed = [place for place, record in enumerate(records) if _field(record, "decision") == "allow"]
    first: dict[tuple[Any, ...], int] = {}
    for place in allowed:
        first.setdefault(tuple(_field(records[place], name) for name in ("host", "port", "target")), place)
    kept: set[int] = set()
    count, size = MAX_RECORDS, MAX_BYTES
    for group, share in ((list(first.values()), 4), (allowed, 2), (range(len(lines)), 1)):
        more = _ends([place for place in group if place not in kept], lines, count // share, size // share)
        kept |= more
        count, size = count - len(more), size - sum(len(lines[place]) for place in more)
    return kept


def _field(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, Mapping) else None


def _ends(places: Sequence[int], lines: Sequence[bytes], count: int, size: int) -> set[int]:
    """Those at the beginning and at the end, as many as have room in a number of lines and of bytes."""
    head = _within(places, lines, count // 2, size // 2)
    rest = size - sum(len(lines[place]) for place in head)
    return {*head, *_within(places[len(head) :][::-1], lines, count - len(head), rest)}


def _within(places: Sequence[int], lines: Sequence[bytes], count: int, size: int) -> list[int]:
    kept: list[int] = []
    for place in places[: max(0, count)]:
        size -= len(lines[place])
        if size < 0:
            break
        kept.append(place)
    return kept


def link(prev: str, file: str, sha256: str) -> str:
    """The head that follows ``prev`` when ``file`` with that digest is added."""
    return digest(f"{prev}\n{file}\n{sha256}\n".encode())


def head(entries: Sequence[Mapping[str, Any]]) -> str:
    """Head of the chain; ``GENESIS`` when it is empty."""
    return str(entries[-1]["head"]) if entries else GENESIS


def extended(entries: Sequence[Mapping[str, Any]], file: str, sha256: str) -> list[dict[str, Any]]:
    """The entries with one more. The same content written again adds nothing (a repeated close changes nothing)."""
    last = next((entry for entry in reversed(entries) if entry.get("file") == file), None)
    if last is not None and last.get("sha256") == sha256:
        return [dict(entry) for entry in entries]
    prev = head(entries)
    new = {"file": file, "sha256": sha256, "prev": prev, "head": link(prev, file, sha256)}
    return [*(dict(entry) for entry in entries), new]


def check(entries: Sequence[Mapping[str, Any]], digests: Mapping[str, str]) -> list[str]:
    """What is wrong with a chain, given the digests of the files as they are now; empty when nothing is."""
    found, prev, latest = [], GENESIS, {}
    for number, entry in enumerate(entries):
        file, sha256 = str(entry.get("file")), str(entry.get("sha256"))
        if entry.get("prev") != prev or entry.get("head") != link(prev, file, sha256):
            found.append(f"entry {number} ({file}) does not follow the one before")
        prev, latest[file] = str(entry.get("head")), sha256
    for file, sha256 in latest.items():
        if file not in digests:
            found.append(f"{file} is missing")
        elif digests[file] != sha256:
            found.append(f"{file} was changed: its SHA-256 is {digests[file][:16]}…, written was {sha256[:16]}…")
    return found + [f"{file} is not in the chain" for file in sorted(digests) if file not in latest]
