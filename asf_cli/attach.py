# SPDX-License-Identifier: BSD-4-Clause
"""The workload's terminal or streams, from before its first byte to its exit code.

Measured on Podman 4.3: ``podman attach`` shows everything from the moment conmon has accepted its connection, and loses
what came before; its own exit code is 0 whatever the workload's was. So: attach while the workload waits at the gate,
wait until conmon holds the connection, say go, and ask ``podman wait`` for the exit code. ``podman attach`` also ends
with a newline of its own on standard output, which is taken out where the output is not a terminal's.

A terminal is not Podman's: it gets one of its own, and ``bridge`` stands between the two and filters.
"""

from __future__ import annotations

import functools
import os
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import bridge, interrupts, strainer
from .errors import CliError

#: Podman dies with ``asf-play``, however that ends (setpriv(1), prctl(2) PR_SET_PDEATHSIG). With a terminal the kernel
#: sees to it: the inner one is hung up.
DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")
_CONNECT_TIMEOUT = 15.0
_POLL = 0.002
#: After the streams of a terminal closed, a workload that ends does so within this time; one that does not was left.
_SETTLE = 1.5
#: Seconds that a lone newline of a living workload waits for what comes after it.
_HOLD = 0.03
#: pidfd_getfd(2), the same number on every architecture (Linux 5.6).
_PIDFD_GETFD = 438
#: How the keys that leave are told.
LEAVE = "Ctrl-] twice"
#: With a terminal the keys are bytes; a signal from elsewhere is not the workload's.
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Ending(NamedTuple):
    """How it ended: ``exit`` (with the workload's code), ``detached``, ``hangup``, ``terminated`` or ``gone``."""

    how: str
    code: int | None = None


@dataclass
class Target:
    """A container to attach to: its name, first process (the gate), conmon, and whether it has a terminal."""

    name: str
    pid: int
    conmon: int
    tty: bool


@dataclass
class Streams:
    """``stdin`` passes the caller's standard input; ``quiet_stdout`` sends all output to standard error; ``filtered``
    is about what of it reaches a terminal."""

    stdin: bool
    quiet_stdout: bool = False
    filtered: bool = True


def target(container: Mapping[str, Any], tty: bool) -> Target:
    """The container as the session's record has it (``{name, pid, start}``). Raises CliError when it is gone."""
    from asf_lib.engine import procs

    pid = int(container["pid"])
    conmon = procs.parent(pid)
    if procs.start_time(pid) != container["start"] or conmon is None:
        raise CliError(
            "the workload's gate is gone",
            key=str(container["name"]),
            remedy="close the session (close.yml) and open it again",
            code="engine",
        )
    return Target(str(container["name"]), pid, conmon, tty)


def attach(podman: Any, to: Target, streams: Streams, go: Callable[[], object] | None = None) -> Ending:
    """Attach, call ``go`` once nothing can be lost any more, and stay until the workload or the attachment ends.

    Raises CliError when Podman cannot attach, and what ``go`` raises; then nothing stays attached.
    """
    with _process(to.pid) as gate:
        if to.tty and streams.stdin and not streams.quiet_stdout:
            left = _on_terminal(podman, to, streams, go)
        else:
            left = _on_streams(podman, to, streams, go, gate)
        return Ending(left) if left else _ending(podman, to, gate)


def _on_terminal(podman: Any, to: Target, streams: Streams, go: Callable[[], object] | None) -> str:
    """How the user left, or "" when Podman ended."""
    before = connections(to.conmon)
    ignored = dict.fromkeys(map(int, _IGNORED), lambda: None)
    with bridge.Bridge(streams.filtered, signals=ignored) as screen:
        # Standard error has Podman's own messages only, among them noise about a quick workload.
        words = ["podman", "attach", "--sig-proxy=false", "--detach-keys=", to.name]
        child = screen.start(words, podman.env, stderr=subprocess.PIPE)
        try:
            connected = _connected(child, to, before)
            if go is None:  # it ran before: it sees its window change twice, so that it paints its screen again
                # On a busy machine it may run only after both, and see none: then once more, with more time between.
                smaller, whole = (functools.partial(_size, to.conmon, less=less) for less in (1, 0))
                smaller()
                how = screen.pump(child, soon=[whole, smaller, whole, smaller, whole])
            else:
                _refuse(connected, child, to)
                _size(to.conmon)
                go()
                how = screen.pump(child)
        finally:
            _end(child, None)
    screen.tell()
    return "" if how == bridge.ENDED else how


def _on_streams(podman: Any, to: Target, streams: Streams, go: Callable[[], object] | None, gate: int) -> str:
    """As ``_on_terminal``, without one."""
    before = connections(to.conmon)
    sink = sys.stderr.fileno() if streams.quiet_stdout else sys.stdout.fileno()
    with strainer.streams(streams.filtered, (sink, sys.stderr.fileno())) as (out, err):
        child, output = _spawn(podman, to, streams, err)
        with _Signals(child, gate, to.tty) as signals:
            try:
                if go is not None:
                    _refuse(_connected(child, to, before), child, to)
                    go()
                _copy(output, out, gate)
                child.wait()
            finally:
                _end(child, output)
    return signals.left


def _spawn(podman: Any, to: Target, streams: Streams, stderr: int) -> tuple[subprocess.Popen[bytes], int]:
    """Podman's process, and where to read its standard output."""
    words = [*DIES_WITH_US, "podman", "attach", "--sig-proxy=false", "--detach-keys="]
    words += [] if streams.stdin else ["--no-stdin"]
    # A pipe of packets: every write of Podman's stays apart from the next (pipe(2), O_DIRECT).
    output, inlet = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    try:
        child = subprocess.Popen(
            [*words, to.name],
            env=podman.env,
            stdin=None if streams.stdin else subprocess.DEVNULL,
            stdout=inlet,
            stderr=subprocess.PIPE if to.tty else stderr,
            # Ctrl-C is a signal here, and the workload's to get: Podman must not die of it.
            start_new_session=True,
        )
    finally:
        os.close(inlet)
    return child, output


def _copy(source: int, sink: int, gate: int) -> None:
    """Pass packets on until the end, all but the newline that Podman adds once the workload is gone."""
    held = b""
    while True:
        if held and not _ended(gate, 0) and not _readable(source, _HOLD):
            _put(sink, held)  # its writer lives on, so it was the workload's
            held = b""
        packet = os.read(source, 65536)
        if not packet:
            return
        if held:
            _put(sink, held)
        held = packet if packet == b"\n" else b""
        if not held:
            _put(sink, packet)


def _put(sink: int, data: bytes) -> None:
    """Write all of it. A reader that is gone does not end the workload: its exit code is still wanted."""
    with suppress(BrokenPipeError):
        while data:
            data = data[os.write(sink, data) :]


def _end(child: subprocess.Popen[bytes], output: int | None) -> None:
    if child.poll() is None:
        child.kill()
        child.wait()
    if child.stderr is not None:
        child.stderr.close()
    if output is not None:
        os.close(output)


def _size(conmon: int, less: int = 0) -> None:
    """Give the workload's terminal the size of ours now, or ``less`` lines less: Podman gives it ours too, but a moment
    after it has attached.

    conmon holds the only end of the terminal that this process may reach. Where the kernel denies that (Yama), conmon
    is asked as Podman asks it, which takes effect a moment later.
    """
    import fcntl
    import termios

    with suppress(OSError):
        rows, columns, *rest = struct.unpack("4H", fcntl.ioctl(sys.stdin.fileno(), termios.TIOCGWINSZ, bytes(8)))
        rows = max(1, rows - less)
        held = {entry: os.readlink(f"/proc/{conmon}/fd/{entry}") for entry in os.listdir(f"/proc/{conmon}/fd")}
        ends = [_taken(conmon, int(entry)) for entry, link in held.items() if link.endswith("/ptmx")]
        for handle in ends:
            if handle >= 0:
                fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, *rest))
                os.close(handle)
        control = next((link for link in held.values() if link.endswith("/userdata/ctl")), "")
        if max(ends, default=-1) < 0 and control:
            with open(os.open(control, os.O_WRONLY | os.O_NONBLOCK), "wb") as fifo:
                fifo.write(b"1 %d %d\n" % (rows, columns))  # conmon, ctrl.c: WIN_RESIZE_EVENT


def _taken(process: int, handle: int) -> int:
    """A descriptor of another process as one of ours; negative when the kernel denies it."""
    import ctypes

    with _process(process) as pidfd:
        return int(ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, pidfd, handle, 0))


def connections(conmon: int, proc: str = "/proc") -> set[str]:
    """Inodes of the attachments that a conmon has accepted: connected sockets of its ``attach`` address."""
    held = set()
    try:
        for entry in os.listdir(f"{proc}/{conmon}/fd"):
            link = os.readlink(f"{proc}/{conmon}/fd/{entry}")
            if link.startswith("socket:["):
                held.add(link[8:-1])
    except OSError:
        return set()
    with open(f"{proc}/net/unix", encoding="utf-8", errors="replace") as table:
        rows = [line.split(maxsplit=7) for line in table]
    # Num RefCount Protocol Flags Type St Inode Path; St 03 is connected (unix(7), proc(5)).
    return {row[6] for row in rows if len(row) == 8 and row[5] == "03" and row[7].rstrip().endswith("/attach")} & held


def _connected(child: subprocess.Popen[bytes], to: Target, before: set[str]) -> bool:
    """Wait until conmon has accepted Podman's connection; false when Podman ended or took too long."""
    end = time.monotonic() + _CONNECT_TIMEOUT
    while not connections(to.conmon) - before:
        if child.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(_POLL)
    return True


def _refuse(connected: bool, child: subprocess.Popen[bytes], to: Target) -> None:
    if not connected:
        raise CliError(
            "Podman could not attach to the workload, which was therefore not started",
            key=to.name,
            found=_last_words(child),
            remedy="see Podman's message above; --detach opens without attaching",
            code="engine",
        )


def _last_words(child: subprocess.Popen[bytes]) -> str:
    if child.poll() is None:
        return "no connection"
    said = child.stderr.read(2000).decode("utf-8", "replace").strip() if child.stderr is not None else ""
    return f"exit code {child.returncode}{': ' if said else ''}{said}"


def _ending(podman: Any, to: Target, gate: int) -> Ending:
    """The attachment is over; is the workload?"""
    if not _ended(gate, _SETTLE if to.tty else None):
        return Ending("detached")
    return exit_code(podman, to.name)


def exit_code(podman: Any, name: str) -> Ending:
    """The exit code of a container whose process is gone; ``gone`` when the container was removed meanwhile."""
    result = podman.run(["wait", "--interval", "20ms", name], timeout=60, check=False)
    word = result.stdout.strip().splitlines()[-1:] or [""]
    return Ending("exit", int(word[0]) & 0xFF) if result.rc == 0 and word[0].lstrip("-").isdigit() else Ending("gone")


def _ended(pidfd: int, timeout: float | None) -> bool:
    """Wait for a process to end, in seconds (None: as long as it takes). A pidfd is readable once it has."""
    return _readable(pidfd, timeout)


def _readable(handle: int, timeout: float | None) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


@contextmanager
def _process(pid: int) -> Iterator[int]:
    """A descriptor of the process: a pid could be somebody else's by the time it is signalled."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as error:
        raise CliError(
            "the workload's gate is gone", found=f"pid {pid}", remedy="close the session", code="engine"
        ) from error
    try:
        yield handle
    finally:
        os.close(handle)


class _Signals(interrupts.Handlers):
    """While attached. A lost terminal leaves the session up; without one Ctrl-C and SIGTERM are the workload's."""

    _numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

    def __init__(self, child: subprocess.Popen[bytes], gate: int, tty: bool) -> None:
        self.left = ""
        self._child = child
        self._gate = gate
        self._tty = tty

    def _handle(self, number: int, _frame: object) -> None:
        if number == signal.SIGHUP or (self._tty and number == signal.SIGTERM):
            self.left = "hangup" if number == signal.SIGHUP else "terminated"
            self._child.terminate()
        elif not self._tty:
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self._gate, number)


def describe(ending: Ending, session: str) -> str:
    """What to tell the user about a session that was left running."""
    back = f"it goes on; back to it: asf-play shell {_word(session)}; end it: asf-play close.yml {_names(session)}"
    return {
        "detached": f"left session {session}: {back}",
        "gone": f"session {session} was closed by another command",
    }.get(ending.how, f"lost the terminal of session {session}: {back}")


def _word(session: str) -> str:
    agent, _, name = session.partition(".")
    return agent if name == "main" else session


def _names(session: str) -> str:
    agent, _, name = session.partition(".")
    return f"-e agent={agent}" + (f" -e session={name}" if name and name != "main" else "")


def have_terminal() -> bool:
    """Whether there is a terminal to give to a workload: standard input and output both are one."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
