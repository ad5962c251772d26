# SPDX-License-Identifier: BSD-4-Clause
"""Which trees other sessions hold while one is planned: the unknown is refused, and two opens cannot both pass."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import plan as plans
from asf_lib.core.errors import EngineError, GrantError
from asf_lib.core.lifecycle import Container
from asf_lib.engine import plandoc, planning, procs, state
from asf_lib.engine.podman import Result

OTHER, MINE = "claude.other", "claude.main"


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "HOME"):
        (tmp_path / name).mkdir(mode=0o700)
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.fixture
def tree(tmp_path: Path) -> str:
    (tmp_path / "repo").mkdir()
    return str(tmp_path / "repo")


def plan_of(session: str, tree: str, rw: bool = True) -> dict[str, Any]:
    head = {"id": session, "mode": "proxy", "isolation": "container"}
    repos = [{"name": "repo", "path": tree, "rw": rw}]
    return {
        "version": plans.VERSION,
        "session": head,
        "repos": repos,
        "volumes": [],
        "run_dir": str(state.run_folder(session)),
    }


def opened(session: str, tree: str) -> Path:
    planning._recorded(plan_of(session, tree), [], [], [], [])
    return state.run_folder(session) / "plan.json"


class Found:
    """An inventory with the given containers."""

    def __init__(self, *containers: Container) -> None:
        self.containers = list(containers)


class Inspecting:
    """A Podman that answers inspect with one container's mounts."""

    def __init__(self, mounts: list[dict[str, Any]], rc: int = 0) -> None:
        self.answer = Result(rc, json.dumps(mounts) + "\n" if not rc else "", "no such container")
        self.asked = 0

    def run(self, args: list[str], check: bool = True) -> Result:
        self.asked += 1
        return self.answer

    def error(self, args: list[str], result: Result) -> EngineError:
        return EngineError(result.stderr)


def running(session: str, alive: bool = True, start: int | None = None) -> Container:
    pid = os.getpid()
    start = procs.start_time(pid) if start is None else start
    return Container("c", f"asf-{session}-agent", "agent", session, str(os.getuid()), "running", pid, alive, start)


def test_a_tree_that_another_session_has(tree: str) -> None:
    opened(OTHER, tree)
    assert planning.live_trees(MINE) == [(OTHER, tree)]
    assert planning.live_trees(OTHER) == []


@pytest.mark.parametrize("damage", ["{", '{"digest": "x", "plan": {}}'])
def test_a_plan_that_cannot_be_read_is_refused_by_session(tree: str, damage: str) -> None:
    path = opened(OTHER, tree)
    path.write_text(damage)
    evidence = Path((state.read(OTHER) or {})["evidence"])
    assert planning.live_trees(MINE) == [(OTHER, tree)]  # the evidence has it still, as after a reboot
    os.chmod(evidence, 0o700)
    (evidence / "plan.json").unlink()
    with pytest.raises(EngineError) as caught:
        planning.live_trees(MINE)
    assert OTHER in caught.value.message and caught.value.remedy == f"close session {OTHER} first"


def test_a_damaged_record_counts(tree: str) -> None:
    opened(OTHER, tree)
    record = Path(os.environ["XDG_STATE_HOME"]) / "asf" / "live" / f"{OTHER}.json"
    record.write_text("{")
    assert planning.live_trees(MINE) == [(OTHER, tree)]
    shutil.rmtree(state.run_folder(OTHER))
    with pytest.raises(EngineError, match=OTHER):
        planning.live_trees(MINE)


def test_a_plan_of_another_session_is_not_taken_for_it(tree: str) -> None:
    path = opened(OTHER, tree)
    evidence = Path((state.read(OTHER) or {})["evidence"]) / "plan.json"
    evidence.unlink()
    plandoc.write(str(path), plan_of("claude.third", "/elsewhere"))
    with pytest.raises(EngineError):
        planning.live_trees(MINE)


def test_L2_the_mounts_of_a_container_without_a_record_count(tree: str) -> None:
    mounts = [
        {"Type": "bind", "Source": tree, "Destination": "/workspace/repos/repo", "RW": True},
        {"Type": "bind", "Source": "/ro", "Destination": "/workspace/repos/ro", "RW": False},
        {"Type": "bind", "Source": "/x", "Destination": "/elsewhere", "RW": True},
    ]
    podman = Inspecting(mounts)
    assert planning.unrecorded_trees(podman, Found(running(OTHER)), MINE) == [(OTHER, tree)]
    with pytest.raises(GrantError, match="already has"):
        planning._check_live(podman, Found(running(OTHER)), plan_of(MINE, tree))
    asked = podman.asked
    opened(OTHER, "/recorded")
    assert planning.unrecorded_trees(podman, Found(running(OTHER), running(MINE)), MINE) == []
    assert planning.unrecorded_trees(podman, Found(running("claude.dead", alive=False)), MINE) == []
    assert podman.asked == asked  # nothing is inspected that needs not be


def test_L2_a_container_that_ended_meanwhile_holds_nothing() -> None:
    podman = Inspecting([], rc=125)
    assert planning.unrecorded_trees(podman, Found(running(OTHER, start=1)), MINE) == []
    with pytest.raises(EngineError):
        planning.unrecorded_trees(podman, Found(running(OTHER)), MINE)


def test_two_opens_at_once_do_not_both_get_the_tree(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have computed their plans before either is recorded."""
    both = threading.Barrier(2)
    agent = {"claude.one": "one", "claude.two": "two"}
    computed = {name: plan_of(name, tree) for name in agent}

    def compute(podman: Any, inputs: planning.Inputs) -> Any:
        both.wait(30)
        return computed[f"{inputs.agent}.{inputs.session}"], [], []

    begin = state.begin
    monkeypatch.setattr(planning, "compute", compute)
    monkeypatch.setattr(planning.inventory, "Inventory", lambda podman: Found())
    monkeypatch.setattr(planning, "_row", lambda *_: {})
    monkeypatch.setattr(planning, "_missing_volumes", lambda *_: [])
    monkeypatch.setattr(planning.rehearsal, "gateway", lambda plan: None)
    monkeypatch.setattr(state, "begin", lambda *a, **k: (threading.Event().wait(0.1), begin(*a, **k))[1])
    ends: list[str] = []

    def run(name: str) -> None:
        try:
            planning.plan_session(None, planning.Inputs("claude", "/", session=name))  # type: ignore[arg-type]
            ends.append("open")
        except GrantError as error:
            ends.append("close session" if "close session" in (error.remedy or "") else str(error))

    threads = [threading.Thread(target=run, args=(name,)) for name in agent.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(ends) == ["close session", "open"]


def test_a_live_session_keeps_its_terminal(tree: str) -> None:
    """Coming back from another terminal edits no plan; before it lives, and of another session, nothing is kept."""
    inputs = planning.Inputs("claude", "/", session="other", terminal={"TERM": "vt100"})
    assert planning._terminal(inputs) == {"TERM": "vt100"}
    plan = {**plan_of(OTHER, tree), "workload": {"terminal": {"TERM": "screen"}}}
    planning._recorded(plan, [], [], [], [])
    assert planning._terminal(inputs) == {"TERM": "vt100"}
    state.begin_step(OTHER, "go", state="live")
    assert planning._terminal(inputs) == {"TERM": "screen"}
    assert planning._terminal(planning.Inputs("claude", "/", terminal={"TERM": "vt100"})) == {"TERM": "vt100"}
