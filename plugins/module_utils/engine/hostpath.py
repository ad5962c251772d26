# SPDX-License-Identifier: BSD-2-Clause
"""A path of the operator's, opened so that no agent decides where it leads (invariant 11).

A tree that an agent may write can hold a link to anywhere, put there a moment ago. So the path is resolved step by
step; a link that lies in such a tree ends it, and the real path is then opened without following anything.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, Sequence

from ..core.errors import GrantError, Problem
from ..core.escape import terminal
from ..core.grants import Place
from . import grantfs, inventory, planning
from .podman import Podman

#: Without a wish to list: a folder on the way may be one that can only be passed.
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40

#: A tree that an agent may write, with whose it is.
Trees = Sequence["tuple[str, Place]"]


class Spot(NamedTuple):
    """An entry of a folder: the folder opened, the entry's name, and the real path of both for people."""

    parent: int
    name: str
    path: str


def writable(podman: Podman) -> list[tuple[str, Place]]:
    """Every tree that some agent may write: granted, or held by a session that still runs, with a record or without.

    Raises GrantError, EngineError when that is not known.
    """
    granted = [(f"agent {one['agent']}", str(one["path"])) for one in grantfs.list_grants() if one["mode"] != "ro"]
    held = [(f"session {session}", path) for session, path in planning.live_trees("")]
    lost = planning.unrecorded_trees(podman, inventory.Inventory(podman), "")  # case L2: labels alone tell
    held += [(f"session {session}", path) for session, path in lost]
    return [(whose, grantfs.place(path)) for whose, path in [*granted, *held]]


def source(path: str, trees: Trees) -> Spot:
    """An entry to be read. Its last name is not followed: a link is copied as a link. The caller closes ``parent``.

    Raises GrantError for a link that an agent may have put there, OSError for what does not exist.
    """
    path = os.path.abspath(path)
    folder = _resolved(os.path.dirname(path), trees)
    return Spot(
        grantfs.open_tree(folder, _FOLDER), os.path.basename(path), os.path.join(folder, os.path.basename(path))
    )


def target(path: str, name: str, trees: Trees) -> Spot:
    """Where a copy goes: in the folder at ``path`` under ``name``, or at ``path`` itself when there is no folder.

    A place in or above a tree that an agent may write is refused: what is written there an agent could redirect, and it
    needs no ``cp`` to put files there. Raises GrantError, OSError.
    """
    full = os.path.abspath(path)
    if path.endswith("/") or os.path.isdir(full):
        folder = _resolved(full, trees)
    else:
        folder, name = _resolved(os.path.dirname(full), trees), os.path.basename(full)
    real = os.path.join(folder, name)
    for whose, tree in trees:
        if tree.contains(grantfs.place(folder)) or tree.overlaps(grantfs.place(real)):
            raise _refused(f"{whose} may write there", real, "copy to a place outside of what is granted for writing")
    return Spot(grantfs.open_tree(folder, _FOLDER), name, real)


def _refused(message: str, path: str, remedy: str) -> GrantError:
    return GrantError([Problem(message, key="path", found=terminal(path, 300), remedy=remedy)])


def _resolved(path: str, trees: Trees) -> str:
    """The real path of a folder; every link on the way lies where no agent can write."""
    here, parts, links = "/", [part for part in path.split("/") if part], 0
    while parts:
        part = parts.pop(0)
        if part in (".", ".."):
            here = os.path.dirname(here) if part == ".." else here
            continue
        step = os.path.join(here, part)
        if not stat.S_ISLNK(os.lstat(step).st_mode):
            here = step
            continue
        links += 1
        whose = next((one for one, tree in trees if tree.contains(grantfs.place(here))), None)
        if whose is not None or links > _MAX_LINKS:
            message = f"a link that {whose} may have put there" if whose else "too many links"
            raise _refused(message, step, "name the real place")
        link = os.readlink(step)
        here = "/" if link.startswith("/") else here
        parts = [part for part in link.split("/") if part] + parts
    return here
