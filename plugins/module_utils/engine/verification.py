# SPDX-License-Identifier: BSD-2-Clause
"""Prove the policy from two sides, then, and only then, let the gate start the workload (invariant 3)."""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ..core import inside, lifecycle, probes
from ..core.controls import judge_counts
from ..core.errors import AsfError, EngineError, GateError, VerifyError
from . import bringup, controls, gate_client, observe, procs, revising, state, statevolumes
from .plandoc import PlanDocument
from .podman import Podman

Json = Dict[str, Any]


def _started(seen: Mapping[str, Json], agent: bool) -> Dict[str, bool]:
    return {role: (role != "agent" or agent) for role in seen}


def outside(podman: Podman, doc: PlanDocument, chosen: Mapping[str, Json], agent_started: bool) -> List[Json]:
    """Every outside probe that is due, judged."""
    seen = observe.session(podman, doc.plan, doc.origin, chosen)
    results = list(probes.judge(doc.plan, seen, _started(seen, agent_started)))
    return [*results, controls.opened(doc.plan)] if controls.routed(doc.plan) else results


def _counted(doc: PlanDocument, chosen: Mapping[str, Json], ask: Callable[[], Json]) -> Tuple[Json, List[Json]]:
    """The gate's report, and what the gateway counted while the gate was asked."""
    if not controls.routed(doc.plan):
        return ask(), []
    before = controls.counts(chosen)
    report = ask()
    return report, judge_counts(doc.plan, before, controls.counts(chosen))


def _agent_again(podman: Podman, doc: PlanDocument, chosen: Mapping[str, Json]) -> List[Json]:
    """The outside probes of the agent's container once more, now that its first process runs."""
    seen = observe.session(podman, doc.plan, doc.origin, chosen, roles=["agent"])
    return [r for r in probes.judge(doc.plan, seen, _started(seen, True)) if r["id"].startswith("agent-")]


def look(podman: Podman, doc: PlanDocument) -> List[Json]:
    """Every probe of a live session, from both sides, judged now. Writes nothing. Raises EngineError."""
    results = outside(podman, doc, bringup.chosen(doc), agent_started=True)
    try:
        report, counted = _counted(doc, bringup.chosen(doc), lambda: _live_report(podman, doc))
        return _merge(results, counted + _inside(doc, report, first=False))
    except GateError as error:
        return [*results, _silent(error)]


def _silent(error: GateError) -> Json:
    """That the inside could not be seen, as a result beside the others."""
    return probes.result("gate-report", 3, "inside", "the gate reports", "inconclusive", error.message)


def _live_report(podman: Podman, doc: PlanDocument) -> Json:
    name = doc.names()["agent"]
    try:
        got = podman.run(["exec", name, "/asf/gate", "probe"], timeout=30, check=False)
    except EngineError as exc:
        raise GateError(f"the gate's fresh run in {name} failed: {exc.message}", remedy="close the session") from None
    try:
        report = json.loads(got.stdout)
    except ValueError:
        raise GateError(
            f"the gate's fresh run in {name} gave no report (exit code {got.rc}): {got.stderr.strip()[:300]}",
            remedy="close the session and open it again",
        ) from None
    if not isinstance(report, dict):
        raise GateError("the gate's report is not a JSON object")
    return report


def _inside(doc: PlanDocument, report: Json, first: bool) -> List[Json]:
    """Judged with what is known of who reports: a report says itself which pid it has, and may lie."""
    return list(inside.judge(report, {**doc.plan["gate"], "plan_digest": doc.digest}, first))


def _merge(first: List[Json], later: List[Json]) -> List[Json]:
    """Results by id; a later look at the same thing replaces the earlier one."""
    merged = {r["id"]: r for r in first}
    merged.update({r["id"]: r for r in later})
    return list(merged.values())


def _written(doc: PlanDocument, record: Json, results: List[Json], nonce: str, began: float) -> Json:
    """The verification report, which also lies in the evidence from now on, whatever it says."""
    report = {
        "version": 1,
        "session": doc.session,
        "plan_digest": doc.digest,
        "nonce": nonce,
        "ok": not probes.blocking(results),
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - began, 3),
        "probes": results,
    }
    if record:
        state.evidence_of(record).write("verification.json", report)
    return report


def _conclude(podman: Podman, doc: PlanDocument, results: List[Json], nonce: str, began: float) -> Json:
    record = state.read(doc.session) or {}
    report, bad = _written(doc, record, results, nonce, began), probes.blocking(results)
    cut = revising.conclude(doc.session, not bad, podman, doc) if record.get("revising") else ""
    if bad:
        error = VerifyError(
            f"{len(bad)} of {len(results)} probes did not pass: " + ", ".join(r["id"] for r in bad[:8]),
            found=bad[0]["evidence"],
            file=record.get("evidence"),
            remedy=(
                cut or "close the session: it is not confined as planned"
                if record.get("state") == "live"
                else "the workload was not started"
            )
            + "; verification.json in the evidence folder has every probe",
        )
        error.results = results  # type: ignore[attr-defined]
        raise error
    return report


def _not_over(podman: Podman, doc: PlanDocument, chosen: Mapping[str, Json]) -> None:
    """Raise EngineError for a session whose workload has ended: nothing of it runs, so nothing is wrong with it."""
    agent = chosen.get("agent") or {}
    if procs.start_time(int(agent.get("pid", 0))) == agent.get("start"):
        return
    rows = state.sessions(podman)
    row = next((one for one in rows if one["session"] == doc.session and one["state"] == lifecycle.ENDED), None)
    if row is None:
        return  # dead or replaced in another way: the probes say in which
    code = "" if row["exit_code"] is None else f" with code {row['exit_code']}"
    raise EngineError(
        f"the workload of session {doc.session} has ended{code}: there is nothing to verify",
        key="session",
        remedy="close it (close.yml), or open it again",
        code="ended",
    )


def verify(podman: Podman, doc: PlanDocument) -> Json:
    """Verify a session that waits to be opened, or a live one again; returns the verification report.

    Raises VerifyError (with ``results``) when a probe fails or is inconclusive, GateError when the gate is silent. A
    new policy of a live session that could not be verified, for whatever reason, costs it its way out.
    """
    try:
        return _verify(podman, doc)
    except Exception as error:
        # VerifyError has its verdict, and a workload that has ended reaches nothing.
        if not isinstance(error, VerifyError) and getattr(error, "code", "") != "ended":
            _unproved(podman, doc, error)
        raise


def _unproved(podman: Podman, doc: PlanDocument, error: Exception) -> None:
    """Cut the way out of a session whose new policy nobody could look at, and say so."""
    done = revising.conclude(doc.session, False, podman, doc)
    if done and isinstance(error, AsfError):
        error.remedy = f"{done}; {error.remedy}" if error.remedy else done


def _verify(podman: Podman, doc: PlanDocument) -> Json:
    """See ``verify``."""
    began, chosen = time.monotonic(), bringup.chosen(doc)
    record = state.read(doc.session) or {}
    live = record.get("state") == lifecycle.LIVE
    if live:
        _not_over(podman, doc, chosen)
    results = outside(podman, doc, chosen, agent_started=live)
    if probes.blocking(results):
        return _conclude(podman, doc, results, "", began)
    try:
        if live:
            report, later = _counted(doc, chosen, lambda: _live_report(podman, doc))
            later += _inside(doc, report, first=False)
        else:
            state.begin_step(doc.session, "gate")
            report, later = _first_report(podman, doc, chosen)
    except GateError as error:
        # What was seen from outside stays on record, and that the inside could not be seen.
        error.results = [*results, _silent(error)]  # type: ignore[attr-defined]
        _written(doc, record, error.results, "", began)  # type: ignore[attr-defined]
        raise
    return _conclude(podman, doc, _merge(results, later), str(report.get("nonce", "")), began)


def _first_report(podman: Podman, doc: PlanDocument, chosen: Mapping[str, Json]) -> Tuple[Json, List[Json]]:
    """Start the agent's gate, take its report, and look from outside once more at the process that now runs."""

    def ask() -> Json:
        bringup.start(podman, doc, "agent")
        report: Json = gate_client.report(int(chosen["agent"]["pid"]), doc.plan)
        return report

    try:
        report, counted = _counted(doc, chosen, ask)
    except GateError as exc:
        words = bringup.last_words(podman, doc.names()["agent"])
        raise GateError(exc.message + (f"; its last words: {words}" if words else ""), remedy=exc.remedy) from None
    return report, _agent_again(podman, doc, chosen) + counted + _inside(doc, report, first=True)


def go(doc: PlanDocument, nonce: str) -> Json:
    """Say go to the gate whose report was verified, and record the session as live; ``{changed, actions}``."""
    record = state.read(doc.session) or {}
    if record.get("state") == "live":
        return {"changed": False, "actions": ["the workload runs already"]}
    chosen = bringup.chosen(doc)
    if not nonce:
        raise EngineError("go needs the nonce of a verified report", code="not-verified", remedy="run verify first")
    statevolumes.remember(doc.plan)  # before the workload can write there
    gate_client.go(int(chosen["agent"]["pid"]), doc.plan, nonce)
    limit = int(doc.plan["gate"]["time_s"])
    state.begin_step(doc.session, "live", state="live", started=state.now(), time_limit=limit)
    return {"changed": True, "actions": ["the workload was started"]}
