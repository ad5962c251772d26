# SPDX-License-Identifier: BSD-4-Clause
"""What a watch makes of log lines, probes and states, without a session (the whole: tests/e2e/test_supervision.py)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import probes
from asf_lib.core.errors import EngineError
from asf_lib.engine import evidencefs, state, watching
from asf_lib.engine.evidencefs import Evidence
from asf_lib.engine.logs import Line
from asf_lib.engine.podman import Podman
from asf_lib.engine.watching import Watch

ID = "claude.main"
GOOD = probes.result("links", 2, "outside", "e", "pass", "x")
BAD = probes.result("routes", 2, "outside", "no default route", "fail", "default")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def watch(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Watch:
    monkeypatch.setattr(watching, "CONFIRM", 0)
    return Watch(Podman(), ID, 30, lambda text: text.replace("s3cret", "[redacted]"), env)


class Log:
    """A follower that has some lines."""

    ended = False

    def __init__(self, *texts: str, when: str = "2099-01-01T00:00:00Z") -> None:
        self._lines = [Line(when, "stdout", text) for text in texts]

    def lines(self) -> list[Line]:
        return self._lines


def decision(host: str, verdict: str = "deny") -> str:
    return json.dumps({"msg": "decision", "host": host, "port": 443, "decision": verdict, "reason": "r", "ts": 5.0})


def test_a_session_without_a_record_cannot_be_watched(watch: Watch) -> None:
    with pytest.raises(EngineError) as caught:
        next(watch.events())
    assert caught.value.code == "no-record"


def test_decisions_are_redacted_and_asfs_own_question_is_left_out(watch: Watch) -> None:
    log = Log(decision("s3cret.example.com"), decision("asf-denied.invalid"), "noise")
    (told,) = watch._logged([log])  # type: ignore[list-item]
    assert told["event"] == "decision" and told["host"] == "[redacted].example.com" and told["at"] == 5.0


def test_the_fronts_control_during_a_check_is_asfs_own_question(watch: Watch) -> None:
    asked = json.dumps({"msg": "decision", "target": "/asf/control", "decision": "deny", "reason": "r", "ts": 5.0})
    assert len(list(watch._logged([Log(asked)]))) == 1, "the workload's own"  # type: ignore[list-item]
    watch._checking = (4.0, 6.0)
    assert list(watch._logged([Log(asked)])) == []  # type: ignore[list-item]


def test_what_was_written_before_the_watch_is_not_told(watch: Watch) -> None:
    assert list(watch._logged([Log(decision("a.example"), when="2001-01-01T00:00:00Z")])) == []  # type: ignore[list-item]


def test_a_flood_is_bounded_and_counted(watch: Watch) -> None:
    texts = [decision(f"h{number}.example") for number in range(500)] + [decision("ok.example", "allow")]
    told = list(watch._logged([Log(*texts)]))  # type: ignore[list-item]
    assert len(told) == watching.MOST
    assert list(watch._counted()) == [], "once in a tick"
    (more,) = watch._counted(force=True)
    assert (more["deny"], more["allow"]) == (500 - watching.MOST, 1)
    assert list(watch._counted(force=True)) == []


def test_restarts_are_told(watch: Watch) -> None:
    lines = [
        {"asf": "supervisor", "name": "caddy", "event": "exit", "status": "signal 9", "ts": "2026-01-01T00:00:00Z"}
    ]
    lines.append({"asf": "supervisor", "name": "caddy", "event": "start", "start": 2, "ts": "2026-01-01T00:00:01Z"})
    told = list(watch._logged([Log(*map(json.dumps, lines))]))  # type: ignore[list-item]
    assert [one["event"] for one in told] == ["exited", "restarted"]


def test_drift_needs_two_looks_and_is_told_once(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[list[dict[str, Any]]] = []
    monkeypatch.setattr(watch, "_look", lambda: looks.pop(0))
    monkeypatch.setattr(watch, "_row", lambda: {"state": "live"})
    looks[:] = [[GOOD, BAD], [GOOD]]
    assert [one["event"] for one in watch._check()] == ["verified"], "a restart's moment is no drift"
    looks[:] = [[GOOD, BAD], [GOOD, BAD]]
    (drift,) = watch._check()
    assert drift["event"] == "drift" and drift["probe"] == "routes" and drift["expect"] == "no default route"
    looks[:] = [[GOOD, BAD], [GOOD, BAD]]
    assert list(watch._check()) == []
    looks[:] = [[GOOD]]
    assert [one["event"] for one in watch._check()] == ["recovered", "verified"]


def test_what_is_bad_because_the_session_ends_is_no_drift(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_look", lambda: [BAD])
    monkeypatch.setattr(watch, "_row", lambda: {"state": "ended"})
    assert list(watch._check()) == []


def test_a_failure_to_look_is_a_bad_result(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise EngineError("Podman hangs")

    monkeypatch.setattr(watching.plandoc, "read", fails)
    (result,) = watch._look()
    assert result["verdict"] == "inconclusive" and "Podman hangs" in result["evidence"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"state": "ended", "exit_code": 3}, {"how": "exit", "exit_code": 3}),
        ({"state": "ended", "exit_code": None}, {"how": "lost", "exit_code": None}),
        ({"state": "broken", "exit_code": None}, {"how": "lost", "exit_code": None}),
    ],
)
def test_how_it_ended(row: dict[str, Any], expected: dict[str, Any], watch: Watch, monkeypatch: Any) -> None:
    monkeypatch.setattr(watching, "SETTLE", 0)
    monkeypatch.setattr(watch, "_row", lambda: row)
    assert watch._ending() == expected


@pytest.mark.parametrize(("code", "how"), [(7, "exit"), (None, "closed")])
def test_how_it_ended_when_somebody_closed_it(
    code: int | None, how: str, watch: Watch, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Evidence.create(ID, env=env)
    agent = {"role": "agent", "exit_code": code, **({"reason": "limits.time: 3 s were over"} if code else {})}
    folder.write("cleanup.json", {"containers": {"a": agent}})
    watch._record = {"evidence": str(folder.folder)}
    monkeypatch.setattr(watch, "_row", lambda: {})
    found = watch._ending()
    assert (found["how"], found["exit_code"], "reason" in found) == (how, code, bool(code))
    assert watch._event("x")["at"] <= time.time()


def test_watching_makes_no_evidence(watch: Watch, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_row", lambda: {})
    for folder in (None, str(evidencefs.new_folder(ID, env))):
        watch._record = {"evidence": folder}
        assert watch._ending() == {"how": "closed", "exit_code": None}
    assert evidencefs.runs(ID, env) == []


def test_a_session_of_the_same_name_that_came_after_is_not_the_watched_one(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed and opened again between two looks: the end of the first one is told, and it was not lost."""
    record = state.begin(ID, mode="proxy", isolation="container", plan_digest="d", env=env)
    watch = Watch(Podman(), ID, 30, env=env)
    evidencefs.Evidence.of(ID, record["evidence"], env=env).write(
        "cleanup.json", {"containers": {"a": {"role": "agent", "exit_code": 3}}}
    )
    state.forget(ID, env)
    state.begin(ID, mode="proxy", isolation="container", plan_digest="d", env=env)
    monkeypatch.setattr(watching.state, "sessions", lambda *_: [{"session": ID, "state": "live", "reasons": []}])
    monkeypatch.setattr(watching.inventory, "Inventory", lambda _: None)
    assert [one["state"] for one in watch._changes()] == ["closed"]
    assert watch._ending() == {"how": "exit", "exit_code": 3}
