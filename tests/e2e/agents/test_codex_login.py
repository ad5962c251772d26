# SPDX-License-Identifier: BSD-4-Clause
"""`llm.broker: false` with the shipped agent `codex`: the real client's logins, at a stand-in authority.

The test is the browser: it enters the code that the client shows. The word that it says there is in every token.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import addresses, chatgpt
from support.client import World
from support.course import PRIVATE, ROOT
from support.product import Home, Session, SessionFactory, podman, sample_repo
from support.terminal import terminal

pytestmark = pytest.mark.slow

WORD, LATER, KEY = (secrets.token_hex(16) for _ in range(3))
TURN = ("codex", "exec", "--skip-git-repo-check", "hello")
#: What docs/login.md says that a login needs.
HOSTS = {"auth.openai.com", "chatgpt.com"}


def direct(login: bool) -> dict[str, Any]:
    """The shipped manifest without the broker: as its first lines tell for a login, or with the list as it is."""
    text = (ROOT / "agents" / "codex" / "runtime.yml").read_text()
    manifest: dict[str, Any] = yaml.safe_load(text.replace("    # - ", "    - ") if login else text)
    manifest["llm"]["broker"] = False
    names = [name for name in manifest["network"]["allow_domains"] if not login or name != "api.openai.com"]
    manifest["network"]["allow_domains"] = [{"name": name, "private": [*PRIVATE]} for name in names]
    return manifest


def mentions(folder: Path, word: str) -> list[Path]:
    """Files below a folder that hold a word, names included."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if word.encode() in path.read_bytes() or word in str(path)]


def kept(session: Session, file: str) -> str:
    """A file of the agent's state volume, read from outside."""
    [volume] = [name for name in podman("volume", "ls", "-q").split() if session.name in name]
    path = podman("volume", "inspect", "--format", "{{.Mountpoint}}", volume)
    return podman("unshare", "cat", f"{path}/{file}")


def allowed(session: Session) -> set[str]:
    """Hosts that the proxy let the client reach."""
    return {row["host"] for row in session.decisions() if row["decision"] == "allow" and row["listener"] != "L3"}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The granted repository."""
    return sample_repo(tmp_path_factory.mktemp("granted") / "project")


@pytest.fixture(scope="module")
def logged_in(module_home: Home, module_session: SessionFactory, world: World, repo: Path) -> Session:
    """A session in which a person logged in by a device code and had one answer, closed again."""
    module_home.agent("codex", direct(login=True))
    module_home.grant("codex", repo)
    session = module_session.adopt("codex")
    world.script({"text": "glad that you are here"})
    with terminal(["asf-play", "open.yml", *session.selector()], module_home.env) as user:
        at = user.expect(r"attached;", 240)
        user.type("codex login --device-auth\n")
        at = user.expect(r"https://auth\.openai\.com/codex/device\n", 60, at)
        at = user.expect(r"one-time code[^\n]*\n\s+TEST-[0-9A-F]{6}\n", 30, at)
        assert chatgpt.approve(world.ca, "TEST-000000", WORD) == 404, "a code that nobody asked for was taken"
        assert "Successfully" not in user.text[at:], "logged in before anybody approved"
        assert chatgpt.approve(world.ca, user.text[:at].split()[-1], WORD) == 200
        at = user.expect(r"Successfully logged in\n", 60, at)
        user.type(" ".join(TURN) + "\n")
        at = user.expect(r"\nglad that you are here\n", 90, at)
        session.document = {"allowed": allowed(session), "tried": {row.get("host") for row in session.decisions()}}
        user.type("exit\n")
        assert user.wait(120) == 0, user.shown()
    return session


def test_the_code_becomes_a_login_and_the_model_gets_its_token(logged_in: Session, world: World) -> None:
    """The client asks with both halves of its code; the test provider gives tokens for a verifier that fits, alone."""
    steps = [r for r in world.provider_requests(0) if r["sni"] == chatgpt.AUTHORITY and r["path"] != "/codex/device"]
    paths = [r["path"].rpartition("/")[2] for r in steps]
    assert paths[0] == "usercode" and paths[-1] == "token" and steps[-1]["path"] == "/oauth/token", paths
    assert [r["body"]["grant_type"] for r in steps if r["path"] == "/oauth/token"] == ["authorization_code"]
    turns = [r for r in world.provider_requests(0) if r["answer"] == "text"]
    assert turns and {r["sni"] for r in turns} == {chatgpt.MODEL}
    assert {str(r["key"]).rpartition(".")[2] for r in turns} == {f"access-{WORD}"}


def test_the_manifest_names_what_is_needed(logged_in: Session, world: World) -> None:
    """Both hosts were used, no other one was asked for, let alone reached."""
    declared = {entry["name"] for entry in direct(login=True)["network"]["allow_domains"]}
    assert declared == HOSTS == logged_in.document["allowed"] == world.dns_names()
    assert {r["sni"] for r in world.provider_requests(0) if r["path"] != "/codex/device"} == HOSTS
    tried = {host for host in logged_in.document["tried"] if host and not host.endswith(".invalid")}
    assert tried == HOSTS, tried
    world.settle()
    assert {one["address"] for one in world.accepts()} == {addresses.CHATGPT}


def test_the_login_is_in_the_state_volume_alone(logged_in: Session, repo: Path) -> None:
    """Not in the granted repository, the evidence, or any record of ASF's."""
    for folder in (repo, logged_in.home.state, logged_in.home.path):
        assert mentions(folder, WORD) == []
    assert mentions(logged_in.home.state, "auth.openai.com"), "the search finds nothing at all"
    assert f"access-{WORD}" in kept(logged_in, "auth.json")


@pytest.fixture(scope="module")
def again(logged_in: Session, module_session: SessionFactory) -> Session:
    """The next session over the same state volume."""
    return module_session.open("codex", name=logged_in.name)


def test_the_next_session_is_logged_in(again: Session, world: World) -> None:
    """Without a question, and no other user could read the login."""
    assert "Logged in using ChatGPT" in again.exec("codex", "login", "status").err
    assert again.exec("stat", "-c", "%a", "/home/node/.codex/auth.json").out == "600\n"
    world.script({"text": "still here"})
    mark = world.mark()
    done = again.exec(*TURN, timeout=120)
    assert (done.rc, done.out) == (0, "still here\n"), done
    seen = world.provider_requests(mark)
    assert {str(r["key"]).rpartition(".")[2] for r in seen if r["answer"] == "text"} == {f"access-{WORD}"}
    assert chatgpt.AUTHORITY not in {r["sni"] for r in seen}, "a login that is good was renewed"


def test_a_login_is_renewed_and_ended_at_the_authority(again: Session, world: World) -> None:
    """So auth.openai.com stays on the list. Logging out tells it, and leaves nothing behind."""
    with terminal(
        ["asf-play", "exec", *again.selector(), "--", "codex", "login", "--device-auth"], again.home.env
    ) as user:
        at = user.expect(r"TEST-[0-9A-F]{6}\s", 60)
        code = user.text[:at].split()[-1]
        assert chatgpt.approve(world.ca, code, LATER, seconds=-60) == 200
        assert user.wait(60) == 0, user.shown()
    mark = world.mark()
    done = again.exec(*TURN, timeout=120)
    assert (done.rc, done.out) == (0, "still here\n"), done
    renewals = [r for r in world.provider_requests(mark) if r["path"] == "/oauth/token"]
    assert [r["body"]["refresh_token"] for r in renewals] == [f"refresh-{LATER}"]
    assert again.exec("codex", "logout", timeout=60).rc == 0
    assert [r["path"] for r in world.provider_requests(mark, timeout=10, path="/oauth/revoke")]
    assert again.exec("codex", "login", "status").rc != 0
    assert again.exec("grep", "-rl", LATER, "/home/node/.codex").out == ""


def test_a_key_of_ones_own(home: Home, session: SessionFactory, world: World) -> None:
    """From standard input, never on a command line. The provider's host is all that it needs."""
    home.agent("codex", direct(login=False))
    opened = session.open("codex")
    done = opened.exec("codex", "login", "--with-api-key", stdin=f"{KEY}\n")
    assert done.rc == 0 and KEY not in done.out + done.err, done
    assert "API key" in opened.exec("codex", "login", "status").err
    world.script({"text": "with a key"})
    mark = world.mark()
    done = opened.exec(*TURN, timeout=120)
    assert (done.rc, done.out) == (0, "with a key\n"), done
    turns = [r for r in world.provider_requests(mark) if r["answer"] == "text"]
    assert {(r["sni"], r["key"]) for r in turns} == {("api.openai.com", KEY)}
    assert allowed(opened) == {"api.openai.com"}
    assert set(opened.decided("chatgpt.com")) == {"denied-name"}
    assert opened.close().rc == 0
    assert mentions(home.state, KEY) == [] and KEY in kept(opened, "auth.json")
