# SPDX-License-Identifier: BSD-2-Clause
"""Follow a live session until it ends: decisions, restarts, states, and every probe again from time to time.

Watching changes nothing: no record, no evidence. Logs come by inotify and ends by pidfds (``logfollow``); Podman is
asked only when a process of the session has gone, or the record has changed.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

from ..core import decisions, history, lifecycle, probes
from ..core.decisions import DENIED_NAME
from ..core.errors import AsfError, EngineError
from ..core.policy import CONTROL_PATH
from ..core.roles import TELLING
from . import evidencefs, inventory, plandoc, procs, sessionlogs, state, verification
from .dirs import Env
from .logfollow import Follower
from .podman import Podman

Json = Dict[str, Any]

#: Seconds between two looks at record and processes; how often decisions that were only counted are told.
TICK = 1.0
#: Decisions told one by one within one tick.
MOST = 20
#: Seconds after which a bad probe is looked at a second time: what a restart of Caddy looks like has passed by then.
CONFIRM = 2.0
#: Seconds that Podman may take to see the workload's end, and Caddy and the broker to follow it.
SETTLE = 8.0
_DECISION = ("listener", "host", "port", "target", "decision", "reason", "key", "count")


class Watch:
    """One session's watch; ``events`` yields ``{"event": word, "at": epoch seconds, …}``, last ``ended``."""

    def __init__(
        self, podman: Podman, session: str, interval: float, redact: Callable[[str], str] = str, env: Env = None
    ) -> None:
        self.podman, self.session, self.interval, self.env = podman, session, interval, env
        self._redact = redact
        self._record = state.read(session, env) or {}
        self._run = self._record.get("evidence")
        self._began = time.time()
        self._drifted: Dict[str, Json] = {}
        self._told: Tuple[str, List[str]] = ("", [])
        self._seen: object = None
        self._flood = {"allow": 0, "deny": 0}
        self._room, self._window = MOST, 0.0
        self._used: Optional[Json] = None  # what the front has counted, as long as it was not told
        self._checking = (0.0, 0.0)

    def events(self) -> Iterator[Json]:
        """Everything that happens from now on, until the session has ended. Raises EngineError."""
        if not self._containers().get("agent"):
            raise EngineError(
                f"session {self.session} has no record of its containers",
                key="session",
                remedy="close it; a session without a record cannot be watched",
                code="no-record",
            )
        yield from self._changes()
        with contextlib.ExitStack() as stack:
            agent = self._agent(stack)
            followers = self._followers(stack)
            yield from self._live(agent, followers)
            yield from self._drain(followers)
        yield self._event("ended", **self._ending())

    # --- what is followed ---

    def _containers(self) -> Mapping[str, Json]:
        found = self._record.get("containers")
        return found if isinstance(found, dict) else {}

    def _agent(self, stack: contextlib.ExitStack) -> Optional[int]:
        """A descriptor that is readable once the workload has ended; None when it has."""
        known = self._containers()["agent"]
        try:
            handle = os.pidfd_open(int(known["pid"]))
        except OSError:
            return None
        stack.callback(os.close, handle)
        return handle if procs.start_time(int(known["pid"])) == known["start"] else None

    def _followers(self, stack: contextlib.ExitStack) -> List[Follower]:
        found = [sessionlogs.source(self.podman, self.session, role, self.env) for role in TELLING]
        return [stack.enter_context(Follower(one.path, one.pid)) for one in found if one and one.path and one.alive]

    def _live(self, agent: Optional[int], followers: List[Follower]) -> Iterator[Json]:
        due = time.monotonic()
        while agent is not None:
            open_ = [one for one in followers if not one.ended]
            waited: List[Any] = [*open_, agent]
            ready = select.select(waited, [], [], TICK)[0]
            yield from self._logged([one for one in open_ if one in ready])
            yield from self._changes()
            if agent in ready or self._told[0] not in (lifecycle.LIVE, lifecycle.BROKEN):
                return
            if time.monotonic() >= due and self._told[0] == lifecycle.LIVE:
                yield from self._check()
                due = time.monotonic() + self.interval

    def _drain(self, followers: List[Follower]) -> Iterator[Json]:
        """The last lines: tunnels that were cut, and how the services ended."""
        end = time.monotonic() + SETTLE
        while (open_ := [one for one in followers if not one.ended]) and time.monotonic() < end:
            yield from self._logged(select.select(open_, [], [], 0.2)[0])
        yield from self._counted(force=True)

    # --- decisions and restarts ---

    def _logged(self, ready: List[Follower]) -> Iterator[Json]:
        # What was written before the watch began has been read by others.
        lines = [line for one in ready for line in one.lines() if (history.seconds(line.time) or 0) >= self._began]
        parsed = decisions.parse(self._redact(line.text) for line in lines)
        self._used = parsed.counted or self._used
        yield from self._counted()
        for one in parsed.decisions:
            if not self._own(one):
                yield from self._decided(one)
        for event in history.supervised(parsed.supervisor):
            yield {**event, "at": event["at"] or time.time()}

    def _own(self, one: Mapping[str, Any]) -> bool:
        """Whether ASF's own probes asked: for the name that is never declared, or for the control during a check."""
        when, (begin, end) = history.seconds(one.get("ts")) or 0, self._checking
        return one.get("host") == DENIED_NAME or (one.get("target") == CONTROL_PATH and begin <= when <= end)

    def _decided(self, one: Mapping[str, Any]) -> Iterator[Json]:
        verdict = "allow" if one.get("decision") == "allow" else "deny"
        if self._room > 0:
            self._room -= 1
            told = {key: one[key] for key in _DECISION if one.get(key) not in (None, "")}
            yield {"event": "decision", "at": history.seconds(one.get("ts")) or time.time(), **told}
        else:
            self._flood[verdict] += int(one.get("count", 1))

    def _counted(self, force: bool = False) -> Iterator[Json]:
        """Once in a tick: how many decisions were not told one by one; a flood is bounded, and said."""
        now = time.monotonic()
        if now < self._window and not force:
            return
        self._room, self._window = MOST, now + TICK
        if any(self._flood.values()):
            yield self._event("more", **self._flood)
            self._flood = {"allow": 0, "deny": 0}
        if self._used is not None:
            yield self._event("used", **{**self._used, "tokens": decisions.tokens(self._used)})
            self._used = None

    # --- state ---

    def _changes(self) -> Iterator[Json]:
        """The session's state, when it or its reasons are others than those told last."""
        record = state.read(self.session, self.env)
        if record is not None and not self._succeeded(record):
            self._record = record
        alive = tuple(procs.start_time(int(one["pid"])) for one in self._containers().values())
        seen = (record, alive)
        if seen == self._seen:
            return
        row = self._row()
        now = (str(row.get("state", "closed")), [str(one) for one in row.get("reasons", [])])
        if now != self._told:
            self._told = now
            yield self._event("state", state=now[0], reasons=now[1])
        self._seen = seen

    def _succeeded(self, record: Optional[Mapping[str, Any]]) -> bool:
        """Whether another session has the name by now: the one that is watched was closed."""
        return record is not None and record.get("evidence") != self._run

    def _row(self) -> Json:
        if self._succeeded(state.read(self.session, self.env)):
            return {}
        rows = state.sessions(self.podman, self.env, inventory.Inventory(self.podman))
        return next((one for one in rows if one["session"] == self.session), {})

    def _ending(self) -> Json:
        """How it ended: ``exit`` with the workload's code, ``closed`` while it still ran, or ``lost``: nobody knows."""
        end = time.monotonic() + SETTLE
        row = self._row()
        while row.get("state") not in (None, lifecycle.ENDED) and time.monotonic() < end:
            time.sleep(0.1)
            row = self._row()
            if row.get("state") == lifecycle.CLOSING:
                end = time.monotonic() + SETTLE  # as long as somebody who lives is closing it
        if row.get("state") == lifecycle.ENDED:
            return {"how": "exit" if row["exit_code"] is not None else "lost", "exit_code": row["exit_code"]}
        if row:
            return {"how": "lost", "exit_code": None}
        return self._closed()

    def _closed(self) -> Json:
        """Out of the cleanup report of whoever closed it, who holds the session's lock until it is written."""
        with state.lock(self.session, self.env):
            report = evidencefs.peek(self.session, self._record.get("evidence"), "cleanup.json", self.env)
        rows = (report or {}).get("containers", {}).values() if isinstance(report, dict) else ()
        agent: Mapping[str, Any] = next((one for one in rows if one.get("role") == "agent"), {})
        code = agent.get("exit_code")
        reason = {"reason": agent["reason"]} if agent.get("reason") else {}
        return {"how": "closed" if code is None else "exit", "exit_code": code, **reason}

    # --- probes ---

    def _check(self) -> Iterator[Json]:
        """Every probe once more. What is bad is looked at twice, and does not count when the session just ends."""
        began, start = time.monotonic(), time.time()
        results = self._look()
        if probes.blocking(results):
            time.sleep(CONFIRM)
            results = self._look()
        self._checking = (start, time.time())
        bad = {one["id"]: one for one in probes.blocking(results)}
        if bad and self._row().get("state") != lifecycle.LIVE:
            return
        for name in sorted(set(self._drifted) - set(bad)):
            yield self._event("recovered", probe=name)
        for name, one in bad.items():
            if name not in self._drifted:
                told = {key: one[key] for key in ("vantage", "verdict", "expect", "evidence")}
                yield self._event("drift", probe=name, **told)
        self._drifted = bad
        if not bad:
            yield self._event("verified", probes=len(results), seconds=round(time.monotonic() - began, 3))

    def _look(self) -> List[Json]:
        """All results; a failure to look is itself a bad one."""
        try:
            return verification.look(self.podman, plandoc.read(str(self._record.get("plan"))))
        except AsfError as error:
            return [probes.result("look", 3, "outside", "the session can be looked at", "inconclusive", error.message)]

    @staticmethod
    def _event(word: str, **fields: Any) -> Json:
        return {"event": word, "at": time.time(), **fields}
