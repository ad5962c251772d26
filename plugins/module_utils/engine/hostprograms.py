# SPDX-License-Identifier: BSD-2-Clause
"""Programs of this host that ASF needs: where they are, and which version they say they are."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Optional

from ..core.doctor_facts import Version
from . import podman, trust

#: program -> argument that makes it tell its version; None where existence is all that matters
PROGRAMS: Mapping[str, Optional[str]] = {
    "podman": "--version",
    "crun": "--version",
    "runc": "--version",
    "conmon": "--version",
    "slirp4netns": "--version",
    "pasta": "--version",
    "nft": "-V",
    "ip": "-V",
    "git": "--version",
    "mmdebstrap": "--version",
    "newuidmap": None,
}
#: These end by _exit(2) and lose what they print to a pipe (measured: passt 2025_05_03); terminals are not buffered.
_ON_TERMINAL = frozenset({"pasta"})
_DEADLINE = 20
_SPOKEN = 4096


def program(name: str) -> Optional[str]:
    """Path of a program, found where Podman's calls find it: never in the current directory (F3)."""
    return shutil.which(name, path=":".join(trust.search_path(os.environ)))


def told(name: str) -> Optional[str]:
    """What one of :data:`PROGRAMS` says about its version ('' when it says nothing), None when it is not there."""
    path, argument = program(name), PROGRAMS[name]
    if path is None or argument is None:
        return None if path is None else ""
    try:
        return (_on_terminal if name in _ON_TERMINAL else _on_pipe)([path, argument])
    except (OSError, subprocess.TimeoutExpired):
        return ""


def ask(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program that only tells something. Raises OSError, TimeoutExpired."""
    return subprocess.run(
        argv,
        env=podman.environment(None),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_DEADLINE,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def _on_pipe(argv: list[str]) -> str:
    done = ask(argv)
    return done.stdout + done.stderr


def _on_terminal(argv: list[str]) -> str:
    """The same with a terminal for output; its buffer of 4 KiB holds all that a version takes."""
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            argv,
            env=podman.environment(None),
            stdout=theirs,
            stderr=theirs,
            timeout=_DEADLINE,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        os.set_blocking(ours, False)
        with contextlib.suppress(BlockingIOError):  # it said nothing
            return os.read(ours, _SPOKEN).decode("utf-8", "replace")
        return ""
    finally:
        os.close(ours)
        os.close(theirs)


def version(name: str, said: Optional[str]) -> Optional[Version]:
    """The version in what the program said; (0,) when it says none, None when it is not there."""
    if said is None:
        return None
    if name == "pasta":  # "pasta 0.0~git20250503.587980c-2" or "passt 2024_08_21.1d6142f"
        date = re.search(r"(20\d\d)_?(\d\d)_?(\d\d)", said)
        return tuple(int(part) for part in date.groups()) if date else (0,)
    return numbers(said)


def numbers(text: str) -> Version:
    """The first dotted number in `text`; (0,) when there is none."""
    found = re.search(r"\d+(\.\d+)+", text)
    return tuple(int(part) for part in found.group().split(".")) if found else (0,)
