# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play exec``: a command in a live session, started as its workload is (same environment, filter, capabilities).

Standard output is the command's alone, standard input is passed, the exit code is the command's. ``podman exec`` passes
no signals on and leaves the command running when it is killed, so they are sent from here to the command itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
from typing import Any

from .. import target
from ..errors import CliError

#: Podman hands variables that begin with LC_ on to conmon (libpod, conmon's environment), so one of them tells ours.
_MARK = "LC_ASF_EXEC"
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


USAGE = "asf-play exec [AGENT[.SESSION]] [-t] -- CMD…"
EXAMPLES = """\
  asf-play exec claude -- git status
  asf-play exec claude.second -t -- vi notes.md
  asf-play exec -- ls -la                          when only one session lives
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    target.add_arguments(parser)
    parser.add_argument("-t", "--tty", action="store_true", help="with a terminal")


def run(request: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises CliError when the session is not live."""
    if request.command is None:
        raise CliError("exec needs a command after --", remedy="asf-play exec AGENT -- CMD…")
    session = target.session(request)
    container = _container(session)
    from asf_lib.engine.podman import Podman

    words = ["podman", "exec", "--interactive", *(["--tty"] if request.tty else []), container]
    mark = secrets.token_hex(8)
    child = subprocess.Popen(
        [*words, "/asf/gate", "exec", "--", *request.command],
        env={**Podman().env, _MARK: mark},
        # Ctrl-C without a terminal of its own is the command's to get: Podman would die of it and leave the command.
        start_new_session=not request.tty,
    )
    with _Forward(child, mark):
        code = child.wait()
    return code if code >= 0 else 128 - code


def _container(session: str) -> str:
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


class _Forward:
    """Sends the signals that this process gets to the command in the container."""

    def __init__(self, child: subprocess.Popen[bytes], mark: str) -> None:
        self._child = child
        self._mark = mark
        self._saved: dict[int, Any] = {}

    def __enter__(self) -> _Forward:
        for number in _FORWARDED:
            self._saved[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        pids = marked(self._mark)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        if not pids:
            self._child.send_signal(number)  # the command has not started, or Podman starts conmon in another way


def marked(mark: str, proc: str = "/proc") -> list[int]:
    """Pids (on this host) of the command that a marked conmon runs."""
    wanted = f"{_MARK}={mark}".encode()
    for entry in os.listdir(proc):
        if not entry.isdigit():
            continue
        try:
            with open(f"{proc}/{entry}/comm", encoding="utf-8", errors="replace") as handle:
                if handle.read().strip() != "conmon":
                    continue
            with open(f"{proc}/{entry}/environ", "rb") as handle:
                if wanted not in handle.read().split(b"\0"):
                    continue
            return children(int(entry), proc)
        except OSError:
            continue
    return []


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
