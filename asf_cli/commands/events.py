# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play events``: what happened in a session, in the order of time; of a closed one out of its evidence."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from .. import document, errors, logtext, render, target

DEFAULT_EVENTS = 200
#: What was there before has been read when nothing came for so many seconds, or after so many at the latest.
_QUIET, _CATCH_UP = 0.2, 2.0
_COLOURS = {"refused": "red", "exited": "red", "restarted": "yellow", "closed": "dim"}

EXAMPLES = """\
  asf-play events claude          opened, verified, started, restarts, refusals, ended, closed
  asf-play events -f claude       until the session ends
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    target.add_arguments(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the session ends")
    parser.add_argument("-n", "--lines", default=str(DEFAULT_EVENTS), metavar="N", help="the last N events, or: all")
    parser.add_argument("--json", action="store_true", help="one JSON document; with -f one for each event")


def run(request: argparse.Namespace) -> int:
    """Show the events. Raises CliError for a session that neither lives nor has left evidence."""
    limit = logtext.limit(request.lines)
    history = _History(target.session(request, past=True))
    if request.follow and history.lives:
        history.follow(lambda events: _show(request, events), limit)
        return errors.OK
    kept, left_out = _last(history.events(history.lines()), limit)
    if request.json and not request.follow:
        print(document.dump({"ok": True, "session": history.session, "left_out": left_out, "events": kept}))
        return errors.OK
    _show(request, kept)
    return errors.OK


def _last(found: list[dict[str, Any]], limit: int | None) -> tuple[list[dict[str, Any]], int]:
    """The last events, and how many are left out."""
    left_out = max(0, len(found) - limit) if limit is not None else 0
    if left_out:
        print(f"{left_out} earlier events are left out; -n all shows them", file=sys.stderr)
    return found[left_out:], left_out


def _show(request: argparse.Namespace, events: Iterable[Mapping[str, Any]]) -> None:
    style = render.style(sys.stdout, os.environ)
    for one in events:
        print(json.dumps(one) if request.json else text(one, style), flush=True)


def text(event: Mapping[str, Any], style: render.Style) -> str:
    """One event as one line."""
    word = str(event.get("event"))
    more = {
        key: value for key, value in event.items() if key not in ("at", "event") and value not in (None, "", {}, [])
    }
    if word == "refused":
        count = more.pop("count", 1)
        last = more.pop("last", None)
        asked = f"{more.pop('host', '')}:{more.pop('port', '')}".strip(":") or str(more.pop("target", "-"))
        words = [asked, str(more.pop("reason", "")), str(more.pop("key", ""))]
        words += [f"x{count}" + (f" until {logtext.stamp(last)}" if last else "")] if count > 1 else []
    else:
        if more.get("ok") is True:
            del more["ok"]
        words = [f"{key} {_plain(value)}" for key, value in more.items()]
    said = render.safe("  ".join(one for one in words if one), 600)
    line = f"{logtext.stamp(event.get('at')) or '-':<24} {word:<9} {said}".rstrip()
    return render.fit(line, style.width, style).replace(
        f" {word} ", f" {style.paint(word, _COLOURS.get(word, 'green'))} ", 1
    )


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{number} {word}" for word, number in sorted(value.items()))
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


class _History:
    """Events of one session, living or closed."""

    def __init__(self, session: str) -> None:
        from asf_lib.core.roles import TELLING
        from asf_lib.engine import evidencefs, sessionlogs, state
        from asf_lib.engine.podman import Podman

        self.session, self._podman = session, Podman()
        self._record = state.read(session) or {}
        found = [sessionlogs.source(self._podman, session, role) for role in TELLING]
        self._sources = [one for one in found if one is not None]
        self._redact = logtext.redactor(self._podman, session) if self._sources else None
        runs = evidencefs.runs(session)
        self._folder = evidencefs.folder_of(session, self._record.get("evidence")) or (runs[-1] if runs else None)

    @property
    def lives(self) -> bool:
        """Whether more may happen: something is logged, or the workload of a session without services runs."""
        return any(one.alive and one.path for one in self._sources) or (not self._sources and self._agent() is not None)

    def _agent(self) -> int | None:
        """The first process of the workload's container, while it lives."""
        from asf_lib.engine import procs

        known = (self._record.get("containers") or {}).get("agent") or {}
        pid = known.get("pid")
        return pid if isinstance(pid, int) and procs.start_time(pid) == known.get("start") else None

    def _outlast(self) -> None:
        """Wait for the workload's end, which is all that happens where nothing decides."""
        try:
            handle = os.pidfd_open(self._agent() or 0)
        except OSError:
            return  # it has ended
        try:
            if self._agent() is not None:
                select.select([handle], [], [])
        finally:
            os.close(handle)

    def _document(self, name: str) -> Any:
        try:
            return json.loads((self._folder / name).read_bytes()) if self._folder else None
        except (OSError, ValueError):
            return None

    def lines(self) -> list[str]:
        """What the services have written, while their containers exist."""
        from asf_lib.engine import sessionlogs

        return [line.text for one in self._sources for line in sessionlogs.read(self._podman, one)]

    def events(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        """All of them, in order; out of these lines, or out of the evidence of a closed session."""
        from asf_lib.core import history
        from asf_lib.engine import evidencefs

        life = history.life(self._record, self._document("verification.json"), self._document("cleanup.json"))
        if self._sources:
            return history.ordered([*life, *self._logged(lines)])
        kept = {
            name: evidencefs.lines(self._folder / f"{name}.jsonl") if self._folder else []
            for name in ("decisions", "supervisor")
        }
        return history.ordered([*life, *_of(kept["decisions"], kept["supervisor"])])

    def _logged(self, lines: Iterable[str]) -> list[dict[str, Any]]:
        from asf_lib.core import decisions

        redact = self._redact.text if self._redact is not None else str
        parsed = decisions.parse(redact(line) for line in lines)
        return _of(parsed.decisions, parsed.supervisor)

    def follow(self, show: Callable[[list[dict[str, Any]]], None], limit: int | None) -> None:
        """Show what there is, then new events until the session's services have ended, then what ended it."""
        from asf_lib.core import history
        from asf_lib.engine.logfollow import Follower

        with ExitStack() as stack:
            live = [one for one in self._sources if one.path and one.alive]
            followers = [stack.enter_context(Follower(one.path, one.pid)) for one in live]
            show(_last(self.events(_caught_up(followers)), limit)[0])
            while any(not one.ended for one in followers):
                ready = select.select([one for one in followers if not one.ended], [], [])[0]
                show(history.ordered(self._logged(line.text for one in ready for line in one.lines())))
            if not followers:
                self._outlast()
        self._ended(show)

    def _ended(self, show: Callable[[list[dict[str, Any]]], None]) -> None:
        """Whoever closes the session holds its lock until the report is written."""
        from asf_lib.core import history
        from asf_lib.engine import state

        with state.lock(self.session):
            life = history.ordered(history.life({}, None, self._document("cleanup.json")))
        show([one for one in life if one["event"] in ("ended", "closed")])


def _caught_up(followers: list[Any]) -> list[str]:
    """What is there already; what comes later is left to whoever asks again."""
    found: list[str] = []
    patience = time.monotonic() + _CATCH_UP
    while time.monotonic() < patience and any(not one.ended for one in followers):
        ready = select.select([one for one in followers if not one.ended], [], [], _QUIET)[0]
        if not ready:
            break
        found += [line.text for one in ready for line in one.lines()]
    return found


def _of(decided: Iterable[Mapping[str, Any]], supervised: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    from asf_lib.core import history
    from asf_lib.core.decisions import DENIED_NAME

    return [*history.refused(decided, DENIED_NAME), *history.supervised(supervised)]
