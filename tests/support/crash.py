# SPDX-License-Identifier: BSD-4-Clause
"""One case of the crash matrix, and what must hold after it (L1 to L6).

`ls` tells the truth, `close` or the next `open` cleans up and works, what is not the session's is untouched, no secret
is used again, nothing is left, and the killed session's evidence verifies.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from support.crash_lab import Case, Facts, Lab, Verdict
from support.product import Completed


def untruths(row: dict[str, Any] | None, facts: Facts) -> list[str]:
    """Where `ls` says something else than what is; nobody works on the session any more."""
    if row is None:
        return ["ls does not show what is there"] if facts.anything else []
    if not facts.anything:
        return [f"ls says {row['state']} of nothing"]
    live = facts.record.get("state") == "live" and facts.alive() and len(facts.containers) >= len(
        facts.record.get("containers", {})
    )  # fmt: skip
    if live != (row["state"] == "live"):
        return [f"ls says {row['state']}, but the session is {'live' if live else 'not live'}"]
    if row["state"] in ("opening", "closing"):
        return [f"ls says {row['state']}, but whoever did that is dead"]
    return [] if live or row["reasons"] or row["state"] == "ended" else ["ls gives no reason"]


def play_case(lab: Lab, case: Case, checks: Iterable[Callable[[], list[str]]] = ()) -> Verdict:
    """One case from beginning to end. A lab in which one went wrong is reset."""
    began = time.monotonic()
    try:
        problems, told = _case(lab, case)
        problems += [problem for check in checks for problem in check()]
    except Exception as error:  # whatever it is, it is this case's: the next one runs all the same
        problems, told = [f"{type(error).__name__}: {error}"], ""
    if problems:
        try:
            lab.reset()
        except AssertionError as error:
            problems.append(f"tidying up: {error}")
    return Verdict(case.id, problems, time.monotonic() - began, told)


def _case(lab: Lab, case: Case) -> tuple[list[str], str]:
    lab.ready(case)
    fault = {"at": case.point, "nth": case.nth, "action": case.action, "argument": case.argument}
    done, _, hit = lab.chaos(case.play, case.agent, **fault)
    if not hit:
        lab.live = case.agent if lab.facts(case.agent).alive() else ""
        return [f"the point was not reached: {done}"], ""
    facts, row = lab.facts(case.agent), lab.row(case.agent)
    problems = untruths(row, facts) + _answer(case, done)
    if zlib.crc32(case.id.encode()) % 8 == 0:
        problems += _told_otherwise(lab, case.agent, row)
    said = f"{row['state']}: {'; '.join(row['reasons'])}" if row else "nothing left"
    lab.live = ""
    if case.play == "verify.yml" and case.action != "kill" and row is None:
        problems.append("verify took the session away")
    if case.play == "verify.yml" and row and row["state"] == "live":
        problems += _goes_on(lab, case)
    else:
        problems += recovered(lab, case, facts)
    return problems, f"{said}; then {case.recover}"


def _told_otherwise(lab: Lab, agent: str, row: dict[str, Any] | None) -> list[str]:
    """Where status.yml says something else than `ls`; now and then, because it costs seconds."""
    done = lab.play("status.yml", agent)
    status = (done.json or {}).get("status") or {}
    said, listed = (status.get("state"), status.get("reasons")), (row and row["state"], row and row["reasons"])
    return [] if said == listed else [f"status.yml says {said}, ls {listed}"]


def _answer(case: Case, done: Completed) -> list[str]:
    """The one document and the exit code of a run that was not killed itself."""
    if case.action == "kill" and case.argument in ("all", "cli"):
        return []
    if not isinstance(done.json, dict):
        return [f"no document: {done}"]
    if not done.json["ok"] and not (done.json.get("error") or {}).get("message"):
        return ["failed without an error"]
    if case.action == "signal" and not done.json["ok"] and done.rc not in (129, 130, 143):
        return [f"exit code {done.rc} after a signal"]
    return []


def _goes_on(lab: Lab, case: Case) -> list[str]:
    """A live session is still live, and confined: it is verified again (L5)."""
    lab.live = case.agent
    done = lab.play("verify.yml", case.agent)
    return [] if done.rc == 0 else [f"the next verify: {done}"]


def recovered(lab: Lab, case: Case, before: Facts) -> list[str]:
    """close, or the next open, cleans up and works."""
    done = lab.play(case.recover, case.agent)
    if done.rc:
        return [f"the next {case.recover}: {done}"]
    problems = []
    if case.recover == "open.yml" and before.record.get("state") == "live" and before.alive():
        lab.live = case.agent  # it had come through, and open found it again
        return untruths(lab.row(case.agent), lab.facts(case.agent))
    if before.record.get("evidence"):
        problems += lab.evidence_problems(before.record["evidence"])
    if case.recover == "close.yml":
        return problems + [f"left: {one}" for one in lab.left(case.agent)]
    lab.live, after = case.agent, lab.facts(case.agent)
    problems += untruths(lab.row(case.agent), after)
    if after.record.get("state") != "live":
        problems.append(f"after the next open the record says {after.record.get('state')}")
    for kind, old, new in (
        ("container", before.containers, after.containers),
        ("secret", before.secrets, after.secrets),
    ):
        again = set(map(str, old.values())) & set(map(str, new.values()))
        problems += [f"a {kind} of the killed session is used again (L4)"] * bool(again)
    return problems
