# SPDX-License-Identifier: BSD-4-Clause
"""A revision that is interrupted, refused or not proved (the rest of it: tests/e2e/test_revision.py)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core.errors import EngineError, GateError
from asf_lib.core.plan import VERSION
from asf_lib.engine import plandoc, procs, revising, state, verification
from asf_lib.engine.plandoc import PlanDocument

ID = "claude.main"


class Podman:
    """Answers every call, and can end what it is told to kill."""

    def __init__(self, victim: subprocess.Popen[bytes] | None = None) -> None:
        self.calls: list[list[str]] = []
        self.victim = victim

    def run(self, args: list[str], **_: Any) -> None:
        self.calls.append(args)
        if self.victim:
            self.victim.kill()
            self.victim.wait()


def plan(revision: int) -> dict[str, Any]:
    containers = [{"role": role, "name": f"asf-{role}"} for role in ("agent", "caddy")]
    return {"version": VERSION, "session": {"id": ID}, "gate": {}, "revision": revision, "containers": containers}


@pytest.fixture
def doc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanDocument:
    """A live session at revision 0, in which files, rules and Caddy are left out."""
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    found = plandoc.write(str(tmp_path / "plan.json"), plan(0))
    state.begin(ID, mode="proxy", isolation="container", plan_digest=found.digest)
    state.begin_step(ID, "live", state="live")
    monkeypatch.setattr(revising, "_put", lambda *_: "")
    monkeypatch.setattr(revising.statevolumes, "remember", lambda *_: None)
    return found


@pytest.fixture
def caddy(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for Caddy's."""
    with subprocess.Popen(["sleep", "600"]) as run:
        row = {"pid": run.pid, "start": procs.start_time(run.pid)}
        monkeypatch.setattr(revising.bringup, "chosen", lambda _: {"agent": {"pid": 1, "start": 1}, "caddy": row})
        yield run
        run.kill()


def record() -> dict[str, Any]:
    found = state.read(ID)
    assert found is not None
    return found


def kept() -> list[int]:
    return [one["revision"] for one in state.evidence_of(record()).read_lines("revisions.jsonl")]


def killed(*_: object) -> str:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", ["_put", "_files_written"])
def test_L1_a_revision_that_was_killed_loses_none_in_the_evidence(
    at: str, doc: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with the next plan written, or with all but the record done; the next open finds the new plan only."""
    with monkeypatch.context() as crash:
        if at == "_put":
            crash.setattr(revising, "_put", killed)
        else:
            note = state.note
            crash.setattr(state, "note", lambda s, **f: killed() if f["revising"] == revising.APPLIED else note(s, **f))
        with pytest.raises(KeyboardInterrupt):
            revising.apply(Podman(), doc, plan(1))  # type: ignore[arg-type]
    assert record()["revising"] == revising.APPLYING
    again = plandoc.read(doc.path)
    assert again.plan["revision"] == 1
    revising.apply(Podman(), again, again.plan)  # type: ignore[arg-type]
    assert kept() == [0, 1] and state.evidence_of(record()).read("plan.json")["digest"] == again.digest
    assert state.evidence_of(record()).check() == []


def test_a_proof_of_what_was_interrupted_is_recorded_as_the_plan_in_force(
    doc: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed once Caddy had heard of it: verify alone finds everything as planned."""
    monkeypatch.setattr(revising, "_put", killed)
    with pytest.raises(KeyboardInterrupt):
        revising.apply(Podman(), doc, plan(1))  # type: ignore[arg-type]
    new = plandoc.read(doc.path)
    assert revising.conclude(ID, True, Podman(), new) == ""  # type: ignore[arg-type]
    assert kept() == [0, 1] and (record()["revising"], record()["plan_digest"]) == (None, new.digest)


def test_a_refused_policy_goes_back_and_says_so_only_where_that_is_true(
    doc: PlanDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revising, "_put", lambda podman, put: "no" if put.plan["revision"] else "")
    with pytest.raises(EngineError, match="the old one stays"):
        revising.apply(Podman(), doc, plan(1))  # type: ignore[arg-type]
    assert plandoc.read(doc.path).digest == doc.digest and record()["revising"] is None
    state.note(ID, revising=revising.APPLYING)
    new = plandoc.write(doc.path, plan(1))
    with pytest.raises(EngineError, match="by an earlier one"):
        revising.apply(Podman(), new, new.plan)  # type: ignore[arg-type]
    assert record()["revising"] == revising.APPLYING, "the next open has to do it again"


def test_the_way_out_is_called_cut_only_when_it_is(
    doc: PlanDocument, caddy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    state.note(ID, revising=revising.APPLIED)
    monkeypatch.setattr(revising, "PATIENCE", 0.0)
    deaf = revising.conclude(ID, False, Podman(), doc)  # type: ignore[arg-type]
    assert "caddy could not be stopped" in deaf
    podman = Podman(caddy)
    assert "way out was cut" in revising.conclude(ID, False, podman, doc)  # type: ignore[arg-type]
    assert podman.calls == [["kill", "asf-caddy"]]


@pytest.mark.parametrize("error", [GateError("the gate gave no report"), EngineError("podman is wedged"), OSError(5)])
def test_a_new_policy_that_nobody_could_look_at_loses_its_way_out(
    error: Exception, doc: PlanDocument, caddy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent may have used up its processes, so that no gate can run beside it (invariant 8)."""

    def fails(*_: object, **__: object) -> None:
        raise error

    state.note(ID, revising=revising.APPLIED)
    monkeypatch.setattr(verification, "_not_over", lambda *_: None)
    monkeypatch.setattr(verification, "outside", lambda *_, **__: [])
    monkeypatch.setattr(verification, "_counted", fails)
    with pytest.raises(type(error)) as caught:
        verification.verify(Podman(caddy), doc)  # type: ignore[arg-type]
    assert caddy.poll() is not None
    if not isinstance(error, OSError):
        assert "way out was cut" in str(caught.value.remedy)  # type: ignore[attr-defined]
