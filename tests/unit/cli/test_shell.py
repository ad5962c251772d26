# SPDX-License-Identifier: BSD-4-Clause
"""asf-play shell: to which terminal it leads, what it says, and who closes the session. Podman is a stand-in."""

import argparse
import json
import os
from types import SimpleNamespace

import pytest

from asf_cli import attach, entering, errors, main, opening, seat
from asf_cli.commands import shell
from asf_cli.errors import CliError
from asf_lib.engine import procs, state

SESSION = "claude.main"


def test_who_sits_there(account):
    """The seat is one process's; how the last one left is told, and a killed one has left nothing but its beginning."""
    state.run_folder(SESSION).mkdir(parents=True)
    with seat.take(SESSION) as place:
        assert place.free and place.told() == ""
        place.note("attached")
        with seat.take(SESSION) as other:
            assert not other.free and other.by() == f" (asf-play, pid {os.getpid()})"
            other.note("detached")  # has no effect: it is not theirs
    with seat.take(SESSION) as place:
        assert place.free and "its terminal was lost: asf-play (pid" in place.told()
        place.note("detached")
    with seat.take(SESSION) as place:
        assert place.told().startswith("left with Ctrl-] at 20")
        place.note("hangup")
    with seat.take(SESSION) as place:
        assert place.told().startswith("its terminal was lost at 20")
    (state.run_folder(SESSION) / "terminal.json").write_text("{")
    with seat.take(SESSION) as place:
        assert place.free and place.told() == ""


def test_without_a_run_folder_the_seat_is_free(account):
    with seat.take(SESSION) as place:
        assert place.free
        place.note("attached")


@pytest.fixture
def world(monkeypatch, account):
    """A live session with an interactive workload; ``log`` has what was done."""
    made = SimpleNamespace(log=[], interactive=True, ending=attach.Ending("detached"), terminal=True, failed=False)

    def attached(podman, to, streams, go=None):
        made.log.append("attach" if streams.filtered else "attach raw")
        assert go is None and streams.stdin
        return made.ending

    def held(session, asf):
        plan = {"workload": {"interactive": made.interactive, "tty": made.interactive}}
        return SimpleNamespace(
            session=session, plan=plan, podman=None, target=lambda: None, join=lambda: made.log.append("join")
        )

    def entered(container, command, filtered=True):
        made.log.append(["exec" if filtered else "exec raw", container, *command])
        return 3

    def closed(request, progress):
        made.log.append(["close", request.variables])
        error = {"message": "a container is left"} if made.failed else None
        outcome = SimpleNamespace(failed=made.failed, final_error=lambda: error, asf={"evidence": "/e", "head": "abc"})
        return SimpleNamespace(outcome=outcome)

    monkeypatch.setattr(attach, "have_terminal", lambda: made.terminal)
    monkeypatch.setattr(attach, "attach", attached)
    monkeypatch.setattr(opening, "Held", held)
    monkeypatch.setattr(opening, "close", closed)
    monkeypatch.setattr(entering, "run_on_terminal", entered)
    monkeypatch.setattr(entering, "container", lambda session: f"asf-{session}-agent")
    monkeypatch.setattr(state, "has_record", lambda session, env=None: True)
    state.run_folder(SESSION).mkdir(parents=True)
    return made


def call(*words):
    return main.main(["shell", "claude", *words])


SHELL = ["exec", "asf-claude.main-agent", "/bin/bash", "-l"]


def test_back_to_a_workload_that_nobody_is_attached_to(world, capsys):
    assert call() == 0
    assert world.log == ["join", "attach"]
    said = capsys.readouterr().err
    assert "back to the workload of session claude.main;" in said and "left session claude.main" in said
    assert call() == 0
    assert "(left with Ctrl-] at" in capsys.readouterr().err


@pytest.mark.parametrize(("how", "code"), [("hangup", 129), ("terminated", 143), ("gone", errors.ENGINE)])
def test_lost_again(world, capsys, how, code):
    world.ending = attach.Ending(how)
    assert call() == code
    assert "claude.main" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "failed", "expected"), [(0, False, 0), (7, False, 7), (0, True, 224), (7, True, 7)])
def test_the_workloads_end_closes_the_session(world, capsys, code, failed, expected):
    world.ending, world.failed = attach.Ending("exit", code), failed
    assert call() == expected
    assert world.log[-1] == ["close", {"agent": "claude", "session": "main"}]
    assert ("a container is left" if failed else "head: abc") in capsys.readouterr().err


def test_a_new_shell_when_somebody_is_attached(world, capsys):
    with seat.take(SESSION):
        assert call() == 3
    assert world.log == [SHELL] and "a new shell in session claude.main" in capsys.readouterr().err


def test_a_new_shell_when_asked_for_or_when_there_is_no_terminal_to_return_to(world):
    assert call("--new") == 3
    world.interactive = False
    assert call() == 3
    assert world.log == [SHELL, SHELL]


def test_raw(world):
    call("--raw-terminal")
    call("--new", "--raw-terminal")
    assert world.log == ["join", "attach raw", ["exec raw", *SHELL[1:]]]


def test_without_a_terminal(world):
    world.terminal = False
    with pytest.raises(CliError) as caught:
        shell.run(argparse.Namespace(target="claude", extra=[], new=False, raw_terminal=False))
    assert caught.value.fields["code"] == "usage" and errors.exit_code(caught.value.fields) == 64


def process(root, pid, parent, comm, environ=b""):
    folder = root / str(pid)
    folder.mkdir()
    (folder / "comm").write_text(comm + "\n")
    (folder / "environ").write_bytes(environ)
    (folder / "stat").write_text(f"{pid} ({comm}) S {parent} 0 0")


def test_commands_of_a_dead_asf_play_are_hung_up(tmp_path, monkeypatch):
    """By pid and start time: a stranger with the same pid is not their owner (L1). Others' marks stay alone."""
    start = procs.start_time(os.getpid())
    for number, mark in enumerate((f"{os.getpid()}-{start}-aa", f"{os.getpid()}-{start + 1}-bb", "cc")):
        process(tmp_path, 100 + number, 1, "conmon", f"LC_ASF_EXEC={mark}".encode())
        process(tmp_path, 200 + number, 100 + number, "bash")
    killed = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    entering.hang_up_orphans(str(tmp_path))
    assert killed == [(201, 1)]


def test_notes_are_json(account):
    state.run_folder(SESSION).mkdir(parents=True)
    with seat.take(SESSION) as place:
        place.note("terminated")
    row = json.loads((state.run_folder(SESSION) / "terminal.json").read_text())
    assert row["how"] == "terminated" and row["pid"] == os.getpid()
