# SPDX-License-Identifier: BSD-4-Clause
"""Sessions, decisions and events as text: escaped, fitted to narrow terminals, coloured only where asked."""

from __future__ import annotations

import io
import os
import pty

import pytest

from asf_cli import logtext, render, sessionview
from asf_cli.commands import events
from asf_cli.errors import CliError

PLAIN, NARROW, GAUDY = render.Style(), render.Style(False, True, 40), render.Style(True, True, 0)
EVIL = "evil\x1b]52;c;aGk=\x07\u202e\nname"
FOUND = {
    "session": "claude.main",
    "state": "live",
    "reasons": [],
    "created": "2026-01-31T12:00:00Z",
    "age_s": 3700,
    "mode": "proxy",
    "isolation": "container",
    "verified": {"at": "2026-01-31T12:00:08Z", "ok": True, "verdicts": {"pass": 80, "warn": 1}},
    "containers": [{"role": "agent", "alive": False, "status": "running", "pid": 7, "exit_code": None}],
    "decisions": {"deny": {"denied-name": 2}},
    "hosts": {EVIL: {"allow": 0, "deny": 2}},
    "grants": [{"path": f"/home/me/{EVIL}", "mode": "rw", "target": "/workspace/repos/x"}],
    "limits": {"memory": None, "pids": 100, "time": 60},
    "time_left_s": 30,
    "requests": 2,
    "denied": 2,
    "warnings": ["limits.cpus cannot be enforced"],
}
ROW = {**FOUND, "reasons": ["the caddy container is gone"], "state": "broken"}


def harmless(lines):
    return all(character.isprintable() for line in lines for character in line)


def test_a_session_tells_everything_and_nothing_escapes():
    lines = sessionview.session(FOUND, PLAIN)
    text = "\n".join(lines)
    assert harmless(lines)
    for wanted in ("claude.main  live", "1 h 1 min ago", "80 pass, 1 warn", "time 1 min (30 s left)", "agent", "dead"):
        assert wanted in text, text
    assert "\\x1b]52" in text and "2 denied" in text and "warning: limits.cpus" in text


ROUTED = {
    "lost": None,
    "rules": [
        {"key": "network.allow[0]", "cidr": EVIL, "protocol": "tcp", "ports": [22, 80], "packets": 7, "bytes": 900}
    ],
    "drops": [{"reason": "unlisted", "packets": 3, "bytes": 180}, {"reason": "source", "packets": 0, "bytes": 0}],
    "flows": [{"protocol": "tcp", "address": EVIL, "port": 22, "packets": 1, "bytes": 60, "age_s": 5}],
    "denials": [{"protocol": "icmp", "address": "8.8.8.8", "port": None, "packets": 3, "bytes": 180, "age_s": 5}],
    "more": {"flows": 12, "denials": 0},
}


def test_a_gateway_tells_what_it_let_through_and_what_it_dropped():
    lines = sessionview.session({**FOUND, "routed": ROUTED}, PLAIN)
    text = "\n".join(lines)
    assert harmless(lines) and "22,80" in text and "unlisted" in text and "source" not in text
    assert "and 12 more" in text and "icmp" in text
    lines = sessionview.session({**FOUND, "routed": {"lost": f"dead {EVIL}"}}, PLAIN)
    assert harmless(lines) and any("the gateway's counters are lost: dead" in line for line in lines)
    assert max(map(len, sessionview.session({**FOUND, "warnings": [], "routed": ROUTED}, NARROW))) <= 40


def test_forty_columns():
    for lines in (
        sessionview.session({**FOUND, "warnings": []}, NARROW),
        render.sessions([ROW], NARROW),
    ):
        assert max(map(len, lines)) <= 40, lines
    blocks = render.sessions([{**ROW, "reasons": []}], render.Style(False, False, 20))
    assert blocks[0] == "claude.main" and "  state: broken" in blocks


def test_a_table_is_cut_where_it_is_widest():
    lines = render.table(("name", "why"), [["a", "x" * 100]], NARROW)
    assert lines == ["name  why", "a     " + "x" * 33 + "…"]
    assert render.table(("name", "why"), [["a", "x" * 100]], PLAIN)[1].endswith("x" * 100)


def test_colour_and_width_belong_to_terminals():
    main, other = pty.openpty()
    try:
        with open(other, "w", closefd=False) as stream:
            assert render.style(stream, {"TERM": "xterm", "COLUMNS": "40"}) == render.Style(True, True, 40)
            assert not render.style(stream, {"TERM": "xterm", "NO_COLOR": "1"}).colour
            assert not render.style(stream, {"TERM": "dumb"}).colour
    finally:
        os.close(main)
        os.close(other)
    assert render.style(io.StringIO(), {"TERM": "xterm", "COLUMNS": "40"}) == render.Style(False, False, 0)
    assert "\x1b[32m" in sessionview.session(FOUND, GAUDY)[0]


def test_decisions_as_lines():
    record = {
        "ts": 1796067926.55,
        "decision": "deny",
        "listener": "L1",
        "method": "CONNECT",
        "host": EVIL,
        "port": 443,
        "reason": "denied-name",
        "key": "network.allow_domains",
        "count": 3,
    }
    line = logtext.decision(record, PLAIN)
    assert line.startswith("2026-11-30T19:45:26.550Z deny  L1 CONNECT evil\\x1b]52") and line.endswith(" x3")
    assert harmless([line]) and len(logtext.decision(record, NARROW)) == 40
    assert "\x1b[31mdeny\x1b[0m" in logtext.decision(record, GAUDY)
    assert logtext.decision({"dropped": 12}, PLAIN) == "… 12 decisions are not kept"


def test_events_as_lines():
    refused = {
        "at": 1.0,
        "event": "refused",
        "host": EVIL,
        "port": 443,
        "reason": "denied-name",
        "count": 2,
        "last": 5.0,
    }
    line = events.text(refused, PLAIN)
    assert line.startswith("1970-01-01T00:00:01.000Z refused   evil\\x1b") and line.endswith(
        "x2 until 1970-01-01T00:00:05.000Z"
    )
    assert harmless([line])
    assert events.text({"at": None, "event": "ended", "exit_code": 3}, PLAIN) == f"{'-':<24} ended     exit_code 3"
    assert len(events.text(refused, NARROW)) == 40


@pytest.mark.parametrize(("word", "value"), [("all", None), ("0", 0), ("17", 17)])
def test_numbers_of_lines(word, value):
    assert logtext.limit(word) == value


@pytest.mark.parametrize("word", ["-1", "", "many", "9" * 12, "1.5"])
def test_odd_numbers_of_lines(word):
    with pytest.raises(CliError):
        logtext.limit(word)


def test_since():
    assert logtext.since(None) is None
    assert logtext.since("10m", now=1000) == 400 and logtext.since("1d", now=86400) == 0
    assert logtext.since("1970-01-01T00:01:00Z") == 60 == logtext.since("1970-01-01T00:01:00")
    for word in ("ten", "10", "-5m", "5w", "{{ x }}"):
        with pytest.raises(CliError):
            logtext.since(word)
    assert logtext.young("", 5) and not logtext.young("1970-01-01T00:00:01Z", 5)
    assert logtext.young("1970-01-01T00:00:06.123456789+00:00", 5)


def test_a_flood_before_following_is_bounded():
    first = logtext.Last(3)
    for number in range(10):
        first.add({"text": str(number)})
    assert first.left_out == 7 and [line["text"] for line in first.close()] == ["7", "8", "9"]
    assert not first.open
