# SPDX-License-Identifier: BSD-4-Clause
"""The crash matrix: cases out of recorded runs, one place to run them in, and what must hold after each (L1 to L6).

A run without a fault is recorded first (`chaos`); every step that it shows becomes a case of its own, so a new step
cannot be forgotten. After a case: `ls` tells the truth, `close` or the next `open` cleans up and works, what is not the
session's is untouched, no secret is used again, nothing is left, and the killed session's evidence verifies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asf_lib.engine import procs
from asf_lib.engine.evidencefs import Evidence
from support import chaos
from support.product import Completed, Home, asf_play, podman, run
from support.waiting import wait_for

CHAOS = Path(chaos.__file__).resolve()
DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
_SERVICE = {"mode": "service", "command": ["sleep", "900"]}
AGENTS: dict[str, dict[str, Any]] = {
    "cr-plain": {"adapter": "generic", "runtime": _SERVICE, "network": {"allow_domains": [DOCS]}},
    "cr-brokered": {
        "adapter": "generic",
        "runtime": _SERVICE,
        "network": {"allow_domains": [DOCS]},
        "llm": {"protocol": "openai", "mock": "hello"},
        "filesystem": {"state": [{"key": "kept", "target": "/home/node/.kept"}]},
    },
}
PLAIN, BROKERED = AGENTS
PLAYS = ("open.yml", "verify.yml", "close.yml")
#: seconds after which a run is hung, whatever it does: the longest deadline of the product is that of a broker's start
PATIENCE = 240.0
_ROW = '{{.Names}} {{.ID}} {{.Pid}} {{index .Labels "asf.session"}} {{index .Labels "asf.owner"}}'
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Case:
    """One thing that goes wrong: at the `nth` arrival at `point`, `action` with its `argument` (chaos.py)."""

    play: str
    agent: str
    point: str
    action: str
    argument: Any = None
    nth: int = 1
    recover: str = "close.yml"

    @property
    def id(self) -> str:
        """What it is called in build/crash.json."""
        what = f"{self.action} {self.argument}" if self.argument is not None else self.action
        return f"{self.play.removesuffix('.yml')} {self.agent.removeprefix('cr-')}: {what} at {self.point}" + (
            f" ({self.nth})" if self.nth > 1 else ""
        )

    @property
    def wants(self) -> bool:
        """Whether a live session must be there."""
        return self.play != "open.yml"


@dataclass
class Verdict:
    """What came of a case. `problems` is empty when it is as it should be."""

    case: str
    problems: list[str]
    seconds: float
    told: str = ""

    def as_dict(self) -> dict[str, Any]:
        """One entry of `cases` in build/crash.json."""
        detail = "; ".join(self.problems) if self.problems else self.told
        return {"id": self.case, "ok": not self.problems, "detail": detail[:3000], "seconds": round(self.seconds, 2)}


@dataclass
class Facts:
    """What there is of a session, asked without the product."""

    record: dict[str, Any]
    containers: dict[str, tuple[str, int]]
    secrets: dict[str, str]
    folder: bool

    @property
    def anything(self) -> bool:
        """Whether the session owns something."""
        return bool(self.record or self.containers or self.secrets or self.folder)

    def alive(self) -> bool:
        """Whether every first process lives."""
        return bool(self.containers) and all(procs.start_time(pid) is not None for _, pid in self.containers.values())


class Lab:
    """A session name, a home and a log folder, for one case after the other."""

    def __init__(self, home: Home, name: str, scratch: Path, without: Sequence[str] = ()) -> None:
        self.home, self.name, self.scratch, self.without = home, name, scratch, list(without)
        self.live = ""  # the agent whose session is open
        self.runs = 0
        self.missed: list[str] = []  # by the recorder: see `record`
        self.pids: set[str] = set()
        scratch.mkdir(parents=True, exist_ok=True)
        for agent, manifest in AGENTS.items():
            home.agent(agent, manifest)

    # --- running

    def id(self, agent: str) -> str:
        """The session's ID."""
        return f"{agent}.{self.name}"

    def play(self, play: str, agent: str, *more: str, timeout: float = PATIENCE) -> Completed:
        """A run of the product as it is."""
        words = [play, "-e", f"agent={agent}", "-e", f"session={self.name}", "--json", *more]
        return asf_play(*words, *(["--detach"] if play == "open.yml" else []), home=self.home, timeout=timeout)

    def start(self, play: str, agent: str, fault: dict[str, Any]) -> tuple[subprocess.Popen[bytes], Path]:
        """asf-play under chaos; its process and its log."""
        self.runs += 1
        log = self.scratch / f"run-{self.runs}.log"
        runtime = os.environ["XDG_RUNTIME_DIR"]
        state = str(self.home.state / "asf")
        config = {
            "log": str(log),
            "session": self.id(agent),
            "roots": {state: "STATE", f"{runtime}/asf": "RUN", str(self.home.path): "HOME"},
            "full": {"STATE": state, "RUN": f"{runtime}/asf"}.get(str(fault.get("argument")), state),
            "without": self.without,
            **fault,
        }
        file = log.with_suffix(".json")
        file.write_text(json.dumps(config))
        words = [play, "-e", f"agent={agent}", "-e", f"session={self.name}", "--json"]
        words += ["--detach"] if play == "open.yml" else []
        # To files: an orphan that holds a pipe open must not keep the test waiting.
        with open(log.with_suffix(".out"), "wb") as out, open(log.with_suffix(".err"), "wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-P", str(CHAOS), str(file), "asf-play", *words],
                env=self.home.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pids.add(str(process.pid))
        return process, log

    def chaos(self, play: str, agent: str, **fault: Any) -> tuple[Completed, list[dict[str, Any]], bool]:
        """Run, wait for the end of all that drives it; what it said, its log, and whether the fault was reached."""
        process, log = self.start(play, agent, fault)
        try:
            code = process.wait(PATIENCE)
            wait_for(lambda: not self.drivers(log), 90, f"controllers of {log} to end", 0.02)
        finally:
            for pid in self.drivers(log):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        done = Completed(code, log.with_suffix(".out").read_text(), log.with_suffix(".err").read_text())
        with contextlib.suppress(ValueError):
            done.json = json.loads(done.out)
        return done, [line for line in lines if "point" in line], any("hit" in line for line in lines)

    def drivers(self, log: Path) -> list[int]:
        """Living controllers of a run: the name of its configuration stands in the command line of each."""
        return _with(str(log.with_suffix(".json")), "python")

    # --- looking

    def facts(self, agent: str) -> Facts:
        """What there is now."""
        session = self.id(agent)
        path = self.home.state / "asf" / "live" / f"{session}.json"
        try:
            record = json.loads(path.read_bytes())
        except (OSError, ValueError):
            record = {}
        rows = [line.split() for line in podman("ps", "-a", "--no-trunc", "--format", _ROW).splitlines()]
        names = {f"asf-{session}-{role}" for role in ("agent", "caddy", "broker")}
        # By name as well as by label: a container that lost its label is not gone.
        mine = [row for row in rows if row[0] in names or row[3:] == [session, str(os.getuid())]]
        containers = {name: (key, int(pid)) for name, key, pid, *_ in mine}
        secrets = dict(line.split() for line in podman("secret", "ls", "--format", "{{.Name}} {{.ID}}").splitlines())
        own = {f"asf-{session}-{part}" for part in ("token", "master", "provider")}
        folder = Path(os.environ["XDG_RUNTIME_DIR"]) / "asf" / session
        return Facts(record, containers, {name: key for name, key in secrets.items() if name in own}, folder.exists())

    def row(self, agent: str) -> dict[str, Any] | None:
        """What `ls` says of the session."""
        done = asf_play("ls", "--json", home=self.home)
        assert done.rc == 0 and isinstance(done.json, list), done
        return next((row for row in done.json if row["session"] == self.id(agent)), None)

    def left(self, agent: str) -> list[str]:
        """What a session that is closed has left behind."""
        session, found = self.id(agent), []
        facts = self.facts(agent)
        found += [f"container {name}" for name in facts.containers] + [f"secret {name}" for name in facts.secrets]
        found += ["its record"] * bool(facts.record) + ["its run folder"] * facts.folder
        runtime, state = Path(os.environ["XDG_RUNTIME_DIR"]) / "asf", self.home.state / "asf"
        found += [f"lock {path.name}" for path in runtime.glob(f"locks/{session}*")]
        found += [f"temporary file {path}" for path in state.rglob(".new-*") if session in str(path)]
        folders = [path.name for path in (runtime / "cli").glob("*") if path.name.partition("-")[0] in self.pids]
        found += [f"run directory {name}" for name in folders]
        found += [f"process {pid}" for pid in _with(session) if pid != os.getpid()]
        runs = (state / "evidence" / session).glob("*")
        found += [f"evidence {path.name} without a chain" for path in runs if not (path / "chain.json").exists()]
        return found

    def evidence_problems(self, folder: str) -> list[str]:
        """What is wrong with the evidence of a session that was killed."""
        path = Path(folder)
        if not path.is_dir():
            return ["the killed session's evidence is gone"]
        kept = Evidence(path)
        problems = [f"evidence: {problem}" for problem in kept.check()]
        if kept.read("cleanup.json") is None:
            problems.append("evidence: no cleanup.json")
        index = self.home.state / "asf" / "index.jsonl"
        if not index.exists() or kept.head() not in index.read_text():
            problems.append("evidence: its head is not in the index")
        return problems

    # --- bringing it where a case wants it

    def ready(self, case: Case) -> None:
        """Open or close, so that the case can begin. Raises AssertionError."""
        if self.live and (not case.wants or self.live != case.agent):
            self.close()
        if " STATE/live" in case.point and "os.mkdir" in case.point:
            shutil.rmtree(self.home.state / "asf", ignore_errors=True)  # made once
        if case.wants and not self.live:
            done = self.play("open.yml", case.agent)
            assert done.rc == 0, f"the session for the case did not open: {done}"
            self.live = case.agent

    def close(self) -> None:
        """Close the live session. Raises AssertionError."""
        done = self.play("close.yml", self.live)
        assert done.rc == 0, f"close: {done}"
        self.live = ""

    def reset(self) -> None:
        """After a case that went wrong: away with everything, by hand."""
        self.live = ""
        for agent in AGENTS:
            with contextlib.suppress(AssertionError):
                self.play("close.yml", agent)
            names = list(self.facts(agent).containers)
            if names:
                podman("rm", "-f", "-v", "-t", "0", *names, check=False)
            for name in self.facts(agent).secrets:
                podman("secret", "rm", name, check=False)
            (self.home.state / "asf" / "live" / f"{self.id(agent)}.json").unlink(missing_ok=True)

    def forget_volumes(self) -> None:
        """State volumes outlive their sessions; those of this lab shall not outlive it."""
        for volume in podman("volume", "ls", "-q").split():
            if self.name in volume and "foreign" not in volume:
                podman("volume", "rm", "-f", volume, check=False)


def _with(text: str, program: str = "") -> list[int]:
    """Pids of living processes of this account whose command line has the text (and whose program the name)."""
    found = []
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if not entry.isdigit() or text.encode() not in Path(f"/proc/{entry}/cmdline").read_bytes():
                continue
            if procs.start_time(int(entry)) is not None and program in os.path.basename(
                Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")[0].decode()
            ):
                found.append(int(entry))
    return found


# --- what belongs to somebody else ------------------------------------------------------------------------------------


class Foreign:
    """Things with names, or labels, that are almost a session's. `check()` says which were touched."""

    def __init__(self, lab: Lab, agent: str, image: str) -> None:
        session = lab.id(agent)
        self.name = f"asf-{session}-foreign"
        labels = [f"--label=asf.session={session}", "--label=asf.owner=4294967294"]
        podman("create", f"--name={self.name}", "--network=none", *labels, image, "true")
        podman("create", f"--name=asf-{session}2-agent", "--network=none", image, "true")
        podman("volume", "create", *labels, self.name)
        for secret in (self.name, f"asf-{session}-tokens", f"{session}-token"):
            podman("secret", "create", secret, "-", stdin="of somebody else")
        podman("network", "create", "--internal", "--disable-dns", self.name)
        self.containers = [self.name, f"asf-{session}2-agent"]
        self.secrets = [self.name, f"asf-{session}-tokens", f"{session}-token"]
        self.before = self._look()

    def _look(self) -> set[str]:
        lists = (
            podman("ps", "-a", "--format", "container {{.ID}} {{.Names}}"),
            podman("volume", "ls", "--format", "volume {{.Name}}"),
            podman("secret", "ls", "--format", "secret {{.ID}} {{.Name}}"),
            podman("network", "ls", "--format", "network {{.Name}}"),
        )
        own = {*self.containers, *self.secrets}
        return {line for text in lists for line in text.splitlines() if line.split()[-1] in own}

    def check(self) -> list[str]:
        """Those that are gone or not the same any more."""
        return [f"foreign {line} was touched" for line in sorted(self.before - self._look())]

    def remove(self) -> None:
        """Away with them."""
        podman("rm", "-f", "-t", "0", *self.containers, check=False)
        podman("volume", "rm", "-f", self.name, check=False)
        podman("network", "rm", "-f", self.name, check=False)
        for secret in self.secrets:
            podman("secret", "rm", secret, check=False)


# --- a case -----------------------------------------------------------------------------------------------------------


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
    except AssertionError as error:
        problems, told = [str(error)], ""
    if problems:
        lab.reset()
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


# --- which cases ------------------------------------------------------------------------------------------------------

Points = list[dict[str, Any]]
Recorded = dict[tuple[str, str], Points]


def record(lab: Lab) -> Recorded:
    """What open, verify and close of both agents do, step by step. Raises AssertionError when one fails.

    `lab.missed` is what an open has left and no point explains: a step that the recorder did not see.
    """
    found: Recorded = {}
    for agent in AGENTS:
        built = lab.play("build.yml", agent, timeout=900)
        assert built.rc == 0, f"the images of {agent}: {built}"
    for agent in AGENTS:
        for play in PLAYS:
            done, points, _ = lab.chaos(play, agent)
            assert done.rc == 0, f"{play} of {agent} without any fault: {done}"
            found[play, agent] = points
            lab.missed += _missed(lab, agent, points) if play == "open.yml" else []
        lab.live = ""
    return found


def without_deadline(recorded: Recorded) -> list[str]:
    """External commands that nobody would end if they hung."""
    ended = (entry for points in recorded.values() for entry in points if entry["point"].endswith(" ended"))
    # What Ansible itself starts is bounded by the task's own `timeout`.
    endless = {entry["point"] for entry in ended if entry.get("timeout") is None}
    return sorted(point for point in endless if "ansible.local" not in point)


def _missed(lab: Lab, agent: str, points: Points) -> list[str]:
    seen = {entry["point"].partition(": ")[2] for entry in points}
    named = {what.partition(" ")[2] for what in seen}
    helper = chaos.Chaos.__new__(chaos.Chaos)
    helper.config = {"session": lab.id(agent)}
    runtime, state = Path(os.environ["XDG_RUNTIME_DIR"]) / "asf", lab.home.state / "asf"
    paths = [f"STATE/{path.relative_to(state)}" for path in state.rglob("*") if lab.id(agent) in str(path)]
    folder = runtime / lab.id(agent)
    paths += [f"RUN/{path.relative_to(runtime)}" for path in [folder, *folder.rglob("*")]]
    containers = [f"podman create {name} ended" for name in lab.facts(agent).containers]
    return [
        *(shown for shown in map(helper.plain, paths) if shown not in named),
        *(command for command in map(helper.plain, containers) if command not in seen),
    ]


#: A point and how often it was reached before, plus one.
Step = tuple[str, int]

#: `starts` is where the command before has ended: a point for the fault of the command itself. Nothing was changed
#: between the start of a command that only looks and its end, or by the mode of a file in a folder of the operator's.
_SAME = re.compile(
    r" starts$|os\.chmod |"
    r"(podman (ps|inspect|info|images?|volume ls|secret ls|container inspect|logs|exec)\b.*|podman|ip -j .*|sh -c"
    r"|\S+ (--version|-V)) started$"
)
#: Steps that are one as often as they come; all others are the same each time (locks, the CLI's own run folder).
_EACH = re.compile(
    r"os\.(rename|remove) (STATE|RUN/SESSION)|(podman (create|init|start|rm|secret|volume rm)|ip -b|nft).* ended$|"
    r"sendall"
)


def _steps(points: list[dict[str, Any]], known: set[Step]) -> list[Step]:
    """What is new in a run, in its order. `known` grows."""
    count: dict[str, int] = {}
    found = []
    for entry in points:
        point = entry["point"]
        count[point] = count.get(point, 0) + 1
        step = (point, count[point])
        if step not in known and (count[point] == 1 or _EACH.search(point)):
            known.add(step)
            found.append(step)
    return found


def cases(recorded: Recorded) -> list[Case]:
    """The whole matrix."""
    found: list[Case] = []
    ours: set[Step] = set()  # what the CLI does around its run is the same for every playbook
    for play in PLAYS:
        known: set[Step] = set(ours)
        for agent in AGENTS:
            found += _of(play, agent, _steps(recorded[play, agent], known))
        ours |= {step for step in known if step[0].startswith("cli ")}
    return found


def _of(play: str, agent: str, steps: list[Step]) -> list[Case]:
    """Cases of the steps of one run: everybody is killed at each, one alone and a signal now and then."""
    found: list[Case] = []

    def add(chosen: Iterable[Step], action: Callable[[int], tuple[str, Any]]) -> None:
        for n, (point, nth) in enumerate(chosen):
            recover = ("close.yml", "open.yml")[(n // 2) % 2]
            what, argument = action(n)
            found.append(Case(play, agent, point, what, argument, nth, recover))

    after = [step for step in steps if not _SAME.search(step[0])]
    inner = [step for step in after if not step[0].startswith("cli ")]
    commands = [step for step in steps if step[0].endswith(" starts") and "ansible.local" not in step[0]]
    add(after, lambda n: ("kill", "all"))
    add(inner[::5], lambda n: ("kill", ("cli", "play", "task")[n % 3]))
    add(inner[2::8], lambda n: ("signal", [int(_SIGNALS[n % 3]), 1 + n % 2]))
    add(commands, lambda n: (("fail", "hang")[n % 2], None))
    for place in ("STATE", "RUN"):
        changes = [step for step in inner if f" {place}/" in step[0] and "os.remove" not in step[0]]
        add(changes[::4], lambda n, place=place: (("full", "read-only")[n % 2], place))  # type: ignore[misc]
    return found


def image() -> str:
    """Some image that is there."""
    return run(["podman", "images", "-q"]).out.split()[0]
