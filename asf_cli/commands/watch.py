# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play watch``: a live session until it ends; the exit code says what was seen."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .. import errors, logtext, render, target
from ..errors import CliError

DEFAULT_INTERVAL = 30.0
_LEAST, _MOST = 2.0, 86400.0
_COLOURS = {"drift": "red", "denied": "red", "exited": "red", "restarted": "yellow", "allowed": "green"}

EXAMPLES = """\
  asf-play watch claude                     until it ends; every probe again each 30 s
  asf-play watch claude.second --interval 5
  asf-play watch --json | jq -c 'select(.event == "drift")'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    target.add_arguments(parser)
    parser.add_argument(
        "--interval", default=str(DEFAULT_INTERVAL), metavar="SECONDS", help="time between two checks of all probes"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document for each event, a line each")


def run(request: argparse.Namespace) -> int:
    """Follow the session; returns 221 when it drifted, else the workload's exit code. Raises CliError."""
    from asf_lib.engine.podman import Podman
    from asf_lib.engine.watching import Watch

    interval = _interval(request.interval)
    session, podman = target.session(request), Podman()
    watch = Watch(podman, session, interval, logtext.redactor(podman, session).text)
    seen = Seen(session)
    style = render.style(sys.stdout, os.environ)
    code = None
    try:
        for event in watch.events():
            seen.feed(event)
            _show(event, request.json, style)
    except KeyboardInterrupt:
        code = errors.INTERRUPTED
    _show(seen.summary(), request.json, style)
    return seen.code() if code is None else code


def _interval(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = -1.0
    if not _LEAST <= found <= _MOST:  # also what is no number at all (nan)
        raise CliError(
            f"--interval wants seconds, {_LEAST:g} to {_MOST:g}",
            key="--interval",
            found=word[:40],
            remedy="leave it out for 30 s",
        )
    return found


class Seen:
    """What came up during the watch. Feed it every event in order."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.began = time.monotonic()
        self.counts = {"allowed": 0, "denied": 0, "restarts": 0, "checks": 0}
        self.drifted: list[str] = []
        self.broken = False
        self.ending: Mapping[str, Any] = {"how": "watched", "exit_code": None}

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take one event."""
        word = event["event"]
        if word == "decision":
            self.counts["allowed" if event.get("decision") == "allow" else "denied"] += int(event.get("count", 1))
        elif word == "more":
            self.counts["allowed"] += event["allow"]
            self.counts["denied"] += event["deny"]
        elif word == "restarted":
            self.counts["restarts"] += 1
        elif word == "verified":
            self.counts["checks"] += 1
        elif word == "drift" and event["probe"] not in self.drifted:
            self.drifted.append(event["probe"])
        elif word == "state":
            self.broken = self.broken or event["state"] == "broken"
        elif word == "ended":
            self.ending = event

    def summary(self) -> dict[str, Any]:
        """The last document: ``how`` is ``watched`` when the watch ended before the session did."""
        more = {key: self.ending.get(key) for key in ("how", "exit_code", "reason") if key in self.ending}
        spent = round(time.monotonic() - self.began, 1)
        base = {"event": "summary", "at": time.time(), "session": self.session, **more, **self.counts}
        return {**base, "drifted": self.drifted, "broken": self.broken, "seconds": spent}

    def code(self) -> int:
        """221 when a probe drifted or the session broke, 222 when nobody knows how it ended, else the workload's."""
        if self.drifted or self.broken:
            return errors.VERIFY
        if self.ending["how"] == "lost":
            return errors.ENGINE
        return int(self.ending.get("exit_code") or 0)


def _show(event: Mapping[str, Any], as_json: bool, style: render.Style) -> None:
    print(json.dumps({**event, "at": logtext.stamp(event["at"])}) if as_json else text(event, style), flush=True)


def text(event: Mapping[str, Any], style: render.Style) -> str:
    """One event as one line, cut to the terminal; every word of it is harmless."""
    word = str(event["event"])
    if word == "decision":
        word = "allowed" if event.get("decision") == "allow" else "denied"
    said = render.safe(_WORDS.get(str(event["event"]), _pairs)(event), 600)
    line = render.fit(f"{logtext.stamp(event['at'])} {word:<9} {said}".rstrip(), style.width, style)
    return line.replace(f" {word} ", f" {style.paint(word, _COLOURS.get(word, 'bold'))} ", 1)


def _decision(event: Mapping[str, Any]) -> str:
    asked = f"{event['host']}:{event.get('port', '')}" if event.get("host") else str(event.get("target", "-"))
    times = f"x{event['count']}" if event.get("count", 1) != 1 else ""
    parts = [str(event.get("listener", "")), asked, str(event.get("reason", "")), str(event.get("key", "")), times]
    return " ".join(part for part in parts if part)


def _drift(event: Mapping[str, Any]) -> str:
    return f"{event['probe']} ({event['vantage']}) {event['verdict']}: {event['evidence']}; expected: {event['expect']}"


def _ended(event: Mapping[str, Any]) -> str:
    how = {"exit": f"with code {event['exit_code']}", "closed": "closed while the workload ran"}
    reason = f" ({event['reason']})" if event.get("reason") else ""
    return how.get(str(event["how"]), "in a way that nobody saw") + reason


def _summary(event: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{event[key]} {key}" for key in ("allowed", "denied", "restarts", "checks"))
    drifted = f"; drifted: {', '.join(event['drifted'])}" if event["drifted"] else ""
    return f"{event['session']}: {counts} in {event['seconds']} s{drifted}"


def _cost(event: Mapping[str, Any]) -> str:
    return f", {render.dollars(event['cost_usd'])}" if event.get("cost_usd") is not None else ""


def _pairs(event: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in event.items() if key not in ("event", "at") and value not in ("", [], None)}
    return "  ".join(f"{key} {'; '.join(value) if isinstance(value, list) else value}" for key, value in rest.items())


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "decision": _decision,
    "more": lambda event: f"{event['allow']} allowed and {event['deny']} denied that are not told one by one",
    "used": lambda event: f"{event['requests']} requests, {event['tokens']} tokens{_cost(event)} so far",
    "state": lambda event: " ".join([event["state"], "; ".join(event["reasons"])]).strip(),
    "drift": _drift,
    "recovered": lambda event: f"{event['probe']} is as planned again",
    "verified": lambda event: f"{event['probes']} probes in {event['seconds']} s",
    "ended": _ended,
    "summary": _summary,
}
