# SPDX-License-Identifier: BSD-2-Clause
"""``STATE/index.jsonl``: one line per closed run with the head of its chain, each line bound to the one before.

``prev`` of a line is the SHA-256 of the line before it (``core/evidence.GENESIS`` for the first), so lines cannot be
taken out, changed or moved unnoticed. A line with ``removed`` says that a run's folder was removed, and why.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional

from ..core import evidence
from ..core.errors import EngineError
from . import dirs, locks, regular

Env = Optional[Mapping[str, str]]
#: More than this was not written by ASF: a line has some 300 bytes.
MAX_BYTES = 256 * 1024 * 1024
_TAIL = 65_536


class Index(NamedTuple):
    """``entries`` in order, ``problems`` one sentence each."""

    entries: List[dict[str, Any]]
    problems: List[str]

    def head(self, session: str, run: str) -> Optional[str]:
        """The last head that was written down for a run; None when there is none."""
        found = [entry for entry in self.entries if entry["session"] == session and entry["run"] == run]
        return str(found[-1]["head"]) if found else None

    def removed(self, session: str, run: str) -> bool:
        """Whether the run's folder was removed by ASF."""
        return any(e["session"] == session and e["run"] == run and e.get("removed") for e in self.entries)


def path(env: Env = None) -> Path:
    """Where the index lies."""
    return dirs.state_dir(env) / "index.jsonl"


def append(entry: Mapping[str, Any], env: Env = None) -> None:
    """Append a line; nothing when the run's last line says the same. Raises OSError, EngineError."""
    dirs.private(dirs.state_dir(env))
    handle = os.open(path(env), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "r+b") as stream:
        locks.acquire(stream.fileno(), str(path(env)), "the index of the evidence", 60)
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL))
        tail = stream.read()
        lines = tail.splitlines()
        if any(_same(line, entry) for line in lines):
            return
        prev = evidence.digest(lines[-1]) if lines else evidence.GENESIS
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # A line that was cut by a crash is left as it is, and noticed by ``read``.
        begin = b"" if not tail or tail.endswith(b"\n") else b"\n"
        _write(stream.fileno(), begin + evidence.line({**entry, "at": now, "prev": prev}), size)


def _write(handle: int, content: bytes, size: int) -> None:
    """All of it or nothing: on a full disk the file is as long as before. Raises OSError."""
    try:
        if os.write(handle, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        os.ftruncate(handle, size)
        raise


def _same(line: bytes, entry: Mapping[str, Any]) -> bool:
    try:
        known = json.loads(line)
    except ValueError:
        return False
    return isinstance(known, dict) and {k: v for k, v in known.items() if k not in ("at", "prev")} == dict(entry)


def read(env: Env = None) -> Index:
    """The whole index, checked. Raises EngineError when it is no regular file."""
    place = path(env)
    try:
        content, _ = regular.read(str(place), MAX_BYTES)
    except FileNotFoundError:
        return Index([], [])
    except (OSError, regular.NotRegularError) as error:
        raise EngineError(
            f"the index cannot be read: {error}", file=str(place), remedy="put the file back from a copy", code="index"
        ) from None
    return Index(list(_entries(content)), list(_problems(content)))


def _parsed(line: bytes) -> Optional[dict[str, Any]]:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("session", "run", "head")):
        return None
    return entry


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    return (entry for entry in map(_parsed, content.splitlines()) if entry is not None)


def _problems(content: bytes) -> Iterator[str]:
    prev = evidence.GENESIS
    for number, line in enumerate(content.splitlines(), 1):
        entry = _parsed(line)
        if entry is None:
            yield f"line {number} is damaged"
        elif entry.get("prev") != prev:
            yield f"line {number} ({entry['session']} {entry['run']}) does not follow the line before it"
        prev = evidence.digest(line)
    if content and not content.endswith(b"\n"):
        yield "the last line is cut"
