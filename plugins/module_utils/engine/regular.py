# SPDX-License-Identifier: BSD-2-Clause
"""Reading a file that somebody else may have swapped for something else: regular files only, no link, bounded."""

from __future__ import annotations

import os
import stat

# Non-blocking: a FIFO must be refused, not waited for.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotRegularError(Exception):
    """The path names a symbolic link, a folder, a FIFO, a socket or a device."""


def read(path: str, limit: int, dir_fd: int | None = None) -> tuple[bytes, os.stat_result]:
    """At most ``limit`` + 1 bytes of a regular file (one more than the limit tells that it was met), and its status.

    Only the last component is kept from being a link; ``dir_fd`` is for callers that walk the rest themselves.
    Raises NotRegularError, OSError, ValueError (a NUL in the path).
    """
    try:
        fd = os.open(path, _FLAGS, dir_fd=dir_fd)
    except OSError:
        if _is_link(path, dir_fd):
            raise NotRegularError("a symbolic link") from None
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularError("not a regular file")
        with os.fdopen(fd, "rb", closefd=False) as stream:
            return stream.read(limit + 1), found
    finally:
        os.close(fd)


def _is_link(path: str, dir_fd: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except (OSError, ValueError):
        return False
