# SPDX-License-Identifier: BSD-4-Clause
"""One request to run a playbook, from its words to its exit code."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import choosing, document, errors, paths, render, runner, variables
from .errors import CliError
from .events import Outcome
from .interrupts import Interrupts
from .nearmiss import near
from .progress import Progress

#: Shipped playbooks that are about one agent.
_NEED_AGENT = ("open.yml", "build.yml", "rotate.yml", "reset.yml")
#: What the shipped playbooks take by `-e`, but for names that begin with `asf_`.
_VARIABLES = ("agent", "session", "isolation", "llm_mock")


class Reporter:
    """Feeds an outcome from runner's events and shows it. Redacts before anything is shown or kept."""

    def __init__(self, progress: Progress, request: argparse.Namespace, diff: bool = False) -> None:
        self.progress = progress
        self._home = request.variables.get("asf_home")
        self.outcome = Outcome(began=time.monotonic())
        self._redactor: Any = None
        self._verbosity = request.verbosity
        self._diff = diff
        self._told = {"warnings": 0, "notes": 0}
        progress.phase("start", "Ansible", self.outcome.began)

    def event(self, event: Mapping[str, Any]) -> None:
        """Handler for runner: quick, and never raises, because runner would leave its child behind."""
        now = time.monotonic()
        try:
            # Made with the first event: until then Ansible is still starting, and nothing waits for this.
            self._redactor = self._redactor or redactor(self._home)
            self._event(self._redactor.tree(dict(event)), now)
        except Exception as error:
            self.progress.line(render.safe(f"asf-play could not show an event: {type(error).__name__}: {error}"))

    def _event(self, event: Mapping[str, Any], now: float) -> None:
        phase = self.outcome.feed(event, now)
        if phase is not None and phase.name != "start":
            self.progress.phase(phase.name, phase.text, phase.began)
        self._tell("notes", render.note)
        self._tell("warnings", render.warning)
        if self._verbosity or (self._diff and event.get("event") == "runner_on_file_diff"):
            for line in str(event.get("stdout") or "").splitlines():
                self.progress.line(render.safe(line, 2000))

    def _tell(self, key: str, line: Callable[[object, render.Style], str]) -> None:
        """Show what has come to a list since the last event."""
        known = self.outcome.asf.get(key, [])
        for text in known[self._told[key] :]:
            self.progress.line(line(text, self.progress.style))
        self._told[key] = len(known)


def redactor(asf_home: str | None) -> Any:
    """Takes the operator's secrets out of everything shown: the values of the secrets files of ASF's home."""
    from asf_lib.core.redact import Redactor

    from .secrets import values

    return Redactor(values(asf_home))


def execute(run: runner.Run, reporter: Reporter, patient: bool = False) -> Interrupts:
    """Run the playbook to its end or interruption; the reporter has the outcome."""
    style = reporter.progress.style
    interrupts = Interrupts(lambda text: reporter.progress.line(style.paint(f"interrupted: {text}", "yellow")), patient)
    with interrupts:
        runner.execute(run, reporter.event, interrupts, reporter.progress.notes)
    now = time.monotonic()
    reporter.outcome.finish(now)
    reporter.progress.end(not reporter.outcome.failed, now)
    return interrupts


def play(request: argparse.Namespace) -> int:
    """Run what was asked for; returns the exit code of ``asf-play``."""
    content = paths.content()
    book = paths.playbook(request.playbook, content)
    shipped = book.name if book.parent == content / "playbooks" else ""
    _check(request, shipped)
    settled = choosing.settle(request, shipped)
    if settled is not None:
        return settled
    for path, key in ((None if shipped else book, "playbook"), (request.inventory, "--inventory")):
        if path is not None:
            _refuse_granted(str(path), key)
    if shipped == "reset.yml":
        from . import resetting

        if not resetting.confirmed(request):
            return errors.OK
    progress = Progress(sys.stderr)
    try:
        reporter = Reporter(progress, request, request.diff)
        if shipped == "open.yml":
            from . import opening

            return opening.open_session(request, book, reporter)
        interrupts = execute(to_run(request, book), reporter)
        if shipped == "close.yml" and not reporter.outcome.failed and not reporter.outcome.changed:
            for line in choosing.hint(session_id(request.variables)):
                progress.line(line)
        return conclude(request, reporter, interrupts, shipped or str(book))
    finally:
        progress.close()


def to_run(request: argparse.Namespace, book: Path, **more: Any) -> runner.Run:
    """The run that a request asks for; ``more`` are extravars of the CLI's own."""
    return runner.Run(
        playbook=book,
        variables={**request.variables, **more},
        command=request.command,
        check=request.check,
        diff=request.diff,
        verbosity=request.verbosity,
        tags=request.tags,
        skip_tags=request.skip_tags,
        limit=request.limit,
        inventory=request.inventory,
        forks=request.forks,
    )


def _check(request: argparse.Namespace, shipped: str) -> None:
    for name in request.variables if shipped else ():
        meant = "" if name in _VARIABLES or name.startswith(("asf_", "ansible_")) else near(name, _VARIABLES)
        if meant:
            raise CliError(f"{shipped} knows no variable of this name", key="-e", found=name, remedy=meant.strip())
    if shipped in _NEED_AGENT and "agent" not in request.variables:
        raise CliError(
            f"{shipped} needs an agent", key="agent", remedy=f"asf-play {shipped} -e agent=NAME; {_agents(request)}"
        )
    if request.inventory and "/" not in request.inventory:
        raise CliError(
            "an inventory is named by a path with a slash",
            key="--inventory",
            found=request.inventory,
            remedy=f"--inventory ./{request.inventory}",
        )
    if shipped and shipped != "open.yml" and request.command is not None:
        raise CliError(f"{shipped} takes no command", found=request.command[0], remedy="leave out what stands after --")
    if request.yes and shipped != "reset.yml":
        raise CliError("--yes belongs to reset.yml", key="--yes", remedy="leave it out")
    if request.detach and shipped != "open.yml":
        raise CliError("--detach belongs to open.yml", key="--detach", remedy="leave it out")


def _agents(request: argparse.Namespace) -> str:
    from asf_lib.engine import home

    return f"the agents are {', '.join(home.agents(home.resolve(request.variables.get('asf_home')))) or 'none'}"


def _refuse_granted(path: str, key: str) -> None:
    """Raise CliError for a place that an agent can write: what lies there would run on this host (invariant 11)."""
    from asf_lib.engine import grantfs

    where = grantfs.place(os.path.abspath(path))
    for grant in grantfs.list_grants():
        if grant["mode"] != "ro" and where.overlaps(grantfs.place(str(grant["path"]))):
            raise CliError(
                f"the agent {grant['agent']} may write there, and what lies there would run on this host",
                key=key,
                found=path,
                remedy=f"copy it to a place outside of {grant['path']}",
                code="grant",
            )


def session_id(given: Mapping[str, Any]) -> str:
    """The session that checked variables name."""
    return f"{given.get('agent', '')}.{given.get('session', variables.DEFAULT_SESSION)}"


def code(outcome: Outcome, interrupts: Interrupts | None = None) -> int:
    """Exit code for an outcome, without a workload's."""
    if interrupts is not None and interrupts.interrupted:
        return errors.signal_code(interrupts.signal)
    error = outcome.final_error()
    return errors.OK if error is None else errors.exit_code(error, outcome.error_phase)


def conclude(request: argparse.Namespace, reporter: Reporter, interrupts: Interrupts, playbook: str) -> int:
    """Show the result of a run that needs nothing after it."""
    outcome = reporter.outcome
    exit_code = code(outcome, interrupts)
    if interrupts.interrupted:
        mark_interrupted(outcome)
    if request.json:
        reporter.progress.close()
        show_document(document.build(outcome, playbook))
        return exit_code
    show_result(reporter, request, sys.stdout)
    return exit_code


def mark_interrupted(outcome: Outcome) -> None:
    """An interruption is the error, whatever its consequences said."""
    outcome.error = CliError("interrupted", code="interrupted").fields


def show_document(content: Mapping[str, Any]) -> None:
    """The one JSON document, on standard output."""
    sys.stdout.write(document.dump(content) + "\n")
    sys.stdout.flush()


def show_result(reporter: Reporter, request: argparse.Namespace, stream: Any) -> None:
    """Probes (each one where they were asked for), status, evidence on ``stream``; the error on standard error."""
    outcome = reporter.outcome
    reporter.progress.close()
    verbose = request.verbosity > 0
    brief = request.playbook == "open.yml" and not verbose
    for line in render.result(outcome.asf, render.style(stream, os.environ), verbose, brief):
        print(line, file=stream)
    error = outcome.final_error()
    if error is not None:
        for line in render.error(error, reporter.progress.style):
            print(line, file=sys.stderr)
    elif request.playbook == "open.yml" and not request.check and outcome.asf.get("session"):
        print(f"next: asf-play shell {render.safe(outcome.asf['session'])}", file=sys.stderr)
    stream.flush()
