# SPDX-License-Identifier: BSD-4-Clause
"""The demo reads what an agent committed, from a repository in which the agent wrote whatever it liked."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import demo  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="no git on this host")


def commit(repo: Path, message: str) -> None:
    (repo / "GREETING.md").write_text("Hello\x1b[2J\n")
    demo.git(repo, "add", ".")
    demo.git(repo, "commit", "-q", "-m", message)


def sign(repo: Path) -> None:
    """Replace main's commit by one that carries a signature, so that git would check it."""
    head, _, rest = demo.git(repo, "cat-file", "commit", "main").partition("author ")
    raw = repo.parent / "commit"
    raw.write_text(f"{head}author {rest}".replace("\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n\n", 1))
    made = demo.git(repo, "hash-object", "-t", "commit", "-w", "--literally", str(raw)).strip()
    demo.git(repo, "update-ref", "refs/heads/main", made)


def test_f3_the_demo_runs_no_program_that_the_agent_named(tmp_path: Path) -> None:
    """Filters, text conversion, external diff, file monitor, signature program, hooks, pager: none of the sample's."""
    repo = demo.sample(tmp_path / "sample")
    before = demo.commit_of(repo)
    commit(repo, "Add a greeting")
    sign(repo)
    mark, evil = tmp_path / "ran", tmp_path / "evil"
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >>{mark}\ncat\n')
    evil.chmod(0o755)
    (repo / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (repo / ".git/info/attributes").write_text("* filter=evil diff=evil\n")
    (repo / ".git/config").write_text(
        f"[core]\nfsmonitor = {evil}\nhooksPath = {tmp_path}\npager = {evil}\n[diff]\nexternal = {evil}\n"
        f'[filter "evil"]\nclean = {evil}\nsmudge = {evil}\nrequired = true\n'
        f'[diff "evil"]\ntextconv = {evil}\ncommand = {evil}\n[log]\nshowSignature = true\n[gpg]\nprogram = {evil}\n'
    )
    (repo / "README.md").write_text("later, and not committed\n")
    found = demo.changes(repo, before, tmp_path / "reader.git")
    assert not mark.exists(), mark.read_text()
    assert "Add a greeting" in found and "+Hello\\x1b[2J" in found and "not committed" not in found


def test_nothing_committed_is_no_change(tmp_path: Path) -> None:
    repo = demo.sample(tmp_path / "sample")
    (repo / "README.md").write_text("changed\n")
    assert demo.changes(repo, demo.commit_of(repo), tmp_path / "reader.git") == ""


def _link(ref: Path) -> None:
    ref.with_name("other").write_text("0" * 40)
    ref.unlink()
    ref.symlink_to("other")


def _pipe(ref: Path) -> None:
    ref.unlink()
    os.mkfifo(ref)
    assert stat.S_ISFIFO(ref.stat().st_mode)


@pytest.mark.parametrize(
    "spoil",
    [
        _link,
        _pipe,
        Path.unlink,
        lambda ref: ref.write_text("--output=/tmp/x\n"),
        lambda ref: ref.write_text("0" * 41),
        lambda ref: ref.write_text("1" * 40),
    ],
    ids=["link", "pipe", "none", "option", "long", "no-object"],
)
def test_a_branch_that_is_no_commit_is_reported(tmp_path: Path, spoil: Callable[[Path], object], capsys) -> None:
    repo = demo.sample(tmp_path / "sample")
    before = demo.commit_of(repo)
    spoil(repo / ".git/refs/heads/main")
    assert demo.changes(repo, before, tmp_path / "reader.git") == ""
    assert "cannot be read" in capsys.readouterr().out
