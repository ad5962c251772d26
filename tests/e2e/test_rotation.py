# SPDX-License-Identifier: BSD-4-Clause
"""A live session's broker gets another provider key, with real LiteLLM and a provider that records which one came."""

from __future__ import annotations

import json
import secrets
import subprocess
import threading
from typing import Any

import pytest
from support import front, schemas
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman

pytestmark = [pytest.mark.podman, pytest.mark.slow]

PRIVATE = ["198.51.100.0/24"]


def key() -> str:
    return f"sk-ant-canary-{secrets.token_hex(12)}"


def sent(world: World, mark: int) -> set[str]:
    """Keys that the provider got since."""
    return {request["headers"].get("x-api-key", "") for request in world.provider_requests(mark, timeout=30)}


@pytest.fixture(scope="module")
def keys() -> list[str]:
    return [key(), key()]


@pytest.fixture(scope="module")
def opened(module_home: Home, module_session: SessionFactory, keys: list[str]) -> Session:
    module_home.secret("rotate.env", ANTHROPIC_API_KEY=keys[0])
    llm = {"protocol": "anthropic", "provider": "anthropic", "private": PRIVATE}
    module_home.agent("rt", {"llm": llm, "secrets": {"files": ["rotate.env"]}})
    return module_session.open("rt")


def test_the_key_changes_and_the_agent_lives_on(opened: Session, world: World, keys: list[str]) -> None:
    mark = world.mark()
    assert front.ask(opened, front.message())[0].status == 200 and sent(world, mark) == {keys[0]}
    agent, caddy, broker = (opened.pid(role) for role in ("agent", "caddy", "broker"))
    opened.home.secret("rotate.env", ANTHROPIC_API_KEY=keys[1])
    shown = asf_play("secret", "rotate", *opened.selector(), "--check", "--json", home=opened.home)
    assert shown.rc == 0 and opened.pid("broker") == broker, shown
    done = asf_play("secret", "rotate", *opened.selector(), "--json", home=opened.home, timeout=300)
    assert done.rc == 0 and done.json["changed"], done
    assert {one["verdict"] for one in done.json["probes"]} <= {"pass", "warn"}, "verified again"
    assert (opened.pid("agent"), opened.pid("caddy")) == (agent, caddy) and opened.pid("broker") != broker
    mark = world.mark()
    assert front.ask(opened, front.message())[0].status == 200 and sent(world, mark) == {keys[1]}
    names = podman("ps", "-a", "--filter", f"label=asf.session={opened.id}", "--format", "{{.Names}}").split()
    assert sorted(names) == sorted(opened.container(role) for role in ("agent", "caddy", "broker")), names
    assert opened.play("verify.yml").rc == 0


def test_a_request_in_flight_is_waited_for(opened: Session, world: World, keys: list[str]) -> None:
    """What ends within the patience ends whole, and only then the broker changes."""
    answers: list[Any] = []
    world.script({"text": "late", "delay": 15})
    mark = world.mark()
    slow = threading.Thread(target=lambda: answers.extend(front.ask(opened, front.message(stream=True))))
    slow.start()
    assert world.provider_requests(mark, timeout=60), "it is in flight"
    done = opened.play("rotate.yml")
    slow.join(120)
    world.script()
    assert done.rc == 0, done
    assert [one.status for one in answers] == [200] and not done.json.get("notes"), (answers, done)


def test_what_was_interrupted_is_finished_by_the_next(opened: Session, world: World, keys: list[str]) -> None:
    """What a killed rotation leaves: the old broker under another name, the second one half made."""
    broker = opened.container("broker")
    podman("rename", broker, f"{broker}-old")
    podman("create", f"--name={broker}", f"--label=asf.session={opened.id}", opened.inspect("caddy")["ImageName"])
    assert opened.play("rotate.yml").rc == 0
    mark = world.mark()
    assert front.ask(opened, front.message())[0].status == 200 and sent(world, mark) == {keys[1]}


def test_a_key_that_is_not_there_changes_nothing(opened: Session) -> None:
    broker = opened.pid("broker")
    (opened.home.path / "secrets" / "rotate.env").unlink()
    refused = opened.play("rotate.yml")
    assert refused.rc != 0 and "rotate.env" in json.dumps(refused.json["error"]), refused
    assert opened.pid("broker") == broker and front.ask(opened, front.message())[0].status == 200


def test_S3_S4_no_key_is_anywhere_and_the_evidence_tells_of_it(opened: Session, keys: list[str]) -> None:
    inspected = subprocess.run(
        ["podman", "inspect", *(opened.container(role) for role in ("agent", "caddy", "broker"))],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    opened.close()
    kept = "".join(path.read_text() for path in opened.evidence.iterdir())
    for secret in keys:
        assert secret not in inspected and secret not in kept
    lines = [json.loads(line) for line in (opened.evidence / "rotations.jsonl").read_text().splitlines()]
    assert len(lines) == 3 and {one["connections_cut"] for one in lines} == {0}
    assert schemas.evidence_problems(opened.evidence) == []
    assert podman("secret", "ls", "--format", "{{.Name}}").find(opened.id) < 0


def test_a_session_without_a_key_has_nothing_to_rotate(home: Home, session: SessionFactory) -> None:
    home.agent("rt-mock", {"llm": {"protocol": "anthropic", "mock": "words"}})
    target = session.open("rt-mock")
    refused = target.play("rotate.yml")
    assert refused.json["error"]["code"] == "no-key", refused
    target.close()
    gone = target.play("rotate.yml")
    assert gone.json["error"]["code"] == "not-open", gone
