# SPDX-License-Identifier: BSD-4-Clause
"""Run directories of ansible-runner: fresh, 0700, gone afterwards; those of dead processes are swept.

Runner keeps the environment, the command and the results of a run in its directory, so none outlives its run. The
name says whose it is: pid, start time and boot (case L1: a pid alone may be a stranger's).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"(\d+)-(\d+)-([0-9a-f]{8})-")


def _base() -> Path:
    from asf_lib.engine import dirs

    return dirs.private(dirs.private(dirs.run_dir()) / "cli")


@contextlib.contextmanager
def fresh() -> Iterator[Path]:
    """A new run directory, deleted at the end whatever happens; dead ones are swept first.

    Raises HostError (asf_lib) when the account has no run directory of its own.
    """
    from asf_lib.engine import procs

    base = _base()
    sweep(base)
    me = procs.identity()
    prefix = f"{me.pid}-{me.start}-{me.boot[:8]}-" if me else f"{os.getpid()}-0-{procs.boot_id()[:8]}-"
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(base: Path) -> int:
    """Delete the run directories of processes that no longer live; returns how many. Foreign names stay."""
    from asf_lib.engine import procs

    boot, swept = procs.boot_id()[:8], 0
    for entry in os.scandir(base):
        match = _NAME.match(entry.name)
        if match is None or not stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
            continue
        pid, start = int(match.group(1)), int(match.group(2))
        if match.group(3) == boot and procs.start_time(pid) == start:
            continue
        shutil.rmtree(entry.path, ignore_errors=True)
        swept += 1
    return swept


def write(path: Path, text: str) -> Path:
    """Write a new file, 0600 from its first moment; returns its path."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path
