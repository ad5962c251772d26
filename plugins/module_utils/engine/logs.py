# SPDX-License-Identifier: BSD-2-Clause
"""Lines that a container wrote, read from its log file: no Podman process, and no wait for Podman's container lock.

``podman logs`` is the way out when there is no such file (another log driver). A log is what a workload may have
influenced: it is bounded here, and its lines are data.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from typing import Iterable

from . import netns
from .podman import Podman

#: Caddy's and the broker's logs are made with max-size=16mb; more than this was not made by ASF.
MAX_BYTES = 64 * 1024 * 1024
#: Seconds for reading one.
DEADLINE = 10.0


def joined(rows: Iterable[str]) -> list[str]:
    """Lines of a ``k8s-file`` log; its rows are ``TIME STREAM P|F TEXT``, parts (P) are joined until their end (F)."""
    found: list[str] = []
    parts: dict[str, str] = {}
    for row in rows:
        words = row.split(" ", 3)
        if len(words) != 4 or words[2][:1] not in ("P", "F"):
            continue
        text = parts.pop(words[1], "") + words[3]
        if words[2].startswith("P"):
            parts[words[1]] = text
        else:
            found.append(text)
    return found + [text for text in parts.values() if text]


def _open(path: str) -> int:
    """A descriptor at the start of the file's last ``MAX_BYTES``. Raises OSError, also for what is no regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    os.lseek(handle, max(0, found.st_size - MAX_BYTES), os.SEEK_SET)
    return handle


def _spill(path: str, write_end: int) -> None:
    """Body of the forked reader; never returns. Exit code 0 means that all was written."""
    try:
        netns.enter_parent_user()
        handle = _open(path)
        while chunk := os.read(handle, 1 << 16):
            while chunk:
                chunk = chunk[os.write(write_end, chunk) :]
        os._exit(0)
    finally:
        os._exit(1)


def _text(path: str) -> str:
    """A log's text. Caddy's and the broker's logs belong to uids that only the parent user namespace can read.

    Raises OSError when it cannot be read, or not within ``DEADLINE``.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _spill(path, write_end)
    os.close(write_end)
    chunks, size, end = [], 0, time.monotonic() + DEADLINE
    try:
        while size <= MAX_BYTES and select.select([read_end], [], [], max(0.0, end - time.monotonic()))[0]:
            chunk = os.read(read_end, 1 << 16)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        else:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(read_end)
        _, status = os.waitpid(pid, 0)
    if status:
        raise OSError(f"{path} cannot be read")
    return b"".join(chunks).decode("utf-8", "replace")


def lines(podman: Podman, container: str, path: str = "") -> list[str]:
    """Lines of a container's log; ``path`` is what inspect tells of its ``k8s-file``. Raises EngineError."""
    try:
        if path:
            return joined(_text(path).split("\n"))
    except OSError:
        pass
    result = podman.run(["logs", container], timeout=30, check=False)
    return [line for stream in (result.stdout, result.stderr) for line in stream.splitlines()]
