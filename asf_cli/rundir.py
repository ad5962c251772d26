# SPDX-License-Identifier: BSD-4-Clause
"""Run directories of ansible-runner: fresh, 0700, gone afterwards; those of dead processes are swept.

Runner keeps the environment, the command and the results of a run in its directory, so none outlives its run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


def _base() -> Path:
    from asf_lib.engine import dirs, rundirs

    return dirs.private(rundirs.base())


@contextlib.contextmanager
def fresh() -> Iterator[Path]:
    """A new run directory, deleted at the end whatever happens; dead ones are swept first.

    Raises HostError (asf_lib) when the account has no run directory of its own.
    """
    from asf_lib.engine import rundirs

    base = _base()
    sweep(base)
    path = Path(tempfile.mkdtemp(prefix=rundirs.prefix(), dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep(base: Path) -> int:
    """Delete the run directories of processes that no longer live; returns how many. Foreign names stay."""
    from asf_lib.engine import rundirs

    found = rundirs.dead(base)
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    return len(found)


def write(path: Path, text: str) -> Path:
    """Write a new file, 0600 from its first moment; returns its path."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    return path
