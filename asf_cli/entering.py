# SPDX-License-Identifier: BSD-4-Clause
"""A command of the user's in a live session, by ``podman exec``: what ``exec`` and ``shell`` have in common.

``podman exec`` passes no signals on and leaves the command running when it is killed, so they are sent from here to the
command itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Sequence

from . import bridge, errors, interrupts, strainer
from .attach import DIES_WITH_US
from .errors import CliError

#: Podman hands variables that begin with LC_ on to conmon (libpod, conmon's environment), so one of them tells ours.
#: Its value is random; for a command on a terminal it begins with pid and start of the ``asf-play`` that owns it.
_MARK = "LC_ASF_EXEC"
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def container(session: str) -> str:
    """Name of the agent's container, whose first process must be the one that was verified.

    A container that Podman started again has neither its cables nor a go, but the record and the name are the same.
    """
    from asf_lib.engine import procs, state

    record = state.read(session)
    if record is None or record.get("state") != "live":
        raise CliError(
            f"session {session} is not live",
            key="session",
            found=str(record.get("state")) if record else "no such session",
            remedy="asf-play ls shows the sessions; open it with asf-play open.yml",
            code="engine",
        )
    known = (record.get("containers") or {}).get("agent") or {}
    pid, start = known.get("pid"), known.get("start")
    if not isinstance(pid, int) or start is None or procs.start_time(pid) != start:
        raise CliError(
            f"the workload of session {session} is not the one that was opened: it ended or was started again",
            key="session",
            found=f"asf-{session}-agent",
            remedy="close the session (asf-play close.yml) and open it again",
            code="engine",
        )
    return f"asf-{session}-agent"


def run(name: str, command: Sequence[str], filtered: bool = True) -> int:
    """Run a command with the caller's streams in the container; returns its exit code.

    ``filtered`` is about those of them that are terminals.
    """
    from asf_lib.engine.podman import Podman

    mark = secrets.token_hex(8)
    with strainer.streams(filtered, (1, 2)) as (out, err):
        child = subprocess.Popen(
            [*DIES_WITH_US, "podman", "exec", "--interactive", name, "/asf/gate", "exec", "--", *command],
            env={**Podman().env, _MARK: mark},
            stdout=out,
            stderr=err,
            # Ctrl-C is the command's to get: Podman would die of it and leave the command.
            start_new_session=True,
        )
        with _Forward(child, mark):
            code = child.wait()
    return code if code >= 0 else 128 - code


def run_on_terminal(name: str, command: Sequence[str], filtered: bool = True) -> int:
    """Run a command on a terminal of its own, moved to the caller's; returns its exit code, or 129 and the like when
    the user left. A command whose user is gone is hung up: there is no way back to it."""
    from asf_lib.core import workload
    from asf_lib.engine.podman import Podman

    hang_up_orphans()
    mark = _owned_mark()
    words = [f"{key}={value}" for key, value in workload.terminal(os.environ).items()]
    argv = ["podman", "exec", "--interactive", "--tty", "--detach-keys=", name, "/asf/gate", "exec", "--"]
    leaving = (signal.SIGHUP, signal.SIGTERM)
    forwarded = {int(number): _sender(mark, number) for number in _FORWARDED if number not in leaving}
    with bridge.Bridge(filtered, signals=forwarded) as screen:
        child = screen.start([*argv, "env", *words, *command], {**Podman().env, _MARK: mark})
        how = ""
        try:
            how = screen.pump(child)
        finally:
            if how != bridge.ENDED:
                _send(mark, signal.SIGHUP)
                child.kill()
            code = child.wait()
    screen.tell()
    if how != bridge.ENDED:
        return {bridge.HANGUP: errors.HANGUP, bridge.TERMINATED: errors.TERMINATED}.get(how, errors.OK)
    return code if code >= 0 else 128 - code


def hang_up_orphans(proc: str = "/proc") -> None:
    """Hang up commands on terminals whose ``asf-play`` was killed: it could not do so itself."""
    from asf_lib.engine import procs

    for conmon, mark in _conmons(proc):
        owner, _, rest = mark.partition("-")
        start = rest.partition("-")[0]
        if owner.isdigit() and start.isdigit() and procs.start_time(int(owner)) != int(start):
            for pid in children(conmon, proc):
                _kill(pid, signal.SIGHUP)


def _owned_mark() -> str:
    from asf_lib.engine import procs

    me = procs.identity()
    return f"{os.getpid()}-{me.start if me else 0}-{secrets.token_hex(8)}"


class _Forward(interrupts.Handlers):
    """Sends the signals that this process gets to the command in the container."""

    _numbers = _FORWARDED

    def __init__(self, child: subprocess.Popen[bytes], mark: str) -> None:
        self._child = child
        self._mark = mark

    def _handle(self, number: int, _frame: object) -> None:
        if not _send(self._mark, number):
            self._child.send_signal(number)  # the command has not started, or Podman starts conmon in another way


def _sender(mark: str, number: int) -> Callable[[], None]:
    def send() -> None:
        _send(mark, number)

    return send


def _send(mark: str, number: int) -> bool:
    """Signal the marked command; whether there is one."""
    pids = marked(mark)
    for pid in pids:
        _kill(pid, number)
    return bool(pids)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def marked(mark: str, proc: str = "/proc") -> list[int]:
    """Pids (on this host) of the command that a marked conmon runs."""
    return [pid for conmon, found in _conmons(proc) if found == mark for pid in children(conmon, proc)]


def _conmons(proc: str) -> list[tuple[int, str]]:
    """``(pid, mark)`` of every marked conmon that the caller may look at."""
    found = []
    for entry in filter(str.isdigit, os.listdir(proc)):
        with contextlib.suppress(OSError):
            with open(f"{proc}/{entry}/comm", encoding="utf-8", errors="replace") as handle:
                if handle.read().strip() != "conmon":
                    continue
            with open(f"{proc}/{entry}/environ", "rb") as handle:
                words = handle.read().split(b"\0")
            prefix = f"{_MARK}=".encode()
            found += [
                (int(entry), word[len(prefix) :].decode("ascii", "replace"))
                for word in words
                if word.startswith(prefix)
            ]
    return found


def children(parent: int, proc: str = "/proc") -> list[int]:
    """Pids of the direct children of a process."""
    found = []
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                with open(f"{proc}/{entry}/stat", "rb") as handle:
                    text = handle.read().decode("utf-8", "replace")
            except OSError:
                continue
            if int(text[text.rfind(")") + 2 :].split()[1]) == parent:
                found.append(int(entry))
    return found
