# SPDX-License-Identifier: BSD-2-Clause
"""Take a session down: by record and by label, in an order that leaves no orphan, as often as one likes (invariant 6).

Order: the workload ends first; then the services, gracefully, so that cut tunnels are logged; their logs
become evidence; then containers, secrets, volumes, the run folder, and last the record. A kill at any point leaves the
record or a labelled resource, and the next call goes on from there (case L1).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Optional, Sequence

from ..core import lifecycle
from ..core.errors import AsfError, EngineError
from ..core.lifecycle import Container, Removal, Survey
from ..core.redact import Redactor
from ..core.roles import SERVICES
from . import counters, gathering, inventory, procs, reporting, signals, state
from .dirs import Env
from .evidencefs import Evidence, seal, seal_unchained
from .podman import Call, Podman, Result
from .procs import Identity
from .state import Record

Details = gathering.Details
#: First processes by the name of their container.
Living = dict[str, Identity]

#: Seconds that the workload has to end by itself, and Caddy and the broker to finish their logs.
AGENT_GRACE = 1.0
SERVICE_GRACE = 2.0
#: An interactive shell ignores TERM; HUP is what it gets when its terminal goes (as systemd's SendSIGHUP does).
_AGENT_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
#: "rm -f" of a container whose conmon is dead fails once and works the second time.
_TRIES = 4


@dataclass
class Report:
    """What a teardown did. ``left`` is read back from Podman and must be empty."""

    session: str
    changed: bool = False
    actions: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    containers: dict[str, dict[str, Any]] = field(default_factory=dict)
    decisions: dict[str, dict[str, int]] = field(default_factory=dict)
    restarts: dict[str, int] = field(default_factory=dict)
    evidence: Optional[str] = None
    head: Optional[str] = None
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    #: When the session was opened and its workload started, as its record had it.
    times: dict[str, Any] = field(default_factory=dict)

    def cleanup(self) -> dict[str, Any]:
        """The document ``cleanup.json``."""
        return {
            "version": 1,
            "session": self.session,
            **self.times,
            "at": state.now(),
            "actions": self.actions,
            "left": self.left,
            "containers": self.containers,
            "seconds": round(self.seconds, 3),
            "phases": {name: round(spent, 3) for name, spent in self.phases.items()},
        }


def _busy(session: str, record: Optional[Record]) -> None:
    """Refuse while somebody else who lives is opening the session."""
    if record is None or record.get("state") != lifecycle.OPENING:
        return
    others = [who for who in state.controllers(record) if procs.alive(who)]
    mine = set(procs.controllers())
    if others and not mine.intersection(others):
        raise EngineError(
            f"session {session} is being opened by process {others[-1].pid}",
            key="session",
            remedy="wait until it is open, or end that process, then close again",
            code="busy",
        )


def _living(containers: Sequence[Container], record: Optional[Record]) -> Living:
    """First processes of the containers, those that surely are the container's and no stranger with its number."""
    chosen = [known for known in ((record or {}).get("containers") or {}).values() if isinstance(known, dict)]
    marks = {(known.get("pid"), known.get("start")) for known in chosen}
    found: Living = {}
    for one in containers:
        if not one.alive or one.start is None:
            continue
        if (one.pid, one.start) in marks or procs.belongs(one.pid, one.id):
            found[one.name] = Identity(one.pid, one.start, procs.boot_id())
    # Podman forgets a process when its run state is lost; the record does not.
    return {**state.chosen(record), **found}


def _end(
    containers: Sequence[Container], living: Living, numbers: Sequence[int], seconds: float, report: Report
) -> None:
    """Signal, wait, and kill who did not listen. A container that was only initialized has nothing to finish."""
    started = [one for one in containers if one.status not in ("initialized", "created", "configured")]
    named = {living[one.name]: one.name for one in started if one.name in living}
    if not named:
        return
    begin = time.monotonic()
    monitors = {monitor: who.pid for who in named if (monitor := procs.parent(who.pid)) is not None}
    signals.send(list(named), numbers)
    late = signals.wait(list(named), seconds)
    signals.send(late, [signal.SIGKILL])
    signals.wait(late, 1)
    if any(one.role in SERVICES for one in started):
        procs.until_logged(monitors, 0.5)
    spent = f"{time.monotonic() - begin:.1f} s"
    for who, name in named.items():
        how = f"did not end within {seconds:g} s and was killed" if who in late else f"ended within {spent}"
        report.actions.append(f"stopped container {name}: it {how}")


def _collect(
    podman: Podman, found: Removal, known: Details, evidence: Evidence, record: Record, report: Report
) -> None:
    """Turn the logs of Caddy and the broker into evidence, and note how every container was found."""
    try:
        kept = gathering.gather(podman, found, known, evidence, record)
    except AsfError as error:
        # A full disk must not keep a session alive.
        report.actions.append(f"evidence not complete: {error.message}")
        return
    report.containers, report.decisions, report.restarts = kept.containers, kept.decisions, kept.restarts
    report.actions += kept.notes


def _count(services: Sequence[Container], evidence: Evidence, report: Report) -> None:
    """Keep what a gateway has counted, while its namespace is there. What a first teardown kept stays."""
    plan = (evidence.read("plan.json") or {}).get("plan") or {}
    found = counters.of(plan, services)
    if found is None or (found["lost"] and evidence.read("routed.json")):
        return
    if found["lost"]:
        report.actions.append(f"the gateway's counters are lost: {found['lost']}")
    try:
        evidence.write("routed.json", {"version": 1, "session": report.session, "at": state.now(), **found})
    except AsfError as error:
        report.actions.append(f"evidence not complete: {error.message}")


def _calls(rest: Removal, attempt: int) -> list[Call]:
    """One round of removals, all at once; a volume can go when no container uses it any more."""
    calls: list[Call] = []
    if rest.containers:
        calls.append(["rm", "-f", "-v", "-t", "0", *(one.id for one in rest.containers)])
    if rest.volumes and (attempt or not rest.containers):
        calls.append(["volume", "rm", *rest.volumes])
    if rest.secrets:
        calls.append(["secret", "rm", *rest.secrets])
    return calls


def _remove(podman: Podman, found: Removal, report: Report) -> None:
    """Remove until nothing is left or Podman refused ``_TRIES`` times; anonymous volumes go with their containers."""
    rest, refused = found, ""
    for attempt in range(_TRIES):
        calls = _calls(rest, attempt)
        if not calls:
            break
        failed = [result for result in podman.parallel(calls, check=False) if result.rc]
        if failed:
            refused = _said(failed[0])
            time.sleep(0.1 * attempt)
            rest = lifecycle.removal(report.session, os.getuid(), inventory.Inventory(podman).of(report.session))
        else:
            waiting = rest.volumes if rest.containers and not attempt else ()
            rest = replace(rest, containers=(), secrets=(), volumes=waiting)
    report.actions += _outcome(
        "container", [one.name for one in found.containers], [one.name for one in rest.containers], refused
    )
    report.actions += _outcome("secret", found.secrets, rest.secrets, refused)
    report.actions += _outcome("volume", found.volumes, rest.volumes, refused)


def _outcome(noun: str, names: Sequence[str], rest: Sequence[str], refused: str) -> list[str]:
    return [
        f"{noun} {name} not removed because Podman refused: {refused}" if name in rest else f"removed {noun} {name}"
        for name in names
    ]


def _said(result: Result) -> str:
    lines = result.stderr.strip().splitlines()
    return lines[-1][:300] if lines else f"exit code {result.rc}"


def _kill_orphans(living: Living, report: Report) -> None:
    """A process that outlived its container's removal (Podman wedged, conmon dead) is killed by identity."""
    orphans = {who: name for name, who in living.items() if procs.alive(who)}
    signals.send(list(orphans), [signal.SIGKILL])
    rest = signals.wait(list(orphans), 2)
    for who, name in orphans.items():
        if who in rest:
            report.left.append(f"process {who.pid} of container {name}")
        else:
            report.actions.append(f"killed process {who.pid}, which outlived container {name}")


def _would(found: Removal, survey: Survey) -> list[str]:
    actions = [f"would remove container {one.name}" for one in found.containers]
    actions += [f"would remove secret {name}" for name in found.secrets]
    actions += [f"would remove volume {name}" for name in found.volumes]
    if survey.run_folder:
        actions.append("would remove the run folder")
    return actions + list(found.kept)


def _survey(podman: Podman, session: str, env: Env, inspect: bool = False) -> tuple[Survey, Details]:
    record = state.has_record(session, env)
    folder = os.path.lexists(state.run_folder(session, env))
    listed = inventory.Inventory(podman, session if inspect else "")
    return listed.of(session, run_folder=folder, record=record), listed.details


def _evidence(
    session: str, record: Optional[Record], redactor: Optional[Redactor], report: Report, env: Env
) -> Optional[Evidence]:
    """The evidence folder, and the record marked as closing. A full disk must not keep a workload alive: then None.

    Whatever cannot be written is said in the actions, and the session goes all the same.
    """
    evidence = None
    try:
        evidence = state.evidence_of({**(record or {}), "session": session}, redactor, env)
        report.actions += [f"entered {name}, which a killed command had written last" for name in evidence.adopt()]
        _closing(session, record, evidence, env)
    except (EngineError, OSError) as error:
        report.actions.append(f"evidence not complete: {error}")
    return evidence


def _closing(session: str, record: Optional[Record], evidence: Evidence, env: Env) -> Record:
    """The record while the session goes; made anew when it was lost, so that a kill here is seen as well."""
    agent, _, name = session.partition(".")
    base: Record = record or {"version": 1, "session": session, "agent": agent, "name": name, "containers": {}}
    closing = {"state": lifecycle.CLOSING, "step": "teardown", "evidence": str(evidence.folder)}
    return state.write({**base, **closing, "controllers": state.me()}, env)


def teardown(
    podman: Podman, session: str, *, env: Env = None, check: bool = False, redactor: Optional[Redactor] = None
) -> Report:
    """Remove everything that the session owns; state volumes and evidence are kept.

    ``check`` only says what would be done. Raises EngineError when another living process opens the session, when
    Podman cannot be asked, and, after all was tried and recorded, when something is left (``code: left``).
    """
    begin = time.monotonic()
    report = Report(session)
    with state.lock(session, env):
        if not check:
            state.sweep_temporary(session, env)
        record = state.read(session, env)
        _busy(session, record)
        if not check:
            sealed = seal_unchained(session, (record or {}).get("evidence"), env)
            report.actions = [f"sealed evidence {run}, which an earlier close could not write" for run in sealed]
        survey, known = _survey(podman, session, env, inspect=True)
        found = lifecycle.removal(session, os.getuid(), survey)
        nothing = found.empty() and not survey.run_folder and not survey.record
        report.changed = not nothing
        if check or nothing:
            report.actions += _would(found, survey) or [f"session {session} owns nothing"]
            return report
        evidence = _evidence(session, record, redactor, report, env)
        report.times = {key: (record or {}).get(key) for key in ("created", "started")}
        _take_down(podman, found, _living(found.containers, record), known, evidence, record or {}, report)
        if state.clear_run_folder(session, env):
            report.actions.append("removed the run folder")
        report.actions += found.kept
        with _timed(report, "check"):
            report.left += _left(podman, found, report, env)
        report.seconds = time.monotonic() - begin
        _finish(session, evidence, report, env)
    return report


def _take_down(
    podman: Podman,
    found: Removal,
    living: Living,
    known: Details,
    evidence: Optional[Evidence],
    record: Record,
    report: Report,
) -> None:
    agents = [one for one in found.containers if one.role not in SERVICES]
    services = [one for one in found.containers if one.role in SERVICES]
    with _timed(report, "stop"):
        _end(agents, living, _AGENT_SIGNALS, AGENT_GRACE, report)
        if evidence is not None:
            _count(services, evidence, report)
        _end(services, living, (signal.SIGTERM,), SERVICE_GRACE, report)
    with _timed(report, "collect"):
        if evidence is not None:
            _collect(podman, found, known, evidence, record, report)
    with _timed(report, "remove"):
        _remove(podman, found, report)
        _kill_orphans(living, report)


def _left(podman: Podman, found: Removal, report: Report, env: Env) -> list[str]:
    """What Podman still holds. A command of a killed opener may have ended late: what it made goes as well."""
    session, owner = report.session, os.getuid()
    survey, _ = _survey(podman, session, env)
    rest = lifecycle.removal(session, owner, survey)
    # `podman rm -f A B C` of 4.3 ends well and removes nothing when one of them vanished meanwhile (measured).
    refused = any("not removed because Podman refused" in action for action in report.actions)
    late = _since(rest, found) if refused else rest
    if not late.empty():
        _remove(podman, late, report)
        survey, _ = _survey(podman, session, env)
    return lifecycle.left(session, owner, survey)


def _since(now: Removal, before: Removal) -> Removal:
    known = {one.id for one in before.containers}
    return replace(
        now,
        containers=tuple(one for one in now.containers if one.id not in known),
        volumes=tuple(name for name in now.volumes if name not in before.volumes),
        secrets=tuple(name for name in now.secrets if name not in before.secrets),
    )


@contextlib.contextmanager
def _timed(report: Report, phase: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    report.phases[phase] = time.monotonic() - begin


def _finish(session: str, evidence: Optional[Evidence], report: Report, env: Env) -> None:
    """Write the cleanup report, seal the evidence, and forget the session when nothing is left of it."""
    if evidence is not None:
        try:
            evidence.write("cleanup.json", report.cleanup())
            report.actions += reporting.write(evidence)
            report.evidence, report.head = str(evidence.folder), seal(evidence, env)
        except (EngineError, OSError) as error:
            report.actions.append(f"evidence not complete: {error}")
    if not report.left:
        state.forget(session, env)
        return
    raise LeftError(report)


class LeftError(EngineError):
    """Something could not be removed. ``report`` says what was done and what is left."""

    def __init__(self, report: Report) -> None:
        super().__init__(
            f"session {report.session} could not be taken down completely",
            found=", ".join(report.left)[:400],
            remedy="close it again; if that fails, see the actions in cleanup.json",
            code="left",
        )
        self.report = report
