# SPDX-License-Identifier: BSD-2-Clause
"""A tar stream that nobody vouches for: read with bounds, vetted entry by entry before anything is made of it. Pure.

Python's ``tarfile`` reads whatever length a header claims into memory (long names, pax records), so the few headers
that tar programs write are read here: ustar with its prefix, GNU long names and numbers, pax records (tar(5), pax(1)).
What is refused and what may be left out is in ``Vetting``; ``engine/unpack.py`` writes what it admits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from .errors import AsfError
from .escape import terminal

BLOCK = 512
#: Longest name or pax header in bytes, longest chain of headers before an entry, deepest entry.
MAX_HEADER, MAX_EXTRA, MAX_DEPTH = 64 * 1024, 8, 200
_NAME_MAX = 255
#: Longest target of a symbolic link (PATH_MAX without its NUL), in characters.
_LINK_MAX = 4095
_CHUNK = 1 << 16
_KINDS = {b"0": "file", b"\0": "file", b"7": "file", b"1": "hardlink", b"2": "symlink", b"5": "folder"}
_SPECIAL = {b"3": "character device", b"4": "block device", b"6": "FIFO"}


class ArchiveError(AsfError):
    """A stream that is no archive, is larger than allowed, or holds what must not be unpacked."""

    default_code = "archive"


class Limits(NamedTuple):
    """Most bytes of content, most entries."""

    size: int = 1 << 30
    entries: int = 100_000


class Member(NamedTuple):
    """One entry: ``kind`` is file, folder, symlink, hardlink, or the words for anything else; ``mtime`` in seconds."""

    name: str
    kind: str
    size: int
    mode: int
    mtime: int
    link: str


def _shown(name: str) -> str:
    return terminal(name, 200)


# --- reading ---------------------------------------------------------------------------------------------------


class Reader:
    """Entries of a stream. ``read(n)`` gives up to n bytes, and none at its end. Raises ArchiveError."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._left = 0  # bytes of the present entry, with its padding
        self._size = 0

    def _exactly(self, count: int) -> bytes:
        parts, missing = [], count
        while missing:
            part = self._read(min(missing, _CHUNK))
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _block(self) -> bytes:
        block = self._exactly(BLOCK)
        if len(block) != BLOCK:
            raise ArchiveError("the archive ends in the middle", found=f"{len(block)} bytes of a header")
        return block

    def members(self) -> Iterator[Member]:
        """The entries in their order; ``content`` belongs to the last one given."""
        while (member := self._next()) is not None:
            yield member

    def content(self) -> Iterator[bytes]:
        """The content of the present entry, in pieces."""
        while self._size:
            part = self._read(min(self._size, _CHUNK))
            if not part:
                raise ArchiveError("the archive ends in the middle of a file")
            self._size -= len(part)
            self._left -= len(part)
            yield part

    def _skip(self) -> None:
        while self._left:
            part = self._read(min(self._left, _CHUNK))
            if not part:
                raise ArchiveError("the archive ends in the middle of a file")
            self._left -= len(part)
        self._size = 0

    def _begin(self, size: int) -> None:
        self._size, self._left = size, -(-size // BLOCK) * BLOCK

    def _next(self) -> Member | None:
        """The next entry, with what the headers before it say about it; None at the end."""
        self._skip()
        said: dict[str, bytes] = {}
        for _ in range(MAX_EXTRA):
            block = self._block()
            if block == bytes(BLOCK):
                return None
            _checked(block)
            flag, size = block[156:157], _number(block[124:136])
            if flag not in (b"L", b"K", b"x", b"g"):
                return self._member(block, flag, size, said)
            if size > MAX_HEADER:
                raise ArchiveError("a header of the archive is too long", found=f"{size} bytes")
            self._begin(size)
            text = self._exactly(size)
            self._left -= size
            self._size = 0
            self._skip()
            if flag == b"L":
                said["path"] = text.rstrip(b"\0")
            elif flag == b"K":
                said["linkpath"] = text.rstrip(b"\0")
            elif flag == b"x":
                said.update(_records(text))
        raise ArchiveError("too many headers stand before one entry")

    def _member(self, block: bytes, flag: bytes, size: int, said: dict[str, bytes]) -> Member:
        name = block[:100].split(b"\0")[0]
        prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
        name = said.get("path", prefix + b"/" + name if prefix else name)
        link = said.get("linkpath", block[157:257].split(b"\0")[0])
        kind = _KINDS.get(flag) or _SPECIAL.get(flag) or f"entry of type {flag!r}"
        if kind == "file" and name.endswith(b"/"):
            kind = "folder"  # as old tar programs wrote them
        if "size" in said:
            size = _decimal(said["size"])
        self._begin(size if kind not in ("folder", "symlink", "hardlink") else 0)
        mtime = _decimal(said["mtime"].split(b".")[0]) if "mtime" in said else _number(block[136:148])
        return Member(
            name.decode("utf-8", "surrogateescape"),
            kind,
            self._size,
            _number(block[100:108]),
            mtime,
            link.decode("utf-8", "surrogateescape"),
        )


def _checked(block: bytes) -> None:
    """Raise ArchiveError unless the header's sum is right: what comes is no archive, or not at this place."""
    if sum(block) - sum(block[148:156]) + 8 * 32 != _number(block[148:156]):
        raise ArchiveError("what came is not an archive", found=terminal(block[:40].decode("latin-1"), 60))


def _number(field: bytes) -> int:
    """A number of a header: octal text, or binary when the first bit is set (GNU)."""
    if field[:1] and field[0] & 0x80:
        found = int.from_bytes(field, "big") & ~(1 << (len(field) * 8 - 1))
        return 0 if field[0] == 0xFF else found  # negative times are of no use here
    text = field.split(b"\0")[0].strip()
    try:
        found = int(text, 8) if text else 0
        if found < 0:
            raise ValueError
        return found
    except ValueError:
        raise ArchiveError("a header of the archive is damaged", found=terminal(repr(field), 60)) from None


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise ArchiveError("a header of the archive is damaged", found=terminal(repr(text), 60))
    return int(text)


def _records(text: bytes) -> dict[str, bytes]:
    """The pax records that matter: lines ``LENGTH KEY=VALUE``."""
    found: dict[str, bytes] = {}
    while text:
        length, blank, _ = text.partition(b" ")
        count = _decimal(length) if blank and len(length) < 8 else 0
        record = text[len(length) + 1 : count]
        key, equals, value = record.partition(b"=")
        if not count or count > len(text) or not equals or not value.endswith(b"\n"):
            raise ArchiveError("a header of the archive is damaged", found=terminal(repr(text[:40]), 60))
        if key in (b"path", b"linkpath", b"size", b"mtime"):
            found[key.decode()] = value[:-1]
        text = text[count:]
    if found.get("mtime", b"").startswith(b"-"):
        found["mtime"] = b"0"
    return found


# --- vetting ---------------------------------------------------------------------------------------------------


class Unsafe(ArchiveError):
    """An entry that is left out on request: a device, FIFO or other special file, or a link that leads outside."""


#: Kind of an entry that is not made.
LEFT_OUT = "left out"


class Vetting:
    """Admits entries below one top name and remembers them. ``top`` is stripped; empty: names are taken as they are.

    An archive that a tar program made of one folder holds no absolute name, no ``..``, no entry below a link and no
    file twice. One that does was made to deceive, and is refused as a whole.
    """

    def __init__(self, top: str, limits: Limits) -> None:
        self._top, self._limits = top, limits
        self.kinds: dict[tuple[str, ...], str] = {}
        self._words: dict[str, str] = {}  # a folder's name is held once, however many entries lie in it
        self.size = 0

    def path(self, name: str) -> tuple[str, ...]:
        """Where an entry goes, relative to the target, which is the empty tuple. Raises ArchiveError."""
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        wrong = next((why for why, is_so in _NAMES if is_so(name, parts)), None)
        if wrong is not None:
            raise ArchiveError(f"the archive holds {wrong}", found=_shown(name), remedy="nothing was copied")
        if self._top and parts[:1] != (self._top,):
            raise ArchiveError("the archive holds what was not asked for", found=_shown(name))
        return parts[1:] if self._top else parts

    def admit(self, member: Member) -> tuple[str, ...]:
        """The place of an entry that may be made. Raises ArchiveError, and Unsafe for what may be left out."""
        path = self.path(member.name)
        if len(self.kinds) >= self._limits.entries:
            raise ArchiveError(
                "more entries than allowed", found=f"more than {self._limits.entries}", remedy="raise --max-files"
            )
        path = (*(self._words.setdefault(part, part) for part in path[:-1]), *path[-1:])
        for depth in range(len(path)):
            if self.kinds.setdefault(path[:depth], "folder") != "folder":
                raise ArchiveError("an entry lies below something that is no folder", found=_shown(member.name))
        if path in self.kinds and (self.kinds[path], member.kind) != ("folder", "folder"):
            raise ArchiveError("the archive holds a name twice", found=_shown(member.name))
        self.kinds[path] = LEFT_OUT  # what lies below it is refused
        self._kind(member, path)
        self.kinds[path] = member.kind
        self.size += member.size
        if self.size > self._limits.size:
            raise ArchiveError("more than allowed", found=f"over {self._limits.size} bytes", remedy="raise --max-size")
        return path

    def _kind(self, member: Member, path: tuple[str, ...]) -> None:
        if member.kind == "symlink" and len(member.link) > _LINK_MAX:
            raise ArchiveError("a link that is too long", found=_shown(member.name))
        if member.kind == "symlink" and not stays(path, member.link):
            raise Unsafe(
                "a link that leads out of what is copied", found=f"{_shown(member.name)} -> {_shown(member.link)}"
            )
        if member.kind == "hardlink" and self.kinds.get(self.path(member.link)) not in ("file", "hardlink"):
            raise ArchiveError("a hard link to what is not in the archive", found=_shown(member.name))
        if member.kind not in ("file", "folder", "symlink", "hardlink"):
            raise Unsafe(f"a special file ({terminal(member.kind, 40)})", found=_shown(member.name))


_NAMES: tuple[tuple[str, Callable[[str, tuple[str, ...]], bool]], ...] = (
    ("an absolute name", lambda name, _: name.startswith("/")),
    ("a name that leads upwards", lambda _, parts: ".." in parts),
    ("a name with a NUL", lambda name, _: "\0" in name),
    (
        "a name that is too long",
        lambda _, parts: any(len(part.encode("utf-8", "surrogateescape")) > _NAME_MAX for part in parts),
    ),
    ("a name that is too deep", lambda _, parts: len(parts) > MAX_DEPTH),
)


def stays(path: tuple[str, ...], link: str) -> bool:
    """Whether a symbolic link at ``path`` leads to a place at or below the target, whatever other links there are.

    Upwards only at its beginning: ``..`` after a name could leave through another link. Every folder above it is a real
    one, so the first steps are certain, and each name after them is again such a link or real.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    return (
        bool(path and link)
        and not link.startswith("/")
        and "\0" not in link
        and up < len(path)
        and ".." not in parts[up:]
    )
