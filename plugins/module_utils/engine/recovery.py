# SPDX-License-Identifier: BSD-2-Clause
"""Podman after everything was killed: its run state names processes that are gone, and every command fails.

Measured on 4.3, 5.4 and 6.1: ``podman system migrate`` repairs half of it at most. What works is what a reboot does:
the run state goes, and Podman refreshes its database. That is safe only when no process lives in the namespaces that
Podman made, because it would be forgotten there; then it is done here, once, under a lock. Otherwise the error says
which processes live and how to end them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ..core.errors import EngineError
from . import locks, notices, procs

#: Parts of Podman's run state below XDG_RUNTIME_DIR: its own, the storage's, and the OCI runtimes'.
_PARTS = ("libpod", "containers", "crun", "runc")
#: Podman's shared memory of locks; ``{}`` is the uid.
_LOCKS = "/dev/shm/libpod_rootless_lock_{}"
#: Readable wherever /proc shows the processes of other ids (no `hidepid`): containers run under such.
_ANYBODY = "/proc/1/status"
#: Seconds.
_MOMENT = 5.0
_STALE = ".asf-stale-podman-"
#: Of what lies there, what is no run state: the registries' logins (containers-auth.json(5)), and stays.
_KEPT = "containers/auth.json"


class Survivor(NamedTuple):
    """A process that lives in a namespace of Podman's; ``uid`` as the host sees it."""

    pid: int
    uid: int
    name: str


def reset(env: Mapping[str, str]) -> Optional[str]:
    """Drop the stale run state; returns the folder where its remains lie, None when somebody else has just done it.

    Raises EngineError (``podman-wedged``) when it would not be safe, or is not possible.
    """
    runtime = Path(env["XDG_RUNTIME_DIR"])
    with locks.hold("podman", "Podman's run state", dict(env), 60):
        if _pause_lives(runtime):
            return None
        if not os.access(_ANYBODY, os.R_OK):
            raise _blind()
        living = _settled()
        if living:
            raise _unsafe(living)
        aside = tempfile.mkdtemp(prefix=_STALE, dir=runtime)
        for part in _PARTS:
            # Renamed, not removed: parts of it belong to subordinate ids.
            with contextlib.suppress(FileNotFoundError):
                os.rename(runtime / part, os.path.join(aside, part))
        if os.path.lexists(os.path.join(aside, _KEPT)):
            os.mkdir(runtime / os.path.dirname(_KEPT), 0o700)
            os.rename(os.path.join(aside, _KEPT), runtime / _KEPT)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_LOCKS.format(os.getuid()))
    notices.say(
        "Podman's run state named processes that are gone (all were killed, or the machine went down); it was reset"
    )
    return aside


def remove(aside: str) -> List[str]:
    """Remove what can be; returns the words of the Podman command for the rest, empty when there is none."""
    shutil.rmtree(aside, ignore_errors=True)
    return ["unshare", "rm", "-rf", "--", aside] if os.path.lexists(aside) else []


def _pause_lives(runtime: Path) -> bool:
    try:
        pid = int((runtime / "libpod/tmp/pause.pid").read_text(encoding="ascii"))
        return procs.start_time(pid) is not None and os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except (OSError, ValueError):
        return False


def _settled() -> List[Survivor]:
    """The survivors, once Podman's own commands had a moment to end: a conmon starts one as its last deed."""
    end = time.monotonic() + _MOMENT
    living = list(survivors())
    while living and all(one.name == "podman" for one in living) and time.monotonic() < end:
        time.sleep(0.1)
        living = list(survivors())
    return living


def survivors() -> Iterator[Survivor]:
    """Living processes of containers: of a subordinate id of this account, or in a user namespace that has some."""
    mine, ranges = os.getuid(), _subordinate()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        pid = int(entry)
        found = _status(pid)
        if found is None or procs.start_time(pid) is None:
            continue
        uid, name = found
        if any(start <= uid < start + count for start, count in ranges) or (uid == mine and _contained(pid, ranges)):
            yield Survivor(pid, uid, name)


def _contained(pid: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """True when the user namespace of a process of ours maps subordinate ids (any other than ours, where these are
    unknown): so do Podman's, not those of browsers and the like. Its map can be read of a process that hides the rest,
    as the gate and many a key agent do (not dumpable)."""
    own, there = _map("self"), _map(str(pid))
    if there == own:
        return False
    return not ranges or any(
        start < lower + size and lower < start + count for lower, size in there for start, count in ranges
    )


def _map(pid: str) -> list[tuple[int, int]]:
    """Ranges of ids, as the caller sees them, that a process's user namespace maps; none when it is gone."""
    try:
        text = Path(f"/proc/{pid}/uid_map").read_text(encoding="ascii")
    except OSError:
        return []
    return [(int(lower), int(size)) for _, lower, size in map(str.split, text.splitlines())]


def _status(pid: int) -> Optional[tuple[int, str]]:
    uid, name = None, ""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("Name:"):
                    name = line[5:].strip()
                elif line.startswith("Uid:"):
                    uid = int(line.split()[1])
    except OSError:
        return None
    return None if uid is None else (uid, name)


def _subordinate() -> list[tuple[int, int]]:
    """The account's ranges of uids."""
    from . import hostfacts  # with all that doctor needs behind it

    return hostfacts.subordinate("subuid")


def end_command(one: Survivor) -> str:
    """The command that ends a survivor, without root: a subordinate id may be taken on in a new user namespace."""
    if one.uid == os.getuid():
        return f"kill -9 {one.pid}"
    start = next((first for first, count in _subordinate() if first <= one.uid < first + count), one.uid)
    return f"unshare --map-root-user --map-auto --setuid {one.uid - start + 1} kill -9 {one.pid}"


def _first(living: List[Survivor]) -> List[Survivor]:
    """Without those whose parent lives as well: they end with the first process of their container."""
    pids = {one.pid for one in living}
    return [one for one in living if procs.parent(one.pid) not in pids] or living


def _blind() -> EngineError:
    return EngineError(
        "Podman's run state is stale, and whether processes still live in its containers cannot be seen",
        file="/proc",
        found="processes of other ids are hidden (hidepid)",
        remedy="log out of every session of this account, or restart the machine, and repeat",
        code="podman-wedged",
    )


def _unsafe(every: List[Survivor]) -> EngineError:
    living = _first(every)
    listed = ", ".join(f"{one.pid} ({one.name})" for one in living[:8])
    return EngineError(
        "Podman's run state is stale, and resetting it would forget processes that still live in its containers",
        found=f"{listed}{' and more' if len(living) > 8 else ''}",
        remedy="end them, then repeat: " + "; ".join(end_command(one) for one in living[:8]),
        code="podman-wedged",
    )
