# SPDX-License-Identifier: BSD-2-Clause
"""What a workload can influence is data (invariant 10): text made harmless for terminals, HTML and Markdown.

Every function bounds the length of its result. Redact before escaping or clipping: a secret that was cut or
escaped is no longer found by ``redact.Redactor``.
"""

from __future__ import annotations

import html as _html
import re
import unicodedata

#: Categories that move the cursor, reorder, hide or have no agreed glyph: controls (C0, C1, ESC, DEL), format
#: characters (bidi controls, zero-width, soft hyphen, tags), surrogates, private use, unassigned, line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: Invisible characters of harmless categories: combining grapheme joiner, Hangul and Khmer fillers, Braille blank,
#: Mongolian and other variation selectors.
_INVISIBLE = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0}
    | set(range(0xFE00, 0xFE10))
    | set(range(0xE0100, 0xE01F0))
)
#: More combining marks on one letter than any script needs overwrite the lines around it.
_MAX_MARKS = 4
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN = re.compile(r"[ -~]*\Z")
_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")

DEFAULT_LIMIT = 500


def _visible(char: str) -> str:
    """An unsafe character as an ASCII escape. A byte that was no UTF-8 (surrogateescape) shows as ``\\xNN``."""
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clip(text: str, limit: int = DEFAULT_LIMIT, more: int = 0) -> str:
    """The text, at most ``limit`` characters of it; what was cut is said within the limit (``…[+123]``).

    ``more`` counts characters that the caller has cut already. The number is a hint (the note itself hides a few
    characters more), the bound is a promise.
    """
    over = max(0, len(text) - limit) + more
    if not over:
        return text
    note = f"…[+{over}]"
    return (text[: max(0, limit - len(note))] + note)[: max(0, limit)]


def terminal(text: object, limit: int = DEFAULT_LIMIT) -> str:
    """One line that a terminal prints as it is: no control, bidi, zero-width or unassigned character, bounded."""
    source = str(text)
    head = source[: max(0, limit)]  # cut early, so that a huge input costs nothing
    more = len(source) - len(head)
    if _PLAIN.match(head):
        return clip(head, limit, more)
    parts: list[str] = []
    marks = 0
    for char in head:
        category = unicodedata.category(char)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        unsafe = category in _UNSAFE or ord(char) in _INVISIBLE or marks > _MAX_MARKS
        parts.append(_visible(char) if unsafe else char)
    return clip("".join(parts), limit, more)


def html(text: object, limit: int = DEFAULT_LIMIT) -> str:
    """Text for element content and quoted attributes. The limit is applied before the entities."""
    return _html.escape(terminal(text, limit), quote=True)


def markdown(text: object, limit: int = DEFAULT_LIMIT) -> str:
    """Text that CommonMark shows literally, on one line: every ASCII punctuation character is escaped."""
    escaped = _MARKDOWN.sub(r"\\\1", terminal(text, limit))
    # Leading blanks would make a code block.
    stripped = escaped.lstrip(" ")
    return "&#32;" * (len(escaped) - len(stripped)) + stripped
