# SPDX-License-Identifier: BSD-4-Clause
"""The real Claude Code in verified sessions: its own loop, embedded model and fake provider, service and terminal."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import addresses, front
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman, sample_repo
from support.terminal import terminal

pytestmark = pytest.mark.slow

PRIVATE = ["198.51.100.0/24"]
DENIED = "undeclared.canary.test"
CLAUDE = ("claude", "-p", "--dangerously-skip-permissions")
# As the shipped agent has it: settings survive in a volume.
STATE = {"filesystem": {"state": [{"key": "claude", "target": "/home/node/.claude"}]}}


def bash(command: str) -> dict[str, Any]:
    """A turn in which the model asks Claude Code to run a command."""
    return {"tool": "Bash", "input": {"command": command, "description": "a step of the test"}}


def exists(session: Session) -> str:
    """Names of the session's containers, running or not."""
    return podman("ps", "-a", "--filter", f"label=asf.session={session.id}", "--format", "{{.Names}}")


def kept_decisions(session: Session) -> list[dict[str, Any]]:
    """The decisions in the evidence of a closed session."""
    folder = max((session.home.state / "asf" / "evidence" / session.id).iterdir())
    return [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]


def test_service_with_the_embedded_model(
    module_home: Home, module_session: SessionFactory, world: World, tmp_path: Path
) -> None:
    """The demo's course: tool calls, a commit in the granted repository, a refused host, and the session is gone."""
    repo = sample_repo(tmp_path / "sample")
    turns = [
        bash(
            "echo made by a tool > MADE.md && git add MADE.md"
            " && git -c user.name=a -c user.email=a@example.com commit -qm made"
        ),
        bash(f"curl -sS -i --max-time 20 https://{DENIED}/ > curl.txt 2>&1; echo code $? >> curl.txt"),
        {"text": "the work is done"},
    ]
    command = [*CLAUDE[:2], "do the work", CLAUDE[2]]
    module_home.agent(
        "cl-service",
        {"adapter": "claude", "runtime": {"mode": "service", "command": command}, "llm": {"mock": turns}},
    )
    module_home.grant("cl-service", repo)
    session, mark = module_session.adopt("cl-service"), world.mark()
    done = asf_play("open.yml", *session.selector(), home=module_home, timeout=280)
    assert done.rc == 0, done
    assert done.out == "the work is done\n", done
    assert (repo / "MADE.md").read_text() == "made by a tool\n" and (
        repo / "MADE.md"
    ).stat().st_uid == repo.stat().st_uid
    log = subprocess.run(["git", "-C", str(repo), "log", "--format=%s"], capture_output=True, text=True, check=True)
    assert log.stdout == "made\nfirst\n"
    told = (repo / "curl.txt").read_text()
    assert "403" in told and "denied-name" in told and "code 56" in told, told
    denials = [d for d in kept_decisions(session) if d["decision"] == "deny" and d.get("host") == DENIED]
    assert denials and denials[0]["reason"] == "denied-name" and denials[0]["key"] == "network.allow_domains"
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []
    assert exists(session) == ""


def test_a_service_ends_with_its_own_code(module_home: Home, module_session: SessionFactory) -> None:
    """The shipped agent with the embedded model and a command after `--`: streams apart, exit code its own."""
    session = module_session.adopt("claude")
    script = "claude -p hello; echo to stderr >&2; exit 7"
    argv = ["open.yml", *session.selector(), "-e", "llm_mock=true", "--", "bash", "-c", script]
    done = asf_play(*argv, home=module_home, timeout=280)
    assert done.rc == 7, done
    assert "ASF's embedded model" in done.out and "to stderr" in done.err and "to stderr" not in done.out, done
    assert exists(session) == ""


@pytest.fixture(scope="module")
def provided(module_home: Home, module_session: SessionFactory, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """An interactive session that was opened with --detach, with a fake provider behind its broker."""
    repo = sample_repo(tmp_path_factory.mktemp("claude") / "project")
    llm = {"protocol": "anthropic", "provider": "anthropic", "private": PRIVATE}
    manifest = {"adapter": "claude", "llm": llm, "secrets": {"files": ["anthropic.env"]}, **STATE}
    module_home.agent("cl-provider", {**manifest, "env": {"CLAUDE_CONFIG_DIR": "/home/node/.claude"}})
    module_home.grant("cl-provider", repo)
    session = module_session.open("cl-provider")
    session.document["repo"] = str(repo)
    return session


def test_a_provider_through_front_broker_and_l3(provided: Session, world: World) -> None:
    """A tool call of the real provider's protocol; only the provider sees the key, and nothing else was dialled."""
    world.script(bash("echo from the provider > made.txt && pwd"), {"text": "the provider is content"})
    mark = world.mark()
    done = provided.exec(*CLAUDE[:2], "make the file", CLAUDE[2], timeout=120)
    assert done.rc == 0 and done.out == "the provider is content\n", done
    assert (Path(provided.document["repo"]) / "made.txt").read_text() == "from the provider\n"
    key, seen = provided.home.secrets["ANTHROPIC_API_KEY"], world.provider_requests(mark)
    assert [r for r in seen if r["answer"] == "tool"] and {r["key"] for r in seen} == {key}
    assert all(str(r["model"]).startswith("claude-") for r in seen if r["method"] == "POST"), seen
    world.settle()
    assert {a["address"] for a in world.accepts(mark)} == {addresses.PROVIDER}
    assert world.dns_names(mark) == {"api.anthropic.com"}
    everywhere = done.out + done.err + "".join(provided.logs(role) for role in ("agent", "caddy", "broker"))
    assert key not in everywhere and front.master_key(provided) not in everywhere


def test_count_tokens(provided: Session, world: World) -> None:
    """Claude Code counts before it sends; the route has a query."""
    mark = world.mark()
    body = {"model": "claude-test", "messages": [{"role": "user", "content": "how long is this?"}]}
    answer = front.ask(provided, front.Request("/v1/messages/count_tokens?beta=true", body))[0]
    assert answer.status == 200 and json.loads(answer.body)["input_tokens"] > 0, answer
    assert {r["address"] for r in world.provider_requests(mark)} <= {addresses.PROVIDER}


def test_a_wrong_key_is_told_to_the_user(provided: Session, world: World) -> None:
    """The provider's refusal ends the turn at once; the text names no key (B5)."""
    world.provider_errors({"status": 401, "message": "invalid x-api-key: {key}"})
    try:
        done = provided.exec(*CLAUDE[:2], "hello", timeout=120)
    finally:
        world.provider_errors()
    assert done.rc != 0 and "refused" in done.out + done.err, done
    assert provided.home.secrets["ANTHROPIC_API_KEY"] not in done.out + done.err


def test_detached_sessions_stay_until_close(provided: Session) -> None:
    """The workload of an interactive session waits in its terminal; close leaves the state volume alone."""
    listed = asf_play("ls", "--json", home=provided.home).json
    assert [one["state"] for one in listed if one["session"] == provided.id] == ["live"]
    assert provided.exec("test", "-d", "/home/node/.claude/projects").rc == 0
    volumes = [v for v in podman("volume", "ls", "-q").split() if provided.name in v]
    assert len(volumes) == 1
    assert provided.close().rc == 0
    assert exists(provided) == "" and provided.exec("true").rc != 0
    assert [v for v in podman("volume", "ls", "-q").split() if provided.name in v] == volumes


def test_in_a_terminal(module_home: Home, module_session: SessionFactory) -> None:
    """A shell, Claude Code in it, the shell's exit code; leaving it closes the session."""
    module_home.agent("cl-terminal", {"adapter": "claude", "llm": {"mock": "the embedded model speaks"}})
    session = module_session.adopt("cl-terminal")
    argv = ["asf-play", "open.yml", *session.selector()]
    with terminal(argv, module_home.env) as user:
        at = user.expect(r"attached;", 240)
        user.type("stty size; tty\n")
        at = user.expect(r"40 120\s+/dev/pts/\d", 30, at)
        user.type("claude -p hello\n")
        at = user.expect(r"\n ?the embedded model speaks[^$]*\$ ", 90, at)
        user.type("""python3 -c "import time; print('be' + 'gun', flush=True); time.sleep(60)"\n""")
        at = user.expect(r"begun", 30, at)
        user.type("\x03")
        at = user.expect(r"\$ ", 30, at)
        user.type("echo code $?\n")
        user.expect(r"\ncode 130", 30, at)
        user.type("exit 7\n")
        assert user.wait(120) == 7, user.shown()
    assert exists(session) == ""


def test_without_a_broker(module_home: Home, module_session: SessionFactory, world: World) -> None:
    """`llm.broker: false`: no broker, no front; the client's own key passes L1 to the declared host, and only there."""
    declared = [{"name": "api.anthropic.com", "private": PRIVATE}]
    module_home.agent(
        "cl-direct", {"adapter": "claude", "llm": {"broker": False}, "network": {"allow_domains": declared}}
    )
    session = module_session.open("cl-direct")
    assert sorted(exists(session).split()) == [session.container("agent"), session.container("caddy")]
    world.script(bash(f"curl -sS --max-time 20 https://{DENIED}/"), {"text": "directly"})
    mark = world.mark()
    done = session.exec("env", "ANTHROPIC_API_KEY=own-key-of-the-user", *CLAUDE[:2], "hello", CLAUDE[2], timeout=120)
    assert done.rc == 0 and done.out == "directly\n", done
    seen = world.provider_requests(mark)
    assert {(r["address"], r["key"]) for r in seen} == {(addresses.PROVIDER, "own-key-of-the-user")}
    world.settle()
    assert world.dns_names(mark) == {"api.anthropic.com"}
    assert session.decided(DENIED) == ["denied-name"]
    assert {d["listener"] for d in session.decisions()} == {"L1", "L1t"}
    assert session.exec("getent", "hosts", "front").rc != 0
    assert session.home.secrets["ANTHROPIC_API_KEY"] not in json.dumps(seen)
