# SPDX-License-Identifier: BSD-2-Clause
"""Secrets files: ``KEY=VALUE`` lines, read by rules that are the same as the shell's or refuse the line (S1, S2).

``RULES`` is the documentation; the reference prints it. No error and no representation ever holds a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import Problem, SecretError

RULES: tuple[tuple[str, str], ...] = (
    ("`KEY=value`", "The value is what follows `=`, up to the end of the line, without trailing blanks."),
    ("`export KEY=value`", "The same; `export` is ignored."),
    ("`KEY=\"value\"`, `KEY='value'`", "The value is what stands between the quotes, blanks included."),
    ("a blank, a quote, `$`, a backtick or `\\` in a value", "Refused outside single quotes: a shell would change it."),
    ("`KEY = value`, `KEY= value`", "Refused: no blank may stand beside `=`."),
    ("`# comment`, an empty line", "Skipped. A `#` inside a value belongs to the value."),
    ("lines that end in CR LF", "Accepted; the CR is not part of the value."),
    ("a byte order mark", "Accepted at the start of the file, and skipped."),
    ("no newline at the end of the file", "Accepted; a trailing newline is never part of a value."),
    ("the same key twice in one file", "Refused, with both line numbers. A later file overrides an earlier one."),
    ('`KEY=`, `KEY=""`', "Counts as not set: an earlier file's value stays; if there is none, it is an error."),
    ("an open quote, a line without `=`", "Refused, with the line number. Values have one line."),
    ("the key that is taken", "Must be printable ASCII without blanks at its ends; no provider's key has more."),
)

_LINE = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)\Z", re.S)
_SPACED = re.compile(r"[ \t]*(?:export[ \t]+)?[A-Za-z_][A-Za-z0-9_]*[ \t]+=")
LONGEST_CREDENTIALS = 1024
LONGEST_WORD = 4096  # ``maxToken`` of the gate
_SHELL = re.compile(r"[\s\"'$`\\]")


@dataclass(frozen=True)
class Entry:
    """One line of a secrets file. The value stays out of ``repr``."""

    name: str
    value: str = field(repr=False)
    line: int


@dataclass(frozen=True)
class Selection:
    """The one value that is taken, where it stands, and what was not taken: ``(file, name)`` of each other variable."""

    value: str = field(repr=False)
    file: str
    line: int
    others: tuple[tuple[str, str], ...]


def parse(data: bytes, file: str) -> list[Entry]:
    """The entries of a file in their order, empty values included. Raises SecretError with every bad line."""
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}

    def bad(number: int, message: str, remedy: str, key: str | None = None) -> None:
        problems.append(Problem(message, file, number, key=key, remedy=remedy))

    lines = data[3:].split(b"\n") if data.startswith(b"\xef\xbb\xbf") else data.split(b"\n")
    for number, raw in enumerate(lines, 1):
        line = raw[:-1] if raw.endswith(b"\r") else raw
        if not line.strip(b" \t") or line.lstrip(b" \t").startswith(b"#"):
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            bad(number, "the line is not UTF-8", "save the file as UTF-8")
            continue
        match = _LINE.match(text)
        if match is None:
            spaced = _SPACED.match(text) is not None
            bad(number, "a blank stands before `=`" if spaced else "this is not KEY=VALUE", "write KEY=VALUE")
            continue
        name = match.group(1)
        value, wrong, remedy = _value(match.group(2))
        if wrong:
            bad(number, wrong, remedy, name)
        elif name in entries:
            bad(number, f"the variable is set twice (first in line {entries[name].line})", "keep one of the two", name)
        else:
            entries[name] = Entry(name, value, number)
    if problems:
        raise SecretError(problems)
    return list(entries.values())


def _value(text: str) -> tuple[str, str, str]:
    """Value, what is wrong, remedy. The second is empty when all is well."""
    if re.search("[\x00-\x08\x0a-\x1f\x7f]", text):
        return "", "the value contains a control character", "remove it"
    quote = text[:1]
    if quote in ("'", '"'):
        end = text.find(quote, 1)
        if end < 0:
            return "", "the quote is not closed on this line", "close it; values have one line"
        inner, rest = text[1:end], text[end + 1 :].strip(" \t")
        if rest and not (rest.startswith("#") and text[end + 1] in " \t"):
            return "", "something follows the closing quote", "remove it"
        if quote == '"' and re.search(r"[$`\\]", inner):
            return "", "a shell would change this value (`$`, a backtick or `\\` in double quotes)", "use single quotes"
        return inner, "", ""
    value = text.rstrip(" \t")
    if value[:1] in (" ", "\t"):
        return "", "a blank follows `=`", "remove it, or quote the value"
    if _SHELL.search(value):
        return "", "a shell would change this value (a blank, a quote, `$`, a backtick or `\\`)", "use single quotes"
    return value, "", ""


def select(
    files: Sequence[tuple[str, Sequence[Entry]]], variable: str, named_by: str = "the manifest's llm.api_key_env"
) -> Selection:
    """The value of ``variable`` out of parsed files, the later file first. Raises SecretError when there is none.

    ``named_by`` says in the error which key asks for it.
    """
    chosen: tuple[str, Entry] | None = None
    empty: tuple[str, Entry] | None = None
    others = []
    for file, entries in files:
        for entry in entries:
            if entry.name != variable:
                others.append((file, entry.name))
            elif entry.value:
                chosen = (file, entry)
            else:
                empty = (file, entry)
    if chosen is None:
        raise SecretError([_missing(files, variable, empty, named_by)])
    file, entry = chosen
    problem = _unfit(entry, file)
    if problem is not None:
        raise SecretError([problem])
    return Selection(entry.value, file, entry.line, tuple(others))


def _missing(
    files: Sequence[tuple[str, Sequence[Entry]]], variable: str, empty: tuple[str, Entry] | None, named_by: str
) -> Problem:
    remedy = f"add a line {variable}=… ({named_by} names the variable)"
    if empty is not None:
        return Problem("the variable is empty", empty[0], empty[1].line, key=variable, remedy="write the key after `=`")
    if not files:
        return Problem("no secrets file is named", key="secrets.files", remedy=f"name one that sets {variable}")
    return Problem("the variable is not set in any secrets file", files[-1][0], key=variable, remedy=remedy)


def credentials(chosen: Selection, variable: str) -> Selection:
    """The selection, when its value is ``user:password`` (RFC 7617). Raises SecretError."""
    if chosen.value.find(":") < 1 or len(chosen.value) > LONGEST_CREDENTIALS:
        message = f"the value is not user:password of at most {LONGEST_CREDENTIALS} characters"
        remedy = "write the proxy's user, a colon and its password"
        raise SecretError([Problem(message, chosen.file, chosen.line, key=variable, remedy=remedy)])
    return chosen


def word(chosen: Selection, variable: str) -> Selection:
    """The selection, when an agent can be given its value: one word, which the gate passes on. Raises SecretError."""
    if " " in chosen.value or len(chosen.value) > LONGEST_WORD:
        message = f"the value is not one word of at most {LONGEST_WORD} characters"
        problem = Problem(message, chosen.file, chosen.line or None, key=variable, remedy="paste the key alone")
        raise SecretError([problem])
    return chosen


def _unfit(entry: Entry, file: str) -> Problem | None:
    """A provider's key that cannot be one: it would fail as an HTTP header, or was pasted with something else."""
    value = entry.value
    if value != value.strip():
        message = "the value begins or ends with a blank"
    elif not all("\x20" <= char <= "\x7e" for char in value):
        column = next(index for index, char in enumerate(value, 1) if not "\x20" <= char <= "\x7e")
        message = f"character {column} of the value is not printable ASCII (a pasted quote, a zero-width character?)"
    else:
        return None
    return Problem(message, file, entry.line or None, key=entry.name, remedy="paste the key again")


# --- writing ---------------------------------------------------------------------------------------------------


def with_value(data: bytes, file: str, name: str, value: str) -> bytes:
    """The file with ``name`` set to ``value``; every other line stays byte for byte. Raises SecretError.

    The result is read again by ``parse``: what is written is what a session will take.
    """
    problem = _unwritable(name, value, file) or _unfit(Entry(name, value, 0), file)
    if problem is not None:
        raise SecretError([problem])
    line = f"{name}={_quoted(value, name, file)}".encode()
    there = {entry.name: entry.line for entry in parse(data, file)}
    lines = data.split(b"\n")
    if name in there:
        index = there[name] - 1
        mark = b"\xef\xbb\xbf" if index == 0 and data.startswith(b"\xef\xbb\xbf") else b""
        lines[index] = mark + line + (b"\r" if lines[index].endswith(b"\r") else b"")
        written = b"\n".join(lines)
    else:
        end = b"\r\n" if b"\r\n" in data else b"\n"
        written = data + (b"" if not data or data.endswith(b"\n") else end) + line + end
    read_back = {entry.name: entry.value for entry in parse(written, file)}
    if read_back.get(name) != value:
        raise SecretError([Problem("the value cannot be written so that it is read the same", file, key=name)])
    return written


def _unwritable(name: str, value: str, file: str) -> Problem | None:
    if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        return Problem("this is no name of a variable", file, key="VARIABLE", remedy="letters, digits and `_`")
    if not value:
        return Problem("the value is empty; nothing was written", file, key=name, remedy="type or pipe the key")
    if re.search("[\r\n\x00]", value):
        return Problem("the value has more than one line", file, key=name, remedy="give the key alone")
    return None


def _quoted(value: str, name: str, file: str) -> str:
    """The value as it must stand after ``=``: bare, in single quotes, or in double ones."""
    if not _SHELL.search(value):
        return value
    if "'" not in value:
        return f"'{value}'"
    if not re.search(r'["$`\\]', value):
        return f'"{value}"'
    message = 'the value holds a single quote beside `"`, `$`, a backtick or `\\`: no form of the file can hold it'
    raise SecretError([Problem(message, file, key=name, remedy="ask the provider for another key")])
