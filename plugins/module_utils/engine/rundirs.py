# SPDX-License-Identifier: BSD-2-Clause
"""Run folders of commands: whose they are, and which of them nobody lives in any more.

The name says it: pid, start time and boot (case L1: a pid alone may be a stranger's). They hold the environment and the
results of one run of ansible-runner, so none outlives its command for longer than until somebody looks.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Optional

from . import dirs, procs

_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]{8})-")


def base(env: Optional[Mapping[str, str]] = None) -> Path:
    """The folder that they lie in, which need not exist. Raises HostError when the account has no run directory."""
    return dirs.run_dir(env) / "cli"


def prefix() -> str:
    """How the names of this process's run folders begin."""
    me = procs.identity()
    return f"{me.pid}-{me.start}-{me.boot[:8]}-" if me else f"{os.getpid()}-0-{procs.boot_id()[:8]}-"


def dead(folder: Path) -> list[Path]:
    """Run folders of processes that no longer live, sorted; foreign names are left out."""
    boot, found = procs.boot_id()[:8], []
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    for entry in entries:
        match = _NAME.match(entry.name)
        if match is None or not stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
            continue
        if match.group(3) != boot or procs.start_time(int(match.group(1))) != int(match.group(2)):
            found.append(Path(entry.path))
    return sorted(found)
