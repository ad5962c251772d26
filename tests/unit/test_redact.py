# SPDX-License-Identifier: BSD-4-Clause
"""Secrets are taken out of text in the forms that logs and errors use (invariants 4 and 9, case S4)."""

from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import pytest

from asf_lib.core import redact
from asf_lib.core.redact import MARK, Redactor

KEY = 'sk-ant-"api03"+/x\\y <&> ü~'


def _forms() -> dict[str, str]:
    raw = KEY.encode()
    return {
        "plain": KEY,
        "json": json.dumps(KEY)[1:-1],
        "json-unicode": json.dumps(KEY, ensure_ascii=False)[1:-1],
        "json-slash": json.dumps(KEY)[1:-1].replace("/", "\\/"),
        "url": quote(KEY, safe=""),
        "url-path": quote(KEY),
        "form": quote_plus(KEY),
        "url-lower": quote(KEY, safe="").replace("%2B", "%2b").replace("%2F", "%2f").replace("%22", "%22"),
        "base64": base64.b64encode(raw).decode(),
        "base64-url": base64.urlsafe_b64encode(raw).decode(),
        "hex": raw.hex(),
        "html": html.escape(KEY),
    }


@pytest.mark.parametrize("name", [name for name in _forms() if name != "url-lower"])
def test_every_form_is_found(name: str) -> None:
    assert Redactor([KEY]).text(f"before {_forms()[name]} after") == f"before {MARK} after"


def test_lower_case_percent_escapes_are_found() -> None:
    key = "sk/ant+0123456789"
    assert Redactor([key]).text("x=sk%2fant%2b0123456789") == f"x={MARK}"


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("after", range(4))
@pytest.mark.parametrize("length", range(8, 20))
def test_base64_inside_a_longer_text(before: int, after: int, length: int) -> None:
    """The header `Authorization: Basic base64(user:key)` has the key at any alignment."""
    key = "k3Y_sEcReT-0123456789"[:length]
    encoded = base64.b64encode(b"u" * before + key.encode() + b"z" * after).decode()
    shown = Redactor([key]).text(encoded)
    longest = max(map(len, shown.split(MARK)))
    # At most the characters that the key shares with its neighbours, and the neighbours' own, are left.
    assert MARK in shown if length > 8 else True
    assert MARK not in shown or longest <= 8


def test_short_values_are_ignored_and_longer_ones_not() -> None:
    assert Redactor(["test", "1234567"]).text("test 1234567") == "test 1234567"
    assert Redactor(["12345678"]).text("12345678") == MARK


def test_overlapping_values_leave_no_rest() -> None:
    both = Redactor(["abcdefgh", "efghijkl"])
    assert both.text("xx abcdefghijkl yy") == f"xx {MARK} yy"
    assert both.text("abcdefghefghijkl") == MARK
    assert Redactor(["secret-one", "secret-one-and-more"]).text("secret-one-and-more") == MARK


def test_a_value_with_a_newline_is_found_without_it() -> None:
    assert Redactor(["sk-ant-0123456789\n"]).text("key=sk-ant-0123456789;") == f"key={MARK};"


def test_tree() -> None:
    tree = {"a": [KEY, 1, None], KEY: {"b": (KEY,)}, "c": KEY.encode(), "d": True}
    cleaned = Redactor([KEY]).tree(tree)
    assert cleaned == {"a": [MARK, 1, None], MARK: {"b": (MARK,)}, "c": MARK.encode(), "d": True}
    assert KEY in tree["a"]


def test_without_values_everything_passes() -> None:
    assert Redactor().text("anything") == "anything"
    assert Redactor([""]).text("anything") == "anything"


def test_the_redactor_does_not_show_what_it_knows() -> None:
    assert KEY not in repr(Redactor([KEY]))


@pytest.mark.parametrize("name", ["MY_API_TOKEN", "db_password", "APIKEY", "API_KEY", "AWS_SECRET", "private_key_file"])
def test_names_that_look_like_a_secrets(name: str) -> None:
    assert redact.looks_secret(name)


@pytest.mark.parametrize("name", ["MAX_TOKENS", "KEYMAP", "EDITOR", "PASS", "LANG"])
def test_names_that_do_not(name: str) -> None:
    assert not redact.looks_secret(name)


def test_masked_hides_short_values_too() -> None:
    env = {"X_TOKEN": "abc", "PLAIN": "abc", "Y_TOKEN": ""}
    assert redact.masked(env) == {"X_TOKEN": MARK, "PLAIN": "abc", "Y_TOKEN": ""}
    assert redact.secret_values(env) == ["abc"]
