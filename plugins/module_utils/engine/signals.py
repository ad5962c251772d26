# SPDX-License-Identifier: BSD-2-Clause
"""Signals to the first processes of the operator's own containers, without starting Podman (0.1 s a call).

Caddy and the broker do not map the operator's uid, so the sender is a forked process that is uid 0 of the rootless
parent user namespace. A process is signalled only while pid and start time agree (case L1).
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Sequence

from ..core.errors import AsfError
from . import netns, procs
from .procs import Identity


def _owner(pid: int) -> int:
    """Real uid of a process in the caller's view (its folder in /proc is root's when it is not dumpable)."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as handle:
        return next(int(line.split()[1]) for line in handle if line.startswith("Uid:"))


def _send(targets: Sequence[Identity], numbers: Sequence[int]) -> None:
    for target in targets:
        try:
            handle = os.pidfd_open(target.pid)
        except OSError:
            continue
        try:
            # The descriptor holds on to this very process: checked once, it cannot become another one.
            if procs.alive(target):
                for number in numbers:
                    signal.pidfd_send_signal(handle, number)
        except OSError:
            pass  # gone in between, or not ours to signal: the caller looks who lives afterwards
        finally:
            os.close(handle)


def _inside(targets: Sequence[Identity], numbers: Sequence[int]) -> bool:
    netns.enter_parent_user()
    _send(targets, numbers)
    # A container older than the pause process is no child of this namespace; its user's own uid may still signal it.
    for target in targets:
        if numbers and numbers[-1] == signal.SIGKILL and procs.alive(target):
            child = os.fork()
            if child == 0:
                try:
                    os.setuid(_owner(target.pid))
                    _send([target], numbers)
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
    return True


def send(targets: Sequence[Identity], numbers: Sequence[int]) -> None:
    """Send the signals, in order, to every target that still lives. Raises nothing: see ``wait`` for the effect."""
    living = [target for target in targets if procs.alive(target)]
    if not living:
        return
    try:
        netns.forked(lambda: _inside(living, numbers), timeout=5)
    except AsfError:
        _send(living, numbers)


def wait(targets: Sequence[Identity], seconds: float) -> list[Identity]:
    """Wait until all have ended, at most ``seconds``; returns those that still live."""
    poll, handles = select.poll(), {}
    try:
        for target in targets:
            try:
                handle = os.pidfd_open(target.pid)
            except OSError:
                continue
            handles[handle] = target
            if procs.alive(target):
                poll.register(handle, select.POLLIN)
        end = time.monotonic() + seconds
        waiting = {handle for handle, target in handles.items() if procs.alive(target)}
        while waiting and (left := end - time.monotonic()) > 0:
            for handle, _ in poll.poll(left * 1000):
                poll.unregister(handle)
                waiting.discard(handle)
    finally:
        for handle in handles:
            os.close(handle)
    return [target for target in targets if procs.alive(target)]
