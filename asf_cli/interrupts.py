# SPDX-License-Identifier: BSD-4-Clause
"""Signals while Ansible runs: the first asks it to stop, the second kills it.

Runner's own cancel is SIGKILL, which leaves orphans. SIGINT to ansible-playbook ends its workers' process groups and
then itself, with exit code 99. No ``always`` and no ``rescue`` runs in either case: the teardown is a run of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Self

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal that came while the CLI itself was at work. ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Turn the signals into Interrupted, so that what was opened can be closed. For the main thread."""

    def handle(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    saved = {number: signal.signal(number, handle) for number in HANDLED if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)


class Handlers:
    """Context manager: ``_handle`` gets the signals ``_numbers`` while it lasts. For the main thread."""

    _numbers: tuple[signal.Signals, ...] = ()

    def __enter__(self) -> Self:
        self._saved = {number: signal.signal(number, self._handle) for number in self._numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        raise NotImplementedError


class Interrupts:
    """Context manager: handlers are installed on entry and restored on exit. For the main thread.

    ``notify`` is called inside the signal handler with a short text: it must not block.
    """

    def __init__(self, notify: Callable[[str], None] = lambda text: None, patient: bool = False) -> None:
        self.count = 0
        self.signal: int | None = None
        self._notify = notify
        self._patient = patient  # a teardown goes on at the first signal
        self._pid: int | None = None
        self._asked = False
        self._saved: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in HANDLED:
            # Ignored by the caller (nohup): stays ignored.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._saved[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)

    def running(self, pid: int) -> None:
        """The pid of ansible-playbook, known from its first event on. A signal that came earlier is passed on now."""
        self._pid = pid
        if self._wanted() and not self._asked:
            self._ask()

    def cancelled(self) -> bool:
        """Runner's cancel callback: true once it shall kill."""
        return self.count >= 2

    @property
    def interrupted(self) -> bool:
        return self._wanted()

    def _wanted(self) -> bool:
        return self.count >= (2 if self._patient else 1)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signal = self.signal or number
        if self.count >= 2:
            self._notify("killed")
            self._kill()
        elif self._patient:
            self._notify("cleaning up; interrupt again to give up")
        else:
            self._notify("stopping; interrupt again to kill")
            self._ask()

    def _ask(self) -> None:
        if self._pid is not None:
            self._asked = True
            _send(os.kill, self._pid, signal.SIGINT)

    def _kill(self) -> None:
        if self._pid is not None:
            # Runner starts it as the leader of a session, so its group is its own.
            _send(os.killpg, self._pid, signal.SIGKILL)


def _send(how: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        how(pid, number)
