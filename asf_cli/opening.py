# SPDX-License-Identifier: BSD-4-Clause
"""``open.yml`` from the CLI: what Ansible cannot give is a terminal, so the last step, go, is taken here.

The playbook ends with the session verified and its gate waiting (``asf_hold``). Then: attach, say go, stay until the
workload ends, close the session in a run of its own, and exit with the workload's code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import attach, document, errors, paths, play, render, runner, seat
from .errors import CliError
from .events import Outcome
from .interrupts import Interrupted, Interrupts, raised
from .progress import Progress

#: How the user left -> exit code; any other way is well. Of a session that another command closed nobody knows how the
#: workload ended, which is no success.
LEFT = {"hangup": errors.HANGUP, "terminated": errors.TERMINATED, "gone": errors.ENGINE}
_NO_TERMINAL = "no terminal: the session was left running, as with --detach"


def open_session(request: argparse.Namespace, book: Path, reporter: play.Reporter) -> int:
    """Run open.yml and what belongs after it; returns the exit code."""
    # A part of the playbook does not end with a gate that waits.
    hold = not (request.detach or request.check or request.tags or request.skip_tags)
    more: dict[str, Any] = {"asf_hold": True} if hold else {}
    if request.command is not None:
        # A command gets a terminal when there is one to give; without it its output stays two clean streams.
        more["asf_tty"] = attach.have_terminal() and not request.json
    if attach.have_terminal():
        more["asf_terminal"] = _terminal()
    interrupts = play.execute(play.to_run(request, book, **more), reporter)
    outcome = reporter.outcome
    if interrupts.interrupted or outcome.stats is None:
        return _abandoned(request, reporter, interrupts)
    if outcome.failed or not hold:
        return play.conclude(request, reporter, interrupts, "open.yml")
    return _held(request, reporter)


def _terminal() -> dict[str, str]:
    from asf_lib.core import workload

    return workload.terminal(os.environ)


def _abandoned(request: argparse.Namespace, reporter: play.Reporter, interrupts: Interrupts) -> int:
    """Ansible did not get to the end, so no rescue ran: what this open made is removed by a run of its own."""
    outcome = reporter.outcome
    if interrupts.interrupted:
        play.mark_interrupted(outcome)
    made = any(phase.name != "start" for phase in outcome.phases) and not request.check
    closing = close(request, reporter.progress) if made and not _was_live(request, outcome) else None
    return _finish(request, reporter, play.code(outcome, interrupts), closing)


def _was_live(request: argparse.Namespace, outcome: Outcome) -> bool:
    """A session that was live before belongs to its workload, not to this open. The record knows it before the plan."""
    from asf_lib.engine import state

    record = state.read(play.session_id(request.variables)) or {}
    return bool(outcome.asf.get("live")) or record.get("state") == "live"


def _held(request: argparse.Namespace, reporter: play.Reporter) -> int:
    """The session waits at its gate (or is live already): attach and go, or just go."""
    outcome = reporter.outcome
    session = str(outcome.asf.get("session") or play.session_id(request.variables))
    try:
        with raised():
            held = Held(session, outcome.asf)
            if not _attaches(request, held):
                return _unattended(request, reporter, held)
            ending = _attached(request, reporter, held)
    except Interrupted as stop:
        play.mark_interrupted(outcome)
        code = errors.signal_code(stop.number)
    except Exception as error:
        outcome.error = errors.fields(error)
        code = errors.exit_code(outcome.error, "go")
    else:
        return _left(request, reporter, session, ending)
    return _finish(request, reporter, code, None if outcome.asf.get("live") else close(request, reporter.progress))


def _unattended(request: argparse.Namespace, reporter: play.Reporter, held: Held) -> int:
    if not held.live:
        held.go()
    if not request.json:
        reporter.progress.line(_NO_TERMINAL)
        play.show_result(reporter, request, sys.stdout)
    return _finish(request, reporter, errors.OK, None)


def _attaches(request: argparse.Namespace, held: Held) -> bool:
    if not held.plan["workload"].get("interactive"):
        return True  # a service, or a command: its output and its code are what was asked for
    return attach.have_terminal() and not request.json


def _attached(request: argparse.Namespace, reporter: play.Reporter, held: Held) -> attach.Ending:
    """Attach; the progress thread is done by then, because the terminal is the workload's now."""
    if not request.json:
        verbose = request.verbosity > 0
        for line in render.result(_shown(reporter.outcome.asf), reporter.progress.style, verbose, brief=not verbose):
            reporter.progress.line(line)
    target = held.target()
    terminal = target.tty and attach.have_terminal()
    if terminal:
        reporter.progress.line(f"attached; {attach.LEAVE} leaves the session running")
    reporter.progress.flush()
    if held.live:
        held.join()
    stdin = terminal or held.wants_stdin()
    streams = attach.Streams(stdin, quiet_stdout=request.json, filtered=not request.raw_terminal)
    go = None if held.live else held.go
    if not terminal:
        return attach.attach(held.podman, target, streams, go)
    with seat.take(held.session) as place:
        if not place.free:
            reporter.progress.line(f"another terminal is attached, too{place.by()}: both see and type the same")
            reporter.progress.flush()
        place.note("attached")
        ending = attach.attach(held.podman, target, streams, go)
        place.note(ending.how)
    return ending


def _shown(asf: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in asf.items() if key in ("probes", "session", "evidence")}


def _left(request: argparse.Namespace, reporter: play.Reporter, session: str, ending: attach.Ending) -> int:
    """After the attachment: a workload that ended takes its session with it, any other stays."""
    if ending.how == "gone":
        reporter.outcome.error = CliError(
            attach.describe(ending, session), key="session", remedy="its evidence says what happened", code="engine"
        ).fields
    elif ending.how != "exit":
        reporter.progress.line(attach.describe(ending, session))
    if ending.how != "exit":
        return _finish(request, reporter, LEFT.get(ending.how, errors.OK), None)
    assert ending.code is not None
    closing = close(request, reporter.progress)
    reporter.outcome.asf["exit_code"] = ending.code
    failed = closing is not None and closing.outcome.failed
    return _finish(request, reporter, ending.code or (errors.CLEANUP if failed else errors.OK), closing)


def close(request: argparse.Namespace, progress: Progress) -> play.Reporter:
    """Run close.yml for the session of the request (``variables``, ``verbosity``); returns what it reported.

    It goes on at a first Ctrl-C.
    """
    book = paths.content() / "playbooks" / "close.yml"
    given = {key: request.variables[key] for key in ("agent", "session", "asf_home") if key in request.variables}
    after = play.Reporter(progress, request)
    run = runner.Run(playbook=book, variables=given, verbosity=request.verbosity)
    try:
        play.execute(run, after, patient=True)
    except Exception as error:
        after.outcome.error = errors.fields(error)
    return after


def _finish(request: argparse.Namespace, reporter: play.Reporter, code: int, closing: play.Reporter | None) -> int:
    """Show what happened; the errors of both runs, the first one's first."""
    outcome = reporter.outcome
    reporter.progress.close()
    if request.json:
        content = document.build(outcome, "open.yml")
        if closing:
            content["close"] = document.build(closing.outcome, "close.yml")
        play.show_document(content)
        return code
    first = outcome.final_error()
    if first is not None:
        print("\n".join(render.error(first, reporter.progress.style)), file=sys.stderr)
    if closing:
        show_closing(closing, reporter.progress.style)
    return code


def show_closing(closing: play.Reporter, style: render.Style) -> None:
    """What a run of close.yml after a workload's end came to: its error, or where the evidence lies."""
    error = closing.outcome.final_error()
    kept = {key: closing.outcome.asf.get(key) for key in ("evidence", "head")}
    lines = render.result(kept, style, False) if error is None else render.error(error, style)
    print("\n".join(lines), file=sys.stderr)


class Held:
    """A verified session whose gate waits, or a live one."""

    def __init__(self, session: str, asf: Mapping[str, Any]) -> None:
        from asf_lib.engine import plandoc, state
        from asf_lib.engine.podman import Podman

        record = state.read(session)
        if record is None or not record.get("plan"):
            raise CliError(
                f"session {session} has no record after it was opened",
                key="session",
                code="engine",
                remedy="close it (close.yml) and open it again",
            )
        self.session = session
        self.document = plandoc.read(str(record["plan"]))
        self.plan: dict[str, Any] = self.document.plan
        self.live = record.get("state") == "live"
        self.podman = Podman()
        self._containers = record.get("containers", {})
        self._nonce = str(asf.get("nonce") or "")

    def target(self) -> attach.Target:
        """The agent's container, to attach to."""
        return attach.target(self._containers["agent"], bool(self.plan["workload"]["tty"]))

    def wants_stdin(self) -> bool:
        """Whether standard input goes to a workload without a terminal: when its container takes any, and ours is no
        terminal, from which a service would steal what the user types next."""
        agent = next(item for item in self.plan["containers"] if item["role"] == "agent")
        return "--interactive" in agent.get("args", []) and not sys.stdin.isatty()

    def join(self) -> None:
        """Say in the record of a live session who attends it now, so that nobody else closes it when it ends."""
        from asf_lib.engine import state

        with state.lock(self.session):
            state.join(self.session)

    def go(self) -> None:
        """Let the gate start the workload, and record the session as live."""
        from asf_lib.engine import state, verification

        with state.lock(self.session):
            verification.go(self.document, self._nonce)
