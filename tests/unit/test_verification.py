# SPDX-License-Identifier: BSD-4-Clause
"""What a verification leaves when it does not come to its end (the rest of it: tests/e2e)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import probes
from asf_lib.core.errors import EngineError, GateError, VerifyError
from asf_lib.engine import state, verification
from asf_lib.engine.evidencefs import Evidence
from asf_lib.engine.plandoc import PlanDocument

ID = "claude.main"
SEEN = probes.result("cable", 2, "outside", "one link", "pass", "one link")
BAD = probes.result("routes", 2, "outside", "no default route", "fail", "default via 10.0.2.2")


@pytest.fixture
def doc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanDocument:
    """A recorded session, all of whose containers are left out."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    state.begin(ID, mode="proxy", isolation="container", plan_digest="d")
    monkeypatch.setattr(verification.bringup, "chosen", lambda doc: {})
    return PlanDocument(str(tmp_path / "plan.json"), "d", {"session": {"id": ID}, "gate": {}})


def _left() -> dict[str, Any]:
    record = state.read(ID)
    assert record is not None
    found = Evidence(Path(record["evidence"]))
    assert found.check() == []
    report: dict[str, Any] = found.read("verification.json")
    return report


def _silent(*_: object) -> None:
    raise GateError("the gate said nothing within 10 s")


def test_a_silent_gate_leaves_what_was_seen_and_that_it_was_silent(
    doc: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "outside", lambda *_, **__: [SEEN])
    monkeypatch.setattr(verification, "_first_report", _silent)
    with pytest.raises(GateError) as caught:
        verification.verify(None, doc)  # type: ignore[arg-type]
    report = _left()
    assert report["ok"] is False and report["probes"] == caught.value.results  # type: ignore[attr-defined]
    verdicts = {one["id"]: one["verdict"] for one in report["probes"]}
    assert verdicts == {"cable": "pass", "gate-report": "inconclusive"}


def test_a_failed_probe_stops_before_the_gate_and_is_on_record(
    doc: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "outside", lambda *_, **__: [SEEN, BAD])
    monkeypatch.setattr(verification, "_first_report", lambda *_: pytest.fail("the gate was started"))
    with pytest.raises(VerifyError) as caught:
        verification.verify(None, doc)  # type: ignore[arg-type]
    assert "routes" in str(caught.value) and _left()["ok"] is False


@pytest.mark.parametrize(
    ("row", "says"), [({"state": "ended", "exit_code": 3}, "ended with code 3"), ({"state": "broken"}, "")]
)
def test_an_ended_session_is_not_called_unconfined(
    row: dict[str, Any], says: str, doc: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.begin_step(ID, "live", state="live")
    monkeypatch.setattr(verification.bringup, "chosen", lambda doc: {"agent": {"pid": 2**22 + 1, "start": 1}})
    monkeypatch.setattr(verification.state, "sessions", lambda podman: [{"session": ID, **row}])
    monkeypatch.setattr(verification, "outside", lambda *_, **__: [SEEN, BAD])
    with pytest.raises(EngineError if says else VerifyError) as caught:
        verification.verify(None, doc)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_what_may_be_reached_is_written_down_before_the_workload_can_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill or a full disk right after go would else leave a volume that looks like the session before left it."""
    done: list[str] = []
    monkeypatch.setattr(verification.state, "read", lambda _: {"state": "opening"})
    monkeypatch.setattr(verification.state, "begin_step", lambda *_, **__: done.append("live"))
    monkeypatch.setattr(verification.bringup, "chosen", lambda _: {"agent": {"pid": 1}})
    monkeypatch.setattr(verification.statevolumes, "remember", lambda _: done.append("remember"))
    monkeypatch.setattr(verification.gate_client, "go", lambda *_: done.append("go"))
    plan = {"session": {"id": "a.main"}, "gate": {"time_s": 0}}
    verification.go(PlanDocument("/nowhere", "d", plan), "nonce")
    assert done == ["remember", "go", "live"]
