# SPDX-License-Identifier: BSD-4-Clause
"""docs/own-agent.md, word by word: a stranger's commands, from an empty root to a second session."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from support.product import Home, SessionFactory, asf_play, podman, run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "own-agent.md"


def commands() -> str:
    """The page's commands. They made the image before the closed network was entered (tools/build_all.py)."""
    spec = importlib.util.spec_from_file_location("doc_commands", ROOT / "tools" / "doc_commands.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.script(PAGE))


def test_the_page_as_it_stands(home: Home, session: SessionFactory, tmp_path: Path) -> None:
    opened = session.adopt("librarian", "main")
    done = run(["bash", "-c", commands()], env={**home.env, "WORK": str(tmp_path)}, cwd=tmp_path, timeout=400)
    assert done.rc == 0, done
    assert "Both texts are counted.\n" in done.out and "| walden.txt |      11 |" in done.out, done
    assert done.out.rstrip().endswith("\n6"), done
    assert "packages-librarian built" not in done.err + done.out, "the image was not there: run tools/build_all.py"
    assert [volume for volume in podman("volume", "ls", "-q").split() if "librarian" in volume], "no state was kept"
    assert podman("ps", "-a", "-q", "--filter", f"label=asf.session={opened.id}") == ""
    assert asf_play("reset.yml", "-e", "agent=librarian", "--yes", home=home).rc == 0
