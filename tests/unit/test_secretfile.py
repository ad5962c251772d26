# SPDX-License-Identifier: BSD-4-Clause
"""Secrets files: one rule per form (S1), no trailing newline in a key (S2), and no value in any error (S4)."""

from __future__ import annotations

import pytest

from asf_lib.core import secretfile
from asf_lib.core.errors import SecretError
from asf_lib.core.secretfile import Entry

CANARY = "sk-CANARY-0123456789"


def _values(data: str | bytes) -> dict[str, str]:
    raw = data.encode() if isinstance(data, str) else data
    return {entry.name: entry.value for entry in secretfile.parse(raw, "a.env")}


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (f"K={CANARY}\n", CANARY),
        (f"K={CANARY}", CANARY),  # no final newline
        (f'K="{CANARY}"\n', CANARY),
        (f"K='{CANARY}'\n", CANARY),
        (f"export K={CANARY}\n", CANARY),
        (f"  export   K='{CANARY}'\n", CANARY),
        (f"K={CANARY}\r\n", CANARY),
        (f"K={CANARY}\r", CANARY),
        (f"K={CANARY}  \t\n", CANARY),
        (f"\ufeffK={CANARY}\n", CANARY),
        (f"K={CANARY}\n\n\n", CANARY),
        (f"# comment\n\n  # another\nK={CANARY}\n", CANARY),
        (f'K="{CANARY}" # comment\n', CANARY),
        (f'K="{CANARY}"   \n', CANARY),
        ("K=a#b\n", "a#b"),
        ("K=a=b==\n", "a=b=="),
        ('K=" a b "\n', " a b "),
        ("K='$x`y\\z\"'\n", '$x`y\\z"'),
        ("K=\n", ""),
        ('K=""\n', ""),
        ("K=''\n", ""),
    ],
)
def test_s1_accepted_forms(data: str, value: str) -> None:
    assert _values(data) == {"K": value}


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (f"# x\nK = {CANARY}\n", 2, "a blank stands before `=`"),
        (f"K= {CANARY}\n", 1, "a blank follows `=`"),
        (f"K={CANARY} {CANARY}\n", 1, "a shell would change"),
        (f"K={CANARY} # comment\n", 1, "a shell would change"),
        (f"K={CANARY}$x\n", 1, "a shell would change"),
        (f"K=`{CANARY}`\n", 1, "a shell would change"),
        (f"K={CANARY}\\\n", 1, "a shell would change"),
        (f"K=a'{CANARY}'\n", 1, "a shell would change"),
        (f'K="{CANARY}\\n"\n', 1, "a shell would change"),
        (f'K="$(cat {CANARY})"\n', 1, "a shell would change"),
        (f'K="{CANARY}\n', 1, "not closed"),
        (f"K='{CANARY}\nmore'\n", 1, "not closed"),
        (f'K="{CANARY}"x\n', 1, "follows the closing quote"),
        (f'K="{CANARY}"#x\n', 1, "follows the closing quote"),
        (f"{CANARY}\n", 1, "not KEY=VALUE"),
        (f"2K={CANARY}\n", 1, "not KEY=VALUE"),
        (f"K-X={CANARY}\n", 1, "not KEY=VALUE"),
        (f"K: {CANARY}\n", 1, "not KEY=VALUE"),
        (f"={CANARY}\n", 1, "not KEY=VALUE"),
        (f"A=1\nK=a\nK={CANARY}\n", 3, "set twice (first in line 2)"),
        (f"K={CANARY}\x00\n", 1, "control character"),
        (f"K=a\r{CANARY}\n", 1, "control character"),
        (f"K={CANARY}\x1b[0m\n", 1, "control character"),
    ],
)
def test_s1_refused_forms_name_the_line_and_no_value(data: str, line: int, words: str) -> None:
    with pytest.raises(SecretError) as caught:
        _values(data)
    error = caught.value
    assert error.problems[0].line == line
    assert words in error.problems[0].message
    assert "CANARY" not in str(error) + repr(error) + repr(error.as_dict())


def test_a_line_that_is_not_utf8() -> None:
    with pytest.raises(SecretError, match=r"a\.env:2: the line is not UTF-8"):
        _values(b"A=1\nK=\xff\xfe\n")


def test_every_bad_line_is_reported() -> None:
    with pytest.raises(SecretError) as caught:
        _values("x\nA=1\ny z\nB= 2\n")
    assert [problem.line for problem in caught.value.problems] == [1, 3, 4]


def _entry(name: str, value: str, line: int = 1) -> Entry:
    return Entry(name, value, line)


def test_later_files_override_and_others_are_named() -> None:
    files = [("a.env", [_entry("K", "one"), _entry("X", "x")]), ("b.env", [_entry("K", "two", 4), _entry("Y", "y")])]
    chosen = secretfile.select(files, "K")
    assert (chosen.value, chosen.file, chosen.line) == ("two", "b.env", 4)
    assert chosen.others == (("a.env", "X"), ("b.env", "Y"))


def test_an_empty_value_counts_as_not_set() -> None:
    assert secretfile.select([("a.env", [_entry("K", "one")]), ("b.env", [_entry("K", "")])], "K").value == "one"
    with pytest.raises(SecretError, match=r"b\.env:7: K: the variable is empty"):
        secretfile.select([("b.env", [_entry("K", "", 7)])], "K")


@pytest.mark.parametrize(
    ("files", "words"),
    [([], "no secrets file is named"), ([("a.env", [_entry("X", CANARY)])], "not set in any secrets file")],
)
def test_a_missing_variable(files: list[tuple[str, list[Entry]]], words: str) -> None:
    with pytest.raises(SecretError, match=words) as caught:
        secretfile.select(files, "K")
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("“" + CANARY + "”", "character 1 of the value is not printable ASCII"),
        (CANARY + "\u200b", f"character {len(CANARY) + 1} of the value"),
        (" " + CANARY, "begins or ends with a blank"),
        (CANARY + " ", "begins or ends with a blank"),
        (CANARY + "\t", "begins or ends with a blank"),
    ],
)
def test_s2_a_key_that_cannot_be_one(value: str, words: str) -> None:
    with pytest.raises(SecretError) as caught:
        secretfile.select([("a.env", [_entry("K", value)])], "K")
    assert words in caught.value.message
    assert "CANARY" not in repr(caught.value.as_dict())


def test_s2_no_newline_whatever_the_file_ends_with() -> None:
    for end in ("", "\n", "\r\n", "\n\n", " \n", "\r"):
        entries = secretfile.parse(f"K={CANARY}{end}".encode(), "a.env")
        assert secretfile.select([("a.env", entries)], "K").value == CANARY


def test_no_representation_shows_a_value() -> None:
    chosen = secretfile.select([("a.env", [_entry("K", CANARY)])], "K")
    assert "CANARY" not in repr(chosen) + repr(_entry("K", CANARY))


def test_the_rules_are_documented() -> None:
    assert len(secretfile.RULES) == len({form for form, _ in secretfile.RULES}) >= 12
