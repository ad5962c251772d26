# SPDX-License-Identifier: BSD-4-Clause
"""asf-play exec, as far as it needs no Podman."""

import argparse
import os
import signal
import sys
import textwrap

import pytest

from asf_cli import attach, entering
from asf_cli.commands import exec as cli_exec
from asf_cli.errors import CliError
from asf_lib.engine import podman, procs, state


def request(*command, tty=False):
    return argparse.Namespace(target="claude", extra=[], command=list(command), tty=tty, raw_terminal=False)


@pytest.fixture(autouse=True)
def _recorded(monkeypatch):
    monkeypatch.setattr(state, "has_record", lambda session, env=None: True)


def test_only_a_live_session(monkeypatch):
    for record in (None, {"state": "opening"}):
        monkeypatch.setattr(state, "read", lambda session, record=record: record)
        with pytest.raises(CliError) as caught:
            cli_exec.run(request("ls"))
        assert "claude.main is not live" in caught.value.fields["message"]


@pytest.mark.parametrize("agent", [None, {}, {"pid": os.getpid(), "start": 1}, {"pid": 1 << 30, "start": None}])
def test_a_container_that_was_started_again_is_not_entered(monkeypatch, agent):
    """Behind ASF's back it has no go and no cables, whatever the record says."""
    monkeypatch.setattr(state, "read", lambda session: {"state": "live", "containers": {"agent": agent}})
    with pytest.raises(CliError) as caught:
        cli_exec.run(request("ls"))
    assert "not the one that was opened" in caught.value.fields["message"]
    assert "close the session" in caught.value.fields["remedy"]


@pytest.fixture
def stand_in(tmp_path, monkeypatch, account):
    """A ``podman`` that writes down its words, and then does what a command would."""
    program = tmp_path / "bin" / "podman"
    program.parent.mkdir()
    code = f"""\
        #!{sys.executable}
        import os, signal, sys
        open({str(tmp_path / "words")!r}, "w").write("\\0".join(sys.argv[1:]))
        what = sys.argv[-1]
        if what == "cat":
            sys.stdout.write(sys.stdin.read())
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            sys.exit(int(what))
    """
    program.write_text(textwrap.dedent(code))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    me = {"name": "asf-claude.main-agent", "pid": os.getpid(), "start": procs.start_time(os.getpid())}
    monkeypatch.setattr(state, "read", lambda session: {"state": "live", "containers": {"agent": me}})
    monkeypatch.setattr(
        podman.Podman, "__init__", lambda self: setattr(self, "env", {"PATH": f"{program.parent}:/usr/bin:/bin"})
    )
    return tmp_path / "words"


def test_words_and_exit_code(stand_in):
    before = signal.getsignal(signal.SIGTERM)
    assert cli_exec.run(request("sh", "-c", "{{ x }}\n", "--", "3")) == 3
    words = stand_in.read_text().split("\0")
    wanted = ["asf-claude.main-agent", "/asf/gate", "exec", "--", "sh", "-c", "{{ x }}\n", "--", "3"]
    assert words == ["exec", "--interactive", *wanted]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_terminal_that_is_none(stand_in, monkeypatch):
    monkeypatch.setattr(attach, "have_terminal", lambda: False)
    with pytest.raises(CliError) as caught:
        cli_exec.run(request("ls", tty=True))
    assert caught.value.fields["key"] == "-t" and not stand_in.exists()


def test_podman_killed(stand_in):
    assert cli_exec.run(request("die")) == 128 + signal.SIGKILL


def test_the_command_is_found_by_its_mark(tmp_path):
    def process(pid, parent, comm, environ=b""):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(comm + "\n")
        (tmp_path / str(pid) / "environ").write_bytes(environ)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 0 0")

    process(10, 1, "conmon", b"PATH=/bin\0LC_ASF_EXEC=aa\0")
    process(11, 1, "conmon", b"LC_ASF_EXEC=bb\0")
    process(12, 1, "podman", b"LC_ASF_EXEC=bb\0")
    process(20, 10, "sh")
    process(21, 11, "sh")
    process(22, 21, "sleep")
    (tmp_path / "self").mkdir()
    assert entering.marked("bb", str(tmp_path)) == [21]
    assert entering.marked("cc", str(tmp_path)) == []
