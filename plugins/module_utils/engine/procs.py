# SPDX-License-Identifier: BSD-2-Clause
"""Processes by identity: pid, start time and boot id together (case L1: a pid alone names a stranger after a while).

Everything is read from ``/proc``; nothing is executed.
"""

from __future__ import annotations

import os
import time
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from ..core import escape

#: Programs and modules that drive a session; the record of a session names those that were above the module.
CONTROLLERS = ("ansible-playbook", "ansible", "ansible-runner", "asf-play", "asf_cli")
_DEAD = ("Z", "X", "x")


class Identity(NamedTuple):
    """One process of one boot of one host. ``start`` is field 22 of ``/proc/PID/stat``, in clock ticks since boot.

    The boot id alone tells hosts apart; the host's name is for people (a state folder may be shared by several).
    """

    pid: int
    start: int
    boot: str
    host: str = ""

    def as_dict(self) -> dict[str, Any]:
        """``{pid, start, boot, host}``."""
        return dict(self._asdict())

    @classmethod
    def from_dict(cls, data: Any) -> Optional[Identity]:
        """The identity that ``as_dict`` gave, or None when the data is anything else."""
        if not isinstance(data, Mapping):
            return None
        pid, start, boot, host = (data.get(key) for key in ("pid", "start", "boot", "host"))
        if isinstance(pid, int) and isinstance(start, int) and isinstance(boot, str) and pid > 0:
            return cls(pid, start, boot, host if isinstance(host, str) else "")
        return None


def boot_id() -> str:
    """The kernel's random id of this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as handle:
        return handle.read().strip()


def _stat(pid: int) -> Optional[list[str]]:
    """Fields of ``/proc/PID/stat`` from the state on; the name before may hold blanks and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            text = handle.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None
    fields = text[text.rfind(")") + 1 :].split()
    return fields if len(fields) >= 20 else None


def start_time(pid: int) -> Optional[int]:
    """Start of a process in clock ticks since boot; None when it does not exist or is a zombie."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in _DEAD else int(fields[19])


def parent(pid: int) -> Optional[int]:
    """The parent's pid; None at the top, or when the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) or None if fields else None


def identity(pid: Optional[int] = None) -> Optional[Identity]:
    """Identity of a process (the caller when None); None when it does not live."""
    pid = os.getpid() if pid is None else pid
    start = start_time(pid)
    return None if start is None else Identity(pid, start, boot_id(), os.uname().nodename)


def alive(who: Optional[Identity]) -> bool:
    """True when that very process still lives (no zombie, same start, same boot)."""
    return who is not None and start_time(who.pid) == who.start and boot_id() == who.boot


def _program(pid: int) -> str:
    """Base name of what a process runs; for an interpreter, of its script. Empty when unknown."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as handle:
            words = handle.read(4096).split(b"\0")
    except OSError:
        return ""
    return program(words)


def program(words: Sequence[bytes]) -> str:
    """Name of what a command line runs: a program, or an interpreter's script or module."""
    names = [os.path.basename(word).decode("utf-8", "replace") for word in words if word]
    if not names:
        return ""
    if names[0].startswith("python"):
        # Options such as -I or -X utf8, or a short program that runs the script, may stand between.
        return next((name for name in names[1:6] if name in CONTROLLERS), names[0])
    return names[0]


def controllers(pid: Optional[int] = None) -> list[Identity]:
    """The processes that drive this one, nearest first: ansible-playbook (without its forked workers) and asf-play.

    When there is none (the engine is used directly, or the module runs on a remote host) it is the caller itself,
    so that a session which a test or a script opens is bound to that script.
    """
    found: list[Identity] = []
    names: list[str] = []
    walker: Optional[int] = os.getpid() if pid is None else pid
    me = identity(walker)
    while walker and walker > 1:
        name = _program(walker)
        who = identity(walker) if name in CONTROLLERS else None
        if who is not None:
            # A worker is a fork of its ansible-playbook: same name, shorter life. The outer one counts.
            if names and names[-1] == name:
                found[-1] = who
            else:
                found.append(who)
                names.append(name)
        walker = parent(walker)
    return found or ([me] if me else [])


def command(pid: Optional[int] = None) -> str:
    """What the person typed who drives this process, in short: the outermost controller and its options.

    Without what stands after ``--``: those words are the user's own.
    """
    above = controllers(pid)
    try:
        with open(f"/proc/{above[-1].pid if above else os.getpid()}/cmdline", "rb") as handle:
            words = [os.fsdecode(word) for word in handle.read(4096).split(b"\0") if word]
    except OSError:
        return ""
    names = [os.path.basename(word) for word in words]
    first = next((n for n, name in enumerate(names[:6]) if name in CONTROLLERS), 0)
    shown = words[first + 1 : words.index("--")] if "--" in words else words[first + 1 :]
    return escape.terminal(" ".join([("asf-play" if names[first] == "asf_cli" else names[first]), *shown]), 200)


def belongs(pid: int, container_id: str) -> bool:
    """True when a process is surely of that container: its parent is its conmon, or cgroup or mounts say so.

    False may also mean that the caller may not look.
    """
    above = parent(pid)
    for path in (f"/proc/{above}/cmdline", f"/proc/{pid}/cgroup", f"/proc/{pid}/mountinfo"):
        try:
            with open(path, "rb") as handle:
                if container_id.encode() in handle.read(1 << 20):
                    return True
        except OSError:
            continue
    return False


def monitored(pid: int, container_id: str) -> bool:
    """True when the process's parent is its container's own conmon, or nobody can tell.

    Without one the process goes on, but what it writes is lost (Caddy ends when it cannot log a decision), and Podman
    never learns of its end.
    """
    above = parent(pid)
    if above is None:
        return start_time(pid) is None
    try:
        with open(f"/proc/{above}/cmdline", "rb") as handle:
            return container_id.encode() in handle.read(1 << 16)
    except OSError:
        return above != 1


def links(pid: int) -> Optional[frozenset[str]]:
    """Names of the network interfaces of a process's namespace; None when they cannot be read."""
    try:
        with open(f"/proc/{pid}/net/dev", encoding="ascii", errors="replace") as handle:
            rows = handle.read(1 << 16).splitlines()[2:]
    except OSError:
        return None
    return frozenset(row.partition(":")[0].strip() for row in rows)


def children(pid: int) -> list[int]:
    """Pids of a process's children, of whichever thread; empty when it is gone or the kernel does not tell."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as handle:
                found += [int(word) for word in handle.read().split()]
    except (OSError, ValueError):
        pass
    return found


def until_logged(monitors: Mapping[int, int], seconds: float) -> None:
    """Wait until conmons have written the last lines of their containers' logs; ``{pid of conmon: pid of init}``.

    conmon drains the container's output after init has ended, and only then runs ``podman container cleanup`` as a
    child. Seconds are the most that is waited.
    """
    end = time.monotonic() + seconds
    for monitor, init in monitors.items():
        while time.monotonic() < end and start_time(monitor) is not None and not set(children(monitor)) - {init}:
            time.sleep(0.003)


def any_alive(who: list[Identity]) -> bool:
    """True when at least one of the processes lives."""
    return any(alive(one) for one in who)
