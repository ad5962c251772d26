# SPDX-License-Identifier: BSD-2-Clause
"""The processes that carry a container's private uplink: slirp4netns or pasta, one for each network namespace.

They run beside the containers, in no control group of the session, so that what a workload makes them allocate is
bounded by nothing that Podman sets.
"""

from __future__ import annotations

import os
import resource
from typing import List

from ..core.errors import EngineError


def carriers(pid: int, namespace: str) -> List[int]:
    """Pids of the processes that serve the network namespace of a container's first process, by their command lines.

    Podman's words for it are the pid (a container with a user namespace of its own) or the namespace's path, as an
    argument of its own (slirp4netns and pasta of containers/common). Owners tell nothing: /proc shows what made itself
    undumpable as root's.
    """
    names = {str(pid).encode(), f"/proc/{pid}/ns/net".encode(), *filter(None, [namespace.encode()])}
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as handle:
                words = handle.read(65536).split(b"\0")
        except OSError:
            continue  # ended meanwhile
        if names & set(words[1:]) and os.path.basename(words[0]).startswith((b"slirp4netns", b"pasta")):
            found.append(int(entry))
    return found


def _bounded(pid: int, memory: int) -> bool:
    """Set and read back. A process of the same account needs no privilege for it (prlimit(2)); others refuse."""
    try:
        resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))
        return resource.prlimit(pid, resource.RLIMIT_DATA) == (memory, memory)
    except (PermissionError, ProcessLookupError):
        return False


def bound(role: str, pid: int, namespace: str, memory: int) -> None:
    """Limit the data of what carries an uplink, in bytes: past it that process ends, and the way out with it.

    ``pid`` is the container's first process, ``namespace`` the path that Podman has for its network. Raises EngineError
    when nobody who serves it has the limit afterwards.
    """
    if not any([_bounded(carrier, memory) for carrier in carriers(pid, namespace)]):
        raise EngineError(
            f"no process carries the uplink of the {role} container",
            found=f"neither slirp4netns nor pasta serves process {pid}",
            remedy="see `asf-play doctor`: one of them has to run as long as the container",
        )
