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
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Optional, Sequence

from . import netns, procs
from .podman import Podman

#: Caddy's and the broker's logs are made with max-size=16mb; more than this was not made by ASF.
MAX_BYTES = 64 * 1024 * 1024
#: Seconds for reading one.
DEADLINE = 10.0


class Line(NamedTuple):
    """One line that a container wrote: RFC 3339 time of its end, ``stdout`` or ``stderr``, text."""

    time: str
    stream: str
    text: str


class Joiner:
    """Lines out of the rows of a ``k8s-file`` log: ``TIME STREAM P|F TEXT``; parts (P) are joined until their end (F).

    An endless line without a newline is cut at ``LONGEST`` characters.
    """

    LONGEST = 1 << 20

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}
        self._last = ""

    def feed(self, row: str) -> Iterator[Line]:
        """The line that a row ends, if it does. A row of another form counts as nothing."""
        words = row.split(" ", 3)
        if len(words) != 4 or words[2][:1] not in ("P", "F"):
            return
        self._last, stream = words[:2]
        text = (self._parts.pop(stream, "") + words[3])[: self.LONGEST]
        if words[2].startswith("P"):
            self._parts[stream] = text
        else:
            yield Line(self._last, stream, text)

    def rest(self) -> list[Line]:
        """What was begun and has no end."""
        left = [Line(self._last, stream, text) for stream, text in self._parts.items() if text]
        self._parts.clear()
        return left


def timed(rows: Iterable[str]) -> list[Line]:
    """All lines of a ``k8s-file`` log."""
    joiner = Joiner()
    found = [line for row in rows for line in joiner.feed(row)]
    return found + joiner.rest()


def joined(rows: Iterable[str]) -> list[str]:
    """The texts of all lines of a ``k8s-file`` log."""
    return [line.text for line in timed(rows)]


def path_of(pid: int, container: str) -> str:
    """Path of the ``k8s-file`` of a living container, out of its conmon's own command line; empty when unknown.

    ``pid`` is the container's first process. This saves an inspect (0.1 s): conmon gets ``-l k8s-file:PATH``.
    """
    monitor = procs.parent(pid) if pid else None
    try:
        with open(f"/proc/{monitor}/cmdline", "rb") as handle:
            words = handle.read(1 << 16).split(b"\0")
    except OSError:
        return ""
    if container.encode() not in words:
        return ""
    found = [word[9:] for word in words if word.startswith(b"k8s-file:/")]
    return os.fsdecode(found[0]) if found else ""


def summed(paths: Mapping[str, str], work: Callable[[bytes], Sequence[int]]) -> dict[str, list[int]]:
    """Numbers that ``work`` finds in the last ``MAX_BYTES`` of each log, by key; what cannot be read is left out.

    All are read by one forked process, so that a list of sessions stays cheap. Raises EngineError.
    """

    def inside() -> dict[str, list[int]]:
        netns.enter_parent_user()
        found = {key: _content(path) for key, path in paths.items()}
        return {key: list(work(content)) for key, content in found.items() if content is not None}

    return dict(netns.forked(inside, DEADLINE)) if paths else {}


def _content(path: str) -> Optional[bytes]:
    try:
        with os.fdopen(opened(path), "rb") as stream:
            return stream.read(MAX_BYTES)
    except OSError:
        return None


def opened(path: str) -> int:
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
        handle = opened(path)
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
    return [line.text for line in read(podman, container, path)]


def read(podman: Podman, container: str, path: str = "") -> list[Line]:
    """As ``lines``, each with its time and stream (the time is empty where Podman had to be asked)."""
    try:
        if path:
            return timed(_text(path).split("\n"))
    except OSError:
        pass
    result = podman.run(["logs", container], timeout=30, check=False)
    streams = (("stdout", result.stdout), ("stderr", result.stderr))
    return [Line("", name, line) for name, text in streams for line in text.splitlines()]
