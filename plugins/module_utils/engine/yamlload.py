# SPDX-License-Identifier: BSD-2-Clause
"""YAML read strictly, in one place: the only user of PyYAML. Gives a marked tree (``core/marked.py``).

Stricter than YAML: UTF-8 only (one byte order mark at the start is skipped), one document, no directive, tag, anchor
or alias (so no alias bomb), bounded size and depth, and no plain word on which YAML 1.1 and 1.2 readers disagree.
The tree is built from the parser's events, so no constructor of PyYAML runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..core.errors import ManifestError, Problem
from ..core.escape import clip
from ..core.marked import DECIMAL, FLAG, LIST, MAP, NULL, ODD, TEXT, WHOLE, Fault, Node
from . import regular, trust

SIZE_LIMIT = 256 * 1024
DEPTH_LIMIT = 24
NODE_LIMIT = 20000

_ODD = (
    (re.compile(r"(?:yes|no|on|off|y|n|true|false)\Z", re.I), "some YAML readers take it for true or false"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?\Z"), "some YAML readers take it for a date"),
    (
        re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?\Z"),
        "some YAML readers take it for a sexagesimal number",
    ),
    (
        re.compile(r"[-+]?(?:0[0-7_]+|0[obx][0-9a-f_]+|[0-9][0-9_]*)\Z", re.I),
        "YAML readers disagree on which number it is",
    ),
    (
        re.compile(r"[-+]?(?:\.[0-9_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:e[-+]?[0-9]+)?\Z", re.I),
        "YAML readers disagree on which number it is",
    ),
    (re.compile(r"[-+]?\.(?:inf|nan)\Z", re.I), "YAML readers take it for a number that is none"),
    (re.compile(r"(?:<<|=)\Z"), "some YAML readers give it a meaning of its own"),
)
_WHOLE = re.compile(r"(?:0|-?[1-9][0-9]{0,17})\Z")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,14})\.[0-9]{1,15}\Z")
_NULL = ("", "~", "null", "Null", "NULL")


def scalar(text: str, plain: bool) -> tuple[str, Any, str]:
    """Kind, value and reason of a scalar. Quoted and block scalars are always text."""
    if not plain:
        return TEXT, text, ""
    if text in _NULL:
        return NULL, None, ""
    if text in ("true", "false"):
        return FLAG, text == "true", ""
    if _WHOLE.match(text):
        return WHOLE, int(text), ""
    if _DECIMAL.match(text):
        return DECIMAL, float(text), ""
    for pattern, reason in _ODD:
        if pattern.match(text):
            return ODD, None, reason
    return TEXT, text, ""


def load(path: str) -> Node | None:
    """The marked tree of a file; None for an empty document. Raises ManifestError.

    The file must be a regular file, not a symbolic link. A fault that does not stop the parser stands in the tree
    (``Node.faults``), so that the validator reports it together with everything else.
    """
    return parse(read(path), path)


def read(path: str, limit: int = SIZE_LIMIT) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes, no symbolic link followed. Raises ManifestError.

    It must belong to this account or root, and nobody else may write it: what stands in it decides what is enforced.
    """

    def refuse(message: str, remedy: str, found: str | None = None) -> ManifestError:
        return ManifestError([Problem(message, path, found=found, remedy=remedy)])

    try:
        data, found = regular.read(path, limit)
    except regular.NotRegularError as exc:
        raise refuse(f"this is {exc}", "put a regular file there") from None
    except OSError as exc:
        raise refuse(f"the file cannot be read: {exc.strerror}", "check that it exists and is yours") from None
    except ValueError:
        raise refuse("a path cannot contain a NUL character", "name a file") from None
    if trust.foreign(found):
        raise refuse("the file belongs to somebody else", "make it your own", f"uid {found.st_uid}")
    writers = trust.other_writers(found)
    if writers is not None:
        raise refuse(f"{writers} may write this file", f"chmod go-w {path}", f"{found.st_mode & 0o7777:04o}")
    if len(data) > limit:
        raise refuse(f"the file is larger than {limit // 1024} KiB", "make it smaller")
    return data


def parse(data: bytes, file: str) -> Node | None:
    """The marked tree of a document. Raises ManifestError where it cannot be parsed at all."""
    text = _decode(data, file)
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.feed(event)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        words = " ".join(part for part in (exc.context, exc.problem) if part)
        raise _syntax(file, words, mark.line + 1 if mark else None, mark.column + 1 if mark else None) from None
    except yaml.reader.ReaderError as exc:
        line, column = _place(text, exc.position)
        raise _syntax(file, f"the character U+{_code(exc.character):04X} is not allowed", line, column) from None
    except (ValueError, OverflowError, RecursionError) as exc:  # "\UFFFFFFFF" reaches chr() inside PyYAML
        raise _syntax(file, clip(str(exc), 200), None, None) from None
    return builder.document()


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character[:1])


def _syntax(file: str, message: str, line: int | None, column: int | None) -> ManifestError:
    remedy = "quote the value, or check the indentation of this line and the one before"
    return ManifestError([Problem(f"not valid YAML: {message}", file, line, column, remedy=remedy, code="yaml")])


def _place(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _decode(data: bytes, file: str) -> str:
    if len(data) > SIZE_LIMIT:
        problem = Problem(f"the document is larger than {SIZE_LIMIT // 1024} KiB", file, remedy="make it smaller")
        raise ManifestError([problem])
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        line = data[: exc.start].count(b"\n") + 1
        problem = Problem(
            "the file is not UTF-8", file, line, found=f"byte 0x{data[exc.start]:02x}", remedy="save it as UTF-8"
        )
        raise ManifestError([problem]) from None


@dataclass
class _Open:
    """A container whose end has not come."""

    kind: str
    start: Any
    faults: tuple[Fault, ...]
    flow: bool
    children: list[Node] = field(default_factory=list)


class _Builder:
    """Makes nodes of the parser's events."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.stack: list[_Open] = []
        self.root: Node | None = None
        self.documents = 0
        self.count = 0
        self.faults: list[Fault] = []

    def document(self) -> Node | None:
        """The finished tree; faults of the document itself hang on its root."""
        root = self.root
        if root is None:
            return None
        return _with_faults(root, tuple(self.faults))

    def feed(self, event: Any) -> None:
        """Take one event."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._start_document(event)
        elif isinstance(event, yaml.AliasEvent):
            fault = Fault("aliases are not allowed", "write the value out")
            self._add(Node(NULL, None, *_at(event.start_mark), _line(event), f"*{event.anchor}", faults=(fault,)))
        elif isinstance(event, yaml.ScalarEvent):
            plain = event.style is None
            kind, value, reason = scalar(event.value, plain)
            raw = event.value if plain else f'"{event.value}"'
            place = _at(event.start_mark)
            self._add(Node(kind, value, *place, _line(event), raw, reason, faults=self._properties(event)))
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            kind = MAP if isinstance(event, yaml.MappingStartEvent) else LIST
            self._bound(event)
            self.stack.append(_Open(kind, event.start_mark, self._properties(event), bool(event.flow_style)))
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close(event)

    def _start_document(self, event: Any) -> None:
        self.documents += 1
        line, column = _at(event.start_mark)
        if self.documents > 1:
            problem = Problem("the file holds more than one document", self.file, line, column, remedy="keep one")
            raise ManifestError([problem])
        if event.version or event.tags:
            self.faults.append(Fault("directives are not allowed", "remove the lines that begin with %"))

    def _properties(self, event: Any) -> tuple[Fault, ...]:
        faults = []
        if event.anchor:
            faults.append(Fault("anchors are not allowed", f"remove &{clip(event.anchor, 40)}"))
        if event.tag:
            faults.append(Fault("tags are not allowed", f"remove {clip(event.tag, 40)}"))
        return tuple(faults)

    def _bound(self, event: Any) -> None:
        self.count += 1
        line, column = _at(event.start_mark)
        if len(self.stack) >= DEPTH_LIMIT:
            problem = Problem(f"nested deeper than {DEPTH_LIMIT} levels", self.file, line, column, remedy="flatten it")
            raise ManifestError([problem])
        if self.count > NODE_LIMIT:
            raise ManifestError(
                [Problem(f"more than {NODE_LIMIT} values", self.file, line, column, remedy="shorten it")]
            )

    def _add(self, node: Node) -> None:
        self.count += 1
        if self.stack:
            self.stack[-1].children.append(node)
        else:
            self.root = node

    def _close(self, event: Any) -> None:
        done = self.stack.pop()
        line, column = _at(done.start)
        children = done.children
        value: Any = tuple(children)
        if done.kind == MAP:
            value = tuple(zip(children[::2], children[1::2]))
        last = max([child.end_line for child in children], default=line)
        end = event.end_mark.line + 1 if done.flow else last
        self._add(Node(done.kind, value, line, column, end, flow=done.flow, faults=done.faults))


def _with_faults(node: Node, faults: tuple[Fault, ...]) -> Node:
    if not faults:
        return node
    return Node(**{**vars(node), "faults": faults + node.faults})


def _at(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1


def _line(event: Any) -> int:
    """The last line of a scalar. A block scalar's end mark is the start of the line after it."""
    end: int = event.end_mark.line + (1 if event.end_mark.column else 0)
    start: int = event.start_mark.line + 1
    return max(end, start)
