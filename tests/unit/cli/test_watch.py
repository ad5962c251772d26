# SPDX-License-Identifier: BSD-4-Clause
"""What ``asf-play watch`` shows and what it makes of it; the events themselves come from real sessions (tests/e2e)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from asf_cli import errors, render
from asf_cli.commands import watch
from asf_cli.errors import CliError

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "docs" / "schemas" / "watch.json").read_text())
AT = 1_767_225_600.5
HOSTILE = "evil\x1b[2J.example\u202e"
DRIFT = {"vantage": "outside", "verdict": "fail", "expect": "one default route", "evidence": f"routes: {HOSTILE}"}
EVENTS: list[dict[str, Any]] = [
    {"event": "state", "state": "live", "reasons": []},
    {"event": "verified", "probes": 90, "seconds": 0.8},
    {
        "event": "decision",
        "decision": "allow",
        "listener": "L1",
        "host": "docs.example.com",
        "port": 443,
        "reason": "ok",
    },
    {"event": "decision", "decision": "deny", "host": HOSTILE, "port": 443, "reason": "denied-name", "count": 3},
    {"event": "decision", "decision": "deny", "target": "GET /x", "reason": "denied-method"},
    {"event": "more", "allow": 2, "deny": 40},
    {"event": "exited", "program": "broker", "status": "signal 9"},
    {"event": "restarted", "program": "broker"},
    {"event": "drift", "probe": "caddy-routes", **DRIFT},
    {"event": "recovered", "probe": "caddy-routes"},
    {"event": "ended", "how": "exit", "exit_code": 3, "reason": "limits.time: 3 s were over"},
]


def seen(*events: dict[str, Any]) -> watch.Seen:
    found = watch.Seen("claude.main")
    for one in events:
        found.feed({"at": AT, **one})
    return found


def ended(how: str = "exit", code: int | None = 0) -> dict[str, Any]:
    return {"event": "ended", "how": how, "exit_code": code}


def test_every_line_is_as_the_published_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    for one in [*({"at": AT, **event} for event in EVENTS), seen(*EVENTS).summary()]:
        watch._show(one, True, render.Style())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == len(EVENTS) + 1
    for line in lines:
        jsonschema.validate(line, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"event": "drift", "at": "x"}, SCHEMA)


@pytest.mark.parametrize("event", EVENTS, ids=lambda one: one["event"])
def test_every_line_for_people_is_harmless_and_one_line(event: dict[str, Any]) -> None:
    text = watch.text({"at": AT, **event}, render.Style())
    assert text.startswith("2026-01-01T00:00:00.500Z ") and "\n" not in text and "\x1b" not in text
    assert "\u202e" not in text
    assert len(watch.text({"at": AT, **event}, render.Style(width=40))) <= 40


def test_the_summary_counts_what_was_seen() -> None:
    found = seen(*EVENTS).summary()
    assert (found["allowed"], found["denied"], found["restarts"], found["checks"]) == (3, 44, 1, 1)
    assert found["drifted"] == ["caddy-routes"] and found["how"] == "exit" and found["exit_code"] == 3
    assert "44 denied" in watch.text(found, render.Style())


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([ended()], 0),
        ([ended(code=3)], 3),
        ([ended("closed", None)], 0),
        ([ended("lost", None)], errors.ENGINE),
        ([{"event": "drift", "probe": "p", **DRIFT}, {"event": "recovered", "probe": "p"}, ended()], errors.VERIFY),
        ([{"event": "state", "state": "broken", "reasons": ["x"]}, ended(code=3)], errors.VERIFY),
    ],
)
def test_the_exit_code_says_what_was_seen(events: list[dict[str, Any]], code: int) -> None:
    assert seen(*events).code() == code


@pytest.mark.parametrize("word", ["0", "1.9", "-5", "nan", "inf", "1e9", "x", ""])
def test_an_interval_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(CliError) as caught:
        watch._interval(word)
    assert caught.value.fields["key"] == "--interval"
    assert watch._interval("5") == 5
