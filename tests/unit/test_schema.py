# SPDX-License-Identifier: BSD-4-Clause
"""The declarations behind validator and JSON Schema, and the forms of text."""

from __future__ import annotations

import re

import pytest

from asf_lib.core import formats, grants, jsonschema, manifest_schema, settings
from asf_lib.core.schema import (
    ByKind,
    Checked,
    Choice,
    Flag,
    Format,
    Key,
    ListOf,
    Number,
    Section,
    Spec,
    Text,
    When,
    check,
    leaves,
    misformed,
)
from asf_lib.engine import yamlload

SPEC = Section(
    {
        "mode": Key(Choice(("one", "two")), "m", default="one"),
        "words": Key(ListOf(Text(), 1, 3), "w"),
        "ports": Key(ByKind((ListOf(Number(1, 9)), Choice(("any",)))), "p"),
        "inner": Key(Section({"flag": Key(Flag(), "f", default=True)}, always=True), "i"),
        "sum": Key(Number(0, 10, decimal=True), "s"),
    },
    rules=(When("mode", ("two",), needs=("words",), forbids=("inner.flag",), why="because"),),
)


def _check(text: str) -> Checked:
    return check(SPEC, yamlload.parse(text.encode(), "t"), "t")


def _keys(text: str) -> list[str | None]:
    return [problem.key for problem in _check(text).problems]


def test_defaults_are_filled_in_and_marks_kept() -> None:
    checked = _check("words: [a]\n")
    assert checked.data == {"mode": "one", "words": ["a"], "inner": {"flag": True}}
    assert checked.marks == {"": (1, 1), "words": (1, 8), "words[0]": (1, 9)}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("mode: three", ["mode"]),
        ("words: []", ["words"]),
        ("words: [a, b, c, d]", ["words"]),
        ("words: [a, a]", ["words[1]"]),
        ("ports: any", []),
        ("ports: [1, 2]", []),
        ("ports: [0]", ["ports[0]"]),
        ("ports: some", ["ports"]),
        ("ports: 3", ["ports"]),
        ("inner: {flag: 1}", ["inner.flag"]),
        ("inner: {flga: true}", ["inner.flga"]),
        ("sum: 1.5", []),
        ("sum: 10.5", ["sum"]),
        ("mode: two", ["words"]),
        ("mode: two\nwords: [a]\ninner: {flag: false}", ["inner.flag"]),
        ("mode: one\ninner: {flag: false}", []),
        ("1: x", [None]),
        ("? [a]\n: x", [None]),
        ("'two words': x", ['"two words"']),
        ("mode: one\nmode: two", ["mode"]),
    ],
)
def test_problems(text: str, keys: list[str | None]) -> None:
    assert _keys(text) == keys


def test_a_problem_at_an_absent_key_stands_at_its_parent() -> None:
    checked = _check("mode: one\ninner: {}\n")
    checked.at("inner.flag", "x")
    checked.at("words[3].name", "x")
    assert [(problem.line, problem.column) for problem in checked.problems] == [(2, 8), (1, 1)]


def test_found_values_are_bounded() -> None:
    (problem,) = _check(f"mode: {'x' * 10000}").problems
    assert len(problem.text()) < 300


def _texts(spec: Spec) -> list[Format]:
    if isinstance(spec, Text):
        return [spec.form] if spec.form else []
    if isinstance(spec, ListOf):
        return _texts(spec.item)
    if isinstance(spec, ByKind):
        return [form for option in spec.options for form in _texts(option)]
    return []


@pytest.mark.parametrize(
    "spec", [manifest_schema.MANIFEST, grants.GRANTS, settings.SETTINGS], ids=["manifest", "repos", "config"]
)
def test_every_key_is_documented_and_every_pattern_is_anchored(spec: Section) -> None:
    for path, key in leaves(spec).items():
        assert key.doc.endswith("."), path
        for form in _texts(key.spec):
            assert form.pattern.startswith("^") and form.pattern.endswith("$"), form.name
            assert "\\A" not in form.pattern and "\\Z" not in form.pattern and "(?P" not in form.pattern, "ECMAScript"


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        (formats.NAME, ["a", "a-b_c1", "0x"], ["", "A", "-a", "a.b", "a b", "a\n", "a" * 64, "ä", "{{a}}"]),
        (
            formats.HOST,
            ["a.example", "xn--a-ecp.example.com", "1.example.com", "a-b.example.com", "a" * 63 + ".example.com"],
            ["a", "a.", ".a.b", "a..b", "a_b.example", "-a.example", "a-.example", "A.example", "*.example.com",
             "1.2.3.4", "0x7f.1", "2130706433", "::1", "[::1]", "a.b:443", "https://a.b", "a.b/c", "a b.example",
             "a.example\n",
             "user@a.example", "a" * 64 + ".example.com", "x.localhost", "exämple.com", "a.1"],
        ),
        (
            formats.CIDR,
            ["10.0.0.0/8", "192.0.2.1/32", "0.0.0.0/0"],
            ["10.0.0.0", "10.0.0.1/8", "10.0.0.0/33", "010.0.0.0/8", "10.0.0.0/08", "::/0", "10.0.0.0/255.0.0.0", "x"],
        ),
        (
            formats.PRIVATE,
            ["10.0.0.0/8", "192.168.1.0/24", "100.64.0.0/10", "169.254.169.254/32"],
            ["127.0.0.0/8", "0.0.0.0/0", "8.8.8.0/24", "224.0.0.0/4", "10.0.0.0/7", "fc00::/7"],
        ),
        (formats.ADDRESS, ["192.0.2.1"], ["192.0.2.256", "192.0.2.01", "192.0.2", "::1"]),
        (formats.ENV_NAME, ["A", "_a1"], ["", "1A", "A-B", "A=B", "A B", "É"]),
        (formats.FILE_NAME, ["a.env", "_x"], ["../a", "a/b", ".a", "-a", "", ".."]),
        (
            formats.TARGET,
            ["/home/node/.claude", "/home/node/a/b+c@d"],
            ["/home/node", "/home/node/", "/home/nodes/a", "/home/node/..", "/home/node/a/../b", "/home/node/./a",
             "/home/node//a", "/home/node/a/", "home/node/a", "/home/node/a,ro=false", "/home/node/a:b",
             "/home/node/a b", "/home/node/é"],
        ),
        (
            formats.BASE_URL,
            ["https://a.example.com", "https://a.example.com:8443/v1/x"],
            ["http://a.example.com", "https://A.example.com", "https://1.2.3.4/", "https://[::1]/", "https://u:p@a.example.com",
             "https://a.example.com?x=1", "https://a.example.com/#x", "https://a.example.com:0", "https://a.example.com:99999",
             "https://a", "a.example.com", "https://a.example.com:x", "https:///x", "https://a.example.com/a b"],
        ),
        (formats.PROXY_URL, ["http://p.example.com:3128"], ["http://u:p@p.example.com", "socks5://p.example.com", "http://p"]),
        (formats.SIZE, ["512m", "8g", "8G", "2GiB", "1tb"], ["8", "8.5g", "0g", "1m", "2000t", "999999999999t",
             "-1g", "8 g", "g", "8x"]),
        (formats.DURATION, ["90s", "8h"], ["8", "0h", "8y", "1h30m", "3651d"]),
        (formats.APT, ["jq", "libc6=2.36-9+deb12u4"], ["-y", "a b", "a;b", "A", "jq="]),
    ],
)  # fmt: skip
def test_forms(form: Format, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert misformed(form, text) is None, text
        assert re.search(form.pattern, text), f"{text}: refused by the JSON Schema, accepted by the validator"
    for text in bad:
        assert misformed(form, text) is not None, text


def test_sizes_and_durations() -> None:
    assert [formats.size_bytes(text) for text in ("1k", "2M", "3gib", "1tb")] == [1 << 10, 2 << 20, 3 << 30, 1 << 40]
    assert [formats.duration_seconds(text) for text in ("5s", "2m", "3h", "1d")] == [5, 120, 10800, 86400]


def test_rules_become_conditions() -> None:
    (rule,) = jsonschema.render(SPEC)["allOf"]
    assert rule["if"] == {"properties": {"mode": {"enum": ["two"]}}, "required": ["mode"]}
    assert rule["then"]["allOf"][0] == {"properties": {"words": True}, "required": ["words"]}
    assert rule["then"]["allOf"][1] == {"properties": {"inner": {"properties": {"flag": False}}}}
