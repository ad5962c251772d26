# SPDX-License-Identifier: BSD-4-Clause
"""Progress of a run, shown by a thread of its own: whoever reports an event never waits for a terminal.

On a terminal one line per phase is updated while it runs; elsewhere each phase leaves one plain line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from . import render

_TICK = 0.1
#: Off a terminal a phase that lasts longer than this announces itself before it ends, so that nobody thinks it hangs.
_ANNOUNCE = 2.0
_NOTE_LIMIT = 4096


class Progress:
    """Shows phases and lines on one stream. Every method but ``close`` returns at once.

    ``clock`` gives seconds and never goes back.
    """

    def __init__(
        self, stream: IO[str], env: Mapping[str, str] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        env = os.environ if env is None else env
        self._stream = stream
        self._live = render.live(stream, env)
        self.style = render.style(stream, env)
        self._clock = clock
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._phase: tuple[str, str, float] | None = None
        self._note = ""
        self._announced = False
        self._notes: IO[str] | None = None
        self._thread = threading.Thread(target=self._work, name="progress", daemon=True)
        self._thread.start()

    def phase(self, name: str, text: str, began: float) -> None:
        """A phase began (or, with the same name, goes on with another task)."""
        self._queue.put(("phase", (name, text, began)))

    def end(self, ok: bool, now: float) -> None:
        """The phase that runs is over."""
        self._queue.put(("end", (ok, now)))

    def line(self, text: str) -> None:
        """One line above the live one. The caller has escaped it."""
        self._queue.put(("line", text))

    def notes(self, path: Path) -> None:
        """A file to which modules append JSON lines while a phase runs: ``image`` and ``step``, or a ``notice``."""
        self._queue.put(("notes", path))

    def flush(self) -> None:
        """Wait until everything so far is shown, at most two seconds for a stuck terminal."""
        done = threading.Event()
        self._queue.put(("shown", done))
        done.wait(2)

    def close(self) -> None:
        """Show what is queued, then end the thread; can be repeated."""
        if self._thread.is_alive():
            self._queue.put(("stop", None))
            self._thread.join(2)

    def _work(self) -> None:
        while True:
            waits = self._phase is not None and (self._live or self._notes is not None or not self._announced)
            try:
                kind, what = self._queue.get(timeout=_TICK if waits else None)
            except queue.Empty:
                self._tick()
                continue
            if kind == "stop":
                break
            getattr(self, f"_on_{kind}")(what)
        if self._live and self._phase is not None:
            self._write("\r\x1b[K")
        if self._notes is not None:
            self._notes.close()

    def _on_shown(self, done: threading.Event) -> None:
        done.set()

    def _on_line(self, text: str) -> None:
        self._write(("\r\x1b[K" if self._live and self._phase else "") + text + "\n")
        self._draw()

    def _on_notes(self, path: Path) -> None:
        if self._notes is not None:
            self._notes.close()
        self._notes = None
        with contextlib.suppress(OSError):
            self._notes = open(path, encoding="utf-8", errors="replace")  # noqa: SIM115  read from while phases run

    def _on_phase(self, what: tuple[str, str, float]) -> None:
        if self._phase is not None and self._phase[0] == what[0]:
            self._phase = (what[0], what[1], self._phase[2])
        else:
            if self._phase is not None:
                self._on_end((True, what[2]))
            self._phase, self._announced, self._note = what, False, ""
        self._draw()

    def _on_end(self, what: tuple[bool, float]) -> None:
        if self._phase is None:
            return
        self._read_notes()
        name, _text, began = self._phase
        self._phase = None
        head = "\r\x1b[K" if self._live else ""
        self._write(head + render.phase_line(name, what[1] - began, what[0], self.style) + "\n")

    def _tick(self) -> None:
        self._read_notes()
        if self._live:
            self._draw()
        elif self._phase is not None and not self._announced and self._clock() - self._phase[2] > _ANNOUNCE:
            self._announced = True
            self._write(render.phase_started(self._phase[0], self._phase[1]) + "\n")

    def _read_notes(self) -> None:
        if self._notes is None or self._phase is None:
            return
        for line in self._notes.read(_NOTE_LIMIT).splitlines():
            note, notice = _note(line), _told(line, "notice")
            if notice:
                self._on_line(render.notice(notice))
            elif note:
                self._note = note
                if not self._live:
                    self._write(render.phase_started(self._phase[0], self._note) + "\n")
                    self._announced = True

    def _draw(self) -> None:
        if self._live and self._phase is not None:
            name, text, began = self._phase
            width = shutil.get_terminal_size().columns
            shown = render.phase_running(name, self._note or text, self._clock() - began, self.style, width)
            self._write("\r\x1b[K" + shown)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone; the run is not
            self._stream.write(text)
            self._stream.flush()


def _note(line: str) -> str:
    """What a line of the progress file says about an image; empty when it says nothing (or is half of one)."""
    return _told(line, "image", "step")


def _told(line: str, *keys: str) -> str:
    try:
        told = json.loads(line)
        return ": ".join(str(told[key]) for key in keys)
    except (ValueError, KeyError, TypeError):
        return ""
