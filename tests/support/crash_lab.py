# SPDX-License-Identifier: BSD-4-Clause
"""One place to run asf-play in, under `chaos`, and to look at what became of its session without the product's eyes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asf_lib.core import roles
from asf_lib.engine import procs
from asf_lib.engine.evidencefs import Evidence
from support import chaos
from support.product import Completed, Home, asf_play, podman, remove
from support.routed import routed, tcp, udp
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
    "cr-routed": {**routed(tcp(), udp()), "runtime": _SERVICE},
}
PLAIN, BROKERED, ROUTED = AGENTS
#: seconds after which a run is hung, whatever it does: the longest deadline of the product is that of a broker's start
PATIENCE = 240.0
_ROW = '{{.Names}} {{.ID}} {{.Pid}} {{index .Labels "asf.session"}} {{index .Labels "asf.owner"}}'


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
        names = {f"asf-{session}-{role}" for role in roles.CREATE}
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
        if "os.mkdir STATE" in case.point:
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
            remove(*self.facts(agent).containers)
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
