# SPDX-License-Identifier: BSD-2-Clause
"""Reading an evidence folder that somebody may have tampered with: no link is followed, regular files only, bounded."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from ..core import evidence
from . import regular

#: A file of the evidence has at most ``evidence.MAX_BYTES``; a report is smaller.
_LIMIT = 2 * evidence.MAX_BYTES
_MOST_FILES = 1000


@dataclass
class Checked:
    """A folder as it is now: content of its regular files, its chain, and what is wrong, one sentence each."""

    folder: str
    files: dict[str, bytes] = field(default_factory=dict)
    chain: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def entries(self) -> Sequence[Mapping[str, Any]]:
        """Entries of the chain; empty when it is damaged."""
        found = self.chain.get("entries")
        whole = isinstance(found, list) and all(
            isinstance(one, dict) and all(isinstance(one.get(key), str) for key in ("file", "sha256", "prev", "head"))
            for one in found
        )
        return found if whole and isinstance(found, list) else []

    @property
    def head(self) -> str:
        """Head of the chain, as the chain says."""
        return evidence.head(self.entries)

    @property
    def closed(self) -> bool:
        """Whether a close got to its end."""
        return any(entry["file"] == "cleanup.json" for entry in self.entries)

    def documents(self) -> dict[str, Any]:
        """The files as data, by name; damaged ones and damaged lines are left out."""
        found: dict[str, Any] = {}
        for name, content in self.files.items():
            if name.endswith(".jsonl"):
                found[name] = [row for row in map(_data, content.splitlines()) if isinstance(row, dict)]
            elif name.endswith(".json") and (data := _data(content)) is not None:
                found[name] = data
        return found


def check(folder: str) -> Checked:
    """Read a folder and hold it against its chain. Raises nothing: what cannot be read is a problem."""
    found = Checked(folder)
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        what = "a symbolic link" if os.path.islink(folder) else getattr(error, "strerror", None) or str(error)
        found.problems.append(f"the folder cannot be read: {what}")
        return found
    try:
        for name in sorted(os.listdir(handle))[:_MOST_FILES]:
            if not name.startswith(".new-"):  # of a write that was killed
                _read(found, name, handle)
    finally:
        os.close(handle)
    _chain(found)
    digests = {name: evidence.digest(content) for name, content in found.files.items() if name != evidence.CHAIN}
    if found.chain:
        found.problems += evidence.check(found.entries, digests)
    return found


def _read(found: Checked, name: str, handle: int) -> None:
    try:
        content, _ = regular.read(name, _LIMIT, handle)
    except regular.NotRegularError as error:
        found.problems.append(f"{name} is {error}")
        return
    except OSError as error:
        found.problems.append(f"{name} cannot be read: {error.strerror}")
        return
    if len(content) > _LIMIT:
        found.problems.append(f"{name} is larger than any file of the evidence")
        return
    found.files[name] = content


def _chain(found: Checked) -> None:
    """Take the chain in; it must name the folder that it lies in (a copy elsewhere may be called what it likes)."""
    content = found.files.get(evidence.CHAIN)
    if content is None:
        found.problems.append(f"{evidence.CHAIN} is missing")
        return
    data = _data(content)
    if not isinstance(data, dict) or not isinstance(data.get("entries"), list):
        found.problems.append(f"{evidence.CHAIN} is damaged")
        return
    found.chain = data
    if len(found.entries) != len(data["entries"]):
        found.problems.append(f"{evidence.CHAIN} is damaged: an entry lacks file, sha256, prev or head")


def _data(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
