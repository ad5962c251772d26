# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play logs``: what a session's parts have written, redacted, bounded and escaped; with ``-f`` as it comes."""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from .. import document, errors, logtext, render, target
from ..errors import CliError
from ..nearmiss import near

LOGS = ("agent", "caddy", "broker", "gateway", "decisions")
DEFAULT_LINES = 1000
#: ``-f`` has caught up with what was there when nothing came for so many seconds, or after so many at the latest.
_QUIET, _CATCH_UP = 0.2, 2.0

USAGE = "asf-play logs [-f] [-n LINES] [--since WHEN] [AGENT[.SESSION]] [agent|caddy|broker|gateway|decisions]"
EXAMPLES = """\
  asf-play logs claude                     the last 1000 lines of the workload
  asf-play logs -f claude decisions        what the egress proxy decides, as it happens
  asf-play logs -n all --since 10m broker  when only one session lives
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    words = parser.add_argument(
        "words", nargs="*", metavar="AGENT[.SESSION] LOG", help=f"the session, and one of {', '.join(LOGS)} (agent)"
    )
    words.complete = ("session", "log")  # type: ignore[attr-defined]
    target.add_options(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the session ends")
    parser.add_argument("-n", "--lines", default=str(DEFAULT_LINES), metavar="N", help="the last N lines, or: all")
    parser.add_argument("--since", metavar="WHEN", help="not older: 30s, 10m, 2h, 1d, or 2026-01-31T12:00:00Z")
    parser.add_argument("-t", "--timestamps", action="store_true", help="each line with its time")
    parser.add_argument("--json", action="store_true", help="one JSON document; with -f one for each line")


def run(request: argparse.Namespace) -> int:
    """Show the log. Raises CliError when the session has no such part."""
    limit, since = logtext.limit(request.lines), logtext.since(request.since)
    request.target, log = _words(request.words)
    name = _session(request, log)
    view = _Decisions(request, name) if log == "decisions" else _Lines(request, name, log)
    if request.follow and view.source is not None and view.source.path and view.source.alive:
        return _follow(view, limit, since)
    lines = [line for line in view.all() if logtext.young(line["time"], since)]
    kept = lines[len(lines) - limit :] if limit is not None and limit < len(lines) else lines
    left_out = len(lines) - len(kept)
    if request.json and not request.follow:
        print(
            document.dump({"ok": True, "session": name, "log": log, "left_out": left_out, view.field: view.data(kept)})
        )
        return errors.OK
    view.left_out(left_out)
    for line in kept:
        print(view.text(line))
    return errors.OK


def _words(words: list[str]) -> tuple[str | None, str]:
    """``(session or None, log)``. A single word that names a log is one: an agent of that name is ``agent.main``."""
    if len(words) > 2:
        raise CliError("too many words", found=words[2], remedy=f"{USAGE}")
    if len(words) == 1 and words[0] in LOGS:
        return None, words[0]
    log = words[1] if len(words) == 2 else "agent"
    if log not in LOGS:
        raise CliError(
            f"there is no log {log}", found=log, remedy=f"{near(log, LOGS)}the logs of a session are {', '.join(LOGS)}"
        )
    return (words[0] if words else None), log


def _session(request: argparse.Namespace, log: str) -> str:
    return target.session(request, past=log == "decisions")


class _View:
    """One log of one session."""

    field = "lines"

    def __init__(self, request: argparse.Namespace, session: str, role: str) -> None:
        from asf_lib.engine import sessionlogs
        from asf_lib.engine.podman import Podman

        self.request, self.session = request, session
        self.podman = Podman()
        self.source = sessionlogs.source(self.podman, session, role)
        self.style = render.style(sys.stdout, os.environ)
        self._redact = logtext.redactor(self.podman, session) if self.source is not None else None

    def feed(self, lines: Iterable[Any]) -> list[dict[str, Any]]:
        """Lines of the engine as plain data, redacted."""
        redact = self._redact.text if self._redact is not None else str
        return [{"time": line.time, "stream": line.stream, "text": redact(line.text)} for line in lines]

    def all(self) -> list[dict[str, Any]]:
        """Everything there is."""
        from asf_lib.engine import sessionlogs

        assert self.source is not None
        return self.feed(sessionlogs.read(self.podman, self.source))

    def data(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """As they stand in a JSON document."""
        return lines

    def left_out(self, number: int) -> None:
        """Say on standard error that there was more."""
        if number:
            print(f"{number} earlier lines are left out; -n all shows them", file=sys.stderr)

    def text(self, line: Mapping[str, Any]) -> str:
        """One line for people, or one JSON text with ``--json -f``."""
        if self.request.json:
            return json.dumps(self.data([dict(line)])[0])
        shown = self.plain(line)
        return f"{render.safe(line['time'], 40)} {shown}" if self.request.timestamps else shown

    def plain(self, line: Mapping[str, Any]) -> str:
        return render.safe(line["text"], logtext.LONGEST)


def _no_container(session: str, role: str, why: str | None) -> CliError:
    return CliError(
        f"session {session} has no {role} container" + (f": {why}" if why else ""),
        key="log",
        found=role,
        remedy=f"see what it has: asf-play status {session}",
        code="no-log",
    )


class _Lines(_View):
    """What a container wrote."""

    def __init__(self, request: argparse.Namespace, session: str, role: str) -> None:
        from asf_lib.engine import sessionlogs

        super().__init__(request, session, role)
        if self.source is None:
            raise _no_container(session, role, sessionlogs.absent(session, role))
        if not self.source.path and role == "agent":
            raise CliError(
                "an interactive workload's terminal is not logged",
                key="log",
                found=role,
                remedy=f"go to it: asf-play shell {session}",
                code="no-log",
            )


class _Decisions(_View):
    """Caddy's decisions: out of its log, or out of the evidence once the session is closed."""

    field = "decisions"

    def __init__(self, request: argparse.Namespace, session: str) -> None:
        from asf_lib.engine import sessionlogs

        super().__init__(request, session, "caddy")
        why = sessionlogs.absent(session, "caddy") if self.source is None else None
        if why:
            raise _no_container(session, "caddy", why)

    def feed(self, lines: Iterable[Any]) -> list[dict[str, Any]]:
        from asf_lib.core import decisions

        found = []
        for line in super().feed(lines):
            found += [{"time": line["time"], "record": one} for one in decisions.parse([line["text"]]).decisions]
        return found

    def all(self) -> list[dict[str, Any]]:
        if self.source is not None:
            return super().all()
        from asf_lib.engine import evidencefs

        runs = evidencefs.runs(self.session)
        records = evidencefs.lines(runs[-1] / "decisions.jsonl") if runs else []
        return [{"time": logtext.stamp(one.get("ts")), "record": one} for one in records]

    def data(self, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [line["record"] for line in lines]

    def plain(self, line: Mapping[str, Any]) -> str:
        return logtext.decision(line["record"], self.style)


def _follow(view: _View, limit: int | None, since: float | None) -> int:
    """Show what is there, then what comes, until the container ends."""
    from asf_lib.engine.logfollow import Follower

    assert view.source is not None
    with Follower(view.source.path, view.source.pid) as follower:
        first, patience = logtext.Last(limit), time.monotonic() + _CATCH_UP
        while not follower.ended:
            quiet = not select.select([follower], [], [], _QUIET if first.open else None)[0]
            for line in view.feed(follower.lines()):
                if logtext.young(line["time"], since):
                    _show(view, first, line)
            if first.open and (quiet or follower.ended or time.monotonic() > patience):
                view.left_out(first.left_out)
                for line in first.close():
                    print(view.text(line), flush=True)
    return errors.OK


def _show(view: _View, first: logtext.Last, line: dict[str, Any]) -> None:
    """What was there before the follower caught up is bounded; what comes afterwards is shown at once."""
    if first.open:
        first.add(line)
    else:
        print(view.text(line), flush=True)
