# SPDX-License-Identifier: BSD-4-Clause
"""Locks: who waits is told on whom, and what a lock's file says is believed of a living process alone (L1)."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.engine import locks, notices, procs, state

ID = "claude.main"


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    monkeypatch.delenv(notices.VARIABLE, raising=False)
    return found


def _path(env: dict[str, str]) -> Path:
    return Path(env["XDG_RUNTIME_DIR"]) / "asf" / "locks" / f"{ID}.lock"


def _hold(env: dict[str, str], ready: Any) -> None:
    with state.lock(ID, env):
        ready.set()
        time.sleep(60)


@contextmanager
def _held(env: dict[str, str]) -> Iterator[int]:
    """Somebody else holds the lock; its pid."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(env, ready))
    holder.start()
    try:
        assert ready.wait(30)
        yield int(holder.pid or 0)
    finally:
        holder.kill()
        holder.join()


def test_the_lock_of_somebody_else_in_a_new_folder_stays(env: dict[str, str]) -> None:
    """A run directory is taken away at logout and made anew at login; the old holder may end after that."""
    with state.lock(ID, env):
        _path(env).rename(_path(env).with_name("taken-away"))
        _path(env).write_text("of somebody else")
    assert _path(env).read_text() == "of somebody else"


def test_the_file_names_the_holder_and_goes_with_the_lock(env: dict[str, str]) -> None:
    with state.lock(ID, env):
        said = json.loads(_path(env).read_text())
        me = procs.identity()
        assert me is not None and procs.Identity.from_dict(said) == me and said["host"] == os.uname().nodename
        assert said["command"] and said["since"].endswith("Z")
    assert not _path(env).exists()


def test_who_waits_is_told_on_whom(env: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.05)
    with _held(env) as pid, pytest.raises(EngineError) as caught, state.lock(ID, env, timeout=1.5):
        pass
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"waiting for session {ID}, which is held by process {pid} (" in said
    assert caught.value.code == "busy" and f"process {pid} (" in caught.value.message
    assert caught.value.remedy


def test_a_notice_goes_to_the_file_that_asf_play_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "progress"
    file.touch()
    monkeypatch.setenv(notices.VARIABLE, str(file))
    notices.say("waiting")
    assert json.loads(file.read_text()) == {"notice": "waiting"}
    monkeypatch.setenv(notices.VARIABLE, str(tmp_path / "absent"))
    notices.say("nobody hears it, and nothing breaks")


def test_L1_a_stale_file_that_names_a_living_stranger_is_taken(env: dict[str, str]) -> None:
    _path(env).parent.mkdir(parents=True, mode=0o700)
    _path(env).write_text(json.dumps({"pid": 1, "start": 0, "boot": procs.boot_id(), "command": "init"}))
    with state.lock(ID, env, timeout=0):
        assert json.loads(_path(env).read_text())["pid"] == os.getpid()


def test_L1_a_held_lock_that_names_a_stranger_is_not_believed(env: dict[str, str]) -> None:
    _path(env).parent.mkdir(parents=True, mode=0o700)
    stale = {"pid": os.getppid(), "start": 1, "boot": procs.boot_id(), "command": "a stranger"}
    _path(env).write_text(json.dumps(stale))
    with open(_path(env), encoding="ascii") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(EngineError) as caught, state.lock(ID, env, timeout=0.1):
            pass
    assert f"process {os.getpid()} (" in caught.value.message and "a stranger" not in caught.value.message


def test_the_lock_survives_that_its_file_goes_while_others_wait(env: dict[str, str]) -> None:
    """Never two holders: the file is removed with every release, and a waiter may hold the removed one."""
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            with state.lock(ID, env, timeout=30):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.001)
                inside[0] -= 1

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert most[0] == 1 and not _path(env).exists()


def test_a_record_of_another_host_says_so(env: dict[str, str]) -> None:
    record = state.begin(ID, mode="proxy", isolation="container", plan_digest="d" * 64, env=env)
    who = {**record["controllers"][0], "boot": "another", "host": "elsewhere"}
    state.write({**record, "controllers": [who]}, env)
    found = state.describe(ID, state.read(ID, env), [])
    assert found["state"] == "broken" and "elsewhere" in found["reasons"][0]
