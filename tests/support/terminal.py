# SPDX-License-Identifier: BSD-4-Clause
"""A command in a terminal of its own, driven as a user would: wait for text, type, read the exit code."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pytest

# ECMA-48 control sequences, and the window titles that shells set.
_CONTROL = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)|\[[0-?]*[ -/]*[@-~]|[()][0-9A-B]|[=>])")


@dataclass
class Terminal:
    """The user's side. `text` is everything that was shown so far, without control sequences."""

    process: subprocess.Popen[bytes]
    handle: int
    raw: bytes = b""

    @property
    def text(self) -> str:
        """What the user has seen."""
        return _CONTROL.sub("", self.raw.decode("utf-8", "replace")).replace("\r", "")

    def shown(self, since: int = 0) -> str:
        """The end of the text for a message, without lines that were overwritten, such as a progress display's."""
        text = _CONTROL.sub("", self.raw.decode("utf-8", "replace"))
        return re.sub(r"[^\n]*\r(?!\n)", "", text).replace("\r", "")[-3000:] if not since else self.text[since:][-3000:]

    def type(self, text: str) -> None:
        """Press keys; the enter key is a carriage return."""
        os.write(self.handle, text.replace("\n", "\r").encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, pattern: str, timeout: float = 60, since: int = 0) -> int:
        """Wait for a pattern in the text after offset `since`; returns where its match ends.

        :raises AssertionError: it did not come
        """
        deadline = time.monotonic() + timeout
        while not (match := re.compile(pattern).search(self.text, since)):
            left = deadline - time.monotonic()
            assert left > 0, f"no {pattern!r} within {timeout} s: {self.shown(since)}"
            assert self._read(left), f"the terminal closed before {pattern!r}: {self.shown(since)}"
        return match.end()

    def wait(self, timeout: float = 60) -> int:
        """Read on until the command has ended; its exit code."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it goes on after {timeout} s: {self.shown()}"
            self._read(0.2)
        while self._read(0.2):
            pass
        return int(self.process.returncode)

    def _read(self, timeout: float) -> bool:
        if not select.select([self.handle], [], [], min(timeout, 1))[0]:
            return self.process.poll() is None
        try:
            block = os.read(self.handle, 65536)
        except OSError as error:
            if error.errno == errno.EIO:  # the last process with this terminal is gone
                return False
            raise
        self.raw += block
        return bool(block)


@contextlib.contextmanager
def terminal(argv: Sequence[str], env: Mapping[str, str], rows: int = 40, columns: int = 120) -> Iterator[Terminal]:
    """Run `argv` as the leader of a session on a new pseudo-terminal; hung up and killed at the end of the block."""
    handle, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    # setsid --ctty makes the terminal the controlling one; a preexec_fn would do the same less safely
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *argv],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**env, "TERM": "xterm-256color"},
    )
    os.close(other)
    try:
        yield Terminal(process, handle)
    finally:
        os.close(handle)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(30)


@dataclass
class Pane:
    """A window of tmux, a terminal as users have it: with a screen, a clipboard, a title, and answers to questions."""

    socket: str
    env: Mapping[str, str]

    def tmux(self, *args: str, check: bool = True) -> str:
        """A command of tmux; its standard output."""
        argv = ["tmux", "-u", "-f", os.devnull, "-S", self.socket, *args]
        done = subprocess.run(argv, env=dict(self.env), capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 or not check, f"tmux {args}: {done.stderr}"
        return done.stdout

    @property
    def screen(self) -> str:
        """What is on the screen and above it, without blanks at line ends."""
        shown = self.tmux("capture-pane", "-p", "-J", "-S", "-200")
        return "\n".join(line.rstrip() for line in shown.splitlines()).rstrip("\n")

    def ask(self, what: str) -> str:
        """A format of tmux, such as pane_title, cursor_flag, alternate_on, mouse_any_flag, pane_dead."""
        return self.tmux("display-message", "-p", f"#{{{what}}}").strip()

    def clipboard(self) -> str:
        """What a program has put on the clipboard last; empty when there is nothing."""
        return self.tmux("show-buffer", check=False)

    def type(self, text: str) -> None:
        """Press keys; the enter key for a line feed."""
        for part in re.split(r"(\n)", text):
            if part:
                self.tmux("send-keys", *(["Enter"] if part == "\n" else ["-l", "--", part]))

    def keys(self, *names: str) -> None:
        """Press keys by tmux's names: C-c, C-], Escape."""
        self.tmux("send-keys", *names)

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size."""
        self.tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def expect(self, pattern: str, timeout: float = 30) -> re.Match[str]:
        """Wait for a pattern on the screen (multi-line).

        :raises AssertionError: it did not come
        """
        deadline = time.monotonic() + timeout
        while not (match := re.search(pattern, screen := self.screen, re.MULTILINE)):
            dead = re.search(r"^Pane is dead", screen, re.MULTILINE)
            assert not dead and time.monotonic() < deadline, f"no {pattern!r} within {timeout} s:\n{screen}"
            time.sleep(0.05)
        return match

    def clear(self) -> None:
        """Forget what was shown, so that ``expect`` finds what comes now."""
        self.tmux("send-keys", "-R")
        self.tmux("clear-history")

    def pid(self) -> int:
        """The process that the window was opened for."""
        return int(self.ask("pane_pid"))


@contextlib.contextmanager
def pane(argv: Sequence[str], env: Mapping[str, str], rows: int = 40, columns: int = 120) -> Iterator[Pane]:
    """A shell's command line in a new tmux, which is ended with the block. ``argv`` empty: a plain ``sh``."""
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux, a terminal with a screen: apt-get install tmux")
    with tempfile.TemporaryDirectory(prefix="tmux-") as folder:
        found = Pane(f"{folder}/socket", {**env, "LANG": "C.UTF-8", "TERM": "xterm-256color", "SHELL": "/bin/sh"})
        command = shlex.join(argv) if argv else "exec sh"
        options = ["set", "-s", "set-clipboard", "on", ";", "set", "-g", "remain-on-exit", "on", ";"]
        options += ["set", "-g", "default-terminal", "tmux-256color", ";"]
        try:
            found.tmux(*options, "new-session", "-d", "-x", str(columns), "-y", str(rows), command)
            yield found
        finally:
            found.tmux("kill-server", check=False)
