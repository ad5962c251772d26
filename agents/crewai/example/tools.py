# SPDX-License-Identifier: BSD-4-Clause
"""What the agent can do: read a file, edit a file, run a command. An error is an answer, so that the agent goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path


def read_file(path: str) -> str:
    """Read a text file.

    Args:
        path: the file's path
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"error: {error}"


def edit_file(path: str, old: str, new: str) -> str:
    """Replace the one place where a text file holds `old`. An empty `old` writes a new file.

    Args:
        path: the file's path
        old: the text to replace
        new: the text to put there
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8") if old or file.exists() else ""
        if old and text.count(old) != 1:
            return f"error: the text is there {text.count(old)} times"
        if not old and text:
            return "error: the file exists; say what to replace"
        file.write_text(text.replace(old, new) if old else new, encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"error: {error}"
    return f"{path} is changed"


def run_command(command: str) -> str:
    """Run a shell command for at most ten minutes. Answers its exit code and what it printed.

    Args:
        command: the command line
    """
    try:
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, errors="replace", timeout=600)
    except subprocess.TimeoutExpired:
        return "error: the command took longer than ten minutes"
    return f"exit code {done.returncode}\n{(done.stdout + done.stderr)[-20_000:]}"
