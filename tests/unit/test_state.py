# SPDX-License-Identifier: BSD-4-Clause
"""Records, locks and identities of processes (cases L1, L2, L4, L5)."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_for

from asf_lib.core.errors import EngineError
from asf_lib.engine import procs, state
from asf_lib.engine.inventory import Inventory, container, details

ID = "claude.main"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture(autouse=True)
def _monitored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins for containers have no conmon."""
    monkeypatch.setattr(procs, "monitored", lambda pid, container_id: True)


def begin(env: dict[str, str], session: str = ID) -> dict[str, Any]:
    return state.begin(session, mode="proxy", isolation="container", plan_digest="d" * 64, env=env)


class Listed(Inventory):
    """An inventory made of rows instead of Podman's answers."""

    def __init__(self, rows: list[dict[str, Any]] | None = None, secrets: list[str] | None = None) -> None:
        self.containers = [container(row) for row in rows or []]
        self.volumes, self.secrets, self.details = [], secrets or [], {}


def row(role: str, pid: int, session: str = ID, status: str = "running", **labels: str) -> dict[str, Any]:
    named = {"asf.session": session, "asf.role": role, "asf.owner": str(os.getuid()), **labels}
    return {"Id": role, "Names": [f"asf-{session}-{role}"], "Labels": named, "Pid": pid, "State": status}


def listed(env: dict[str, str], *rows: dict[str, Any], secrets: list[str] | None = None) -> list[dict[str, Any]]:
    return state.sessions(None, env, Listed(list(rows), secrets))  # type: ignore[arg-type]


def gone() -> procs.Identity:
    """A process that has ended."""
    child = subprocess.Popen(["true"])
    who = procs.Identity(child.pid, procs.start_time(child.pid) or 1, procs.boot_id())
    child.wait()
    return who


def test_L1_identity_is_pid_start_and_boot() -> None:
    me = procs.identity()
    assert me is not None and procs.alive(me)
    assert not procs.alive(me._replace(start=me.start + 1))  # a live, foreign pid
    assert not procs.alive(me._replace(boot="another boot"))
    assert not procs.alive(gone()) and not procs.alive(None)
    assert procs.Identity.from_dict(me.as_dict()) == me


@pytest.mark.parametrize(
    "data", [None, [], {}, {"pid": "1", "start": 1, "boot": ""}, {"pid": 0, "start": 1, "boot": ""}]
)
def test_damaged_identities_are_nobody(data: object) -> None:
    assert procs.Identity.from_dict(data) is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    wait_for(lambda: procs.start_time(child.pid) is None, 30)
    child.wait()


def test_a_name_with_brackets_does_not_confuse(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "20"])
    try:
        assert procs.parent(child.pid) == os.getpid() and procs.identity(child.pid) is not None
    finally:
        child.kill()
        child.wait()


def _controllers(tmp_path: Path, name: str, depth: int) -> list[int]:
    """Pids that ``controllers`` finds below a stand-in called ``name``, forked ``depth`` times like a worker."""
    script = tmp_path / name
    script.write_text(
        "import os, sys\n"
        "import asf_cli\n"
        "from asf_lib.engine import procs\n"
        "print(os.getpid())\n"
        "sys.stdout.flush()\n"
        f"for _ in range({depth}):\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        os._exit(0)\n"
        "print(*[who.pid for who in procs.controllers()])\n"
    )
    out = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True).stdout
    return [int(word) for word in out.split()]


@pytest.mark.parametrize("depth", [0, 2])
def test_the_controller_is_the_outer_process_of_that_name(tmp_path: Path, depth: int) -> None:
    outer, nearest, *_ = _controllers(tmp_path, "ansible-playbook", depth)
    assert nearest == outer


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/python3 /venv/bin/asf-play open.yml", "asf-play"),
        ("python3 -m asf_cli open.yml", "asf_cli"),
        ("/venv/bin/python3 -P -c code /venv/bin/ansible-playbook -i x", "ansible-playbook"),
        ("/usr/bin/ansible-playbook site.yml", "ansible-playbook"),
        ("python3 other.py a b c d asf-play", "python3"),
        ("vim asf-play", "vim"),
        ("", ""),
    ],
)
def test_a_controller_is_known_by_its_command_line(line: str, name: str) -> None:
    assert procs.program(line.encode().split()) == name


def test_without_a_controller_it_is_the_caller() -> None:
    if procs.controllers() != [procs.identity()]:
        pytest.skip("these tests run below a controller themselves")


def test_record_is_private_and_step_comes_before_the_deed(env: dict[str, str]) -> None:
    record = begin(env)
    assert record["state"] == "opening" and state.read(ID, env) == record
    path = Path(env["XDG_STATE_HOME"]) / "asf" / "live" / f"{ID}.json"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert os.path.isdir(record["run"]) and os.path.isdir(record["evidence"])
    assert state.begin_step(ID, "wire", env, containers={"agent": {}})["step"] == "wire"
    assert state.read(ID, env)["containers"] == {"agent": {}}  # type: ignore[index]


def test_a_second_begin_is_refused(env: dict[str, str]) -> None:
    begin(env)
    with pytest.raises(EngineError) as caught:
        begin(env)
    assert caught.value.code == "session-exists"


def test_a_step_without_a_record_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(EngineError) as caught:
        state.begin_step(ID, "wire", env)
    assert caught.value.code == "no-record"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session": "other.main"}', "\xff"])
def test_a_damaged_record_counts_as_missing_and_is_seen(text: str, env: dict[str, str]) -> None:
    begin(env)
    path = Path(env["XDG_STATE_HOME"]) / "asf" / "live" / f"{ID}.json"
    path.write_bytes(text.encode("latin-1"))
    assert state.read(ID, env) is None and state.has_record(ID, env)
    assert [one["state"] for one in listed(env)] == ["broken"]


def test_forget_and_clear_can_be_repeated(env: dict[str, str]) -> None:
    begin(env)
    assert (state.forget(ID, env), state.forget(ID, env)) == (True, False)
    assert (state.clear_run_folder(ID, env), state.clear_run_folder(ID, env)) == (True, False)
    assert listed(env) == []


def test_L1_half_files_of_killed_writers_are_swept(env: dict[str, str]) -> None:
    """The record's, and those about its state volumes; other sessions' may be at work."""
    begin(env)
    base = Path(env["XDG_STATE_HOME"]) / "asf"
    own = [base / "live" / f".new-{ID}.json-1", base / "volumes" / f".new-asf-state-{ID}.home.json-1"]
    others = [base / "live" / f".new-{ID}2.json-1", base / "volumes" / f".new-asf-state-{ID}2.home.json-1"]
    for path in own + others:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    state.sweep_temporary(ID, env)
    assert [path.exists() for path in own + others] == [False, False, True, True]


def test_a_link_in_place_of_the_run_folder_is_not_followed(env: dict[str, str], tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    begin(env)
    run = state.run_folder(ID, env)
    run.rmdir()
    run.symlink_to(precious)
    assert state.clear_run_folder(ID, env) and (precious / "file").exists() and not run.is_symlink()


def test_L1_opening_by_the_dead_is_broken_and_names_the_step(env: dict[str, str]) -> None:
    record = begin(env)
    assert listed(env)[0]["state"] == "opening"
    state.write({**record, "step": "wire", "controllers": [gone().as_dict()]}, env)
    (found,) = listed(env)
    assert found["state"] == "broken" and "step wire" in found["reasons"][0]


def test_who_holds_the_lock_may_take_it_again(env: dict[str, str]) -> None:
    with state.lock(ID, env):
        with state.lock(ID, env, timeout=0.1):
            pass
        code = f"import asf_cli; from asf_lib.engine import state\nwith state.lock({ID!r}, timeout=0.1): pass"
        other = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True)
        assert other.returncode and "another command works on session" in other.stderr


def test_L1_a_live_foreign_pid_is_nobodys_lock(env: dict[str, str]) -> None:
    record = begin(env)
    state.write({**record, "controllers": [{"pid": 1, "start": 0, "boot": procs.boot_id()}]}, env)
    assert listed(env)[0]["state"] == "broken"


def test_L5_live_without_any_controller(env: dict[str, str]) -> None:
    begin(env)
    me = {"pid": os.getpid(), "start": procs.start_time(os.getpid())}
    state.begin_step(ID, "live", env, state="live", containers={"agent": me})
    state.write({**(state.read(ID, env) or {}), "controllers": [gone().as_dict()]}, env)
    assert listed(env, row("agent", os.getpid()))[0]["state"] == "live"
    assert listed(env, row("agent", gone().pid))[0]["state"] == "broken"  # Podman still says running
    assert listed(env, row("agent", 0, status="exited"))[0]["state"] == "ended"
    assert listed(env)[0]["state"] == "broken"


def test_L2_L4_sessions_are_found_by_labels_secrets_and_run_folders(env: dict[str, str]) -> None:
    (Path(env["XDG_RUNTIME_DIR"]) / "asf" / "left.over").mkdir(parents=True)
    rows = listed(
        env,
        row("agent", os.getpid(), "found.one", **{"asf.mode": "proxy", "asf.isolation": "container"}),
        secrets=["asf-only.secret-token", "foreign"],
    )
    assert [(one["session"], one["state"]) for one in rows] == [
        ("found.one", "broken"),
        ("left.over", "broken"),
        ("only.secret", "broken"),
    ]
    assert rows[0]["mode"] == "proxy" and rows[1]["mode"] == "unknown"


def test_containers_of_another_owner_are_not_this_sessions(env: dict[str, str]) -> None:
    begin(env)
    state.begin_step(ID, "live", env, state="live", containers={"agent": {}})
    assert listed(env, row("agent", os.getpid(), **{"asf.owner": "0"}))[0]["state"] == "broken"


@pytest.mark.parametrize(("at", "state_", "code"), [(1796085335, "ended", 0), (-62135596800, "broken", None)])
def test_an_end_that_nobody_saw_is_no_end(at: int, state_: str, code: int | None, env: dict[str, str]) -> None:
    """Podman 5 lists what ran before a reboot, or before it was wedged, as exited with code 0, and without a time."""
    begin(env)
    state.begin_step(ID, "live", env, state="live", containers={"agent": {}})
    (found,) = listed(env, {**row("agent", 0), "State": "exited", "ExitCode": 0, "ExitedAt": at})
    assert (found["state"], found["exit_code"]) == (state_, code)


def test_labels_that_are_no_session_are_ignored(env: dict[str, str]) -> None:
    assert listed(env, row("agent", 1, "../../etc")) == []


def test_details_of_inspect() -> None:
    found = details("abc 137 true 17 k8s-file /a b/ctr.log\ndef 0 false -9 journald \nError: no such container\n\n")
    assert found["abc"] == (137, True, 17, "/a b/ctr.log") and found["def"] == (0, False, -9, "") and len(found) == 2


def _hold(env: dict[str, str], ready: Any) -> None:
    with state.lock(ID, env):
        ready.set()
        time.sleep(60)


def test_L1_lock_dies_with_its_holder(env: dict[str, str]) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(env, ready))
    holder.start()
    try:
        assert ready.wait(30)
        with pytest.raises(EngineError) as caught, state.lock(ID, env, timeout=0.1):
            pass
        assert caught.value.code == "busy"
        holder.kill()
        with state.lock(ID, env, timeout=10):
            pass
    finally:
        holder.kill()
        holder.join()


def test_locks_of_two_sessions_do_not_meet(env: dict[str, str]) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(state.lock(ID, env, timeout=1))
        stack.enter_context(state.lock("claude.other", env, timeout=1))


def test_a_record_of_another_boot_says_that_the_machine_was_started_anew(env: dict[str, str]) -> None:
    begin(env)
    me = {"pid": os.getpid(), "start": procs.start_time(os.getpid()), "name": "asf-x"}
    record = state.begin_step(ID, "live", env, state="live", containers={"agent": me})
    assert list(state.chosen(record)) == ["asf-x"]
    state.write({**record, "boot": "another"}, env)
    (found,) = listed(env)
    assert found["state"] == "broken" and "started anew" in found["reasons"][0]
    assert state.chosen(state.read(ID, env)) == {}, "a pid of another boot is a stranger's"
