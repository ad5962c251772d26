# SPDX-License-Identifier: BSD-4-Clause
"""Secrets are nowhere but where they must be (S3, S4, S7): one whole life of a session, once by asf-play, once by plain
`ansible-playbook`, all of it with -vvv and --diff, a failing task included, and everything that it showed is searched.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import canaries, front, plain, proc_watch
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, operator_home, podman

pytestmark = [pytest.mark.podman, pytest.mark.slow]

AGENT = "canary"
MANIFEST = {
    "llm": {"protocol": "anthropic", "provider": "anthropic", "private": ["198.51.100.0/24"]},
    "secrets": {"files": ["anthropic.env", "more.env"]},
    "env": {"PLANNED": "yes"},
}
LOUD = ("-vvv", "--diff")
ROLES = ("agent", "caddy", "broker")
TOKEN = "the session token"
Play = Callable[..., Any]  # playbook, further options, env=… -> something with rc, out and err


def _canary(name: str) -> str:
    return f"canary-{name.lower()}-{secrets.token_hex(8)}"


@dataclass
class Life:
    """What one life of a session showed to the outside."""

    session: Session
    #: name -> text that must be nowhere
    forbidden: dict[str, str] = field(default_factory=dict)
    #: the operator's own environment, name -> text
    operators: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    inspected: dict[str, str] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    programs: list[proc_watch.Seen] = field(default_factory=list)
    namespaces: dict[str, int] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    provider_keys: set[str] = field(default_factory=set)

    def play(self, name: str, run: Play, *args: Any, **options: Any) -> None:
        """Run a command and keep what it said."""
        done = run(*args, **options)
        self.outputs[name], self.codes[name] = done.out + done.err, done.rc


def _operators_environment() -> dict[str, str]:
    """What a developer's shell is full of (S7, P14)."""
    names = ("AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "ANTHROPIC_API_KEY", "MY_SETTING", "PLANNED_NOT", "LC_CANARY")
    found = {name: _canary(name) for name in names}
    proxy = f"http://user:{_canary('proxy')}@127.0.0.1:9"
    return {**found, "HTTPS_PROXY": proxy, "https_proxy": proxy, "NO_PROXY": "*"}


def _by_asf_play(life: Life) -> Play:
    def play(playbook: str, *args: str, env: dict[str, str] | None = None) -> Any:
        more = ("--detach",) if playbook == "open.yml" and "--check" not in args else ()
        given = {**life.operators, **(env or {})}
        return asf_play(playbook, *life.session.selector(), *more, *args, home=life.session.home, env=given)

    return play


def _by_ansible(life: Life) -> Play:
    def play(playbook: str, *args: str, env: dict[str, str] | None = None) -> Any:
        return plain.play(f"playbooks/{playbook}", life.session, *args, env={**life.operators, **(env or {})})

    return play


WAYS = {"asf-play": _by_asf_play, "ansible-playbook": _by_ansible}


def _token(life: Life) -> str:
    return life.session.exec("cat", "/run/secrets/asf-token").out


def _look(life: Life) -> None:
    """What Podman and the files say while the session lives."""
    session = life.session
    life.forbidden["the master key"] = front.master_key(session)
    token = _token(life)
    for role in ROLES:
        life.inspected[role] = podman("container", "inspect", session.container(role))
        found = json.loads(life.inspected[role])[0]
        life.inspected[f"{role}: OCI configuration"] = podman("unshare", "cat", found["OCIConfigPath"])
        life.namespaces[role] = os.stat(f"/proc/{session.pid(role)}/ns/pid").st_ino
    record = json.loads((session.home.state / "asf" / "live" / f"{session.id}.json").read_text())
    life.plan = json.loads(Path(record["plan"]).read_text())["plan"]
    life.files |= set(canaries.in_files(canaries.places(session.home), {**life.forbidden, TOKEN: token}))
    life.forbidden[TOKEN] = token


def _use(life: Life, world: World) -> None:
    """A model's answer, and a provider that repeats the key in its error (B5)."""
    mark = world.mark()
    assert front.ask(life.session, front.message())[0].status == 200
    world.provider_errors({"status": 401, "message": "the key {key} is not known", "count": 1})
    answer = front.ask(life.session, front.message())[0]
    assert answer.status == 401
    life.outputs["the agent's view of an error"] = f"{answer.headers} {answer.body}"
    life.provider_keys = {str(event["key"]) for event in world.provider_requests(mark)}


def _live(life: Life, run: Play, world: World) -> None:
    life.play("check", run, "open.yml", "--check", *LOUD)
    life.play("open", run, "open.yml", *LOUD)
    assert life.codes["open"] == 0, life.outputs["open"][-6000:]
    life.play("second open", run, "open.yml", *LOUD)
    life.play("verify", run, "verify.yml", *LOUD)
    life.play("status", run, "status.yml", *LOUD)
    life.play("exec", life.session.exec, "env")
    life.outputs.pop("exec")  # shows the token to whoever may exec; it ran for /proc alone
    _look(life)
    _use(life, world)
    life.session.wire_sh("caddy", "nft flush ruleset")
    life.play("failing verify", run, "verify.yml", *LOUD)
    life.logs = {role: life.session.logs(role) for role in ROLES}
    life.play("close", run, "close.yml", *LOUD)


@pytest.fixture(scope="module", params=sorted(WAYS))
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, world: World) -> Iterator[Life]:
    """A session that was opened, used, broken, verified and closed."""
    home = operator_home(tmp_path_factory.mktemp("canaries"), world)
    home.secret("more.env", SOME_TOKEN="", OTHER_PASSWORD="")
    home.agent(AGENT, MANIFEST)
    life = Life(Session(home, AGENT, SessionFactory.new_name(), {}), dict(home.secrets), _operators_environment())
    try:
        with proc_watch.watching() as record, canaries.searching(canaries.places(home), dict(home.secrets)) as found:
            _live(life, WAYS[request.param](life), world)
        life.programs, life.files = record.programs, life.files | found
        yield life
    finally:
        life.session.close()


def test_the_life_was_one(life: Life) -> None:
    """Everything below would hold for a session that never ran."""
    good = {name: code for name, code in life.codes.items() if name != "failing verify"}
    assert set(good.values()) == {0}, {name: life.outputs.get(name, "")[-3000:] for name in good if good[name]}
    assert life.codes["failing verify"] != 0
    assert life.provider_keys == {life.session.home.secrets["ANTHROPIC_API_KEY"]}
    assert len(life.forbidden) == 6 and all(len(text) > 20 for text in life.forbidden.values())
    for role in ROLES:
        assert any(seen.namespace == life.namespaces[role] for seen in life.programs), role
    assert any("ansible" in seen.argv for seen in life.programs)


def test_S3_inspect_holds_no_secret(life: Life) -> None:
    found = [f"{name} in {place}" for place, text in life.inspected.items() for name in _in(life, text)]
    assert found == []


def test_S3_no_process_shows_a_secret_but_the_agents_own_its_token(life: Life) -> None:
    wrong = []
    for seen in life.programs:
        wrong += [f"{name} on the command line {seen.argv[:200]!r}" for name in _in(life, seen.argv)]
        agents = seen.namespace == life.namespaces["agent"] and seen.inner != 1
        allowed = {TOKEN} if agents else set()
        bad = [name for name in _in(life, seen.environ) if name not in allowed]
        wrong += [f"{name} in the environment of {seen.argv[:200]!r}" for name in bad]
    assert wrong == []


def test_S3_the_workload_has_its_token(life: Life) -> None:
    """The rule above is not kept by there being no token at all."""
    assert [seen for seen in life.programs if life.forbidden[TOKEN] in seen.environ]


def test_S4_no_output_holds_a_secret(life: Life) -> None:
    assert {place: _in(life, text) for place, text in life.outputs.items() if _in(life, text)} == {}


def test_S4_no_log_holds_a_secret(life: Life) -> None:
    assert any(life.logs.values())
    assert {role: _in(life, text) for role, text in life.logs.items() if _in(life, text)} == {}


def test_S4_no_file_holds_a_secret(life: Life) -> None:
    """Run folders, runner's artifacts while they exist, state, evidence, Ansible's folders."""
    left = canaries.in_files(canaries.places(life.session.home), life.forbidden)
    assert sorted(life.files | set(left)) == []


def test_S7_the_workload_has_exactly_the_planned_environment(life: Life) -> None:
    gate = life.plan["gate"]
    planned = {**gate["env"], **dict.fromkeys(gate["token_env"], life.forbidden[TOKEN])}
    workload = [
        seen
        for seen in life.programs
        if seen.namespace == life.namespaces["agent"] and seen.argv.rstrip("\0").split("\0") == gate["argv"]
    ]
    assert workload and all(seen.environment() == planned for seen in workload)
    assert planned["PLANNED"] == "yes" and not any("canary" in value for value in planned.values())


def test_S7_no_first_process_has_any_of_the_operators(life: Life) -> None:
    """`/proc/1/environ` of every container has none of their names."""
    for role in ROLES:
        first = [seen for seen in life.programs if seen.namespace == life.namespaces[role] and seen.inner == 1]
        assert first, role
        names = set().union(*(seen.environment() for seen in first if seen.argv.startswith("/asf/gate")))
        assert names and not names & {name for name in life.operators if "proxy" not in name.lower()}, role


def test_S7_nothing_of_the_operators_environment_is_in_any_container(life: Life) -> None:
    inside = set(life.namespaces.values())
    wrong = [
        f"{name} in {seen.argv[:100]!r}"
        for seen in life.programs
        if seen.namespace in inside
        for name, text in life.operators.items()
        if len(text) > 9 and (text in seen.environ or text in seen.argv)
    ]
    assert wrong == []


def _in(life: Life, text: str) -> list[str]:
    return [name for name, secret in life.forbidden.items() if secret in text]


@pytest.mark.parametrize("words", ["secret create", "start asf-"])
@pytest.mark.parametrize("way", sorted(WAYS))
def test_S4_a_failing_task_shows_no_secret(words: str, way: str, home: Home, tmp_path: Path) -> None:
    """Podman fails while it is given the key, or right after; the session is removed, what was said is searched."""
    home.secret("more.env", SOME_TOKEN="", OTHER_PASSWORD="")
    home.agent(AGENT, MANIFEST)
    life = Life(Session(home, AGENT, SessionFactory.new_name(), {}), dict(home.secrets))
    with canaries.searching(canaries.places(home), dict(home.secrets)) as found:
        life.play("open", WAYS[way](life), "open.yml", *LOUD, env=canaries.broken_podman(tmp_path / "bin", words))
    assert life.codes["open"] != 0 and "broken by a test" in life.outputs["open"], life.outputs["open"][-3000:]
    assert _in(life, life.outputs["open"]) == []
    assert sorted(found | set(canaries.in_files(canaries.places(home), life.forbidden))) == []
    assert podman("ps", "-aq", "--filter", f"label=asf.session={life.session.id}") == ""
