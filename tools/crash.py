#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""The crash matrix: what ``make crash`` runs. Writes ``build/crash.json``: ``{"cases": [{"id", "ok", "detail"}], …}``.

Runs two cases at a time, each in a session and a home of its own, in an order that the seed decides. A slow machine
does not get through all of them in the time allowed: what was left out stands in ``not_run``. Exit code 0 when every
case that was run is as it should be.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import asf_cli  # noqa: F401  (gives asf_lib its name in a checkout)

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests")]

from support import crash, crash_cases, crash_lab, foreign, outage  # noqa: E402
from support.client import World  # noqa: E402
from support.product import SessionFactory, operator_home  # noqa: E402


def _lab(base: Path, name: str) -> crash_lab.Lab:
    home = operator_home(base / name, World.from_environment())
    return crash_lab.Lab(home, SessionFactory.new_name(), base / name / "runs")


class Matrix:
    """All cases, and who is at work on them."""

    def __init__(self, cases: list[crash_lab.Case], more: int, until: float) -> None:
        self.waiting = list(cases)
        self.left_out: list[str] = []
        self._until = until
        self.total = len(cases) + more
        self.verdicts: list[crash_lab.Verdict] = []
        self._lock = threading.Lock()

    def take(self, live: str) -> crash_lab.Case | None:
        """The next case: one that suits the session that is open already, if there is one. None when time is up."""
        with self._lock:
            if time.monotonic() > self._until:
                self.left_out += [case.id for case in self.waiting]
                self.waiting.clear()
            suits = [case for case in self.waiting if case.wants == bool(live) and (not live or case.agent == live)]
            found = (suits or self.waiting or [None])[0]
            if found is not None:
                self.waiting.remove(found)
            return found

    def note(self, verdict: crash_lab.Verdict) -> None:
        """Keep a verdict and say it."""
        with self._lock:
            self.verdicts.append(verdict)
            _say(len(self.verdicts), self.total, verdict)

    def work(self, lab: crash_lab.Lab, neighbours: foreign.Foreign) -> None:
        """One worker."""
        while (case := self.take(lab.live)) is not None:
            self.note(crash.play_case(lab, case, [neighbours.check]))
        if lab.live:
            lab.reset()
        lab.forget_volumes()


def _say(number: int, total: int, verdict: crash_lab.Verdict) -> None:
    entry = verdict.as_dict()
    mark = "ok  " if entry["ok"] else "FAIL"
    print(f"{number:4}/{total} {mark} {verdict.seconds:5.1f} s  {verdict.case}", flush=True)
    print(f"               {entry['detail'][:1500]}", flush=True) if not entry["ok"] else None


def _chosen(cases: list[crash_lab.Case], args: argparse.Namespace) -> list[crash_lab.Case]:
    found = [case for case in cases if args.only in case.id]
    return random.Random(args.seed).sample(found, min(args.sample or len(found), len(found)))  # noqa: S311


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose id has this text")
    parser.add_argument("--sample", type=int, default=0, help="that many, chosen by --seed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="say which cases there are, and run none")
    parser.add_argument("--minutes", type=float, default=40, help="no case of the list is begun later than that")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", default=str(ROOT / "build" / "crash.json"))
    return parser.parse_args()


def _run(matrix: Matrix, labs: list[crash_lab.Lab]) -> None:
    """All cases, every lab at work on them."""
    image = foreign.image()
    neighbours = [foreign.Foreign(lab, crash_lab.PLAIN, image) for lab in labs]
    try:
        workers = [threading.Thread(target=matrix.work, args=pair) for pair in zip(labs, neighbours, strict=True)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        for one in neighbours:
            one.remove()


def main() -> int:
    """Record, run, write."""
    args, began = _options(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="asf-crash-") as scratch:
        labs = [_lab(Path(scratch), f"lab{number}") for number in range(args.workers)]
        recorded = crash_cases.record(labs[0])
        labs[0].forget_volumes()
        found = _chosen(crash_cases.cases(recorded), args)
        print(f"crash: {len(found)} cases, seed {args.seed}; recorded in {time.monotonic() - began:.0f} s", flush=True)
        if args.list:
            print("\n".join(case.id for case in found))
            return 0
        # They end everything of the account, so they come last, and alone.
        outages = () if args.sample or args.only else tuple(outage.CASES)
        matrix = Matrix(found, len(outages) + 2, began + args.minutes * 60)
        _run(matrix, labs)
        for case in matrix.waiting:
            matrix.note(crash_lab.Verdict(case.id, ["it was not run: the worker died"], 0.0))
        for name in outages:
            matrix.note(outage.play_outage(labs[0], name))
        endless = crash_cases.without_deadline(recorded)
        matrix.note(crash_lab.Verdict("deadlines: every external command has one", endless, 0.0))
        matrix.note(crash_lab.Verdict("points: every step that leaves something has one", labs[0].missed, 0.0))
        return _write(args, matrix.verdicts, matrix.left_out, time.monotonic() - began)


def _write(args: argparse.Namespace, verdicts: list[crash_lab.Verdict], left_out: list[str], seconds: float) -> int:
    entries = [verdict.as_dict() for verdict in verdicts]
    bad = [entry["id"] for entry in entries if not entry["ok"]]
    document = {"version": 1, "seed": args.seed, "seconds": round(seconds, 1), "ok": not bad, "cases": entries}
    document["not_run"] = left_out
    Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"crash: {len(entries) - len(bad)} of {len(entries)} cases are as they should be, in {seconds:.0f} s")
    if left_out:
        print(f"crash: {len(left_out)} more were not run within {args.minutes:g} minutes; --seed N begins with others")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
