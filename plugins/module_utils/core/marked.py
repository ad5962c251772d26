# SPDX-License-Identifier: BSD-2-Clause
"""A document as a tree whose every value knows where it stands: what ``engine/yamlload.py`` makes and the core reads.

Mappings keep their pairs in order and with duplicates, so that the validator, not the reader, says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .escape import clip

MAP, LIST, TEXT, WHOLE, DECIMAL, FLAG, NULL, ODD = "map", "list", "text", "whole", "decimal", "flag", "null", "odd"

#: How a kind is called in messages.
WORDS = {
    MAP: "a mapping",
    LIST: "a list",
    TEXT: "text",
    WHOLE: "a whole number",
    DECIMAL: "a decimal number",
    FLAG: "true or false",
    NULL: "nothing",
    ODD: "a word that YAML readers disagree on",
}

#: User and password in a URL: a refused value is shown without them (case S4).
_USERINFO = re.compile(r"//[^/\s]*@")


@dataclass(frozen=True)
class Fault:
    """What the document may not contain at this place (a tag, an anchor, an alias), whatever the key."""

    message: str
    remedy: str


@dataclass(frozen=True)
class Node:
    """One value. ``line`` and ``column`` count from 1; ``end_line`` is the last line that holds a part of it.

    ``value``: pairs of nodes for a map, nodes for a list, the Python value for a scalar, None for ``odd``, whose
    ``reason`` says how readers disagree. ``raw`` is a scalar as it was written. ``flow``: written in ``[]`` or ``{}``.
    """

    kind: str
    value: Any
    line: int
    column: int
    end_line: int
    raw: str = ""
    reason: str = ""
    flow: bool = False
    faults: tuple[Fault, ...] = ()

    def pairs(self) -> tuple[tuple[Node, Node], ...]:
        """The pairs of a map in the order of the file; nothing for any other kind."""
        return tuple(self.value) if self.kind == MAP else ()

    def items(self) -> tuple[Node, ...]:
        """The items of a list; nothing for any other kind."""
        return tuple(self.value) if self.kind == LIST else ()

    def shown(self, limit: int = 80) -> str:
        """The value for a message: as written but for credentials of a URL, bounded; containers by their kind."""
        if self.kind in (MAP, LIST):
            return f"{WORDS[self.kind]} of {len(self.value)}"
        if self.kind == NULL:
            return "nothing" if not self.raw else clip(self.raw, limit)
        text = f'"{self.value}"' if self.kind == TEXT else self.raw
        return clip(_USERINFO.sub("//[hidden]@", text), limit)


def join(path: str, key: str) -> str:
    """``network`` and ``allow`` give ``network.allow``; a key that is no plain word is quoted."""
    word = key if key.replace("_", "a").replace("-", "a").isalnum() else f'"{clip(key, 60)}"'
    return f"{path}.{word}" if path else word


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every node with its key path, parents first; the keys of a map come with the path of their value."""
    yield path, node
    for key, value in node.pairs():
        name = join(path, str(key.value) if key.value is not None else key.raw)
        if key.faults:
            yield name, key
        yield from walk(value, name)
    for index, item in enumerate(node.items()):
        yield from walk(item, f"{path}[{index}]")
