# SPDX-License-Identifier: BSD-2-Clause
"""Who could change a file or folder: only what nobody but this account and root can write is relied on (invariant 11).

Also where programs are looked up: the system's folders come before the caller's PATH, so that a repository whose
``bin`` is on it cannot stand in for Podman. ``ASF_PATH`` is the operator's way to put other folders first.

Access control lists are not read: the kernel shows their mask as the group's permission, so they count as a group.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import Mapping, Optional

#: Podman looks for newuidmap, nft and helpers there; a login shell of an ordinary user often lacks the sbin folders.
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")


def foreign(found: os.stat_result) -> bool:
    """Whether somebody else than this account or root owns it."""
    return found.st_uid not in (os.getuid(), 0)


def other_writers(found: os.stat_result) -> Optional[str]:
    """Who may write beside the owner, in words for a message: ``anybody``, ``group NAME``; None for nobody."""
    if found.st_mode & stat.S_IWOTH:
        return "anybody"
    if found.st_mode & stat.S_IWGRP and not _private_group(found.st_uid, found.st_gid):
        return f"group {_group(found.st_gid)}"
    return None


def _private_group(uid: int, gid: int) -> bool:
    """Whether a group is the one of the user's own name that distributions make for each account, without others."""
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid)
    except KeyError:
        return False
    same = user.pw_gid == gid and user.pw_name == group.gr_name
    return same and not set(group.gr_mem) - {user.pw_name}


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def search_path(env: Mapping[str, str]) -> list[str]:
    """Folders that programs are looked up in: ``ASF_PATH``, the system's, and last what else is on PATH.

    Entries of both variables count only where ``searched`` holds.
    """
    first, last = ([part for part in env.get(name, "").split(":") if searched(part)] for name in ("ASF_PATH", "PATH"))
    return list(dict.fromkeys([*first, *SYSTEM_PATH, *last]))


def searched(path: str) -> bool:
    """Whether programs may be looked up in a folder: absolute, there, and no other account could put one into it.

    The parents count too (one that another account may write, without the sticky bit, can be swapped as a whole), and
    so do the links on the way: the real path is judged.
    """
    if not os.path.isabs(path):
        return False
    step = os.path.realpath(path)
    try:
        if not _only_ours(os.stat(step)) or not os.path.isdir(step):
            return False
        while step != "/":
            step = os.path.dirname(step)
            found = os.stat(step)
            if not _only_ours(found) and not (found.st_mode & stat.S_ISVTX and not foreign(found)):
                return False
    except (OSError, ValueError):
        return False
    return True


def _only_ours(found: os.stat_result) -> bool:
    return not foreign(found) and other_writers(found) is None
