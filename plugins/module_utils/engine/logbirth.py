# SPDX-License-Identifier: BSD-2-Clause
"""When a container's log file was made. conmon replaces a full one by a new one (``max-size``), under the same name.

An inode's number does not tell: two files that replace each other in turn get each other's (measured, conmon 2.1.6).
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, Mapping, Optional, Sequence

from ..core.errors import AsfError
from ..core.lifecycle import Container
from . import inventory, netns

# statx(2): struct statx has 256 bytes; stx_mask is its first word, stx_btime (s64, u32) begins at byte 80.
_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _STATX_BTIME = -100, 0x100, 0x800
_SIZE, _BTIME = 256, 80
_DEADLINE = 5.0


def _born(path: str) -> Optional[int]:
    """Nanoseconds since the epoch; None where C library or file system do not tell."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    found = ctypes.create_string_buffer(_SIZE)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), _AT_SYMLINK_NOFOLLOW, _STATX_BTIME, found):
        return None
    (mask,) = struct.unpack_from("I", found, 0)
    seconds, nanoseconds = struct.unpack_from("qI", found, _BTIME)
    return int(seconds) * 10**9 + int(nanoseconds) if mask & _STATX_BTIME else None


def of(path: str) -> Optional[int]:
    """When the file was made, for comparing; the folder may belong to a container's user. None when it is unknown."""

    def inside() -> Optional[int]:
        netns.enter_parent_user()
        return _born(path)

    try:
        found = netns.forked(inside, _DEADLINE) if path else None
    except (AsfError, OSError):
        return None
    return found if isinstance(found, int) else None


def replaced(
    containers: Sequence[Container], known: Mapping[str, inventory.Detail], chosen: Mapping[str, Any]
) -> list[str]:
    """Names of containers whose log is not the file that was there at init: what they said first is lost."""
    found = []
    for one in containers:
        before, detail = (chosen.get(one.role) or {}).get("log_born"), known.get(one.id)
        now = of(detail.log) if isinstance(before, int) and detail is not None else None
        if now is not None and now != before:
            found.append(one.name)
    return found
