# SPDX-License-Identifier: BSD-4-Clause
"""Rows of the engine's log file as lines, and a log that grows, is started over, and ends."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path

import pytest

from asf_lib.engine import logfollow, logs, netns
from asf_lib.engine.logfollow import Follower

STAMP = "2026-01-31T12:00:00.000000000+00:00"


def row(text: str, part: str = "F", stream: str = "stdout") -> str:
    return f"{STAMP} {stream} {part} {text}\n"


def test_lines_have_time_and_stream():
    found = logs.timed([row("one").rstrip("\n"), row("err", stream="stderr").rstrip("\n"), "odd", ""])
    assert found == [logs.Line(STAMP, "stdout", "one"), logs.Line(STAMP, "stderr", "err")]


def test_a_line_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logs.Joiner, "LONGEST", 10)
    joiner = logs.Joiner()
    for _ in range(100):
        assert list(joiner.feed(row("x" * 8, "P").rstrip("\n"))) == []
    assert [line.text for line in joiner.rest()] == ["x" * 10]


@pytest.fixture
def container(monkeypatch: pytest.MonkeyPatch):
    """A first process and the conmon above it, both ours; namespaces are for e2e tests."""
    monkeypatch.setattr(netns, "enter_parent_user", lambda: None)
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(logfollow.procs, "parent", lambda _pid: None)
    yield process
    process.kill()
    process.wait()


def gather(follower: Follower, count: int, seconds: float = 20) -> list[str]:
    """Texts until there are so many, or the log is over."""
    found: list[str] = []
    end = time.monotonic() + seconds
    while len(found) < count and not follower.ended and time.monotonic() < end:
        if select.select([follower], [], [], 1)[0]:
            found += [line.text for line in follower.lines()]
    return found


def test_follow_until_the_container_ends(tmp_path: Path, container: subprocess.Popen[bytes]):
    path = tmp_path / "ctr.log"
    path.write_text(row("before"))
    with Follower(str(path), container.pid) as follower:
        assert gather(follower, 1) == ["before"]
        with path.open("a") as stream:
            stream.write(row("half ", "P"))
            stream.flush()
            stream.write(row("line"))
        assert gather(follower, 1) == ["half line"]
        with path.open("a") as stream:
            stream.write(row("last words"))
        container.kill()
        container.wait()
        assert gather(follower, 99) == ["last words"]
        assert follower.ended


def test_follow_a_log_that_is_started_over(tmp_path: Path, container: subprocess.Popen[bytes]):
    """conmon writes a new file and renames it over the full one."""
    path, new = tmp_path / "ctr.log", tmp_path / "ctr.log.tmp"
    path.write_text(row("old"))
    with Follower(str(path), container.pid) as follower:
        assert gather(follower, 1) == ["old"]
        new.write_text(row("first of the new"))
        os.rename(new, path)
        assert gather(follower, 1) == ["first of the new"]
        with path.open("a") as stream:
            stream.write(row("second"))
        assert gather(follower, 1) == ["second"]


def test_follow_a_container_that_is_dead_already(tmp_path: Path, container: subprocess.Popen[bytes]):
    path = tmp_path / "ctr.log"
    path.write_text(row("only"))
    container.kill()
    container.wait()
    with Follower(str(path), container.pid) as follower:
        assert gather(follower, 99) == ["only"]
        assert follower.ended


def test_no_link_and_no_fifo_is_followed(tmp_path: Path, container: subprocess.Popen[bytes]):
    (tmp_path / "secret").write_text(row("secret"))
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "fifo", "absent"):
        with Follower(str(tmp_path / name), container.pid) as follower:
            assert gather(follower, 1) == [] and follower.ended


def test_the_reader_goes_with_its_caller(tmp_path: Path, container: subprocess.Popen[bytes]):
    path = tmp_path / "ctr.log"
    path.write_text("")
    follower = Follower(str(path), container.pid)
    with follower:
        child = follower._child
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
