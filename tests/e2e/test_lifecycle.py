# SPDX-License-Identifier: BSD-4-Clause
"""Sessions from open to close by command line, with kills and lost folders on the way (B8, F8, L1, L2, L5, S5)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.client import World
from support.product import Completed, Home, Session, SessionFactory, asf_play, podman, remove, sample_repo
from support.waiting import wait_for

from asf_lib.core.evidence import FILES
from asf_lib.engine import procs
from asf_lib.engine.evidencefs import Evidence

pytestmark = [pytest.mark.podman, pytest.mark.slow]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
BROKERED = {**PLAIN, "llm": {"protocol": "openai", "mock": "hello"}}


@pytest.fixture
def plain(home: Home) -> str:
    """An agent without broker."""
    home.agent("lc-plain", PLAIN)
    return "lc-plain"


@pytest.fixture
def brokered(home: Home) -> str:
    """An agent with front, broker and the embedded model."""
    home.agent("lc-brokered", BROKERED)
    return "lc-brokered"


# --- what there is ----------------------------------------------------------------------------------------------------


def rows(home: Home) -> dict[str, dict[str, Any]]:
    """`asf-play ls --json`, by session."""
    done = asf_play("ls", "--json", home=home)
    assert done.rc == 0 and isinstance(done.json, list), done
    return {row["session"]: row for row in done.json}


def ids(session: str) -> dict[str, str]:
    """Container ids by name, as Podman has them."""
    form = "{{.Names}} {{.ID}}"
    listed = podman("ps", "-a", "--no-trunc", "--filter", f"label=asf.session={session}", "--format", form)
    return dict(line.split() for line in listed.splitlines())


def secrets_of(session: Session) -> list[str]:
    """Names of the session's secrets."""
    names = podman("secret", "ls", "--format", "{{.Name}}").split()
    return [name for name in names if name.startswith(f"asf-{session.id}-")]


def run_folder(session: Session) -> Path:
    return Path(os.environ["XDG_RUNTIME_DIR"]) / "asf" / session.id


def record(session: Session) -> dict[str, Any]:
    """The session's record; empty when there is none."""
    try:
        found: dict[str, Any] = json.loads((session.home.state / "asf" / "live" / f"{session.id}.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def evidence(session: Session) -> Evidence:
    """The newest run of the session."""
    return Evidence(max((session.home.state / "asf" / "evidence" / session.id).iterdir()))


def assert_gone(session: Session) -> None:
    """Nothing of it is left, whoever is asked."""
    assert ids(session.id) == {} and secrets_of(session) == []
    assert not run_folder(session).exists() and not record(session)
    assert session.id not in rows(session.home)


# --- a command line that is stopped or killed -------------------------------------------------------------------------


class Controller:
    """`asf-play PLAYBOOK` in the background, and everything that drives it."""

    def __init__(self, session: Session, playbook: str, *more: str) -> None:
        self.session = session
        argv = ["asf-play", playbook, *session.selector(), "--json", *more]
        self.process = subprocess.Popen(
            argv,
            env=session.home.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def until(self, timeout: float = 120, **fields: str) -> dict[str, Any]:
        """Wait until the session's record says so."""

        def there() -> dict[str, Any]:
            found = record(self.session)
            return found if all(found.get(key) == value for key, value in fields.items()) else {}

        return wait_for(lambda: there() or self._ended(fields), timeout, f"record with {fields}", 0.002)

    def _ended(self, fields: dict[str, str]) -> dict[str, Any]:
        if self.process.poll() is not None:
            raise AssertionError(f"asf-play ended before {fields}: {self.wait()}")
        return {}

    def pids(self) -> list[int]:
        """asf-play and ansible-playbook, as the record names them."""
        return [one["pid"] for one in record(self.session).get("controllers", []) if procs.start_time(one["pid"])]

    def signal(self, number: int) -> list[int]:
        """Send a signal to all of them, ansible-playbook's group included; returns whom."""
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number) if os.getpgid(pid) == pid else os.kill(pid, number)
        return pids

    def kill(self) -> None:
        """SIGKILL, all at once: nothing can be cleaned up by those who ran."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # Not communicate(): a child that lives on (an attached Podman) holds the pipes open.
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.process.wait()

    def wait(self, timeout: float = 120) -> Completed:
        """Its end."""
        out, err = self.process.communicate(timeout=timeout)
        text = out.decode(errors="replace")
        with contextlib.suppress(ValueError):
            return Completed(self.process.returncode, text, err.decode(errors="replace"), json.loads(text))
        return Completed(self.process.returncode, text, err.decode(errors="replace"))


@pytest.fixture
def later(session: SessionFactory) -> Iterator[Any]:
    """Makes a session that is opened or closed in the background; it is closed after the test."""
    running: list[Controller] = []

    def start(target: Session, playbook: str, *more: str) -> Controller:
        running.append(Controller(target, playbook, *more))
        return running[-1]

    yield start
    for one in running:
        if one.process.poll() is None:
            one.signal(signal.SIGCONT)
            one.kill()


def planned(session: SessionFactory, agent: str) -> Session:
    """A session that does not exist yet, closed at the end all the same."""
    found = Session(session.home, agent, session.new_name(), {})
    session._tried.append(found)
    return found


# --- close ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(session: SessionFactory) -> Iterator[dict[str, str]]:
    """Things of somebody else that look almost like the next session's."""
    name = f"{session.new_name()}-foreign"
    yield {"container": name, "secret": name, "volume": name}
    remove(name)
    podman("secret", "rm", name, check=False)
    podman("volume", "rm", "-f", name, check=False)


def test_close_takes_the_session_and_nothing_else_keeps_evidence_and_may_be_repeated(
    session: SessionFactory, brokered: str, foreign: dict[str, str], tmp_path: Path
) -> None:
    repo = sample_repo(tmp_path / "repo")
    session.home.grant(brokered, repo)
    owners = {path: path.stat().st_uid for path in repo.rglob("*")}
    opened = session.open(brokered)
    image = opened.inspect("agent")["ImageName"]
    # The label of this very session, but another owner's: not ours to remove.
    mark = [f"--label=asf.session={opened.id}", "--label=asf.owner=4294967294"]
    podman("create", f"--name={foreign['container']}", "--network=none", *mark, image, "true")
    podman("volume", "create", *mark, foreign["volume"])
    podman("secret", "create", foreign["secret"], "-", stdin="not-of-a-session")
    assert len(secrets_of(opened)) == 2 and rows(session.home)[opened.id]["state"] == "live"

    assert opened.exec("python3", "-c", _ASK).out == "200\n"
    denied = opened.probe("connect", proxy=["198.18.0.1", 3128], target="undeclared.example.com:443")
    assert denied["status"] == 403, denied

    first = opened.close()
    assert first.rc == 0 and first.json["ok"] and first.json["changed"], first
    assert first.json["cleanup"]["left"] == [] and first.json["session"] == opened.id
    assert list(ids(opened.id)) == [foreign["container"]] and secrets_of(opened) == []
    assert podman("volume", "ls", "-q", "--filter", f"name={foreign['volume']}") == foreign["volume"]
    assert foreign["secret"] in podman("secret", "ls", "--format", "{{.Name}}").split()
    assert {path: path.stat().st_uid for path in repo.rglob("*")} == owners, "F8: owners on the host are as before"

    _complete(opened, first)
    again = opened.close()
    assert again.rc == 0 and not again.json["changed"], again
    assert evidence(opened).head() == first.json["head"], "a repeated close adds nothing"


def _complete(opened: Session, closed: Completed) -> None:
    """The evidence of a brokered session with one answer of the model and one refusal."""
    found = evidence(opened)
    assert str(found.folder) == closed.json["evidence"] == opened.document["evidence"]
    assert {path.name for path in found.folder.iterdir()} == {*FILES, "chain.json"} - {
        "routed.json",
        "revisions.jsonl",
        "rotations.jsonl",
    }
    assert found.check() == [] and found.head() == closed.json["head"]
    assert found.folder.stat().st_mode & 0o777 == 0o700
    index = (opened.home.state / "asf" / "index.jsonl").read_text().splitlines()
    assert json.loads(index[-1])["head"] == found.head()
    denied = [one.get("host") for one in found.read_lines("decisions.jsonl") if one["reason"] == "denied-name"]
    assert "undeclared.example.com" in denied
    assert found.read("verification.json")["ok"] is True
    assert {one["event"] for one in found.read_lines("supervisor.jsonl")} == {"start", "stop", "exit"}
    assert found.read("usage.json")["total"]["requests"] == 1, found.read("usage.json")


# --- open again -------------------------------------------------------------------------------------------------------


def test_S5_open_again_changes_nothing_and_an_edited_manifest_is_refused(session: SessionFactory, plain: str) -> None:
    opened = session.open(plain)
    before, pids = ids(opened.id), {role: opened.pid(role) for role in ("agent", "caddy")}
    again, _ = session.attempt(plain, name=opened.name)
    assert again.rc == 0 and again.json["ok"] and again.json["changed"] is False, again
    assert again.json["evidence"] == opened.document["evidence"]
    for playbook, more in (("status.yml", []), ("verify.yml", []), ("open.yml", ["--check", "--detach"])):
        done = opened.play(playbook, *more)
        assert done.rc == 0 and done.json["changed"] is False, (playbook, done)
    session.home.agent(plain, {**PLAIN, "env": {"MORE": "x"}})
    refused, _ = session.attempt(plain, name=opened.name)
    error = refused.json["error"]
    assert refused.rc != 0 and "env.MORE" in error["message"], refused
    assert "close it and open it again" in error["remedy"]
    assert ids(opened.id) == before and {role: opened.pid(role) for role in pids} == pids
    assert rows(session.home)[opened.id]["state"] == "live"


def test_a_second_open_meanwhile_is_refused_and_told_by_whom(session: SessionFactory, plain: str, later: Any) -> None:
    target = planned(session, plain)
    first = later(target, "open.yml", "--detach")
    first.until(state="opening", step="created")
    stopped = first.signal(signal.SIGSTOP)
    refused, _ = session.attempt(plain, name=target.name)
    error = refused.json["error"]
    assert refused.rc != 0 and error["code"] == "busy", refused
    assert any(str(pid) in f"{error['message']} {error['found']}" for pid in stopped), error
    closing = target.close()
    assert closing.rc != 0 and closing.json["error"]["code"] == "busy", closing
    first.signal(signal.SIGCONT)
    done = first.wait()
    assert done.rc == 0 and rows(session.home)[target.id]["state"] == "live", done


def test_check_on_a_clean_host_creates_nothing(session: SessionFactory, brokered: str) -> None:
    done, target = session.attempt(brokered, "--check")
    assert done.rc == 0 and done.json["ok"], done
    assert_gone(target)
    assert target.name not in podman("volume", "ls", "-q") + podman("ps", "-a", "--format", "{{.Names}}")
    assert not (session.home.state / "asf" / "evidence" / target.id).exists()


# --- what fails on its way --------------------------------------------------------------------------------------------


def test_a_failed_verification_leaves_its_evidence_and_nothing_else(session: SessionFactory, home: Home) -> None:
    # The test world's names have documentation addresses; without `private` Caddy refuses even the control.
    home.agent("lc-fails", {**PLAIN, "network": {"allow_domains": ["docs.example.com"]}})
    done, target = session.attempt("lc-fails")
    assert done.rc != 0 and done.json["ok"] is False, done
    assert any(probe["verdict"] == "fail" for probe in done.json["probes"]), done
    assert_gone(target)
    found = evidence(target)
    assert str(found.folder) == done.json["evidence"] and found.check() == []
    verification = found.read("verification.json")
    assert verification["ok"] is False and [p for p in verification["probes"] if p["verdict"] == "fail"]
    words = found.read("cleanup.json")["containers"][target.container("caddy")]["last_words"]
    assert any("denied-address" in line for line in words), words


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "agent", "then"),
    [("created", "brokered", "open"), ("gate", "plain", "close"), ("create", "brokered", "close")],
)
def test_L1_open_is_killed(
    step: str, agent: str, then: str, session: SessionFactory, later: Any, request: pytest.FixtureRequest
) -> None:
    name = request.getfixturevalue(agent)
    target = planned(session, name)
    opening = later(target, "open.yml", "--detach")
    opening.until(state="opening", step=step)
    opening.kill()
    wait_for(lambda: rows(session.home)[target.id]["state"] == "broken", 60, "ls to say broken", 0.5)
    row = rows(session.home)[target.id]
    assert row["reasons"] and row["agent"] == name and row["mode"] == "proxy", row
    before = ids(target.id)
    if then == "open":
        again, _ = session.attempt(name, name=target.name)
        assert again.rc == 0 and rows(session.home)[target.id]["state"] == "live", again
        assert not set(before.values()) & set(ids(target.id).values()), "nothing of the killed open is used again"
    closed = target.close()
    assert closed.rc == 0 and closed.json["cleanup"]["left"] == [], closed
    assert_gone(target)


def test_L1_close_is_killed(session: SessionFactory, plain: str, later: Any) -> None:
    opened = session.open(plain)
    closing = later(opened, "close.yml")
    closing.until(state="closing")
    closing.kill()
    # What was killed may have come to its end all the same; else it is seen, and the next close goes on.
    state = wait_for(lambda: rows(session.home).get(opened.id, {"state": "gone"})["state"], 60)
    assert state in ("broken", "closing", "gone")
    again = opened.close()
    assert again.rc == 0, again
    assert_gone(opened)
    assert evidence(opened).read_lines("decisions.jsonl") and evidence(opened).check() == []


def test_L1_a_record_whose_controller_is_somebody_else_by_now(session: SessionFactory, plain: str) -> None:
    """A stale record names a live pid, of another process than the one that opened."""
    target = planned(session, plain)
    folder = session.home.state / "asf" / "live"
    folder.mkdir(mode=0o700, parents=True)
    stale = {"pid": os.getpid(), "start": (procs.start_time(os.getpid()) or 0) - 1, "boot": procs.boot_id()}
    content = {"version": 1, "session": target.id, "state": "opening", "step": "create", "controllers": [stale]}
    (folder / f"{target.id}.json").write_text(json.dumps({**content, "containers": {}}))
    assert rows(session.home)[target.id]["state"] == "broken"
    done, _ = session.attempt(plain, name=target.name)
    assert done.rc == 0 and rows(session.home)[target.id]["state"] == "live", done


def test_L2_state_and_run_folder_are_deleted_meanwhile(session: SessionFactory, brokered: str) -> None:
    opened = session.open(brokered)
    shutil.rmtree(session.home.state)
    shutil.rmtree(run_folder(opened))
    row = rows(session.home)[opened.id]
    assert row["state"] == "broken" and row["mode"] == "proxy" and row["isolation"] == "container", row
    closed = opened.close()
    assert closed.rc == 0 and closed.json["cleanup"]["left"] == [], closed
    assert_gone(opened)


def test_L5_the_tool_is_killed_and_the_workload_goes_on_confined(
    session: SessionFactory, plain: str, later: Any, world: World
) -> None:
    target = planned(session, plain)
    attached = later(target, "open.yml")  # stays until the workload ends
    attached.until(state="live")
    wait_for(target.clients, 60, "somebody to be attached")
    attached.kill()
    wait_for(lambda: not target.clients(), 60, "Podman, which was attached, to end")
    assert rows(session.home)[target.id]["state"] == "live"
    mark = world.mark()
    answer = target.probe("connect", proxy=["198.18.0.1", 3128], target="undeclared.example.com:443")
    assert answer["status"] == 403, answer
    assert target.play("verify.yml").rc == 0
    assert "undeclared.example.com" not in world.dns_names(mark)
    assert target.close().rc == 0
    assert_gone(target)


# --- the broker dies --------------------------------------------------------------------------------------------------

#: Runs in the agent: one question to the front, the answer's status on stdout.
_ASK = """
import json, os, sys, urllib.error, urllib.request
url = os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions"
body = {"model": "any", "messages": [{"role": "user", "content": "hi"}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
request = urllib.request.Request(url, json.dumps(body).encode(), headers)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    print(opener.open(request, timeout=60).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""

#: Runs in the broker: the server, which is not PID 1, is killed.
_KILL = """
import os, signal
for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
    if pid not in (1, os.getpid()) and b"launch.py" in open(f"/proc/{pid}/cmdline", "rb").read():
        os.kill(pid, signal.SIGKILL)
        print(pid)
"""


def test_B8_the_brokers_server_is_killed_and_comes_back(session: SessionFactory, brokered: str) -> None:
    opened = session.open(brokered)
    token = "import hashlib, os; print(hashlib.sha256(os.environ['OPENAI_API_KEY'].encode()).hexdigest())"
    before = opened.exec("python3", "-c", token).out, ids(opened.id), opened.pid("broker")
    assert opened.exec("python3", "-c", _ASK).out == "200\n"
    assert podman("exec", opened.container("broker"), "python3", "-c", _KILL)
    meanwhile = opened.exec("python3", "-c", _ASK).out
    assert meanwhile in ("503\n", "200\n"), meanwhile
    wait_for(lambda: opened.exec("python3", "-c", _ASK).out == "200\n", 200, "the front to answer again", 0.5)
    assert (opened.exec("python3", "-c", token).out, ids(opened.id), opened.pid("broker")) == before
    assert opened.play("verify.yml").rc == 0
    status = opened.play("status.yml").json["status"]
    assert status["state"] == "live" and status["restarts"] == {"broker": 1, "caddy": 0}, status
    closed = opened.close()
    assert closed.json["restarts"] == {"broker": 1, "caddy": 0}
    events = [one for one in evidence(opened).read_lines("supervisor.jsonl") if one["role"] == "broker"]
    assert [one["event"] for one in events] == ["start", "exit", "start", "stop", "exit"], events
