# SPDX-License-Identifier: BSD-4-Clause
"""What a workload can influence is data (invariant 10)."""

from __future__ import annotations

import re
import unicodedata

import pytest

from asf_lib.core import escape


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 100 %", "plain text, 100 %"),
        ("ünïcödé 漢字 🙂", "ünïcödé 漢字 🙂"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\nb\r\tc\0", "a\\nb\\r\\tc\\x00"),
        ("\x7f\x9b31m", "\\x7f\\x9b31m"),
        ("abc\u202egpj.exe\u2066x\u2069", "abc\\u202egpj.exe\\u2066x\\u2069"),
        ("zero\u200bwidth\u200d\ufeff\u2060", "zero\\u200bwidth\\u200d\\ufeff\\u2060"),
        ("soft\u00adhyphen \u3164\u2800", "soft\\xadhyphen \\u3164\\u2800"),
        ("line\u2028sep\u2029", "line\\u2028sep\\u2029"),
        ("tag\U000e0041 vs\ufe0f \U000e0100", "tag\\U000e0041 vs\\ufe0f \\U000e0100"),
        ("private \ue000 unassigned \u0378", "private \\ue000 unassigned \\u0378"),
        ("bad byte \udcff, lone \ud800", "bad byte \\xff, lone \\ud800"),
        ("e" + "\u0301" * 6, "e" + "\u0301" * 4 + "\\u0301" * 2),
        (17, "17"),
    ],
)
def test_terminal(text: object, shown: str) -> None:
    assert escape.terminal(text) == shown


def test_no_character_at_all_gets_through_as_a_control() -> None:
    bad = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    text = "".join(char for char in map(chr, range(0x3000)) if unicodedata.category(char) in bad)
    text += "".join(char for char in map(chr, range(0xD800, 0x10000)) if unicodedata.category(char) in bad)
    text += "".join(map(chr, range(0xE0000, 0xE0200)))
    assert re.fullmatch(r"[ -~]*", escape.terminal(text, 10 * len(text)))


@pytest.mark.parametrize("function", [escape.terminal, escape.clip])
@pytest.mark.parametrize("text", ["a" * 1000, "é\x1b" * 500, ""])
@pytest.mark.parametrize("limit", [0, 1, 5, 20, 500])
def test_the_length_is_bounded_and_the_cut_is_said(function, text: str, limit: int) -> None:
    shown = function(text, limit)
    assert len(shown) <= limit
    if text and limit >= 20:
        assert "…[+" in shown


def test_the_cut_counts_what_is_missing() -> None:
    assert escape.clip("a" * 1000, 20) == "a" * 13 + "…[+980]"
    assert escape.clip("abc", 3) == "abc"


def test_html() -> None:
    assert escape.html("<b onclick='x' a=\"y\">&\x1b") == "&lt;b onclick=&#x27;x&#x27; a=&quot;y&quot;&gt;&amp;\\x1b"
    assert escape.html("<" * 20, 10).count("&lt;") <= 10


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[x](http://evil.example)", r"\[x\]\(http\:\/\/evil\.example\)"),
        ("![i](u) `code` **b** _i_ <s>", r"\!\[i\]\(u\) \`code\` \*\*b\*\* \_i\_ \<s\>"),
        ("# head\n- item | cell", r"\# head\\n\- item \| cell"),
        ("    code", "&#32;&#32;&#32;&#32;code"),
    ],
)
def test_markdown(text: str, shown: str) -> None:
    assert escape.markdown(text) == shown
