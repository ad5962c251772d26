# SPDX-License-Identifier: BSD-4-Clause
"""Runner's events, as it hands them over, merged into one outcome and one document."""

import json

import pytest

from asf_cli import document, errors
from asf_cli.events import Outcome


def task(text):
    return {"event": "playbook_on_task_start", "event_data": {"task": text, "name": f"asf.sandbox.role : {text}"}}


def ok(**result):
    return {"event": "runner_on_ok", "event_data": {"host": "localhost", "res": result}}


def failed(ignore=False, **result):
    data = {"host": "localhost", "res": result, "ignore_errors": ignore, "task": "x | y", "task_path": "/p/open.yml:7"}
    return {"event": "runner_on_failed", "event_data": data}


def stats(**counts):
    empty = {"changed": {}, "dark": {}, "failures": {}, "ok": {}, "rescued": {}, "skipped": {}}
    return {
        "event": "playbook_on_stats",
        "event_data": {**empty, **{key: {"localhost": n} for key, n in counts.items()}},
    }


def run(*events, began=100.0):
    """Feed the events one second apart, from a second after the start."""
    outcome = Outcome(began=began)
    now = began
    for event in events:
        now += 1
        outcome.feed(event, now)
    outcome.finish(now + 1)
    return outcome


PROBE = {
    "id": "agent-routes",
    "invariant": 2,
    "vantage": "outside",
    "expect": "one",
    "verdict": "pass",
    "evidence": {"n": 1},
}
ERROR = {
    "file": "/a/runtime.yml",
    "key": "network.mode",
    "message": "no",
    "remedy": "proxy",
    "line": 3,
    "found": "x",
    "code": "manifest",
}


def test_phases_cover_the_whole_run():
    outcome = run(
        task("plan | compute"), ok(), task("create | secrets"), ok(), task("create | containers"), ok(), stats(ok=3)
    )
    assert [(phase.name, phase.seconds) for phase in outcome.phases] == [("start", 1.0), ("plan", 2.0), ("create", 5.0)]
    assert sum(phase.seconds for phase in outcome.phases) == 8.0


def test_tasks_without_a_phase_belong_to_the_phase_before():
    outcome = run(task("Gather"), ok(), task("plan | compute"), ok(), task("Something"), ok(), stats(ok=3))
    assert [phase.name for phase in outcome.phases] == ["start", "plan"]


def test_feed_tells_of_a_phase_that_goes_on():
    outcome = Outcome()
    outcome.feed(task("create | secrets"), 1)
    assert outcome.feed(task("create | containers"), 2).text == "containers"
    assert outcome.feed(ok(), 3) is None


def test_results_are_merged():
    second = {**PROBE, "id": "seccomp", "vantage": "inside"}
    again = {**PROBE, "evidence": {"n": 2}}
    outcome = run(
        task("plan | x"),
        ok(asf={"session": "claude.main", "warnings": ["w1"], "probes": [PROBE]}),
        ok(asf={"warnings": ["w1", "w2"], "probes": [second, again], "evidence": "/e", "session": None}, changed=True),
        ok(asf="nonsense"),
        stats(ok=3, changed=1),
    )
    assert outcome.asf["session"] == "claude.main"
    assert outcome.asf["warnings"] == ["w1", "w2"]
    assert [(probe["id"], probe["evidence"]) for probe in outcome.asf["probes"]] == [
        ("agent-routes", {"n": 2}),
        ("seccomp", {"n": 1}),
    ]
    assert outcome.changed and not outcome.failed


def test_the_nonce_beside_asf_is_taken():
    assert run(ok(asf={"session": "a.main"}, nonce="ab" * 16)).asf["nonce"] == "ab" * 16


def test_an_error_and_what_its_rescue_said():
    outcome = run(
        task("verify | probe"),
        failed(msg="bad", asf_error=ERROR, asf={"probes": [{**PROBE, "verdict": "fail"}]}),
        task("teardown | remove"),
        failed(msg="left", asf_error={**ERROR, "message": "second"}),
        failed(msg="again"),
        stats(failures=1, rescued=1),
    )
    assert outcome.failed
    assert outcome.final_error() == ERROR
    assert outcome.error_phase == "verify"
    assert outcome.asf["probes"][0]["verdict"] == "fail"


def test_a_swallowed_asf_error_is_an_error():
    """A rescue that ends well does not make the open a success."""
    assert run(failed(msg="x", asf_error=ERROR), stats(ok=1, rescued=1)).failed


def test_ignored_errors_do_not_count():
    assert not run(failed(ignore=True, msg="x", asf_error=ERROR), stats(ok=1, ignored=1)).failed


def test_a_foreign_module_failed():
    error = run(failed(msg="no such image"), stats(failures=1)).final_error()
    assert (error["file"], error["line"], error["key"], error["message"]) == ("/p/open.yml", 7, "y", "no such image")


def test_without_stats_nothing_is_well():
    outcome = run({"event": "verbose", "stdout": "ERROR! the playbook: x could not be found\n"})
    assert outcome.failed
    assert "could not be found" in outcome.final_error()["message"]


def test_unreachable_counts():
    assert run(stats(dark=1)).failed


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"event": None},
        {"event": "runner_on_ok"},
        {"event": "runner_on_ok", "event_data": None},
        {"event": "runner_on_ok", "event_data": {"res": None}},
        {"event": "runner_on_ok", "event_data": {"res": {"asf": {"probes": ["x", None], "warnings": "w"}}}},
        {"event": "runner_on_failed", "event_data": {"res": {}}},
        {"event": "playbook_on_task_start", "event_data": {"task": None}},
        {"event": "playbook_on_stats", "event_data": {"changed": 3, "failures": None}},
        {"event": "EOF"},
    ],
)
def test_odd_events_do_no_harm(event):
    document.build(run(event), "x.yml")


def test_document_of_a_good_run():
    outcome = run(
        task("plan | x"),
        ok(asf={"session": "a.main", "containers": {"agent": {}}, "nonce": "secret", "tty": True}),
        ok(asf={"probes": [PROBE], "evidence": "/e", "head": "abc"}),
        stats(ok=2),
    )
    found = json.loads(document.dump(document.build(outcome, "verify.yml")))
    assert found["ok"] is True
    assert (found["session"], found["evidence"], found["head"], found["containers"]) == (
        "a.main",
        "/e",
        "abc",
        {"agent": {}},
    )
    assert found["phases"] == [{"name": "start", "seconds": 1.0}, {"name": "plan", "seconds": 4.0}]
    assert set(found["probes"][0]) >= {"id", "invariant", "vantage", "expect", "verdict", "evidence"}
    assert "error" not in found and "nonce" not in found and "tty" not in found


def test_document_of_a_failure():
    outcome = run(task("plan | x"), failed(msg="m", asf_error={**ERROR, "problems": [ERROR, ERROR]}), stats(failures=1))
    found = document.build(outcome, "open.yml")
    assert found["ok"] is False
    assert found["error"] == ERROR
    assert len(found["problems"]) == 2


@pytest.mark.parametrize(
    ("error", "phase", "code"),
    [
        ({"code": "manifest"}, "plan", errors.REFUSED),
        ({"code": "odd"}, "plan", errors.REFUSED),
        ({"code": "verify"}, "verify", errors.VERIFY),
        ({"code": "gate"}, "go", errors.VERIFY),
        ({"code": "no-runtime-dir", "kind": "host"}, "plan", errors.HOST),
        ({"code": "storage-full", "kind": "engine"}, "verify", errors.ENGINE),
        ({"code": "storage-full"}, "create", errors.ENGINE),
        ({"code": "left"}, "teardown", errors.CLEANUP),
        ({"code": "usage"}, None, errors.USAGE),
        ({}, None, errors.ENGINE),
    ],
)
def test_exit_codes(error, phase, code):
    assert errors.exit_code(error, phase) == code


def test_own_codes_collide_with_nothing_usual():
    own = {errors.REFUSED, errors.VERIFY, errors.ENGINE, errors.HOST, errors.CLEANUP, errors.INTERNAL}
    usual = set(range(64)) | set(range(64, 79)) | {125, 126, 127, 255} | {128 + number for number in range(1, 65)}
    assert len(own) == 6 and not own & usual
