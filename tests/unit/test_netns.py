# SPDX-License-Identifier: BSD-4-Clause
"""The forked helper that enters namespaces: its descriptors, its deadline, and what its answer may be."""

from __future__ import annotations

import os
import resource
import subprocess
import time

import pytest
from support.waiting import wait_for

from asf_lib.core.errors import EngineError
from asf_lib.engine import netns, procs


def _open_descriptors() -> list[int]:
    return sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}"))


def test_the_helper_keeps_no_descriptor_but_its_answer() -> None:
    """Also none beyond 65536, where a large RLIMIT_NOFILE allows them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    high = 70000 if hard == resource.RLIM_INFINITY or hard > 70000 else hard - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (high + 1, hard))
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, high)
        assert netns.forked(_open_descriptors) == [0, 1, 2, 3]
    finally:
        os.close(high)
        os.close(null)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_answer_and_the_failure() -> None:
    assert netns.forked(lambda: {"a": [1]}) == {"a": [1]}
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        netns.forked(lambda: 1 // 0)


def test_an_answer_that_is_too_large_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netns, "MAX_ANSWER", 1 << 20)
    with pytest.raises(EngineError, match="answered more than 1 MiB"):
        netns.forked(lambda: "x" * (2 << 20))


def test_the_deadline_ends_the_helper_and_its_children(tmp_path) -> None:
    def work() -> None:
        child = subprocess.Popen(["sleep", "60"])
        (tmp_path / "pid").write_text(str(child.pid))
        time.sleep(60)

    with pytest.raises(EngineError, match="did not answer within 1 s"):
        netns.forked(work, timeout=1)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: procs.start_time(pid) is None, 30, "the helper's child to end")
