# SPDX-License-Identifier: BSD-4-Clause
"""Podman's stale run state: dropped when nothing of it lives, else refused with the commands that end what does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.engine import notices, podman, procs, recovery
from asf_lib.engine.podman import Podman
from asf_lib.engine.recovery import Survivor

_WEDGED = "invalid internal status, try resetting the pause process: could not find any running process"
#: A podman that fails as a wedged one does as long as its run state is there.
_STUB = f"""#!/bin/sh
echo "$@" >> "$XDG_RUNTIME_DIR/calls"
[ ! -e "$XDG_RUNTIME_DIR/libpod" ] || {{ echo 'Error: {_WEDGED}' >&2; exit 125; }}
cat
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.delenv(notices.VARIABLE, raising=False)
    for part in ("libpod/tmp", "containers", "crun", "asf", "systemd"):
        (tmp_path / "run" / part).mkdir(parents=True, mode=0o700)
    (tmp_path / "run" / "libpod" / "tmp" / "pause.pid").write_text("4194305")  # beyond every pid
    (tmp_path / "stub").write_text(_STUB)
    (tmp_path / "stub").chmod(0o755)
    monkeypatch.setattr(recovery, "_LOCKS", str(tmp_path / "locks-of-{}"))
    monkeypatch.setattr(recovery, "survivors", lambda: iter(()))
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path / "run"), "PATH": "/usr/bin:/bin"}


def _podman(env: dict[str, str], tmp_path: Path) -> Podman:
    return Podman(env=env, program=str(tmp_path / "stub"))


def test_a_wedged_podman_is_repaired_and_asked_again(env: dict[str, str], tmp_path: Path, capsys: object) -> None:
    found = _podman(env, tmp_path)
    assert found.run(["secret", "create", "x", "-"], input=b"the input comes again").stdout == "the input comes again"
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"asf", "systemd", "calls"}, "Podman's parts are gone, the others stay"
    assert "it was reset" in capsys.readouterr().err  # type: ignore[attr-defined]


def test_logins_of_registries_are_no_run_state(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run" / "containers" / "auth.json").write_text("mine")
    recovery.remove(str(recovery.reset(env)))
    assert [path.name for path in (tmp_path / "run" / "containers").iterdir()] == ["auth.json"]
    assert (tmp_path / "run" / "containers" / "auth.json").read_text() == "mine"


def test_calls_at_once_repair_it_once(env: dict[str, str], tmp_path: Path) -> None:
    results = _podman(env, tmp_path).parallel([["ps"], ["volume", "ls"], ["secret", "ls"]], check=False)
    assert [result.rc for result in results] == [0, 0, 0]


def test_nothing_is_dropped_while_something_lives(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Survivor(os.getpid(), os.getuid(), "gate")
    monkeypatch.setattr(recovery, "survivors", lambda: iter([me, Survivor(os.getppid(), os.getuid(), "parent")]))
    with pytest.raises(EngineError) as caught:
        _podman(env, tmp_path).run(["ps"])
    assert caught.value.code == podman.WEDGED and f"kill -9 {os.getppid()}" in str(caught.value.remedy)
    assert f"kill -9 {os.getpid()}" not in str(caught.value.remedy), "it ends with its parent"
    assert (tmp_path / "run" / "libpod").exists()


def test_a_command_of_podmans_own_gets_a_moment_to_end(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conmon whose container was killed starts `podman container cleanup` as its last deed."""
    cleanup = Survivor(os.getppid(), os.getuid(), "podman")
    seen = [[], [cleanup], [cleanup]]
    monkeypatch.setattr(recovery, "survivors", lambda: iter(seen.pop()))
    assert recovery.reset(env) is not None and seen == []
    monkeypatch.setattr(recovery, "_MOMENT", 0.0)
    monkeypatch.setattr(recovery, "survivors", lambda: iter([cleanup]))
    with pytest.raises(EngineError):
        recovery.reset(env)


def test_nothing_is_dropped_where_processes_are_hidden(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_ANYBODY", str(tmp_path / "hidden"))
    with pytest.raises(EngineError) as caught:
        _podman(env, tmp_path).run(["ps"])
    assert "hidepid" in str(caught.value.found) and (tmp_path / "run" / "libpod").exists()


def test_a_living_pause_process_means_that_somebody_else_repaired_it(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "run" / "libpod" / "tmp" / "pause.pid").write_text(str(os.getpid()))
    assert recovery.reset(env) is None and (tmp_path / "run" / "libpod").exists()


def test_the_error_of_one_that_stays_wedged_names_it(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "stub").write_text(f"#!/bin/sh\necho 'Error: {_WEDGED}' >&2; exit 125\n")
    with pytest.raises(EngineError) as caught:
        _podman(env, tmp_path).run(["ps"])
    assert caught.value.code == podman.WEDGED and caught.value.remedy


def test_a_subordinate_id_is_ended_from_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_subordinate", lambda: [(100000, 65536)])
    assert recovery.end_command(Survivor(77, 110000, "launch.py")).endswith("--setuid 10001 kill -9 77")
    assert recovery.end_command(Survivor(78, os.getuid(), "gate")) == "kill -9 78"


def test_processes_of_the_operators_own_namespace_are_no_survivors() -> None:
    assert os.getpid() not in {one.pid for one in recovery.survivors()}
    assert procs.start_time(os.getpid()) is not None


def _ready(*argv: str) -> subprocess.Popen[bytes]:
    """A process that has said that it is there, and ends with its input."""
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"\n"
    return child


def test_what_lives_in_podmans_namespaces_is_told_from_browsers_and_key_agents() -> None:
    """Key agents hide (not dumpable), browsers make user namespaces: nobody is told to kill either."""
    waiting = ("sh", "-c", "echo; read line")
    hide = "import ctypes; ctypes.CDLL(None).prctl(4, 0); print(flush=True); input()"
    children = [
        _ready(sys.executable, "-c", hide),
        _ready("unshare", "--user", "--map-current-user", *waiting),
        _ready("unshare", "--user", "--map-root-user", "--map-auto", *waiting),  # as Podman does
    ]
    try:
        found = {one.pid for one in recovery.survivors()}
        assert [child.pid in found for child in children] == [False, False, True]
    finally:
        for child in children:
            child.communicate(b"\n")
