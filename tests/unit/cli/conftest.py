# SPDX-License-Identifier: BSD-4-Clause
"""The command line as a program, in an account's folders made for one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import documents

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = Path(__file__).resolve().parent / "fixtures"


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a home and a run directory below ``tmp_path``; it is also this process's."""
    folders = {"HOME": "home", "XDG_RUNTIME_DIR": "run", "ASF_HOME": "asf"}
    for folder in folders.values():
        (tmp_path / folder).mkdir(mode=0o700)
    env = {name: str(tmp_path / folder) for name, folder in folders.items()}
    env.update(PATH=os.environ["PATH"], PYTHONPATH=str(ROOT), LANG="C.UTF-8", PYTHONDONTWRITEBYTECODE="1")
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return env


@pytest.fixture
def start(account: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts ``asf-play`` in an empty folder; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []
    folder = tmp_path / "cwd"
    folder.mkdir()

    def begin(*words: object, env: dict[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, **more}
        argv = [sys.executable, "-m", "asf_cli", *map(str, words)]
        process = subprocess.Popen(argv, cwd=folder, env={**account, **(env or {})}, text=True, **more)
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs ``asf-play`` to its end; gives exit code, standard output, standard error."""

    def finish(*words: object, **more: Any) -> tuple[int, str, str]:
        process = start(*words, **more)
        out, err = process.communicate(timeout=50)
        if documents.asked(words) and out.startswith(("{", "[")):
            assert documents.wrong(words, json.loads(out)) == []
        return process.returncode, out, err

    return finish
