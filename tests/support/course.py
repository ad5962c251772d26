# SPDX-License-Identifier: BSD-4-Clause
"""The course that every shipped agent takes with its real client, and what `make agents` counts of it.

One conversation with tool calls and a denied host in a session, and a second session that goes on with it as a service.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support import addresses
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman, sample_repo

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "agents"
PRIVATE = ["198.51.100.0/24"]
DENIED = "undeclared.canary.test"
#: What a shell tool runs: the change is seen in the repository, the refusal in its file.
FETCH = (
    f"cat notes.txt > ran.txt; curl -sS -i --max-time 20 https://{DENIED}/ > curl.txt 2>&1; echo code $? >> curl.txt"
)
TASK, ANSWER = "Change the notes to two.", "The notes are changed."
QUESTION, MEMORY = "What did you change?", "I changed the notes, as you asked."


#: The turns for the examples of the Python agents, which all have the same tools.
CODING: tuple[Mapping[str, Any], ...] = (
    {"tool": "read_file", "input": {"path": "notes.txt"}},
    {"tool": "edit_file", "input": {"path": "notes.txt", "old": "one", "new": "two"}},
    {"tool": "run_command", "input": {"command": FETCH}},
)


def agent_py(text: str) -> list[str]:
    """How an example is started."""
    return ["python3", "agent.py", text]


@dataclass
class Course:
    """How it went. `version` is the client's own word; `tool_calls` how many results of tools the provider got."""

    ok: bool = False
    version: str = ""
    tool_calls: int = 0
    seconds: float = 0.0


@contextlib.contextmanager
def course(agent: str) -> Iterator[Course]:
    """Time a course from open to the last assertion and write it down; `ok` only when nothing was raised."""
    found, begun = Course(), time.monotonic()
    try:
        yield found
        assert found.version and found.tool_calls >= 3, f"the course says too little of {agent}: {found}"
        found.ok = True
    finally:
        found.seconds = round(time.monotonic() - begun, 1)
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{agent}.json").write_text(json.dumps(asdict(found)) + "\n")


@dataclass(frozen=True)
class Client:
    """A shipped agent's client. `first` and `again` give the words for a text; `turns` call its own tools to read
    notes.txt, change `one` in it to `two`, and run `FETCH`.

    `weaken` is a script that the agent might run against its policy between the two sessions. `hosts` are those that
    the client tries by itself, all of them denied. `example` is copied into the repository. `ending` is the tool that
    gives a client's answer, where words alone do not.
    """

    agent: str
    version: Sequence[str]
    first: Callable[[str], list[str]]
    again: Callable[[str], list[str]]
    turns: Sequence[Mapping[str, Any]]
    weaken: str = ""
    hosts: frozenset[str] = frozenset()
    example: str = ""
    key: str = "OPENAI_API_KEY"
    secrets: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    ending: str = ""


def shipped(home: Home, agent: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write the shipped agent into the home, with what its packages need; the provider of the tests is private."""
    source = ROOT / "agents" / agent
    manifest: dict[str, Any] = yaml.safe_load((source / "runtime.yml").read_text())
    manifest["llm"] |= {"private": PRIVATE} if manifest["llm"].get("broker", True) else {}
    manifest |= dict(changes or {})
    target = home.agent(agent, yaml.safe_dump(manifest, sort_keys=False)).parent
    for name in filter(None, (manifest.get("packages", {}).get(key) for key in ("pip", "npm"))):
        shutil.copy(source / name, target)
    return manifest


def take(client: Client, home: Home, sessions: SessionFactory, world: World, folder: Path) -> Session:
    """Take the course; returns the closed session.

    :raises AssertionError: something went otherwise than a user would expect
    """
    with course(client.agent) as found:
        shipped(home, client.agent, client.changes)
        home.secret(client.secrets or f"{client.agent}.env", **{client.key: ""})
        repo = sample_repo(folder / "project", {"notes.txt": "one\n"})
        if client.example:
            shutil.copytree(ROOT / "agents" / client.agent / client.example, repo, dirs_exist_ok=True)
        home.grant(client.agent, repo)
        session = sessions.open(client.agent)
        found.version = session.exec(*client.version).out.strip().partition("\n")[0]
        found.tool_calls = _work(client, session, world, repo)
        if client.weaken:
            assert session.exec("sh", "-c", client.weaken).rc == 0
        assert session.close().rc == 0
        _go_on(client, session, world)
        _tried(client, session)
    return session


def _ending(client: Client, text: str) -> dict[str, Any]:
    return {"tool": client.ending, "input": {"answer": text}} if client.ending else {"text": text}


def _work(client: Client, session: Session, world: World, repo: Path) -> int:
    """The first conversation; returns how many results of tools the provider got."""
    world.script(*map(dict, client.turns), _ending(client, ANSWER))
    mark = world.mark()
    done = session.exec(*client.first(TASK), timeout=240)
    seen = world.provider_requests(mark)
    said = [(request["answer"], request["tools"]) for request in seen]
    assert done.rc == 0 and ANSWER in done.out, f"{done}\nthe provider's answers: {said}"
    assert (repo / "notes.txt").read_text() == "two\n" == (repo / "ran.txt").read_text(), (done, said)
    told = (repo / "curl.txt").read_text()
    assert "403" in told and "denied-name" in told and "code 56" in told, told
    assert set(session.decided(DENIED)) == {"denied-name"}
    assert {request["key"] for request in seen} == {session.home.secrets[client.key]}
    world.settle()
    assert {one["address"] for one in world.accepts(mark)} == {addresses.PROVIDER}
    return sum(request["answer"] == "tool" for request in seen)


def _go_on(client: Client, session: Session, world: World) -> None:
    """A second session as a service in a pipe: the first one's history is there, the policy too."""
    world.script(_ending(client, MEMORY))
    mark = world.mark()
    argv = ["open.yml", *session.selector(), "--", *client.again(QUESTION)]
    done = asf_play(*argv, home=session.home, timeout=300)
    seen = [request for request in world.provider_requests(mark) if request["method"] == "POST"]
    assert done.rc == 0 and MEMORY in done.out, f"{done}\nthe provider saw {len(seen)} requests"
    assert "probes" not in done.out and "evidence" not in done.out, done
    spoken = [json.dumps(request["body"]) for request in seen]
    assert [body for body in spoken if QUESTION in body and TASK in body and ANSWER in body], spoken
    assert podman("ps", "-a", "-q", "--filter", f"label=asf.session={session.id}") == ""
    world.settle()
    assert {one["address"] for one in world.accepts(mark)} == {addresses.PROVIDER}


def _tried(client: Client, session: Session) -> None:
    """No other host was tried than those that are known, in either session; all were denied."""
    folder = session.home.state / "asf" / "evidence" / session.id
    rows = [json.loads(line) for path in folder.glob("*/decisions.jsonl") for line in path.read_text().splitlines()]
    hosts = {row["host"] for row in rows if row.get("host") and row["listener"] in ("L1", "L1t")}
    probes = {host for host in hosts if host.endswith(".invalid")}
    assert hosts - probes - {DENIED} <= client.hosts, hosts - probes
