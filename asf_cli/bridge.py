# SPDX-License-Identifier: BSD-4-Clause
"""Between the user's terminal and a program on a pseudo-terminal of its own: keys in, filtered output out.

Podman gets the inner terminal as its controlling one: it learns of a new size from there, and the kernel hangs it up
when ``asf-play`` dies, however that happens. One loop moves both directions and waits for neither side alone, so that
Ctrl-C reaches a workload that floods, and a paste does not stop its output.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from . import termfilter

ENDED = "ended"
DETACHED = "detached"
HANGUP = "hangup"
TERMINATED = "terminated"

_BLOCK = 65536
#: A write to a terminal that has room for some of it waits for the rest; a small one waits not long.
_CHUNK = 4096
#: Keys that the program does not take yet, in bytes; beyond them the terminal is not read.
_MAX_KEYS = 1 << 18
#: Seconds for the last output of a program that has ended, where something else still holds its terminal.
_DRAIN = 0.1
#: Seconds for the answers to what the workload asked the terminal.
_ANSWER = 0.5
#: Seconds after which the first of ``soon`` is called; the pauses before the others double.
_SOON = 0.2
_STATUS = (b"\x1b[5n", b"\x1b[0n")
#: Ctrl-] as a byte, and as keyboards report it that a program has put into another mode (kitty's, xterm's).
_KEY = re.compile(rb"\x1d|\x1b\[93;5(?::[12])?u|\x1b\[27;5;93~")
_RELEASED = re.compile(rb"\x1b\[(?:93|5744[28]);[0-9]+:3u")
#: Seconds within which the second one counts.
KEY_PAUSE = 1.0


class Left(Exception):
    """The user's side is over: ``how`` is ``detached``, ``hangup`` or ``terminated``."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Keys:
    """Finds Ctrl-] pressed twice. The first is kept back until it is known to be no half of that."""

    def __init__(self) -> None:
        self.held = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """What to pass on, and whether the user leaves."""
        out = b""
        at = 0
        while at < len(data):
            if key := _KEY.match(data, at):
                if self.held:
                    return out, True
                self.held = key.group()
                at = key.end()
            elif self.held and (up := _RELEASED.match(data, at)):
                self.held += up.group()
                at = up.end()
            else:
                following = _KEY.search(data, at)
                end = following.start() if following else len(data)
                out += self.release() + data[at:end]
                at = end
        return out, False

    def release(self) -> bytes:
        """The key that was kept back, to be passed on."""
        held, self.held = self.held, b""
        return held


def speaks_utf8(env: Mapping[str, str]) -> bool | None:
    """What the locale says of the terminal; None when it says nothing (``C``)."""
    ctype = env.get("LC_CTYPE", "")
    # Python sets these itself where the locale is C or is not installed (PEP 538).
    given = [env.get("LC_ALL", ""), "" if ctype in ("C.UTF-8", "C.utf8", "UTF-8") else ctype, env.get("LANG", "")]
    name = next(filter(None, given), "")
    if name in ("", "C", "POSIX"):
        return None
    return re.search(r"\butf-?8\b", name, re.IGNORECASE) is not None


def kept_back(times: int) -> str:
    """What the user is told of attempts on the clipboard."""
    return f"clipboard requests of the sandbox kept back: {times} (--raw-terminal lets them pass)"


class Bridge:
    """Context manager: on entry the user's terminal is put into raw mode, at the end everything is put back.

    ``filtered`` off passes the output as it is. ``signals`` are more handlers (numbers to functions) while it lasts.
    For the main thread; standard input and output are a terminal.
    """

    def __init__(
        self,
        filtered: bool = True,
        signals: Mapping[int, Callable[[], None]] | None = None,
    ) -> None:
        utf8 = speaks_utf8(os.environ)
        self.filter = termfilter.Filter(ascii_only=utf8 is False)
        self.how = ""  # set by a signal that came before ``pump``
        self.filtered = filtered
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        self._greeting = termfilter.UTF8 if utf8 is None and filtered and not dumb else b""
        self._keys = Keys()
        self._soon: list[Callable[[], None]] = []
        self._pause = self._due = 0.0
        self._heard = False
        self._handlers = {
            signal.SIGHUP: lambda: self.leave(HANGUP),
            signal.SIGTERM: lambda: self.leave(TERMINATED),
            **(signals or {}),
            signal.SIGWINCH: self._resize,
            signal.SIGCONT: self._again,
        }
        self._in = sys.stdin.fileno()
        self._out = sys.stdout.fileno()
        self._saved: dict[int, Any] = {}
        self._to_show = bytearray()
        self._to_type = bytearray()
        self._pumping = False
        self._open = True
        self._held_since = 0.0
        self._last = b"\n"
        self.master = self._slave = -1

    def __enter__(self) -> Bridge:
        self.master, self._slave = os.openpty()
        os.set_blocking(self.master, False)
        tty.setraw(self._slave)  # no echo of keys that come before Podman has set it up
        self._modes = termios.tcgetattr(self._in)
        for number, handler in self._handlers.items():
            self._saved[number] = signal.signal(number, lambda *_, call=handler: call())
        self._again()
        self._to_show += self._greeting
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: object) -> None:
        self._pumping = False
        with suppress(OSError, termios.error, Left):  # the terminal may be gone
            self._put_back()
        for number, handler in self._saved.items():
            signal.signal(number, handler)
        self._close()

    def start(self, argv: Sequence[str], env: Mapping[str, str], stderr: int | None = None) -> subprocess.Popen[bytes]:
        """Start the program in a session of its own; ``stderr`` None: on the same terminal."""
        child = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            env=dict(env),
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave if stderr is None else stderr,
        )
        os.close(self._slave)
        self._slave = -1
        return child

    def tell(self) -> None:
        """Say afterwards what the user may have missed. Titles and the like are not worth a word."""
        if self.filter.clipboard and self.filtered and self.how != HANGUP:
            print(kept_back(self.filter.clipboard), file=sys.stderr)

    def leave(self, how: str) -> None:
        """From a signal's handler: end ``pump``, or let it not begin."""
        self.how = self.how or how
        if self._pumping:
            self._pumping = False
            raise Left(how)

    def pump(self, child: subprocess.Popen[bytes], soon: Sequence[Callable[[], None]] = ()) -> str:
        """Move bytes until the program ends (``ended``) or the user is gone (how, as ``Left`` has it).

        The first of ``soon`` is called a moment later; the others, two by two, only while the program says nothing.
        """
        handle = os.pidfd_open(child.pid)
        self._soon, self._pause, self._due = list(soon), _SOON, time.monotonic() + _SOON
        try:
            self._pumping = True
            if self.how:
                raise Left(self.how)
            while not self._step(handle):
                pass
            self._drain()
            return ENDED
        except Left as left:
            self.how = left.how
            return left.how
        finally:
            self._pumping = False
            os.close(handle)

    def _step(self, handle: int) -> bool:
        """Wait for whatever can go on; true once the program has ended."""
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        wanted = (0 if self._to_show else select.POLLIN) | (select.POLLOUT if self._to_type else 0)
        if self._open and wanted:
            poll.register(self.master, wanted)
        poll.register(self._in, select.POLLIN if len(self._to_type) < _MAX_KEYS else 0)
        if self._to_show:
            poll.register(self._out, select.POLLOUT)
        ready = dict(poll.poll(self._timeout()))
        if self._out in ready and self._to_show:
            self._show()
        if self._in in ready:
            self._type()
        self._overdue(time.monotonic())
        if ready.get(self.master, 0) & select.POLLOUT:
            self._pass_keys()
        if ready.get(self.master, 0) & (select.POLLIN | select.POLLHUP) and not self._to_show:
            self._open = self._take()
        return handle in ready

    def _timeout(self) -> float | None:
        """Milliseconds until ``_overdue`` has something to do."""
        times = [self._held_since + KEY_PAUSE] if self._keys.held else []
        times += [self._due] if self._soon else []
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def _overdue(self, now: float) -> None:
        if self._keys.held and now >= self._held_since + KEY_PAUSE:
            self._to_type += self._keys.release()
        if self._soon and now >= self._due:
            if self._heard and len(self._soon) % 2 == 0:
                self._soon.clear()
            else:
                self._soon.pop(0)()
            self._pause *= 2
            self._due = now + self._pause

    def _hear(self) -> None:
        """The program says something: nothing of ``soon`` is waited for any longer, but for the first of all."""
        if not self._heard and self._pause > _SOON:
            self._due = 0.0
        self._heard = True

    def _take(self) -> bool:
        """Read of the program's output what is there (a terminal gives 4 KiB at a time); false at its end."""
        data, more = b"", True
        while more and len(data) < _BLOCK:
            try:
                block = os.read(self.master, _BLOCK)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                block = b""  # nobody holds the other end any more
            data += block
            more = bool(block)
        if data:
            self._hear()
        shown = self.filter.feed(data)
        self._to_show += shown if self.filtered else data
        return more

    def _show(self) -> None:
        try:
            done = os.write(self._out, self._to_show[:_CHUNK])
        except OSError as error:
            raise Left(HANGUP) from error
        self._last = bytes(self._to_show[done - 1 : done])
        del self._to_show[:done]

    def _type(self) -> None:
        try:
            data = os.read(self._in, _BLOCK)
        except OSError as error:
            raise Left(HANGUP) from error
        if not data:
            raise Left(HANGUP)
        data, leaves = self._keys.feed(data)
        if leaves:
            raise Left(DETACHED)
        self._held_since = time.monotonic()
        self._to_type += data

    def _pass_keys(self) -> None:
        with suppress(BlockingIOError):
            try:
                done = os.write(self.master, self._to_type[:_BLOCK])
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                done = len(self._to_type)  # the program is gone
            del self._to_type[:done]

    def _drain(self) -> None:
        """The program has ended; its last output may still be on its way."""
        more = True
        while more:
            while self._to_show:
                _ready(self._out, select.POLLOUT, None)
                self._show()
            more = _ready(self.master, select.POLLIN, _DRAIN) and (self._take() or bool(self._to_show))

    def _put_back(self) -> None:
        """Screen, keys and modes as they were; answers to the workload's questions do not become the shell's input."""
        if self.how != HANGUP:
            line = b"\r" if self._last == b"\n" else b"\r\n"
            if _ready(self._out, select.POLLOUT, _ANSWER):
                os.write(self._out, self.filter.restore() + line)
            if self.filter.asked and _ready(self._out, select.POLLOUT, _ANSWER):
                self._await_answers()
        termios.tcflush(self._in, termios.TCIFLUSH)
        termios.tcsetattr(self._in, termios.TCSANOW, self._modes)

    def _await_answers(self) -> None:
        """A terminal answers in the order of the questions: once this one is answered, all others are."""
        os.write(self._out, _STATUS[0])
        end = time.monotonic() + _ANSWER
        said = b""
        while _STATUS[1] not in said and _ready(self._in, select.POLLIN, max(0.0, end - time.monotonic())):
            data = os.read(self._in, _BLOCK)
            if not data:
                return
            said = said[-8:] + data

    def _again(self) -> None:
        """Raw mode and size: at the beginning, and when this process goes on after it was stopped."""
        with suppress(termios.error):
            tty.setraw(self._in, termios.TCSANOW)
        self._resize()

    def _resize(self) -> None:
        with suppress(OSError):
            fcntl.ioctl(self.master, termios.TIOCSWINSZ, fcntl.ioctl(self._in, termios.TIOCGWINSZ, bytes(8)))

    def _close(self) -> None:
        for handle in (self.master, self._slave):
            if handle >= 0:
                os.close(handle)
        self.master = self._slave = -1


def _ready(handle: int, what: int, seconds: float | None) -> bool:
    poll = select.poll()
    poll.register(handle, what)
    return bool(poll.poll(None if seconds is None else seconds * 1000))
