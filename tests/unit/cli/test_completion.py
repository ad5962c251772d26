# SPDX-License-Identifier: BSD-4-Clause
"""Completion: what may stand at the cursor, and the three shells' own answer to a TAB in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asf_cli import commands, complete
from asf_cli.commands import completion


@pytest.fixture
def world(account: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An agent ``example`` and the sessions ``claude.main`` and ``claude.second``; no Podman is asked."""
    (tmp_path / "asf" / "agents" / "example").mkdir(parents=True)
    (tmp_path / "asf" / "agents" / "example" / "runtime.yml").write_text("name: example\n")
    live = tmp_path / "home" / ".local" / "state" / "asf" / "live"
    live.mkdir(parents=True)
    for name in ("claude.main", "claude.second"):
        (live / f"{name}.json").write_text("{}")
    return account


def words(line: str) -> list[str]:
    return complete.candidates(complete.split(line)[1:])


def test_commands_and_playbooks(world):
    found = words("asf-play ")
    assert set(commands.COMMANDS) < set(found) and {"open.yml", "close.yml"} < set(found)
    assert words("asf-play ope") == ["open.yml"] and words("asf-play xyz") == []


def test_options_come_from_the_parsers(world):
    assert {"--follow", "--since", "--json"} < set(words("asf-play logs --"))
    assert "--detach" in words("asf-play open.yml --") and "--detach" not in words("asf-play logs --")
    assert words("asf-play completion --wo") == []  # not for people
    assert words("asf-play repo add x y --mode ") == ["clone", "ro", "rw"] and words("asf-play repo ") == [
        "add",
        "list",
        "remove",
    ]


def test_what_exists(world):
    assert words("asf-play status ") == ["claude", "claude.main", "claude.second"]
    assert words("asf-play logs claude.s") == ["claude.second"] and words("asf-play logs claude dec") == ["decisions"]
    assert "example" in words("asf-play repo add ") and words("asf-play repo add exa") == ["example"]
    assert words("asf-play open.yml -e ") == ["agent=", "session="]
    assert words("asf-play open.yml -e agent=exa") == ["agent=example"]
    assert words("asf-play -e agent=exa") == ["agent=example"]
    assert words("asf-play close.yml -e agent=claude -e session=s") == ["session=second"]
    assert words("asf-play cp claude.s") == [complete.FILES, "claude.second:"]
    assert words("asf-play evidence show claude.s") == ["claude.second"]
    assert words("asf-play logs -n 5 --since 1h claude.s") == ["claude.second"]
    assert words("asf-play exec claude -- gi") == words("asf-play exec claude -- ") == [complete.FILES]


@pytest.mark.parametrize(
    "line",
    ["asf-play 'half", 'asf-play "half', "asf-play half\\", "asf-play \x1b[2J", "asf-play " + "x " * 500, "", "   "],
)
def test_odd_lines(world, line):
    assert isinstance(complete.told(line, [], ":="), list)


def test_bash_replaces_from_its_last_break_only(world):
    assert complete.told("asf-play open.yml -e agent=exa", [], " =:") == ["example"]
    assert complete.told("asf-play open.yml -e agent=exa", [], " ") == ["agent=example"]
    assert complete.told(None, ["open.yml", "-e", "agent=exa"], "") == ["agent=example"]


def test_the_command(run):
    for shell in completion.SCRIPTS:
        code, out, err = run("completion", shell)
        assert (code, err) == (0, "") and out == completion.SCRIPTS[shell]
    assert json.loads(run("completion", "fish", "--json")[1])["shell"] == "fish"
    code, out, err = run("completion", "bahs")
    assert (code, out) == (64, "") and "did you mean bash?" in err
    assert run("completion")[0] == 64


# --- real shells ------------------------------------------------------------------------------------------------------


class Shell:
    """A shell in a terminal, with an ``asf-play`` that writes its words to a file unless it is asked for completion."""

    def __init__(self, argv: list[str], env: dict[str, str], said: Path, answered: Path, setup: str) -> None:
        self._said, self._answered = said, answered
        self.pid, self._main = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, env)
        self._type(f"{setup}; asf-play ready\r")
        assert self._words() == ["ready"]

    def complete(self, keys: str) -> list[str]:
        """Type the keys and TAB, then an X and the enter key; the words that came of it."""
        self._answered.unlink(missing_ok=True)
        self._type(f"{keys}\t")
        self._until(self._answered)
        self._type("X\r")  # read after TAB is done with, whenever that is
        return self._words()

    def _type(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def _until(self, file: Path) -> None:
        """Read what the shell shows until the file is there."""
        end = time.monotonic() + 50
        while not file.exists():
            assert time.monotonic() < end, f"no {file.name} from the shell"
            if not select.select([self._main], [], [], 0.02)[0]:
                continue
            if b"\x1b[c" in os.read(self._main, 65536).replace(b"\x1b[0c", b"\x1b[c"):
                os.write(self._main, b"\x1b[?1;2c")  # fish asks what terminal this is

    def _words(self) -> list[str]:
        self._until(self._said)
        found = self._said.read_text().split("\n")[:-1]
        self._said.unlink()
        return found

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._main)


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(asf-play completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u -D; source <(asf-play completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "asf-play completion fish | source"),
}


@pytest.fixture(params=list(SHELLS))
def shell(request, world: dict[str, str], tmp_path: Path) -> Iterator[Shell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    programs, said, answered = tmp_path / "bin", tmp_path / "said", tmp_path / "answered"
    programs.mkdir()
    (programs / "asf-play").write_text(
        f'#!/bin/sh\n[ "$1" != completion ] || {{ {sys.executable} -m asf_cli "$@"; >{answered}; exit; }}\n'
        f"printf '%s\\n' \"$@\" > {said}.new; mv {said}.new {said}\n"
    )
    (programs / "asf-play").chmod(0o755)
    (tmp_path / "note 1.txt").write_text("")
    argv, setup = SHELLS[request.param]
    env = {**world, "PATH": f"{programs}:{world['PATH']}", "TERM": "vt100", "HISTFILE": ""}
    found = Shell(argv, env, said, answered, f"cd {tmp_path}; {setup}")
    yield found
    found.end()


@pytest.mark.slow
def test_a_tab_in_a_real_shell(shell: Shell):
    assert shell.complete("asf-play ope") == ["open.yml", "X"]
    assert shell.complete("asf-play logs --fol") == ["logs", "--follow", "X"]
    assert shell.complete("asf-play status claude.s") == ["status", "claude.second", "X"]
    assert shell.complete("asf-play open.yml -e agent=exa") == ["open.yml", "-e", "agent=example", "X"]
    assert shell.complete("asf-play cp claude.s") == ["cp", "claude.second:X"]  # more of the word is to come: no blank
    assert shell.complete("asf-play exec claude -- cat not") == ["exec", "claude", "--", "cat", "note 1.txt", "X"]
