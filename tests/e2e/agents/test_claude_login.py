# SPDX-License-Identifier: BSD-4-Clause
"""`llm.broker: false` with the shipped agent `claude`: the real client's login in a terminal, at a stand-in authority.

The test is the browser: the client prints a link, a person signs in there and pastes the code that the page shows.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.client import World
from support.product import Home, Session, SessionFactory, podman, sample_repo
from support.terminal import Pane, pane

pytestmark = [pytest.mark.podman, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]
CODE = secrets.token_hex(16)
CREDENTIALS = "/home/node/.claude/.credentials.json"


def direct() -> dict[str, Any]:
    """The shipped manifest with the changes that its first lines tell, and the test provider's addresses."""
    text = (ROOT / "agents" / "claude" / "runtime.yml").read_text().replace("    # - ", "    - ")
    manifest: dict[str, Any] = yaml.safe_load(text)
    manifest["llm"]["broker"] = False
    del manifest["secrets"]
    names = manifest["network"]["allow_domains"]
    manifest["network"]["allow_domains"] = [{"name": name, "private": ["198.51.100.0/24"]} for name in names]
    return manifest


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The granted repository."""
    return sample_repo(tmp_path_factory.mktemp("granted") / "project")


@pytest.fixture(scope="module")
def logged_in(module_home: Home, module_session: SessionFactory, world: World, repo: Path) -> Session:
    """A session in which a person logged in and had one answer, closed again."""
    module_home.agent("claude", direct())
    module_home.grant("claude", repo)
    session = module_session.adopt("claude")
    world.script({"text": "glad that you are here"})
    with pane([], {**module_home.env, "PS1": "host> "}) as user:
        user.type("asf-play open.yml " + " ".join(session.selector()) + "\n")
        user.expect("attached;", 240)
        user.expect(r"^node@[^\n]*\$$")
        user.type("claude\n")
        challenge = log_in(user)
        user.type("hello")
        user.expect("^❯.*hello$")
        user.keys("Enter")
        user.expect("glad that you are here", 90)
        session.document = {"challenge": challenge, "decisions": session.decisions()}
        user.type("/exit")
        user.expect("^❯.*/exit$")
        user.keys("Enter")
        user.expect(r"^node@[^\n]*\$$")
        user.type("exit\n")
        user.expect(r"head: [0-9a-f]+(?s:.*)host>$", 120)
    return session


def log_in(user: Pane) -> str:
    """All that a person sees on the first start (docs/login.md); returns the link's challenge (RFC 7636)."""
    steps = [("Choose the text style", 90), ("Select login method:(?s:.*)❯ 1. Claude account with subscription", 60)]
    for text, patience in steps:
        user.expect(text, patience)
        user.keys("Enter")
    link = user.expect(r"^https://claude\.ai/oauth/authorize\?[\w-]*([\w-]{43})$", 60)
    user.type(f"{CODE}#state")
    user.expect(r"│ ?\*{20,}")  # taken as a paste: an enter key that came with it would be part of it
    user.keys("Enter")
    user.expect("Logged in as person@example.com(?s:.*)Press Enter to continue", 60)
    user.keys("Enter")
    user.expect("Security notes(?s:.*)Press Enter to continue", 60)
    user.keys("Enter")
    user.expect("❯ No, exit", 60)
    time.sleep(3)  # the client draws this dialog twice, and what was pressed at the first one is lost
    user.keys("Down")
    user.expect("❯ Yes, I trust this folder")
    user.keys("Enter")
    user.expect("^❯", 60)
    return link.group(1)


def mentions(folder: Path, word: str) -> list[Path]:
    """Files below a folder that hold a word, names included."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if word.encode() in path.read_bytes() or word in str(path)]


def test_the_code_is_exchanged_and_the_account_answers(logged_in: Session, world: World) -> None:
    """Who holds the code alone gets no token: the client proves with it what its link announced."""
    seen = world.provider_requests(0)
    asked = [r["body"] for r in seen if r["path"] == "/v1/oauth/token"]
    assert [one["code"] for one in asked] == [CODE], asked
    digest = hashlib.sha256(asked[0]["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == logged_in.document["challenge"]
    turns = [r for r in seen if r["answer"] == "text"]
    assert turns and {r["key"] for r in turns} == {f"sk-ant-oat01-{CODE}"}


def test_the_manifest_names_what_is_needed(logged_in: Session, world: World) -> None:
    """Each declared host was used, no other one was asked for, let alone reached."""
    declared = {entry["name"] for entry in direct()["network"]["allow_domains"]}
    allowed = {d["host"] for d in logged_in.document["decisions"] if d["decision"] == "allow"}
    denied = {d["host"] for d in logged_in.document["decisions"] if d["decision"] == "deny"}
    assert allowed == declared == world.dns_names(), (allowed, denied)
    assert denied == {"asf-denied.invalid"}  # verify's own question
    assert {r["sni"] for r in world.provider_requests(0)} == declared


def test_the_login_is_in_the_state_volume_alone(logged_in: Session, repo: Path) -> None:
    """Not in the granted repository, the evidence, or any record of ASF's."""
    for folder in (repo, logged_in.home.state, logged_in.home.path):
        assert mentions(folder, CODE) == []
    assert mentions(logged_in.home.state, "platform.claude.com"), "the search finds nothing at all"
    [volume] = [name for name in podman("volume", "ls", "-q").split() if logged_in.name in name]
    path = podman("volume", "inspect", "--format", "{{.Mountpoint}}", volume)
    assert CODE in podman("unshare", "cat", f"{path}/.credentials.json")


@pytest.fixture(scope="module")
def again(logged_in: Session, module_session: SessionFactory) -> Session:
    """The next session over the same state volume."""
    return module_session.open("claude", name=logged_in.name)


def test_the_next_session_is_logged_in(again: Session, world: World) -> None:
    """Without a question, and no other user could read the login."""
    assert again.exec("stat", "-c", "%a", CREDENTIALS).out == "600\n"
    world.script({"text": "still here"})
    mark = world.mark()
    done = again.exec("claude", "-p", "again", timeout=180)
    assert (done.rc, done.out) == (0, "still here\n"), done
    seen = world.provider_requests(mark)
    assert {r["key"] for r in seen if r["answer"] == "text"} == {f"sk-ant-oat01-{CODE}"}
    assert "/v1/oauth/token" not in {r["path"] for r in seen}
    assert mentions(again.evidence, CODE) == []


@pytest.mark.parametrize("server", ["answers", "out of order"])
def test_settings_that_an_organization_never_gave(again: Session, world: World, server: str) -> None:
    """The client keeps its organization's settings in the state volume and takes them before the operator's.

    What an agent put there in their place does not count: they are asked for anew, or the client does not start
    (forceRemoteSettingsRefresh; without it the forged ones were in force whenever the server did not answer).
    """
    hook = {"SessionStart": [{"hooks": [{"type": "command", "command": "id > /tmp/hooked"}]}]}
    forged = {"uuid": secrets.token_hex(8), "checksum": "", "settings": {"hooks": hook}}
    for name, document in (("remote-settings.json", forged), ("settings.json", {"hooks": hook})):
        assert again.exec("tee", f"/home/node/.claude/{name}", stdin=json.dumps(document)).rc == 0
    mark = world.mark()
    if server == "out of order":
        world.provider_errors({"status": 503, "message": "out of order"})
    try:
        done = again.exec("claude", "-p", "again", timeout=180)
    finally:
        world.provider_errors()
    assert "/api/claude_code/settings" in {r["path"] for r in world.provider_requests(mark)}
    assert again.exec("cat", "/tmp/hooked").rc == 1
    if server == "answers":
        assert (done.rc, done.out) == (0, "still here\n"), done
    else:
        assert done.rc == 1 and "remote managed settings" in done.err, done
