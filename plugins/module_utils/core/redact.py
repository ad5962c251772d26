# SPDX-License-Identifier: BSD-2-Clause
"""Secrets taken out of text before it is logged, shown or stored (invariants 4 and 9).

What is found: each value as it is and stripped, and its Base64 (standard and URL-safe, at each of the three byte
alignments, so inside a longer encoded text too), hexadecimal, URL-encoded, JSON-escaped and HTML-escaped forms.
Values of fewer than 8 characters are ignored: replacing ``test`` everywhere would destroy the text, and nothing that
short is a key. What was cut, encrypted, or encoded twice is not found; redact before clipping.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

MINIMUM = 8
MARK = "[redacted]"


def _base64_forms(value: bytes) -> set[str]:
    """The value in Base64, and the characters that depend on it alone for each alignment of it in a longer text."""
    found = {base64.b64encode(value).decode("ascii"), base64.urlsafe_b64encode(value).decode("ascii")}
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + value).decode("ascii")
        start = (0, 2, 3)[before]  # characters that the foreign bytes in front have a share in
        bits = (before + len(value)) * 8
        core = encoded[start : bits // 6]  # the last full character; the rest depends on what follows
        if len(core) >= MINIMUM:
            found |= {core, core.replace("+", "-").replace("/", "_")}
    return found


def _forms(value: str) -> set[str]:
    raw = value.encode("utf-8", "surrogateescape")
    escaped = json.dumps(value)[1:-1]
    forms = {value, escaped, escaped.replace("/", "\\/"), json.dumps(value, ensure_ascii=False)[1:-1]}
    percent = quote(raw, safe="")
    forms |= {percent, quote(raw), quote_plus(raw)}
    forms.add(re.sub("%[0-9A-F]{2}", lambda match: match.group().lower(), percent))
    forms |= {html.escape(value, quote=True), html.escape(value, quote=False)}
    forms |= {raw.hex(), raw.hex().upper()}
    return forms | _base64_forms(raw)


#: Words in the name of a variable whose value is likely a secret.
_SECRET_NAME = re.compile(
    r"TOKEN(?!S)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY", re.IGNORECASE
)


def looks_secret(name: str) -> bool:
    """Whether a variable of that name is likely to hold a secret."""
    return _SECRET_NAME.search(name) is not None


def masked(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with the values of those that are likely secrets replaced, however short they are."""
    return {name: MARK if value and looks_secret(name) else value for name, value in env.items()}


def secret_values(env: Mapping[str, str]) -> list[str]:
    """Values of the variables that are likely secrets."""
    return [value for name, value in env.items() if value and looks_secret(name)]


class Redactor:
    """Replaces every known form of the given secret values by ``[redacted]``.

    Immutable, and cheap to use without values: text passes through.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms: set[str] = set()
        for value in values:
            for candidate in {value, value.strip()}:
                if len(candidate) >= MINIMUM:
                    forms |= _forms(candidate)
        ordered = sorted(forms, key=lambda form: (-len(form), form))
        # A look-ahead finds overlapping hits: two values that share an edge must not leave each other's rest.
        self._pattern = re.compile("(?=(" + "|".join(map(re.escape, ordered)) + "))") if ordered else None

    def __repr__(self) -> str:
        return f"<Redactor {'active' if self._pattern else 'empty'}>"

    def text(self, text: str) -> str:
        """The text with every secret replaced; hits that overlap or touch become one mark."""
        if self._pattern is None:
            return text
        parts: list[str] = []
        kept = 0  # everything before it is copied or replaced
        for match in self._pattern.finditer(text):
            start, end = match.span(1)
            if start > kept or not parts:
                parts += [text[kept:start], MARK]
            kept = max(kept, end)
        return "".join(parts) + text[kept:]

    def tree(self, obj: Any) -> Any:
        """A copy of plain data (dict, list, tuple, str, bytes, scalars), redacted in keys and values."""
        if isinstance(obj, str):
            return self.text(obj)
        if isinstance(obj, bytes):
            return self.text(obj.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if isinstance(obj, dict):
            return {self.tree(key): self.tree(value) for key, value in obj.items()}
        if isinstance(obj, (list, tuple)):
            return type(obj)(self.tree(item) for item in obj)
        return obj
