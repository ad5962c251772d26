# SPDX-License-Identifier: BSD-4-Clause
"""Everything that this account's processes show in /proc, from `watching()`'s start to its end (S3, S7).

The file is also the watcher: `podman unshare` runs it, because the environment of a container's process is readable
only with capabilities over its user namespace. It looks ten times a second and prints what it saw at the end of its
input.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One program that ran: its pid namespace (inode), its pid in there, its words and its environment block."""

    namespace: int
    inner: int
    argv: str
    environ: str

    def environment(self) -> dict[str, str]:
        """The environment block as a mapping."""
        pairs = (entry.partition("=") for entry in self.environ.split("\0") if entry)
        return {name: value for name, _, value in pairs}


@dataclass
class Record:
    """What was seen; filled when the watch ends."""

    programs: list[Seen] = field(default_factory=list)


@contextlib.contextmanager
def watching() -> Iterator[Record]:
    """Watch while the block runs.

    :raises AssertionError: the watcher failed
    """
    record = Record()
    argv = ["podman", "unshare", sys.executable, "-I", __file__]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        try:
            yield record
        finally:
            out, _ = watcher.communicate(timeout=60)
    assert watcher.returncode == 0, "the watcher of /proc failed"
    record.programs += [Seen(*entry) for entry in json.loads(out)]


def _program(pid: str) -> tuple[int, int, str, str] | None:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as words, open(f"/proc/{pid}/environ", "rb") as block:
            argv, environ = words.read(), block.read()
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
            inner = next(line for line in status if line.startswith("NSpid:")).split()[-1]
        namespace = os.stat(f"/proc/{pid}/ns/pid").st_ino
    except (OSError, StopIteration):
        return None  # it ended, or is another account's
    return namespace, int(inner), argv.decode("utf-8", "replace"), environ.decode("utf-8", "replace")


def _watch() -> None:
    seen: set[tuple[int, int, str, str]] = set()
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        found = (_program(pid) for pid in os.listdir("/proc") if pid.isdigit())
        seen.update(program for program in found if program is not None)
    json.dump(sorted(seen), sys.stdout)


if __name__ == "__main__":
    _watch()
