# SPDX-License-Identifier: BSD-2-Clause
"""Lines that a container wrote, read from its log file: no Podman process, and no wait for Podman's container lock.

``podman logs`` is the way out when there is no such file (another log driver). A log is what a workload may have
influenced: it is bounded here, and its lines are data.
"""

from __future__ import annotations

import os
import stat
from typing import Iterable

from .podman import Podman

#: Caddy's and the broker's logs are made with max-size=16mb; more than this was not made by ASF.
MAX_BYTES = 64 * 1024 * 1024


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


def _file(path: str) -> str:
    """The file's text, its last ``MAX_BYTES``. Raises OSError, also for what is no regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("not a regular file")
        stream.seek(max(0, found.st_size - MAX_BYTES))
        return stream.read(MAX_BYTES).decode("utf-8", "replace")


def lines(podman: Podman, container: str, path: str = "") -> list[str]:
    """Lines of a container's log; ``path`` is what inspect tells of its ``k8s-file``. Raises EngineError."""
    try:
        if path:
            return joined(_file(path).split("\n"))
    except OSError:
        pass
    result = podman.run(["logs", container], timeout=30, check=False)
    return [line for stream in (result.stdout, result.stderr) for line in stream.splitlines()]
