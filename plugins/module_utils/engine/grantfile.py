# SPDX-License-Identifier: BSD-2-Clause
"""The file ``agents/NAME/repos.yml``: read strictly, replaced in one step, a user's comments kept.

An entry is edited as lines of text, and the new text is read again: unless it says exactly what was meant, the file is
written anew, or refused if that would lose comments.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import grants as core
from ..core.errors import GrantError, ManifestError, Problem
from ..core.grants import Grant
from ..core.marked import Node
from . import locks, yamlload

_HEADER = "# Grants of this agent, kept by `asf-play repo add` and `asf-play repo remove`.\n"


@dataclass(frozen=True)
class GrantFile:
    """A grants file under the lock of ``locked``."""

    path: Path
    data: bytes

    def grants(self) -> list[Grant]:
        """What it holds. Raises GrantError."""
        return _parse(self.data, str(self.path))

    def write(self, grants: Sequence[Grant]) -> None:
        """Replace it so that it holds exactly these grants. Raises GrantError where comments would be lost."""
        _replace(self.path, _rendered(self.data, str(self.path), grants))


def load(path: Path) -> list[Grant]:
    """The grants of a file; none without one. Raises GrantError."""
    return _parse(_read(path), str(path))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[GrantFile]:
    """The file, its folder made and locked: two commands at once must not lose a grant.

    Raises GrantError, and EngineError when another command holds it for too long.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        locks.acquire(fd, str(path.parent), "the grants of this agent", 60)
        yield GrantFile(path, _read(path))
    finally:
        os.close(fd)


def _read(path: Path) -> bytes:
    if not os.path.lexists(path):
        return b""
    try:
        return yamlload.read(str(path))
    except ManifestError as error:
        raise GrantError(error.problems) from None


def _parse(data: bytes, file: str) -> list[Grant]:
    try:
        return core.validate(yamlload.parse(data, file), file)
    except ManifestError as error:  # YAML itself
        raise GrantError(error.problems) from None


def _replace(path: Path, text: str) -> None:
    fd, temporary = tempfile.mkstemp(prefix=".repos-", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


# --- text ------------------------------------------------------------------------------------------------------


def _quoted(text: str) -> str:
    """A YAML string that shows what is in it: everything unprintable is escaped."""

    def one(char: str) -> str:
        code = ord(char)
        if char in '"\\':
            return "\\" + char
        if char.isprintable():
            return char
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return '"' + "".join(map(one, text)) + '"'


def _item(grant: Grant) -> str:
    if (grant.mode, grant.git, grant.ssh_agent) == ("rw", None, None):
        return f"- {_quoted(grant.path)}"
    fields = [("path", _quoted(grant.path)), ("mode", grant.mode), ("git", grant.git)]
    fields.append(("ssh_agent", _quoted(grant.ssh_agent) if grant.ssh_agent else None))
    return "- {" + ", ".join(f"{key}: {value}" for key, value in fields if value) + "}"


def _same(one: Sequence[Grant], other: Sequence[Grant]) -> bool:
    return sorted(one, key=lambda grant: grant.path) == sorted(other, key=lambda grant: grant.path)


def _rendered(data: bytes, file: str, grants: Sequence[Grant]) -> str:
    old = _parse(data, file)
    text = data.decode("utf-8-sig")
    if data and _same(old, grants):
        return text
    edited = _edited(text, yamlload.parse(data, file), old, grants)
    if edited is not None:
        with contextlib.suppress(GrantError):
            if _same(_parse(edited.encode(), file), grants):
                return edited
    if any("#" in line and line + "\n" != _HEADER for line in text.splitlines()):
        message = "the file has comments and a form that cannot be edited without losing them"
        remedy = "edit it by hand, or write `repos:` as a list with one entry per line"
        raise GrantError([Problem(message, file, key="repos", remedy=remedy)])
    lines = [f"  {_item(grant)}\n" for grant in grants]
    return _HEADER + ("repos:\n" + "".join(lines) if lines else "repos: []\n")


def _edited(text: str, tree: Node | None, old: Sequence[Grant], grants: Sequence[Grant]) -> str | None:
    """The text with the lines of vanished grants cut and new ones put after the last; None for forms it cannot edit."""
    lines = [line + "\n" for line in text.splitlines()]
    new = [grant for grant in grants if grant not in old]
    found = [(key, value) for key, value in (tree.pairs() if tree else ()) if key.value == "repos"]
    if not found:
        body = [f"  {_item(grant)}\n" for grant in new]
        return "".join([*lines, "repos:\n", *body]) if tree is None and new and lines else None
    key, entries = found[0]
    items = entries.items()
    head = lines[key.line - 1]
    if not items:
        opened = re.sub(r"(repos:)\s*\[\s*\]", r"\1", head)
        lines[key.line - 1 : key.line] = [opened, *(f"  {_item(grant)}\n" for grant in new)]
        return "".join(lines)
    if entries.flow:
        return None
    gone = {n for item, grant in zip(items, old) if grant not in grants for n in range(item.line, item.end_line + 1)}
    indent = " " * (len(lines[items[0].line - 1]) - len(lines[items[0].line - 1].lstrip(" ")))
    if not grants:
        lines[key.line - 1] = head.replace("repos:", "repos: []", 1)
    out = []
    for number, line in enumerate(lines, 1):
        out += [] if number in gone else [line]
        if number == items[-1].end_line:
            out += [f"{indent}{_item(grant)}\n" for grant in new]
    return "".join(out)
