# SPDX-License-Identifier: BSD-4-Clause
"""What of a workload's output may reach the user's terminal: text, and the control sequences named here. Pure.

A terminal obeys whoever writes to it: it puts text on the clipboard (OSC 52), types its own title back (CSI 21 t),
writes files (OSC 1337, 5113), tells what is on the screen (DECRQCRA). So nothing passes by default. Names and effects
are those of xterm's ctlseqs, ECMA-48 and the kitty keyboard protocol.

- Text is valid UTF-8 and the controls of ``_TEXT``. Bytes that are no UTF-8 become U+FFFD; C1 controls, as a byte or as
  U+0080 to U+009F, are dropped, so that none of them introduces anything.
- A sequence leaves in one piece, once it is whole and allowed: the terminal never sees the beginning of another. What
  belongs to a refused string is dropped up to its end, or to the next ESC, CAN or SUB, whichever comes first.
- Questions whose answers hold nothing but numbers and the terminal's name pass: programs need them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

#: Longest sequence that is kept while its end is awaited, in bytes; a longer one is refused.
LIMIT = 256

#: Up to 33 numbers: what is cut short anywhere must not be judged otherwise than the whole.
_NUMBERS = rb"(?:[0-9]{0,5}[;:]){0,32}[0-9]{0,5}"
#: Text, and those control sequences that neither ask nor leave anything behind but colours and the cursor: one match
#: for a whole screen, which makes the difference between 4 and 40 MB/s.
_TEXT = re.compile(
    rb"(?:[\x07-\x0f\x20-\x7e]+|\x1b\[" + _NUMBERS + rb"[@A-MPSXZ`abd-gmsu]"
    rb"|\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]"
    rb"|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})+"
)
_C1 = re.compile(rb"\xc2?[\x80-\x9f]")
#: The beginning of a character whose rest has not come yet.
_CUT = re.compile(rb"(?:[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
_WIDE = re.compile(rb"[\xc2-\xf4][\x80-\xbf]+")

_CSI = re.compile(rb"\x1b\[[ -?]{0,%d}[@-~]" % LIMIT)
_CSI_HEAD = re.compile(rb"\x1b\[[ -?]{0,%d}" % LIMIT)
_CSI_PARTS = re.compile(rb"\x1b\[([<-?]?)(" + _NUMBERS + rb")([ -/]*)([@-~])")
_ESCAPE = re.compile(rb"\x1b[ -/]{0,4}[0-~]")
_ESCAPE_HEAD = re.compile(rb"\x1b[ -/]{0,4}")
_OSC = re.compile(rb"\x1b\]([ -~]{0,%d})(?:\x07|\x1b\\)" % LIMIT)
_OSC_HEAD = re.compile(rb"\x1b\][ -~]{0,%d}\x1b?" % LIMIT)
#: Linux's console sets its palette by strings without an end (console_codes(4)).
_LINUX = re.compile(rb"\x1b\](?:R|P[0-9a-fA-F]{0,7})")
#: DCS, SOS, OSC, PM, APC, and the title of screen and tmux.
_STRINGS = b"PX]^_k"
_END = re.compile(rb"[\x18\x1a\x1b]")
_OSC_END = re.compile(rb"[\x07\x18\x1a\x1b]")

#: DEC private modes that a program may set and reset: cursor keys, reverse video, origin, wrap, blinking, cursor,
#: alternate screen, keypad, margins, mouse, focus, bracketed paste, synchronized output, colour scheme, resize reports.
MODES = frozenset(
    {1, 5, 6, 7, 9, 12, 25, 47, 66, 69, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1048, 1049}
    | {2004, 2026, 2031, 2048}
)
_ON = frozenset({7, 25})  # from the beginning
_SCREENS = (47, 1047, 1049)

#: Of private prefix, intermediates and final byte: the parameters that may come with them.
_ANY = re.compile(rb".*")
_ONE = re.compile(rb"[0-9]*")
_FEW = re.compile(rb"[0-9;]{0,12}")
_ALLOWED = {
    b"r": _ANY,
    b"T": _ONE,
    b"?J": _ONE,
    b"?K": _ONE,
    b"?c": _FEW,  # Linux: shape of the cursor
    b"h": re.compile(rb"4|34"),
    b"l": re.compile(rb"4|34"),
    b" q": _ONE,  # DECSCUSR
    b"!p": re.compile(rb""),  # DECSTR
    b">m": _FEW,  # XTMODKEYS
    b">n": _ONE,
    b">u": _ONE,  # kitty's keyboard: push, pop, set
    b"<u": _ONE,
    b"=u": _FEW,
}
_QUESTIONS = {
    b"c": _ONE,  # DA1, DA2, DA3
    b">c": _ONE,
    b"=c": _ONE,
    b"n": re.compile(rb"[56]"),  # status, place of the cursor
    b"?n": re.compile(rb"6|996"),
    b"$p": _ONE,  # DECRQM
    b"?$p": _ONE,
    b">q": re.compile(rb"0?"),  # XTVERSION
    b"?u": re.compile(rb""),
    b"?m": re.compile(rb"[0-9]"),
    b"t": re.compile(rb"14|16|18"),  # sizes
}
_OSC_QUESTIONS = re.compile(rb"1[0-2];\?|4;[0-9]{1,3};\?")
#: Save and restore the cursor, index, next line, tab stop, reverse index, keypad, character sets.
_ESCAPES = frozenset(b"\x1b" + word for word in b"7 8 D E H M = > (0 (A (B )0 )A )B".split())
_RESET = b"\x1bc"
#: Tells a terminal that it gets UTF-8: in another encoding the second byte of a letter can be a C1 control.
UTF8 = b"\x1b%G"

#: What puts one kind of change back.
_BACK = {
    "margins": b"\x1b7\x1b[r\x1b8",
    "insert": b"\x1b[4l",
    "keypad": b"\x1b>",
    "style": b"\x1b[0 q",
    "modkeys": b"\x1b[>4m",
    "keyboard": b"\x1b[<99u\x1b[=0u",
    "cursor": b"\x1b[?0c",
}
_CHANGES = {
    b"r": "margins",
    b"h": "insert",
    b" q": "style",
    b">m": "modkeys",
    b">n": "modkeys",
    b">u": "keyboard",
    b"=u": "keyboard",
    b"?c": "cursor",
}


class _Verdict(NamedTuple):
    """``out`` is passed on. ``change`` has to be put back. ``on``, ``off``: modes. ``asks``: an answer comes."""

    out: bytes = b""
    change: str = ""
    on: frozenset[int] = frozenset()
    off: frozenset[int] = frozenset()
    asks: bool = False


_REFUSED = _Verdict()


@lru_cache(maxsize=2048)
def _csi(sequence: bytes) -> _Verdict:
    parts = _CSI_PARTS.fullmatch(sequence)
    if parts is None:
        return _REFUSED
    prefix, parameters, intermediates, final = parts.groups()
    kind = prefix + intermediates + final
    if kind in (b"?h", b"?l"):
        return _modes(parameters, final)
    if kind in _QUESTIONS and _QUESTIONS[kind].fullmatch(parameters):
        return _Verdict(sequence, asks=True)
    if kind in _ALLOWED and _ALLOWED[kind].fullmatch(parameters):
        return _Verdict(sequence, _CHANGES.get(kind, ""))
    return _REFUSED


def _modes(parameters: bytes, final: bytes) -> _Verdict:
    """A list of modes is cut down to those that are allowed."""
    numbers = [int(word) for word in parameters.split(b";") if word.isdigit()]
    kept = [number for number in numbers if number in MODES]
    if not kept:
        return _REFUSED
    out = b"\x1b[?" + b";".join(b"%d" % number for number in kept) + final
    found = frozenset(kept)
    return _Verdict(out, on=found) if final == b"h" else _Verdict(out, off=found)


class Filter:
    """Takes a workload's output in pieces of any size. Keeps at most ``LIMIT`` bytes and a few flags.

    ``ascii_only``: the terminal does not speak UTF-8, so every other character becomes ``?``. ``clipboard`` counts the
    attempts to reach the clipboard, and ``asked`` says that the terminal was asked something.
    """

    def __init__(self, ascii_only: bool = False) -> None:
        self.asked = False
        self.clipboard = 0
        self._ascii_only = ascii_only
        self._rest = b""
        self._skipping: re.Pattern[bytes] | None = None
        self._plain = True
        self._changed: set[str] = set()
        self._modes: set[int] = set()  # those that are not as they were at the beginning

    def feed(self, data: bytes) -> bytes:
        """What of the output so far may be shown now."""
        data = self._rest + data
        self._rest = b""
        out: list[bytes] = []
        at: int | None = 0
        while at is not None and at < len(data):
            start = at
            if self._skipping is not None:
                at = self._skip(data, at, self._skipping)
            elif text := _TEXT.match(data, at):
                out.append(_WIDE.sub(b"?", text.group()) if self._ascii_only else text.group())
                at = text.end()
            elif data[at] == 0x1B:
                at = self._escape(data, at, out)
            else:
                at = self._odd(data, at, out)
            if at is None:
                self._rest = data[start:]
        shown = b"".join(out)
        self._plain = self._plain and b"\x1b" not in shown and b"\x0e" not in shown
        return shown

    def restore(self) -> bytes:
        """Puts the terminal back to where programs expect it: screen, cursor, keys, mouse, margins, colours."""
        if self._plain:
            return b""  # it may understand no sequences at all
        out = []
        if 2026 in self._modes:
            out.append(b"\x1b[?2026l")
        if "keyboard" in self._changed:  # each of the two screens has a stack of its own
            out.append(_BACK["keyboard"])
        out += [b"\x1b[?%dl" % number for number in _SCREENS if number in self._modes]
        out += [_BACK[name] for name in sorted(self._changed)]
        for number in sorted(self._modes - {2026, 1048, *_SCREENS}):
            out.append(b"\x1b[?%d%c" % (number, b"h" if number in _ON else b"l"))
        return b"".join(out) + b"\x1b[0m\x1b(B\x0f"

    def _skip(self, data: bytes, at: int, end: re.Pattern[bytes]) -> int:
        found = end.search(data, at)
        if found is None:
            return len(data)
        self._skipping = None
        return found.start() if found.group() == b"\x1b" else found.end()

    def _odd(self, data: bytes, at: int, out: list[bytes]) -> int | None:
        """A control, or bytes that are no character; None when it may become one."""
        if _CUT.match(data, at):
            return None
        if found := _C1.match(data, at):
            return found.end()
        if data[at] >= 0x80:
            out.append(b"?" if self._ascii_only else _REPLACEMENT)
        return at + 1

    def _escape(self, data: bytes, at: int, out: list[bytes]) -> int | None:
        """Where the sequence that begins here ends; None when its end has not come."""
        if found := _CSI.match(data, at):
            self._apply(_csi(found.group()), out)
            return found.end()
        follows = data[at + 1 : at + 2]
        if follows == b"[":
            return _unless_cut(_CSI_HEAD, data, at)
        if follows == b"]":
            return self._osc(data, at, out)
        if follows and follows in _STRINGS:
            self._skipping = _END
            return at + 2
        if found := _ESCAPE.match(data, at):
            self._simple(found.group(), out)
            return found.end()
        return _unless_cut(_ESCAPE_HEAD, data, at)

    def _osc(self, data: bytes, at: int, out: list[bytes]) -> int | None:
        if found := _LINUX.match(data, at):
            cut = found.end() == len(data) and 3 <= found.end() - at < 10 and data[at + 2] == ord("P")
            return None if cut else found.end()
        if found := _OSC.match(data, at):
            if _OSC_QUESTIONS.fullmatch(found[1]):
                self._apply(_Verdict(found.group(), asks=True), out)
            self.clipboard += found[1].startswith(b"52;")
            return found.end()
        if _unless_cut(_OSC_HEAD, data, at) is None:
            return None
        self.clipboard += data.startswith(b"\x1b]52;", at)
        self._skipping = _OSC_END
        return at + 2

    def _simple(self, sequence: bytes, out: list[bytes]) -> None:
        if sequence == _RESET:
            self._changed.clear()
            self._modes.clear()
            out.append(_RESET + UTF8)
        elif sequence in _ESCAPES:
            if sequence == b"\x1b=":
                self._changed.add("keypad")
            out.append(sequence)

    def _apply(self, verdict: _Verdict, out: list[bytes]) -> None:
        out.append(verdict.out)
        if verdict.change:
            self._changed.add(verdict.change)
        if verdict.on or verdict.off:
            self._modes |= (verdict.on - _ON) | (verdict.off & _ON)
            self._modes -= (verdict.on & _ON) | (verdict.off - _ON)
        self.asked = self.asked or verdict.asks


def _unless_cut(head: re.Pattern[bytes], data: bytes, at: int) -> int | None:
    """Where the beginning of a sequence stops that is none; None when it goes on to the end of what there is."""
    found = head.match(data, at)
    assert found is not None
    return None if found.end() == len(data) else found.end()
