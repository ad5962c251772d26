# SPDX-License-Identifier: BSD-4-Clause
"""Output of the sandbox that ends on a terminal although it has none of its own: filtered; elsewhere as it is."""

import os
import pty
import select
import signal
import subprocess
import sys
import tty
from contextlib import contextmanager

import pytest

from asf_cli import attach, entering, strainer
from asf_lib.engine import podman

HOSTILE = b"before\x1b]52;c;Y3VybCBldmlsIHwgc2g=\x07\x1b]0;title\x07\x1b[31mred\x9b21t\n"
SHOWN = b"before\x1b[31mred21t\n"


@contextmanager
def terminal():
    """``(a terminal's descriptor, what it has got so far)``."""
    master, slave = pty.openpty()
    tty.setraw(slave)

    def got():
        found = b""
        while select.select([master], [], [], 0.2)[0]:
            found += os.read(master, 65536)
        return found

    try:
        yield slave, got
    finally:
        os.close(master)
        os.close(slave)


@contextmanager
def as_stream(handle, number):
    """The descriptor in the place of a standard stream."""
    saved = os.dup(number)
    os.dup2(handle, number)
    try:
        yield
    finally:
        os.dup2(saved, number)
        os.close(saved)


def test_a_terminal_is_protected(capfd):
    with terminal() as (screen, got):
        with strainer.streams(True, (screen, screen)) as (out, err):
            os.write(out, HOSTILE[:12])
            os.write(err, "ü ".encode())
            os.write(out, HOSTILE[12:])
        found = got()
    assert b"]52" not in found and b"]0" not in found and b"\x9b" not in found
    assert b"\x1b[31mred" in found and "ü ".encode() in found and found.endswith(b"\x1b[0m\x1b(B\x0f"), found
    assert "kept back: 1" in capfd.readouterr().err


def test_a_pipe_gets_every_byte():
    read, write = os.pipe()
    with strainer.streams(True, (write,)) as (out,):
        assert out == write
    os.close(read)
    os.close(write)


def test_a_filter_that_is_off_leaves_the_terminal_alone():
    with terminal() as (screen, _), strainer.streams(False, (screen,)) as (out,):
        assert out == screen


def test_what_still_holds_the_pipe_is_not_waited_for():
    with terminal() as (screen, got):
        with strainer.streams(True, (screen,)) as (out,):
            other = subprocess.Popen(["sleep", "60"], stdout=out)
            os.write(out, b"said")
        other.kill()
        other.wait()
        assert got() == b"said"


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A ``podman`` whose command writes what is hostile to both streams."""
    program = tmp_path / "podman"
    program.write_text(f"#!{sys.executable}\nimport os\nfor n in (1, 2): os.write(n, {HOSTILE!r})\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(
        podman.Podman, "__init__", lambda self: setattr(self, "env", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    )


def test_exec_without_a_terminal_of_its_own(stub):
    with terminal() as (screen, got):
        with as_stream(screen, 1), as_stream(screen, 2):
            assert entering.run("asf-claude.main-agent", ["git", "status"]) == 0
        found = got()
        assert b"red" in found and b"]52" not in found and b"\x9b" not in found
        with as_stream(screen, 1), as_stream(screen, 2):
            entering.run("asf-claude.main-agent", ["git", "status"], filtered=False)
        assert b"]52;c;" in got()


def test_a_service_whose_output_is_streamed(stub, monkeypatch):
    gate = subprocess.Popen(["sleep", "60"])
    to = attach.Target("asf-a.main-agent", gate.pid, os.getpid(), tty=False)
    monkeypatch.setattr(attach, "exit_code", lambda *_: attach.Ending("exit", 0))
    monkeypatch.setattr(attach, "_copy", _copied(gate))
    with terminal() as (screen, got):
        monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(screen), "w"))
        monkeypatch.setattr(sys, "stderr", os.fdopen(os.dup(screen), "w"))
        ending = attach.attach(podman.Podman(), to, attach.Streams(stdin=False))
        found = got()
    assert ending == attach.Ending("exit", 0)
    assert b"red" in found and b"]52" not in found and b"\x9b" not in found


def _copied(gate):
    """``_copy``, after which the workload has ended."""
    copy = attach._copy

    def run(source, sink, handle):
        copy(source, sink, handle)
        gate.send_signal(signal.SIGKILL)

    return run
