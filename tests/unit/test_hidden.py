# SPDX-License-Identifier: BSD-4-Clause
"""Keys are handled by processes of their own, undumped, and errors come back whole and without a value."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_for

from asf_lib.core.errors import EngineError, HostError, PlanError, Problem, SecretError
from asf_lib.engine import hidden, netns, procs, secretcommand

ROOT = Path(__file__).resolve().parents[2]
CANARY = "sk-CANARY-0123456789"


def _dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))


def test_apart_is_another_process_and_undumped() -> None:
    pid, dumpable, core = hidden.apart(lambda: [os.getpid(), _dumpable(), resource.getrlimit(resource.RLIMIT_CORE)[0]])
    assert pid != os.getpid() and (dumpable, core) == (0, 0)
    assert _dumpable() == 1, "the test's own process: what is said above is of the other one"


def test_nobody_of_the_account_looks_into_it() -> None:
    """The kernel refuses what it would grant for this very process otherwise."""
    look = [sys.executable, "-c", "import sys; open(f'/proc/{sys.argv[1]}/environ', 'rb').read()"]

    def seen() -> int:
        return subprocess.run([*look, str(os.getpid())], capture_output=True, env={}).returncode

    assert netns.forked(seen) == 0 and hidden.apart(seen) != 0


def test_l4_it_ends_with_the_one_who_asked(tmp_path: Path) -> None:
    """And so does the program that it waits for: nothing is made after everybody was killed."""
    program = f"""
import os, asf_cli
from asf_lib.engine import hidden, secretcommand
script = "echo $PPID $$ > {tmp_path}/pids.new; mv {tmp_path}/pids.new {tmp_path}/pids; exec sleep 600"
hidden.apart(lambda: secretcommand.run(["/bin/sh", "-c", script])[0])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    with subprocess.Popen([sys.executable, "-c", program], env=env) as asking:
        wait_for((tmp_path / "pids").exists, 60, "the program")
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        assert all(procs.identity(pid) is not None for pid in pids)
        asking.kill()
    wait_for(lambda: not any(map(procs.identity, pids)), 60, "its end")


def test_a_program_started_there_leaves_no_core_dump() -> None:
    show = "import resource, ctypes; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    assert hidden.apart(lambda: secretcommand.run([sys.executable, "-c", show])[1].decode()) == "0\n"


@pytest.mark.parametrize(
    "error",
    [
        SecretError([Problem("a", "f", 3, key="k", remedy="r"), Problem("b")], code="c"),
        PlanError("m", file="f", key="k", found="x", remedy="r"),
        HostError("m", code="host-x"),
        EngineError("m", cmd=["podman"], rc=125, stderr="words", code="storage-full"),
    ],
)
def test_errors_come_back_as_they_were(error: SecretError | PlanError | HostError | EngineError) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        hidden.apart(fail)
    assert caught.value.as_dict() == error.as_dict()


def test_s4_what_nobody_foresaw_says_where_and_not_what() -> None:
    def fail() -> None:
        raise ValueError(CANARY)

    with pytest.raises(EngineError) as caught:
        hidden.apart(fail)
    assert "ValueError in fail" in str(caught.value) and "CANARY" not in str(caught.value.as_dict())


def test_an_undumped_process_still_closes_what_it_inherited() -> None:
    """It may not list its own descriptors any more: netns closes them by their numbers."""
    read, write = os.pipe()
    try:

        def twice() -> list[bool]:
            return [bool(netns.forked(lambda: _open(write))), _open(write)]

        assert hidden.apart(twice) == [False, False] and _open(write)
    finally:
        os.close(read)
        os.close(write)


def _open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
