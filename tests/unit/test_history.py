# SPDX-License-Identifier: BSD-4-Clause
"""What happened in a session, put together from what it leaves (B8)."""

from __future__ import annotations

import json

import pytest

from asf_lib.core import decisions, history
from asf_lib.core.decisions import DENIED_NAME

RECORD = {
    "created": "2026-01-31T12:00:00Z",
    "started": "2026-01-31T12:00:09Z",
    "mode": "proxy",
    "isolation": "container",
}
VERIFICATION = {"at": "2026-01-31T12:00:08Z", "ok": True, "probes": [{"verdict": "pass"}, {"verdict": "warn"}]}
T0 = history.seconds("2026-01-31T12:00:00Z")


def words(events):
    return [one["event"] for one in events]


def deny(ts, host, **more):
    return {"ts": ts, "decision": "deny", "host": host, "port": 443, "reason": "denied-name", **more}


def test_a_living_session_in_order():
    assert T0 is not None
    supervised = history.supervised(
        [
            {"ts": "2026-01-31T12:00:02Z", "name": "caddy", "event": "start", "start": 1},
            {"ts": "2026-01-31T12:05:00Z", "name": "broker", "event": "exit", "status": "signal 9"},
            {"ts": "2026-01-31T12:05:01Z", "name": "broker", "event": "start", "start": 2},
        ]
    )
    refused = history.refused([deny(T0 + 60, "x.example"), {"ts": T0 + 61, "decision": "allow", "host": "y.example"}])
    found = history.ordered([*refused, *supervised, *history.life(RECORD, VERIFICATION, None)])
    assert words(found) == ["opened", "verified", "started", "refused", "exited", "restarted"]
    assert found[1]["verdicts"] == {"pass": 1, "warn": 1}
    assert found[4] == {"at": T0 + 300, "event": "exited", "program": "broker", "status": "signal 9"}


def test_a_closed_session_ends_last_whatever_its_clock_said():
    cleanup = {
        "created": RECORD["created"],
        "started": RECORD["started"],
        "at": "2026-01-31T13:00:00Z",
        "containers": {"a": {"role": "agent", "exit_code": 3}, "c": {"role": "caddy", "exit_code": 0}},
        "left": [],
    }
    late = history.refused([deny(history.seconds("2026-01-31T14:00:00Z"), "late.example")])
    found = history.ordered([*late, *history.life({}, VERIFICATION, cleanup)])
    assert words(found) == ["opened", "verified", "started", "refused", "ended", "closed"]
    assert found[4]["exit_code"] == 3 and "left" not in found[5]
    assert history.life({}, None, {**cleanup, "left": ["secret x"]})[-1]["left"] == ["secret x"]


def test_the_same_refusal_in_a_row_is_one_event():
    rows = [deny(5, "a.example"), deny(1, "a.example"), deny(9, "a.example", count=40), deny(10, "b.example")]
    found = history.ordered(history.refused(rows))
    assert [(one["host"], one["count"], one["at"], one.get("last")) for one in found] == [
        ("a.example", 42, 1.0, 9.0),
        ("b.example", 1, 10.0, None),
    ]


def test_the_probe_of_asf_is_no_event():
    assert history.refused([deny(1, DENIED_NAME), deny(2, "a.example")], DENIED_NAME)[0]["host"] == "a.example"


def test_times_have_fractions_and_offsets():
    """conmon writes the host's local time with nanoseconds: a line of this second may be younger than the watch."""
    assert history.seconds("2026-01-31T12:00:00.563293741+00:00") == pytest.approx(T0 + 0.563, abs=0.001)
    assert history.seconds("2026-01-31T13:30:00.5+01:30") == T0 + 0.5
    assert history.seconds("2026-01-31T12:00:00") == history.seconds("2026-01-31T12:00:00Z") == T0


def test_times_that_are_none():
    for stamp in (None, "", "yesterday", True, "2026-13-40T00:00:00Z"):
        assert history.seconds(stamp) is None
    assert history.life({}, None, None) == []


# --- numbers for lists ------------------------------------------------------------------------------------------------

LINE = '{"level":"info","msg":"decision","host":"%s","port":"443","decision":"%s","reason":"r"%s}\n'


def test_a_tally_agrees_with_reading_every_line():
    log = "".join(
        [
            LINE % (DENIED_NAME, "deny", ""),
            LINE % ("a.example", "allow", ""),
            LINE % ("b.example", "deny", ""),
            LINE % ("b.example", "deny", ',"count":17,"others":false'),
            LINE % ("c.example", "allow", ',"count":5'),
            '{"level":"info","msg":"server running"}\n',
        ]
    )
    assert decisions.tally(log.encode(), DENIED_NAME) == (1 + 1 + 17 + 5, 1 + 17)


def test_a_tally_of_a_session_that_allows_what_it_must_deny():
    """The probe's question is nobody's request, whatever came of it and however often; no number falls below zero."""
    outcomes = [("deny", ""), ("allow", ""), ("allow", ',"count":4'), ("deny", ',"count":3')]
    log = "".join(LINE % (DENIED_NAME, *outcome) + LINE % ("a.example", *outcome) for outcome in outcomes)
    assert decisions.tally(log.encode(), DENIED_NAME) == (9, 4)
    assert decisions.tally(log.encode()) == (18, 8)


def test_a_workload_cannot_forge_numbers():
    """What it sends stands inside a JSON text, where quotation marks are escaped."""
    evil = '","decision":"deny","msg":"decision","count":999'
    log = f'{{"msg":"decision","host":{json.dumps(evil)},"decision":"allow"}}\n'
    assert decisions.tally(log.encode()) == (1, 0)


def test_hosts_by_number_of_decisions():
    rows = [{"host": "a", "decision": "allow"}, {"host": "b", "decision": "deny", "count": 3}, {"decision": "allow"}]
    assert decisions.by_host(rows, 10) == {
        "b": {"allow": 0, "deny": 3},
        "a": {"allow": 1, "deny": 0},
        "": {"allow": 1, "deny": 0},
    }
    assert decisions.by_host(rows, 1) == {"b": {"allow": 0, "deny": 3}, "": {"allow": 2, "deny": 0}}
