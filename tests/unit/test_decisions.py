# SPDX-License-Identifier: BSD-4-Clause
"""Log lines of Caddy, supervisor and broker as evidence; what a workload put there stays data (invariant 10)."""

from __future__ import annotations

import json

import pytest
from support import schemas

from asf_lib.core import decisions
from asf_lib.engine import gathering, logs

DENIAL = {
    "level": "info",
    "ts": 1795965708.5,
    "logger": "asf",
    "msg": "decision",
    "session": "claude.main",
    "listener": "L1",
    "method": "CONNECT",
    "host": "evil.example",
    "port": "443",
    "decision": "deny",
    "reason": "denied-name",
    "detail": "",
    "key": "network.allow_domains",
    "addr": "",
    "up": 0,
    "down": 0,
    "ms": 1,
}


def _lines(*records: object) -> list[str]:
    return [json.dumps(record) for record in records]


def test_a_decision_keeps_its_fields_and_nothing_else() -> None:
    (found,) = decisions.parse(_lines({**DENIAL, "surprise": "x"})).decisions
    assert found["host"] == "evil.example" and found["port"] == 443 and found["ts"] == 1795965708.5
    assert "surprise" not in found and "session" not in found and "level" not in found


def test_kinds_are_told_apart_and_the_rest_is_counted() -> None:
    found = decisions.parse(
        [
            *_lines(DENIAL, {"asf": "supervisor", "name": "caddy", "event": "start", "pid": 2}),
            *_lines({"asf": "usage", "model": "m", "input_tokens": 3}, {"msg": "serving"}, [1], "text"),
            "not json",
            "{" * 9000,
            "{broken",
            "",
        ]
    )
    assert (len(found.decisions), len(found.supervisor), len(found.usage), found.other) == (1, 1, 1, 7)


@pytest.mark.parametrize(
    ("field", "raw", "kept"),
    [
        ("host", "h" * 4000, "h" * 260),
        ("host", "\x1b[31m‮{{ lookup('pipe','id') }}", "\x1b[31m‮{{ lookup('pipe','id') }}"),
        ("host", {"a": 1}, None),
        ("host", 7, "7"),
        ("port", "443", 443),
        ("port", "٤٤٣", None),
        ("port", "4" * 30, None),
        ("port", True, None),
        ("up", float("nan"), None),
        ("up", 1e300, None),
        ("ms", 1.9, 1),
    ],
)
def test_fields_are_bounded_and_typed(field: str, raw: object, kept: object) -> None:
    (found,) = decisions.parse(_lines({**DENIAL, field: raw})).decisions
    assert found.get(field) == kept


def test_too_many_records_are_counted() -> None:
    found = decisions.parse(_lines(*[DENIAL] * 5), limit=2)
    assert len(found.decisions) == 2 and found.dropped == 3


def test_counts_by_decision_and_reason() -> None:
    records = [{"decision": "deny", "reason": "denied-name"}] * 2 + [{"decision": "allow", "reason": "ok"}, {}]
    assert decisions.counts(records) == {"deny": {"denied-name": 2}, "allow": {"ok": 1}, "?": {"?": 1}}


def test_B8_restarts_are_the_starts_after_the_first() -> None:
    events = [
        {"name": "broker", "event": "start"},
        {"name": "broker", "event": "exit"},
        {"name": "broker", "event": "start"},
        {"name": "caddy", "event": "start"},
    ]
    assert decisions.restarts(events) == {"broker": 1, "caddy": 0}


def test_a_line_with_a_number_stands_for_that_many() -> None:
    """Caddy counts what repeats (ledger.go)."""
    line = {"decision": "deny", "reason": "denied-name", "count": 997, "others": True, "first": 1.5, "last": 2.5}
    said = {"msg": "decision", **line}
    found = decisions.parse(_lines(DENIAL, said, {**said, "count": True}))
    assert found.decisions[1] == line
    assert decisions.counts(found.decisions) == {"deny": {"denied-name": 1 + 997 + 1}}
    assert decisions.parse(_lines(DENIAL, said), limit=1).dropped == 997


def test_usage_of_the_broker_by_model_and_in_total() -> None:
    found = decisions.usage(
        [],
        [
            {"model": "a", "input_tokens": 2, "cost_usd": 0.5, "status": 200, "ms": 1500},
            {"model": "b", "output_tokens": 3},
            {},
        ],
    )
    tokens = {"input_tokens": 2, "output_tokens": None, "cost_usd": 0.5}
    assert found["models"]["a"] == {"requests": 1, "statuses": {"200": 1}, "seconds": 1.5, **tokens}
    assert found["total"] == {**found["models"]["a"], "requests": 3, "statuses": {"0": 2, "200": 1}, "output_tokens": 3}
    assert found["front"]["routes"] == []


def test_usage_that_a_full_log_lost_is_in_the_total() -> None:
    """Each line has the sums of its process; here the first one's first lines are lost, and it was started again."""
    rows = [
        {
            "asf": "usage",
            "model": "a",
            "input_tokens": 2,
            "so_far": {"requests": n, "input_tokens": 2 * n, "cost_usd": n / 4},
        }
        for n in (9, 10, 1, 2, 3)
    ]
    total = decisions.usage([], decisions.parse(_lines(*rows)).usage)["total"]
    assert (total["requests"], total["input_tokens"], total["output_tokens"], total["cost_usd"]) == (13, 26, None, 3.25)


def test_models_that_a_workload_invents_are_bounded() -> None:
    records = [{"model": f"m{n}", "status": 400} for n in range(5000)] + [{"model": "real", "status": 200}] * 3
    found = decisions.usage([], records)
    assert len(found["models"]) == 101 and found["models"]["real"]["requests"] == 3
    assert found["models"]["(others)"]["requests"] == 5003 - 3 - 99 and found["total"]["requests"] == 5003


def test_usage_of_caddy_by_listener_and_route() -> None:
    passed = {"listener": "L2", "method": "POST", "target": "/v1/messages", "status": 200, "decision": "allow"}
    passed |= {"up": 5, "down": 7, "ms": 1500}
    refused = {"listener": "L2", "method": "GET", "target": "/<script>", "decision": "deny", "reason": "denied-path"}
    tunnels = {"listener": "L1", "decision": "deny", "reason": "denied-name", "count": 9}
    found = decisions.usage([passed, passed, refused, tunnels], [])
    assert found["listeners"]["L1"] == {"decisions": 9, "denied": 9, "up": 0, "down": 0, "seconds": 0}
    assert found["listeners"]["L2"] == {"decisions": 3, "denied": 1, "up": 10, "down": 14, "seconds": 3.0}
    assert [(row["route"], row["status"], row["decisions"]) for row in found["front"]["routes"]] == [
        ("POST /v1/messages", 200, 2),
        ("refused: denied-path", None, 1),
    ]
    assert found["total"]["requests"] == 0 and found["total"]["cost_usd"] is None
    alone = decisions.usage([tunnels], None)
    assert alone["front"] is None and alone["total"] is None and alone["models"] is None


def test_usage_of_caddy_by_host() -> None:
    """Bounded, because a workload invents hosts; nothing is lost in the sum."""
    docs = {"listener": "L1", "host": "docs.example.com", "decision": "allow", "up": 5, "down": 7, "ms": 500}
    invented = [{"listener": "L1", "host": f"h{n}.example", "decision": "deny"} for n in range(500)]
    found = decisions.usage(
        [docs, docs, {**docs, "count": 3}, {"listener": "L2", "decision": "allow"}, *invented], None
    )
    assert len(found["hosts"]) == 101
    assert found["hosts"][0] == {
        "host": "docs.example.com",
        **{"decisions": 5, "denied": 0, "up": 15, "down": 21, "seconds": 1.5},
    }
    assert found["hosts"][-1] == {"host": None, "decisions": 401, "denied": 401, "up": 0, "down": 0, "seconds": 0}
    assert schemas.problems(found, "evidence-usage") == []


def test_rows_of_a_log_file_are_joined_by_stream() -> None:
    rows = [
        "2026-01-01T00:00:00Z stdout P one ",
        "2026-01-01T00:00:00Z stderr F between",
        "2026-01-01T00:00:00Z stdout F two  words",
        "damaged",
        "2026-01-01T00:00:00Z stdout F ",
        "2026-01-01T00:00:00Z stdout P unfinished",
    ]
    assert logs.joined(rows) == ["between", "one two  words", "", "unfinished"]


def test_a_log_that_lost_its_beginning_is_noticed() -> None:
    first = '{"asf":"supervisor","name":"caddy","event":"start","pid":2,"start":1}'
    denial = '{"msg":"decision","decision":"deny","reason":"denied-name","host":"a.example.com"}'
    assert not gathering.lines_lost(decisions.parse([first, denial]))
    assert gathering.lines_lost(decisions.parse([denial]))
    assert not gathering.lines_lost(decisions.parse([]))
    usage = '{"asf":"usage","model":"m","status":200}'
    assert gathering.lines_lost(decisions.parse([usage]))
    assert not gathering.lines_lost(decisions.parse([first, usage]))


@pytest.mark.parametrize(("status", "said"), [("code 0", False), ("signal 9", True), ("code 2", True)])
def test_a_killed_caddy_takes_what_it_had_counted_along(status: str, said: bool) -> None:
    exited = json.dumps({"asf": "supervisor", "name": "caddy", "event": "exit", "status": status})
    denial = '{"msg":"decision","decision":"deny","reason":"denied-name","host":"a.example.com"}'
    notes = gathering._uncounted({"caddy": decisions.parse([denial, exited])})
    assert (len(notes) == 1 and status in notes[0]) if said else not notes
    assert gathering._uncounted({"caddy": decisions.parse([exited])}) == gathering._uncounted({}) == []


def _logged(*lines: dict) -> bytes:
    return b"".join(
        b"2026-01-01T00:00:00Z stderr F " + json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in lines
    )


def test_what_was_spent_is_read_from_the_last_line_of_usage_alone() -> None:
    """Out of a log as it is; what a workload names its model looks like no line of the front's."""
    forged = 'x","msg":"usage","so_far":{"requests":9}}'
    first = {"msg": "usage", "model": forged, "so_far": {"requests": 1, "input_tokens": 3, "cost_usd": 0.5}}
    last = {**first, "so_far": {"requests": 2, "input_tokens": 4, "output_tokens": 1, "cost_usd": 0.75}}
    noise = {"msg": "decision", "host": forged}
    told = {"requests": 2, "input_tokens": 4, "output_tokens": 1, "cost_usd": 0.75}
    whole = _logged(first, noise, last, noise)
    assert decisions.spent(whole) == told and decisions.tokens(told) == 5
    assert decisions.spent(whole + _logged(last)[:-20]) == told, "one that is being written"
    assert decisions.spent(_logged(noise)) is None and decisions.spent(b"") is None


def test_a_request_to_a_model_keeps_numbers_and_names() -> None:
    line = {
        "msg": "usage",
        "ts": 1.5,
        "model": "m",
        "status": 200,
        "outcome": "ok",
        "input_tokens": 3,
        "estimated": False,
    }
    (kept,) = decisions.parse([json.dumps({**line, "prompt": "secret", "so_far": {"requests": 1}})]).requests
    assert kept == {"ts": 1.5, "model": "m", "status": 200, "outcome": "ok", "input_tokens": 3}


def test_what_the_front_counted_is_what_it_said_last():
    sums = {"requests": 2, "input_tokens": 7, "cached_tokens": 1, "cache_write_tokens": 0, "output_tokens": 5, "x": 1}
    lines = [{"msg": "usage", "so_far": {"requests": 1}}, {"msg": "usage", "so_far": sums}, {"msg": "usage"}]
    found = decisions.parse(json.dumps(line) for line in lines)
    del sums["x"]
    assert found.counted == sums and found.other == 1
    assert decisions.usage([], [], found.counted)["front"]["counted"] == sums
