# SPDX-License-Identifier: BSD-4-Clause
"""Linters as tests, so that one summary line covers everything. Each prints its own findings."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: checked as it is installed on a target; the modules around it are not typed throughout
STRICT = ["-p", "plugins.module_utils.core"]


def run(*argv, cwd=ROOT, **variables):
    """Run a linter and fail with what it says."""
    environment = {**os.environ, "NO_COLOR": "1", "PY_COLORS": "0", **variables}
    done = subprocess.run(argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        pytest.fail(f"{' '.join(argv)} ({done.returncode})\n{done.stdout[-8000:]}{done.stderr[-4000:]}", pytrace=False)


def tracked(*patterns):
    """Files of the repository by glob, without what git ignores."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    return [ROOT / name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_ruff():
    run("ruff", "check", "--output-format", "concise", ".")


def test_mypy_strict_on_the_core():
    run("mypy", "--strict", *STRICT)


def test_mypy_strict_on_the_command_line(tmp_path):
    """With what it uses of the engine, which has its name only where it is installed: here a link gives it."""
    (tmp_path / "asf_lib").symlink_to(ROOT / "plugins" / "module_utils")
    run("mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "asf_cli", MYPYPATH=str(tmp_path))


def test_yamllint():
    run("yamllint", "--strict", ".")


@pytest.mark.slow
def test_ansible_lint_production():
    run("ansible-lint", "--offline", "--nocolor")


def test_shellcheck():
    scripts = [str(path) for path in tracked() if _is_shell(path)]
    run("shellcheck", *scripts)


def _is_shell(path):
    with path.open("rb") as file:
        first = file.readline(80)
    return first.startswith((b"#!/bin/sh", b"#!/bin/bash", b"#!/usr/bin/env bash"))


def _go_modules():
    return [path.parent for path in tracked("*go.mod")]


@pytest.mark.slow
@pytest.mark.parametrize("folder", _go_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_go_vet_and_format(folder):
    if shutil.which("go") is None:
        pytest.skip("no Go on this host: images bring their own, linting does not")
    run("go", "vet", "./...", cwd=folder)
    done = subprocess.run(["gofmt", "-l", "."], cwd=folder, capture_output=True, text=True, check=True)
    assert not done.stdout, f"gofmt would change {done.stdout}"
