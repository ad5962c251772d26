# SPDX-License-Identifier: BSD-4-Clause
"""What a playbook run said: runner's events merged into one outcome. Pure; the clock comes with each event.

Convention of ASF's modules: a result holds ``asf`` (a dict, merged here) or, when it failed, ``asf_error``. A task is
named ``phase | what it does``; tasks without a phase belong to the phase before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Ansible's own start-up, until the first task.
START = "start"
_RESULTS = ("runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped")
_ITEMS = ("runner_item_on_ok", "runner_item_on_failed")
_ACCUMULATED = ("warnings", "notes", "swept")
#: Returned beside ``asf`` for the playbook's own use, and needed here too.
_BESIDE = ("nonce", "live")
_TEXT_LIMIT = 4000


@dataclass
class Phase:
    """One phase: when it began (seconds on the caller's clock) and what it says it does."""

    name: str
    began: float
    text: str = ""
    ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended if self.ended is not None else self.began) - self.began


@dataclass
class Outcome:
    """State of one run; feed it every event in order, then call ``finish``."""

    began: float = 0.0
    phases: list[Phase] = field(default_factory=list)
    asf: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    error_phase: str | None = None
    changed: bool = False
    stats: dict[str, Any] | None = None
    tail: list[str] = field(default_factory=list)
    plain_error: dict[str, Any] | None = None

    def feed(self, event: Mapping[str, Any], now: float) -> Phase | None:
        """Take one event; returns the phase that began with it, if any. Never raises on odd data."""
        name = event.get("event")
        data = event.get("event_data")
        data = data if isinstance(data, Mapping) else {}
        if name in ("playbook_on_task_start", "playbook_on_handler_task_start"):
            return self._task(data, now)
        if name in _RESULTS or name in _ITEMS:
            self._result(str(name), data)
        elif name == "playbook_on_stats":
            self.stats = dict(data)
            self.changed = self.changed or _total(data.get("changed")) > 0
        elif name in ("error", "verbose"):
            self._said(str(event.get("stdout", "")))
        return None

    def _said(self, text: str) -> None:
        """Text outside of any task: why Ansible itself gave up, when it did. The end of it is what matters."""
        self.tail += [line for line in text[:_TEXT_LIMIT].splitlines() if line.strip()]
        del self.tail[:-20]

    def _task(self, data: Mapping[str, Any], now: float) -> Phase | None:
        phase, bar, text = str(data.get("task") or "").partition(" | ")
        if not bar:
            return self._begin(START, "", now) if not self.phases else None
        phase = phase.strip()
        if self.phases and self.phases[-1].name == phase and self.phases[-1].ended is None:
            self.phases[-1].text = text.strip()
            return self.phases[-1]
        return self._begin(phase, text.strip(), now)

    def _begin(self, name: str, text: str, now: float) -> Phase:
        if not self.phases and name != START:
            self.phases.append(Phase(START, self.began, ended=now))
        self.end_phase(now)
        self.phases.append(Phase(name, now if self.phases else self.began, text))
        return self.phases[-1]

    def end_phase(self, now: float) -> None:
        """End the phase that runs, if one does."""
        if self.phases and self.phases[-1].ended is None:
            self.phases[-1].ended = now

    def _result(self, name: str, data: Mapping[str, Any]) -> None:
        found = data.get("res")
        result: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
        given = result.get("asf")
        if isinstance(given, Mapping):
            self._merge({**{key: result.get(key) for key in _BESIDE}, **given})
        failed = name in ("runner_on_failed", "runner_on_unreachable", "runner_item_on_failed")
        if failed and not data.get("ignore_errors"):
            self._failed(result, data)
        if result.get("changed") is True:
            self.changed = True

    def _merge(self, given: Mapping[str, Any]) -> None:
        for key, value in given.items():
            if key in _ACCUMULATED and isinstance(value, list):
                known = self.asf.setdefault(key, [])
                known += [item for item in value if item not in known]
            elif key == "probes" and isinstance(value, list):
                self._probes(value)
            elif value is not None:
                self.asf[key] = value

    def _probes(self, found: list[Any]) -> None:
        """Probes of several modules (outside, gate, on a live session) add up; a later one replaces its namesake."""
        known = {(probe.get("id"), probe.get("vantage")): probe for probe in self.asf.get("probes", [])}
        for probe in found:
            if isinstance(probe, Mapping):
                known[probe.get("id"), probe.get("vantage")] = dict(probe)
        self.asf["probes"] = list(known.values())

    def _failed(self, result: Mapping[str, Any], data: Mapping[str, Any]) -> None:
        """Keep the first error of each kind: what follows it comes from the teardown in a rescue."""
        phase = self.phases[-1].name if self.phases else None
        given = result.get("asf_error")
        if isinstance(given, Mapping) and self.error is None:
            self.error, self.error_phase = dict(given), phase
            self.error.setdefault("message", str(result.get("msg", "failed")))
        elif not isinstance(given, Mapping) and self.plain_error is None and not _is_loop_summary(result):
            self.plain_error = _plain(result, data)
            self.error_phase = self.error_phase or phase

    @property
    def failed(self) -> bool:
        """Decided from the stats event: runner's exit code is ambiguous. No stats: Ansible did not get to the end.

        An error that an ASF module reported counts even when a rescue block swallowed it.
        """
        if self.stats is None or self.error is not None:
            return True
        return any(_total(self.stats.get(key)) > 0 for key in ("failures", "dark"))

    def final_error(self) -> dict[str, Any] | None:
        """The error to report, or None when the run went well."""
        if not self.failed:
            return None
        if self.error is not None:
            return self.error
        if self.plain_error is not None:
            return self.plain_error
        said = " ".join(self.tail[-6:]) or "it said nothing"
        return _fields(
            f"Ansible did not finish the playbook: {said}"[:_TEXT_LIMIT], None, "run it again with -vvv", "engine"
        )

    def finish(self, now: float) -> None:
        """The run is over; ``now`` in seconds on the clock of the events."""
        self.end_phase(now)


def _is_loop_summary(result: Mapping[str, Any]) -> bool:
    return (
        isinstance(result.get("results"), list)
        and "msg" in result
        and str(result["msg"]).startswith("One or more items")
    )


def _plain(result: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """An error of a module that is not ASF's, or of Ansible itself."""
    message = str(result.get("msg") or result.get("stderr") or result.get("module_stderr") or "failed")
    place = str(data.get("task_path") or "").rsplit(":", 1)
    task = str(data.get("task") or "").partition(" | ")
    fields = _fields(message[:_TEXT_LIMIT], place[0] or None, None, "engine")
    fields["key"] = task[2] or task[0] or None
    fields["line"] = int(place[1]) if len(place) == 2 and place[1].isdigit() else None
    return fields


def _fields(message: str, file: str | None, remedy: str | None, code: str) -> dict[str, Any]:
    return {"file": file, "key": None, "message": message, "remedy": remedy, "line": None, "found": None, "code": code}


def _total(counts: object) -> int:
    return sum(value for value in counts.values() if isinstance(value, int)) if isinstance(counts, Mapping) else 0
