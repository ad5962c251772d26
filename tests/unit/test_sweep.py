# SPDX-License-Identifier: BSD-4-Clause
"""Which sessions are closed because their workload ended unattended, and which are left alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.engine import procs, state, sweep
from asf_lib.engine.podman import Podman

ID = "claude.main"
DEAD = {"pid": 1, "start": 0}
NOBODY = {"pid": 1, "start": 0, "boot": "another boot"}


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """IDs of the sessions that were closed; Podman says of every one that its workload ended with code 3."""
    found: list[str] = []

    def teardown(_: Podman, session: str, env: Any = None) -> Any:
        found.append(session)
        if session == "claude.stuck":
            raise EngineError("Podman refused")
        return type("Report", (), {"evidence": f"/evidence/{session}", "head": "h", "containers": {}})()

    def sessions(_: Podman, env: Any, __: object) -> list[dict[str, Any]]:
        states = {"claude.broken": "broken"}
        return [
            {"session": one, "state": states.get(one, "ended"), "exit_code": 3} for one in sorted(state.recorded(env))
        ]

    monkeypatch.setattr(sweep.teardown, "teardown", teardown)
    monkeypatch.setattr(sweep, "Inventory", lambda _: None)
    monkeypatch.setattr(sweep.state, "sessions", sessions)
    return found


def live(env: dict[str, str], session: str = ID, agent: Any = None, **fields: Any) -> None:
    record = state.begin(session, mode="proxy", isolation="container", plan_digest="d" * 64, env=env)
    containers = {"agent": agent or DEAD}
    state.write({**record, "state": "live", "controllers": [NOBODY], "containers": containers, **fields}, env)


def test_what_has_ended_is_closed_and_told_with_its_code(env: dict[str, str], closed: list[str]) -> None:
    live(env)
    (swept,) = sweep.ended(Podman(), env=env)
    assert closed == [ID] and swept.as_dict()["exit_code"] == 3 and swept.head == "h"
    assert (
        swept.line() == "closed session claude.main, whose workload ended with code 3; evidence: /evidence/claude.main"
    )


def test_others_are_left_alone(env: dict[str, str], closed: list[str]) -> None:
    me = procs.identity()
    assert me is not None
    live(env, "claude.alive", agent={"pid": me.pid, "start": me.start})
    live(env, "claude.attended", controllers=[me.as_dict()])  # who is attached closes it
    live(env, "claude.opening", state="opening")
    live(env, "claude.broken")  # its user must know
    live(env, "claude.damaged", containers=None)
    live(env, "claude.own")
    assert sweep.ended(Podman(), but="claude.own", env=env) == [] and closed == []


def test_a_session_that_cannot_be_closed_does_not_stop_the_others(env: dict[str, str], closed: list[str]) -> None:
    for name in ("claude.stuck", "claude.zz"):
        live(env, name)
    stuck, other = sweep.ended(Podman(), env=env)
    assert "could not be closed: Podman refused" in stuck.line() and other.problem is None
    assert closed == ["claude.stuck", "claude.zz"]


def _hold(env: dict[str, str], ready: Any) -> None:
    with state.lock(ID, env):
        ready.set()
        time.sleep(60)


def test_whoever_works_on_it_keeps_it_and_nobody_waits(env: dict[str, str], closed: list[str]) -> None:
    live(env)
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(env, ready))
    holder.start()
    with contextlib.ExitStack() as stack:
        stack.callback(holder.join)
        stack.callback(holder.kill)
        assert ready.wait(30)
        assert sweep.ended(Podman(), env=env) == [] and closed == []


def test_who_attaches_to_a_live_session_is_on_record(env: dict[str, str]) -> None:
    live(env)
    assert state.join(ID, env)["controllers"] == [who.as_dict() for who in procs.controllers()]
    assert len(state.join(ID, env)["controllers"]) == len(procs.controllers()), "joining twice is joining once"
    with pytest.raises(EngineError):
        state.join("claude.none", env)
