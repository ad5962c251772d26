# SPDX-License-Identifier: BSD-4-Clause
"""Keys from where the operator keeps them to where they are used, with real clients and a provider that records what
came: sources of config.yml, a key that the agent itself holds, what a secrets file may say (S1 to S4, S6, S7).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import addresses, canaries, front, proc_watch
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman

pytestmark = [pytest.mark.podman, pytest.mark.slow]

PRIVATE = ["198.51.100.0/24"]
LOUD = ("-vvv", "--diff")
REFUSED, UNFIT = 220, 223


def key(name: str) -> str:
    return f"sk-ant-api03-canary-{name}-{secrets.token_hex(12)}"


# --- without the broker: the agent holds its key ----------------------------------------------------------------------


@dataclass
class Own:
    """An agent's session in which it holds the key itself, and what opening it showed."""

    session: Session
    key: str
    said: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    looked: str = ""
    programs: list[proc_watch.Seen] = field(default_factory=list)
    files: set[str] = field(default_factory=set)


def _watching_podman(folder: Path) -> tuple[dict[str, str], Path]:
    """An environment in which Podman, given a secret, first writes down what it can see of whoever gives it."""
    folder.mkdir()
    seen, real, script = folder / "seen", shutil.which("podman"), folder / "podman"
    looks = f'{{ ulimit -c; grep -i "core file" /proc/$PPID/limits; cat /proc/$PPID/environ; }} >>{seen} 2>&1'
    script.write_text(f'#!/bin/sh\ncase "$*" in "secret create"*) {looks};; esac\nexec {real} "$@"\n')
    script.chmod(0o755)
    return {"ASF_PATH": str(folder)}, seen


@pytest.fixture(scope="module")
def claude(
    module_home: Home, module_session: SessionFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Own]:
    """`llm.broker: false`, and a key in a file that has about everything that a file may have (S1)."""
    value = key("claude")
    path = module_home.secret("own.env", X="")
    path.write_bytes(
        b"\xef\xbb\xbf# a note\r\n\r\n  export ANTHROPIC_API_KEY='" + value.encode() + b"' # mine\t\r\nEMPTY="
    )
    manifest: dict[str, Any] = {
        "adapter": "claude",
        "llm": {"broker": False, "provider": "anthropic"},
        "network": {"allow_domains": [{"name": "api.anthropic.com", "private": PRIVATE}]},
        "secrets": {"files": ["own.env", "none.env"]},
    }
    module_home.agent("own-claude", manifest)
    own = Own(module_session.adopt("own-claude"), value)
    environment, seen = _watching_podman(tmp_path_factory.mktemp("bin") / "bin")
    places = canaries.places(module_home)
    with proc_watch.watching() as record, canaries.searching(places, {"key": value}) as found:
        words = ("open.yml", *own.session.selector(), "--detach", *LOUD)
        done = asf_play(*words, home=module_home, env=environment, timeout=280)
        assert done.rc == 0, done
        own.said, own.looked = done.err, seen.read_text()
        own.outputs["open"] = done.out + done.err
        again = asf_play(*words, home=module_home, env=environment, timeout=280)
        own.outputs["open again"] = again.out + again.err
        assert again.rc == 0 and "changed=0" in again.out + again.err, again
    own.programs, own.files = record.programs, found
    yield own


def test_the_real_client_uses_its_own_key(claude: Own, world: World) -> None:
    """Straight to the provider, through Caddy's list; the key is the file's to the letter (S1, S2)."""
    world.script(
        {"tool": "Bash", "input": {"command": "echo by hand", "description": "x"}}, {"text": "with my own key"}
    )
    mark = world.mark()
    done = claude.session.exec("claude", "-p", "hello", "--dangerously-skip-permissions", timeout=120)
    assert done.rc == 0 and done.out == "with my own key\n", done
    seen = world.provider_requests(mark)
    assert {(one["address"], one["key"]) for one in seen} == {(addresses.PROVIDER, claude.key)}
    world.settle()
    assert world.dns_names(mark) == {"api.anthropic.com"}
    names = podman("ps", "-a", "--filter", f"label=asf.session={claude.session.id}", "--format", "{{.Names}}")
    assert sorted(names.split()) == [claude.session.container("agent"), claude.session.container("caddy")]


def test_open_says_what_it_means(claude: Own) -> None:
    told = " ".join(claude.said.split())
    assert "llm.broker is off, so the key ANTHROPIC_API_KEY goes to the agent itself" in told and "can read it" in told
    policy = asf_play("policy", "own-claude", "--json", home=claude.session.home)
    row = {"part": "key", "from": "ANTHROPIC_API_KEY", "held_by": ["agent"]}
    assert policy.rc == 0 and policy.json["secrets"] == [row] and claude.key not in policy.out
    refused = asf_play("secret", "rotate", *claude.session.selector(), "--json", home=claude.session.home)
    assert refused.rc != 0 and "close and open" in refused.out, refused


def test_S3_the_key_is_the_workloads_alone(claude: Own) -> None:
    """No `podman inspect`, no command line, and only the workload's environment, not its first process's."""
    session = claude.session
    inspected = json.dumps([session.inspect(role) for role in ("agent", "caddy")]) + podman(
        "secret", "inspect", *_own(session)
    )
    inspected += podman("unshare", "cat", session.inspect("agent")["OCIConfigPath"])
    assert claude.key not in inspected
    assert [seen.argv for seen in claude.programs if claude.key in seen.argv] == []
    inside = os.stat(f"/proc/{session.pid('agent')}/ns/pid").st_ino
    holders = [seen for seen in claude.programs if claude.key in seen.environ]
    assert holders and all(seen.namespace == inside and seen.inner != 1 for seen in holders), holders
    assert session.exec("cat", "/run/secrets/asf-key").out == claude.key
    caddy = podman("exec", session.container("caddy"), "/asf/gate", "nothing", check=False)
    assert claude.key not in caddy


def _own(session: Session) -> list[str]:
    """The Podman secrets of a session."""
    return [name for name in podman("secret", "ls", "--format", "{{.Name}}").split() if f"-{session.id}-" in name]


def test_no_core_dump_where_the_key_passes(claude: Own) -> None:
    """Podman's limit is 0, so is that of who gave it the key, whose memory is closed to its own account."""
    lines = claude.looked.splitlines()
    assert lines[0] == "0" and lines[1].split()[4] == "0", claude.looked
    assert "Permission denied" in claude.looked and "ASF_PATH" not in claude.looked, claude.looked


def test_S4_nothing_that_is_said_or_kept_holds_the_key(claude: Own) -> None:
    """After a close, too: its evidence, and the log of a workload that prints it."""
    session = claude.session
    session.exec("sh", "-c", 'echo "$ANTHROPIC_API_KEY" >/proc/1/fd/1')
    logs = asf_play("logs", session.id, home=session.home)
    claude.outputs["logs"] = logs.out + logs.err
    closed = session.close()
    claude.outputs["close"] = closed.out + closed.err
    assert {name: claude.key in text for name, text in claude.outputs.items()} == dict.fromkeys(claude.outputs, False)
    left = canaries.in_files(canaries.places(session.home), {"key": claude.key})
    assert sorted(claude.files | set(left)) == [] and _own(session) == []


OPENAI = r"""
from openai import OpenAI
hello = [{"role": "user", "content": "hello"}]
answer = OpenAI(max_retries=1).chat.completions.create(model="gpt-test", messages=hello)
print(answer.choices[0].message.content)
"""


def test_a_python_agent_with_a_key_out_of_the_environment(
    module_home: Home, module_session: SessionFactory, world: World
) -> None:
    """S7: the variable of asf-play's environment has another name inside; its own name and value go nowhere else."""
    value, before = key("python"), (module_home.path / "config.yml").read_text()
    (module_home.path / "config.yml").write_text(before + "secrets: {OPENAI_API_KEY: {env: MY_OPENAI}}\n")
    allowed = [{"name": "api.openai.com", "private": PRIVATE}]
    llm = {"broker": False, "api_key_env": "OPENAI_API_KEY"}
    module_home.agent("own-python", {"llm": llm, "network": {"allow_domains": allowed}})
    try:
        with proc_watch.watching() as record, canaries.searching(canaries.places(module_home), {"key": value}) as found:
            session = module_session.open("own-python", *LOUD, env={"MY_OPENAI": value, "OTHER_SECRET": value[::-1]})
    finally:
        (module_home.path / "config.yml").write_text(before)
    world.script({"text": "directly"})
    mark = world.mark()
    done = session.exec("python3", "-", stdin=OPENAI, timeout=120)
    assert done.out == "directly\n", done
    assert {one["key"] for one in world.provider_requests(mark)} == {value}
    environment = session.exec("env").out
    assert "MY_OPENAI" not in environment and value[::-1] not in environment
    inside = os.stat(f"/proc/{session.pid('agent')}/ns/pid").st_ino
    holders = {seen.argv for seen in record.programs if value in seen.environ and seen.namespace != inside}
    assert all("asf-play" in argv and "open.yml" in argv for argv in holders), holders
    assert value not in json.dumps(session.document) and sorted(found) == []


def test_without_a_key_the_client_is_told_to_log_in_by_itself(home: Home, session: SessionFactory) -> None:
    """`llm.broker: false` and no key anywhere: no error, no warning, no secret."""
    manifest = {
        "adapter": "claude",
        "llm": {"broker": False, "provider": "anthropic"},
        "network": {"allow_domains": [{"name": "api.anthropic.com", "private": PRIVATE}]},
        "secrets": {"files": ["claude.env"]},
    }
    home.agent("logs-in", manifest)
    done = asf_play("policy", "logs-in", "--json", home=home)
    assert done.rc == 0 and done.json["secrets"] == done.json["assumed"] == [], done
    assert not [text for text in done.json["warnings"] if "key" in str(text)], done


# --- sources of config.yml, with the broker ---------------------------------------------------------------------------

BACKEND = """
from keyring.backend import KeyringBackend
class Desktop(KeyringBackend):
    priority = 9
    def get_password(self, service, username):
        return {value!r} if (service, username) == ("asf", "anthropic") else None
    def set_password(self, service, username, password): ...
    def delete_password(self, service, username): ...
"""


@dataclass
class Sources:
    """One session, whose key comes from one source after the other."""

    session: Session
    keys: dict[str, str]
    config: str
    folder: Path

    def use(self, source: dict[str, Any]) -> None:
        text = self.config + f"secrets: {json.dumps({'ANTHROPIC_API_KEY': source})}\n"
        (self.session.home.path / "config.yml").write_text(text)

    def vault(self) -> dict[str, Any]:
        (self.folder / "v.yml").write_text(f"other: x\nmine: {self.keys['vault']}\n")
        (self.folder / "password").write_text("correct horse\n")
        (self.folder / "password").chmod(0o600)
        argv = ["ansible-vault", "encrypt", "--vault-password-file", "password", "v.yml"]
        subprocess.run(argv, cwd=self.folder, check=True, capture_output=True)
        vault = {"file": str(self.folder / "v.yml"), "key": "mine", "password_file": str(self.folder / "password")}
        return {"vault": vault}

    def command(self) -> dict[str, Any]:
        script = f"printf '%s\\r\\n' {self.keys['command']}"
        return {"command": ["/bin/sh", "-c", script]}


@pytest.fixture(scope="module")
def sources(
    module_home: Home, module_session: SessionFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sources]:
    llm = {"protocol": "anthropic", "provider": "anthropic", "private": PRIVATE}
    module_home.agent("sourced", {"llm": llm})
    keys = {name: key(name) for name in ("vault", "env", "keyring", "command")}
    folder = tmp_path_factory.mktemp("sources")
    folder.chmod(0o700)
    found = Sources(module_session.adopt("sourced"), keys, (module_home.path / "config.yml").read_text(), folder)
    found.use(found.vault())
    done = asf_play("open.yml", *found.session.selector(), "--detach", *LOUD, home=module_home, timeout=280)
    assert done.rc == 0 and keys["vault"] not in done.out + done.err, done
    yield found
    (module_home.path / "config.yml").write_text(found.config)


def _sent(sources: Sources, world: World) -> set[str]:
    mark = world.mark()
    assert front.ask(sources.session, front.message())[0].status == 200
    return {str(one["key"]) for one in world.provider_requests(mark)}


def _turned(sources: Sources, env: dict[str, str] | None = None) -> None:
    """Rotate, and search everything that it showed meanwhile."""
    home = sources.session.home
    with proc_watch.watching() as record, canaries.searching(canaries.places(home), sources.keys) as found:
        done = asf_play("rotate.yml", *sources.session.selector(), *LOUD, home=home, env=env, timeout=300)
    assert done.rc == 0, done
    shown = [name for name, value in sources.keys.items() if value in done.out + done.err]
    assert shown == [] and sorted(found) == []
    for seen in record.programs:
        there = [name for name, value in sources.keys.items() if value in seen.environ or value in seen.argv]
        ours = "asf-play" in seen.argv and there == ["env"]
        own_program = there == ["command"] and seen.argv.startswith("/bin/sh\0-c\0printf")
        assert not there or ours or own_program, (there, seen.argv[:300])


def test_a_vault(sources: Sources, world: World) -> None:
    assert _sent(sources, world) == {sources.keys["vault"]}


def test_a_variable_of_the_environment_after_a_rotation(sources: Sources, world: World) -> None:
    sources.use({"env": "MY_ANTHROPIC"})
    _turned(sources, {"MY_ANTHROPIC": sources.keys["env"]})
    assert _sent(sources, world) == {sources.keys["env"]}
    refused = asf_play("secret", "rotate", *sources.session.selector(), "--json", home=sources.session.home)
    assert refused.rc != 0 and refused.json["error"]["key"] == "secrets.ANTHROPIC_API_KEY.env", refused
    assert "set MY_ANTHROPIC in the shell" in refused.json["error"]["remedy"]
    assert _sent(sources, world) == {sources.keys["env"]}, "a key that is not there changes nothing"


@pytest.fixture
def desktop(sources: Sources) -> Iterator[None]:
    """The account's own settings of the library name a backend of the test's."""
    settings = Path.home() / ".config" / "python_keyring" / "keyringrc.cfg"
    assert not settings.exists(), f"{settings} is there: this test would replace it"
    (sources.folder / "asf_test_desktop.py").write_text(BACKEND.format(value=sources.keys["keyring"]))
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(f"[backend]\ndefault-keyring=asf_test_desktop.Desktop\nkeyring-path={sources.folder}\n")
    yield
    settings.unlink()


def test_the_keyring_after_a_rotation(sources: Sources, world: World, desktop: None) -> None:
    sources.use({"keyring": {"service": "asf", "username": "anthropic"}})
    _turned(sources)
    assert _sent(sources, world) == {sources.keys["keyring"]}


def test_S2_a_command_whose_line_ends_in_cr_lf(sources: Sources, world: World) -> None:
    sources.use(sources.command())
    _turned(sources)
    assert _sent(sources, world) == {sources.keys["command"]}
    closed = sources.session.close()
    left = canaries.in_files(canaries.places(sources.session.home), sources.keys)
    assert closed.rc == 0 and left == []


def test_S4_a_failing_task_shows_nothing_of_the_agents_own_key(
    home: Home, session: SessionFactory, tmp_path: Path
) -> None:
    """Podman fails while it is given the key, which a vault holds; what was made goes, what was said is searched."""
    sources = Sources(session.adopt("fails"), {"vault": key("fails")}, (home.path / "config.yml").read_text(), tmp_path)
    tmp_path.chmod(0o700)
    sources.use(sources.vault())
    llm = {"broker": False, "api_key_env": "ANTHROPIC_API_KEY"}
    home.agent("fails", {"llm": llm, "network": {"allow_domains": ["api.anthropic.com"]}})
    broken = canaries.broken_podman(tmp_path / "bin", "secret create")
    with canaries.searching(canaries.places(home), sources.keys) as found:
        words = ("open.yml", *sources.session.selector(), "--detach", *LOUD)
        done = asf_play(*words, home=home, env=broken, timeout=240)
    assert done.rc != 0 and "broken by a test" in done.out + done.err, done
    assert sources.keys["vault"] not in done.out + done.err
    assert sorted(found | set(canaries.in_files(canaries.places(home), sources.keys))) == []
    assert (
        podman("ps", "-aq", "--filter", f"label=asf.session={sources.session.id}") == "" and _own(sources.session) == []
    )


# --- what is refused, before anything exists --------------------------------------------------------------------------


def test_S1_every_wrong_line_is_named(home: Home, session: SessionFactory) -> None:
    value = key("wrong")
    path = home.secret("bad.env", X="")
    lines = [
        f"A={value}",
        f"A={value}",
        f"B = {value}",
        f"C= {value}",
        f'D="{value}',
        f"E={value} x",
        f"F=$({value})",
        value,
    ]
    path.write_text("\n".join(lines))
    llm = {"protocol": "anthropic", "provider": "anthropic"}
    home.agent("bad", {"llm": llm, "secrets": {"files": ["bad.env"]}})
    done, _ = session.attempt("bad")
    assert done.rc == REFUSED and value not in done.out + done.err, done
    assert [problem["line"] for problem in done.json["problems"]] == [2, 3, 4, 5, 6, 7, 8]


def test_a_source_that_does_not_answer_is_refused_by_its_key(home: Home, session: SessionFactory) -> None:
    config = home.path / "config.yml"
    config.write_text(config.read_text() + "secrets: {ANTHROPIC_API_KEY: {command: [/bin/sh, -c, 'echo x; exit 3']}}\n")
    home.agent("dumb", {"llm": {"protocol": "anthropic", "provider": "anthropic"}})
    done, _ = session.attempt("dumb")
    error = done.json["error"]
    assert done.rc == REFUSED and error["file"] == str(config), done
    assert error["key"] == "secrets.ANTHROPIC_API_KEY.command" and "ended with 3" in error["message"], error


def test_S6_without_a_login_session_the_error_names_the_fix(home: Home) -> None:
    """What sudo and become_user leave: no run directory of the account's own."""
    home.agent("plain", {"network": {"allow_domains": ["example.com"]}})
    done = asf_play("open.yml", "-e", "agent=plain", "--json", home=home, env={"XDG_RUNTIME_DIR": "/nonexistent"})
    error = done.json["error"]
    assert done.rc == UNFIT and error["key"] == "XDG_RUNTIME_DIR" and "log in" in error["remedy"], done
