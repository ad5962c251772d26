# SPDX-License-Identifier: BSD-2-Clause
"""The operator's own folders: run, state and cache (XDG), each 0700 and owned by the caller.

Nothing here is ever looked up relative to the current directory (invariant 11).
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Mapping, Optional

from ..core.errors import HostError

#: The environment that folders are found by; None is the caller's own.
Env = Optional[Mapping[str, str]]
#: ``AGENT.NAME``; no slash, no leading dot: safe as one path component. The agent's pattern has no dot.
SESSION_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\.[a-z0-9][a-z0-9_-]{0,62}\Z")


def _xdg(variable: str, fallback: str, env: Optional[Mapping[str, str]]) -> Path:
    env = os.environ if env is None else env
    value = env.get(variable, "")
    if value and os.path.isabs(value):
        return Path(value) / "asf"
    home = env.get("HOME", "") or os.path.expanduser("~")
    if not os.path.isabs(home):
        raise HostError(
            f"neither {variable} nor HOME is an absolute path", found=home, remedy="set HOME", code="no-home"
        )
    return Path(home) / fallback / "asf"


def run_dir(env: Optional[Mapping[str, str]] = None) -> Path:
    """``$XDG_RUNTIME_DIR/asf``. Raises HostError when the account has no run directory (case S6)."""
    env = os.environ if env is None else env
    base = env.get("XDG_RUNTIME_DIR", "") or f"/run/user/{os.getuid()}"
    if not os.path.isdir(base) or os.stat(base).st_uid != os.getuid():
        raise HostError(
            "this account has no run directory of its own",
            key="XDG_RUNTIME_DIR",
            found=base,
            remedy="log in as the account (not through sudo or su without a login), or let tools/operator prepare it",
            code="no-runtime-dir",
        )
    return Path(base) / "asf"


def state_dir(env: Optional[Mapping[str, str]] = None) -> Path:
    """``$XDG_STATE_HOME/asf``: records of live sessions, evidence, the index of chain heads."""
    return _xdg("XDG_STATE_HOME", ".local/state", env)


def cache_dir(env: Optional[Mapping[str, str]] = None) -> Path:
    """``$XDG_CACHE_HOME/asf``: builds, downloads, binaries; may be deleted at any time."""
    return _xdg("XDG_CACHE_HOME", ".cache", env)


def private(path: Path) -> Path:
    """Make the folder (0700, parents too) or check that it is a real folder of the caller's own; returns it.

    Raises HostError for a symbolic link or a folder of somebody else: it could be swapped under ASF's hands.
    """
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise HostError("not a folder of this account", file=str(path), remedy="remove it", code="foreign-folder")
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


def session_id(text: str) -> str:
    """The text when it is a session's ID (``AGENT.NAME``), safe as a file name. Raises HostError otherwise."""
    if not SESSION_ID.match(text):
        raise HostError(
            "not a session",
            key="session",
            found=text[:80],
            remedy="use AGENT.NAME, as in claude.main",
            code="bad-session",
        )
    return text
