# SPDX-License-Identifier: BSD-4-Clause
"""The everyday commands on real sessions: status, logs, events, cp, and what they say of sessions that are not as usual
(F1, F2, L2, S4). Every JSON document is validated against its published schema (support/product.py)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.product import Home, Session, SessionFactory, asf_play, podman, remove, run
from support.terminal import Terminal, terminal
from support.waiting import wait_for

pytestmark = [pytest.mark.podman, pytest.mark.slow]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
IDLE: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
#: Says something hostile on its terminal's behalf, then waits.
SAYS = r"printf 'hello\n\033]52;c;aGk=\007\342\200\256evil\n'; exec sleep 600"


@pytest.fixture(scope="module")
def live(module_home: Home, module_session: SessionFactory) -> Session:
    """One live session without broker that has asked for a declared and for an undeclared name."""
    module_home.agent(
        "cm-plain",
        {
            "adapter": "generic",
            "runtime": {"mode": "service", "command": ["sh", "-c", SAYS]},
            "network": {"allow_domains": [DOCS]},
            "limits": {"time": "2h"},
        },
    )
    found = module_session.open("cm-plain")
    found.exec("curl", "-sS", "-m", "10", "https://docs.example.com/")
    for _ in range(3):
        found.exec("curl", "-sS", "-m", "10", "https://nope.example.org/")
    return found


def command(live: Session, *words: str, **more: Any):
    """asf-play in the session's home."""
    return asf_play(*words, home=live.home, **more)


# --- status and the list ----------------------------------------------------------------------------------------------


def test_status_and_ls(live: Session):
    done = command(live, "status", live.id, "--json")
    status = done.json["status"]
    assert (done.rc, status["session"], status["state"], status["requests"]) == (
        0,
        live.id,
        "live",
        6,
    )  # with both controls: L1 and L1t
    assert status["denied"] == 3 and status["hosts"]["nope.example.org"] == {"allow": 0, "deny": 3}
    assert {one["role"]: one["alive"] for one in status["containers"]} == {"agent": True, "caddy": True}
    assert status["verified"]["ok"] and status["domains"] == ["docs.example.com"]
    assert 0 < status["time_left_s"] <= 7200 and status["restarts"] == {"caddy": 0}
    row = next(one for one in command(live, "ls", "--json").json if one["session"] == live.id)
    assert (row["state"], row["denied"]) == ("live", 3) and row["age_s"] >= 0
    shown = command(live, "status", live.id).out
    assert live.id in shown and "nope.example.org" in shown and "\x1b" not in shown


def test_wrong_names(live: Session):
    for words in (["status"], ["logs"], ["events"], ["exec"]):
        wrong = f"{live.agent}.{live.name}x"
        done = command(live, words[0], wrong, *(["--", "true"] if words == ["exec"] else []))
        assert done.rc == 64 and f"did you mean {live.id}?" in done.err, done
    done = command(live, "cp", f"{live.agent}x.{live.name}:a", "b")
    assert done.rc == 64 and "did you mean" in done.err, done
    done = asf_play("verify.yml", "-e", f"agent={live.agent}", "-e", f"session={live.name}x", "--json", home=live.home)
    assert done.rc == 64 and live.id in done.json["error"]["remedy"], done


@pytest.mark.parametrize(
    "name", ["A", "a.b.c", "-x", "x" * 64, "a b", "../x", "a\nb", "\x1b[2J", "é", "{{x}}", "a/b", ".a"]
)
def test_hostile_names(module_home: Home, name: str):
    for words in (
        ["status", name],
        ["logs", name],
        ["cp", f"{name}:x", "y"],
        ["close.yml", "-e", json.dumps({"agent": name})],
    ):
        done = asf_play(*words, home=module_home)
        assert done.rc in (64, 220) and "\x1b" not in done.err and done.out == "", (words, done)


# --- logs and events --------------------------------------------------------------------------------------------------


def test_logs_are_escaped_and_bounded(live: Session):
    done = command(live, "logs", live.id)
    assert done.out == "hello\n\\x1b]52;c;aGk=\\x07\\u202eevil\n" and done.rc == 0, done
    done = command(live, "logs", live.id, "-n", "1", "--json")
    assert done.json["left_out"] == 1 and done.json["lines"][0]["text"].endswith("evil")
    assert command(live, "logs", live.id, "--since", "0s").out == ""
    rows = command(live, "logs", live.id, "decisions", "--json").json["decisions"]
    assert [one["decision"] for one in rows if one["host"] == "nope.example.org"] == ["deny"] * 3
    shown = command(live, "logs", live.id, "decisions").out
    assert "deny  L1 CONNECT nope.example.org:443 denied-name network.allow_domains" in shown
    assert '"msg":"server running"' in command(live, "logs", live.id, "caddy").out
    done = command(live, "logs", live.id, "broker")
    assert done.rc == 64 and "no broker container" in done.err


def test_logs_hold_no_secret(home: Home, session: SessionFactory):
    """A workload prints its own token (S4)."""
    shell = 'for t in $(env | sed -n "s/^[A-Z_]*\\(KEY\\|TOKEN\\)=//p"); do echo "token $t"; done; exec sleep 600'
    home.agent(
        "cm-token",
        {
            "adapter": "generic",
            "runtime": {"mode": "service", "command": ["sh", "-c", shell]},
            "llm": {"protocol": "openai", "mock": "hello"},
        },
    )
    opened = session.open("cm-token")
    wait_for(lambda: "token" in asf_play("logs", opened.id, home=home).out, 60)
    done = asf_play("logs", opened.id, home=home)
    assert set(done.out.split()) == {"token", "[redacted]"}, done


class Background:
    """A command whose output is read as it comes."""

    def __init__(self, home: Home, *words: str) -> None:
        self.process = subprocess.Popen(
            ["asf-play", *words], env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def saw(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def end(self, seconds: float = 60) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code


@pytest.fixture
def follow(home: Home) -> Iterator[Any]:
    """Starts commands in the background; what still runs at the end is killed."""
    started: list[Background] = []

    def begin(*words: str) -> Background:
        started.append(Background(home, *words))
        return started[-1]

    yield begin
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_followers_end_with_the_session(home: Home, session: SessionFactory, follow: Any):
    """What is followed comes at once, with no CPU time in between, and ends by itself with code 0."""
    home.agent(
        "cm-follow",
        {
            "adapter": "generic",
            "runtime": {"mode": "service", "command": ["sh", "-c", "echo begun; exec sleep 600"]},
            "network": {"allow_domains": [DOCS]},
        },
    )
    opened = session.open("cm-follow")
    logs = follow("logs", "-f", opened.id)
    decided = follow("logs", "-f", "--json", opened.id, "decisions")
    events = follow("events", "-f", opened.id)
    wait_for(lambda: logs.saw("begun") and events.saw("started"), 60)
    opened.exec("curl", "-sS", "-m", "10", "https://later.example.org/")
    wait_for(lambda: decided.saw("later.example.org") and events.saw("later.example.org"), 60)
    wait_for(lambda: _asleep([one.process.pid for one in (logs, decided, events)]), 60, "followers that do not poll")
    assert opened.close().rc == 0
    assert [one.end() for one in (logs, decided, events)] == [0, 0, 0]
    assert events.saw("closed") and all(json.loads(line) for line in decided.lines)
    # of the closed session, out of the evidence
    told = asf_play("events", opened.id, "--json", home=home).json["events"]
    words = [one["event"] for one in told]
    assert words[0] == "opened" and words[-1] == "closed" and {"verified", "started", "refused"} <= set(words), words
    rows = asf_play("logs", opened.id, "decisions", "--json", home=home).json["decisions"]
    assert any(one["host"] == "later.example.org" for one in rows)
    done = asf_play("logs", opened.id, home=home)
    assert done.rc == 64 and "is closed" in done.err and "evidence" in done.err
    assert asf_play("status", opened.id, home=home).rc == 64


def _asleep(pids: list[int]) -> bool:
    """Whether no thread of these processes and their children ran for two seconds: who polls does not sleep so long."""
    before = _switches(pids)
    time.sleep(2)  # what must not happen cannot be waited for
    return _switches(pids) == before


def _switches(pids: list[int]) -> list[str]:
    """How often each thread gave the processor away so far."""
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    tasks += [
        task
        for above in tuple(tasks)
        for child in (above / "children").read_text().split()
        for task in Path(f"/proc/{child}/task").iterdir()
    ]
    return [line for task in tasks for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line]


# --- cp ---------------------------------------------------------------------------------------------------------------


def test_cp_both_ways(live: Session, tmp_path: Path):
    top = tmp_path / "top"
    (top / "sub dir").mkdir(parents=True)
    (top / "sub dir" / "-odd\nname").write_text("odd")
    (top / "tool").write_text("#!/bin/sh\n")
    (top / "tool").chmod(0o755)
    (top / "link").symlink_to("tool")
    (top / "big").write_bytes(os.urandom(3 << 20))
    done = command(live, "cp", str(top), f"{live.id}:/tmp/-in", "--json")
    assert done.rc == 0 and done.json["files"] == 3 and done.json["links"] == 1, done
    assert live.exec("stat", "-c", "%U %a", "/tmp/-in/tool").out == "node 755\n"
    done = command(live, "cp", f"{live.id}:/tmp/-in", f"{tmp_path}/-out", "--json")
    assert done.rc == 0 and done.json["bytes"] == (3 << 20) + 13, done
    out = tmp_path / "-out"
    assert (out / "big").read_bytes() == (top / "big").read_bytes() and os.access(out / "tool", os.X_OK)
    assert (out / "sub dir" / "-odd\nname").read_text() == "odd" and os.readlink(out / "link") == "tool"
    assert out.stat().st_uid == os.getuid()


def test_cp_replaces_nothing_without_force(live: Session, tmp_path: Path):
    (tmp_path / "f").write_text("one")
    assert command(live, "cp", str(tmp_path / "f"), f"{live.id}:/tmp/f1").rc == 0
    (tmp_path / "f").write_text("two")
    done = command(live, "cp", str(tmp_path / "f"), f"{live.id}:/tmp/f1")
    assert done.rc and "already" in done.err and live.exec("cat", "/tmp/f1").out == "one", done
    assert command(live, "cp", "--force", str(tmp_path / "f"), f"{live.id}:/tmp/f1").rc == 0
    assert live.exec("cat", "/tmp/f1").out == "two"
    live.exec("sh", "-c", "echo three > /tmp/f1")
    done = command(live, "cp", f"{live.id}:/tmp/f1", str(tmp_path / "f"))
    assert done.rc == 220 and (tmp_path / "f").read_text() == "two", done
    assert command(live, "cp", "--force", f"{live.id}:/tmp/f1", str(tmp_path / "f")).rc == 0
    assert (tmp_path / "f").read_text() == "three\n"


FORGED = """
import io, sys, tarfile
out = tarfile.open(fileobj=sys.stdout.buffer, mode="w|")
def add(name, kind=tarfile.REGTYPE, link="", data=b""):
    info = tarfile.TarInfo(name); info.type = kind; info.linkname = link; info.size = len(data)
    out.addfile(info, io.BytesIO(data))
add("./d", tarfile.DIRTYPE)
add("./d/good", data=b"good")
{evil}
out.close()
"""
EVIL = {
    "dots": 'add("./d/../../escaped", data=b"x")',
    "absolute": 'add("/tmp/asf-cp-escaped", data=b"x")',
    "through": 'add("./d/l", tarfile.SYMTYPE, "/tmp"); add("./d/l/asf-cp-escaped", data=b"x")',
    "hard": 'add("./d/h", tarfile.LNKTYPE, "/etc/passwd")',
    "endless": 'info = tarfile.TarInfo("./d/n"); info.size = 1 << 50; out.fileobj.write(info.tobuf())',
    "noise": 'out.fileobj.write(b"\\x1b]52;c;aGk=" * 1000)',
}


@pytest.mark.parametrize("kind", list(EVIL))
def test_cp_out_of_a_session_that_lies(live: Session, tmp_path: Path, kind: str):
    """The session answers with an archive of its own making instead of tar's: the same chain, another sender."""
    live.exec("sh", "-c", "cat > /tmp/forge.py", stdin=FORGED.format(evil=EVIL[kind]))
    inside = tmp_path / "in"
    inside.mkdir()
    lie = "from asf_cli import main, commands; cp = commands.module('cp'); cp._PACK = 'exec python3 /tmp/forge.py'"
    argv = [sys.executable, "-P", "-c", f"{lie}; import sys; sys.exit(main.main(sys.argv[1:]))"]
    for more in ([], ["--skip-unsafe"]):
        done = run([*argv, "cp", *more, f"{live.id}:/tmp/d", str(inside / "new")], env=live.home.env)
        assert done.rc == 220 and "\x1b" not in done.err and "defect" not in done.err, done
        assert list(inside.iterdir()) == [] and not Path("/tmp/asf-cp-escaped").exists()


def test_cp_of_links_and_special_files(live: Session, tmp_path: Path):
    live.exec("sh", "-c", "rm -rf /tmp/s; mkdir -p /tmp/s; cd /tmp/s; echo x > good; ln -s /etc/passwd l; mkfifo f")
    done = command(live, "cp", f"{live.id}:/tmp/s", str(tmp_path / "s"))
    assert done.rc == 220 and "--skip-unsafe" in done.err and not (tmp_path / "s").exists(), done
    done = command(live, "cp", "--skip-unsafe", "--json", f"{live.id}:/tmp/s", str(tmp_path / "s"))
    assert done.rc == 0 and done.json["left_out_count"] == 2, done
    assert [one.name for one in (tmp_path / "s").iterdir()] == ["good"]
    done = command(live, "cp", f"{live.id}:/tmp/s/l", str(tmp_path / "l"))
    assert done.rc == 220 and not os.path.lexists(tmp_path / "l"), done


def test_cp_with_bounds(live: Session, tmp_path: Path):
    live.exec("sh", "-c", "rm -rf /tmp/b; mkdir /tmp/b; head -c 20000 /dev/zero > /tmp/b/z; touch /tmp/b/1 /tmp/b/2")
    for options in (["--max-size", "10k"], ["--max-files", "2"]):
        done = command(live, "cp", *options, f"{live.id}:/tmp/b", str(tmp_path / "b"))
        assert done.rc == 220 and options[0] in done.err, done
    assert list(tmp_path.iterdir()) == []


def test_cp_never_where_an_agent_may_write(live: Session, tmp_path: Path):
    """A link in a granted tree, put there by the agent, leads neither into nor out of anything (F2, invariant 11)."""
    repo, secret = tmp_path / "repo", tmp_path / "secret"
    repo.mkdir()
    secret.mkdir()
    (secret / "key").write_text("secret")
    (repo / "docs").symlink_to(secret)
    assert asf_play("repo", "add", live.agent, str(repo), home=live.home).rc == 0
    try:
        live.exec("sh", "-c", "echo x > /tmp/x")
        for target in (repo / "x", repo / "docs" / "x", repo):
            done = command(live, "cp", f"{live.id}:/tmp/x", str(target))
            assert done.rc == 220 and live.agent in done.err, done
        done = command(live, "cp", str(repo / "docs" / "key"), f"{live.id}:/tmp/stolen")
        assert done.rc == 220 and live.exec("ls", "/tmp/stolen").rc, done
        assert sorted(one.name for one in secret.iterdir()) == ["key"]
    finally:
        asf_play("repo", "remove", live.agent, str(repo), home=live.home)


def test_cp_that_is_interrupted_leaves_nothing(live: Session, tmp_path: Path):
    live.exec("sh", "-c", "mkfifo /tmp/never; rm -rf /tmp/slow; mkdir /tmp/slow; truncate -s 900m /tmp/slow/z")
    process = subprocess.Popen(
        ["asf-play", "cp", f"{live.id}:/tmp/slow", str(tmp_path / "slow")],
        env=live.home.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: list(tmp_path.glob(".asf-cp-*/x/z")), 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert list(tmp_path.iterdir()) == []


def test_cp_errors(live: Session, tmp_path: Path):
    for words, said in (
        ([f"{live.id}:/nope", str(tmp_path / "x")], "No such file"),
        ([f"{live.id}:/etc/shadow", str(tmp_path / "x")], "Permission denied"),
        ([str(tmp_path / "nope"), f"{live.id}:/tmp/"], "No such file"),
        ([__file__, f"{live.id}:/nope/x"], "cannot be entered"),
        ([__file__, f"{live.id}:/usr/x"], "Read-only"),
        ([f"{live.id}:/tmp", "/nope/x"], "No such file"),
    ):
        done = command(live, "cp", *words)
        assert done.rc and said in done.err and "defect" not in done.err, done
    assert list(tmp_path.iterdir()) == []


# --- sessions that are not as usual -----------------------------------------------------------------------------------


def test_close_of_nothing(module_home: Home):
    name = SessionFactory.new_name()
    done = asf_play("close.yml", "-e", "agent=cm-plain", "-e", f"session={name}", "--json", home=module_home)
    assert done.rc == 0 and done.json["changed"] is False, done
    assert done.json["cleanup"]["actions"] == [f"session cm-plain.{name} owns nothing"]


def test_two_closes_at_once(home: Home, session: SessionFactory):
    home.agent("cm-twice", IDLE)
    opened = session.open("cm-twice")
    argv = ["asf-play", "close.yml", *opened.selector(), "--json"]
    both = [subprocess.Popen(argv, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    documents = [json.loads(one.communicate(timeout=120)[0]) for one in both]
    assert [one.returncode for one in both] == [0, 0], documents
    assert sorted(one["changed"] for one in documents) == [False, True] and not opened.owns()


def test_a_session_that_is_opening(home: Home, session: SessionFactory):
    """While another process opens it: status tells, nothing else touches it."""
    home.agent("cm-opening", IDLE)
    found = session.adopt("cm-opening")
    argv = ["asf-play", "open.yml", *found.selector(), "--detach"]
    process = subprocess.Popen(argv, env=home.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    record = home.state / "asf" / "live" / f"{found.id}.json"
    try:
        wait_for(record.exists, 60)
        process.send_signal(signal.SIGSTOP)
        for child in _descendants(process.pid):
            os.kill(child, signal.SIGSTOP)
        state = json.loads(record.read_text())["state"]
        if state != "opening":
            pytest.skip("this machine opened the session before it could be stopped")
        assert asf_play("status", found.id, "--json", home=home).json["status"]["state"] == "opening"
        for words in (["exec", found.id, "--", "true"], ["cp", f"{found.id}:/x", "y"]):
            done = asf_play(*words, home=home)
            assert done.rc == 222 and "is not live" in done.err and "opening" in done.err, done
    finally:
        for child in [*_descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGCONT)
        process.wait(120)
    assert process.returncode == 0


def _descendants(pid: int) -> list[int]:
    try:
        below = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return [*below, *(one for child in below for one in _descendants(child))]


def test_a_session_whose_workload_is_dead(home: Home, session: SessionFactory):
    home.agent("cm-dead", IDLE)
    opened = session.open("cm-dead")
    podman("kill", opened.container("agent"))
    wait_for(lambda: asf_play("status", opened.id, "--json", home=home).json["status"]["state"] != "live", 60)
    for words in (["exec", opened.id, "--", "true"], ["cp", f"{opened.id}:/x", "y"]):
        done = asf_play(*words, home=home)
        assert done.rc == 222 and "ended" in done.err, done
    assert asf_play("logs", opened.id, home=home).rc == 0
    assert opened.close().rc == 0


def test_a_session_of_somebody_else(module_home: Home, live: Session):
    """A container that carries ASF's labels and another owner is neither listed, nor entered, nor removed."""
    name = SessionFactory.new_name()
    foreign, owner = f"cm-foreign.{name}", str(os.getuid() + 1)
    image = live.inspect("agent")["ImageName"]
    labels = [f"--label=asf.session={foreign}", f"--label=asf.owner={owner}", "--label=asf.role=agent"]
    container = f"foreign-{name}"
    podman("create", "--name", container, "--network=none", *labels, image, "true")
    try:
        assert foreign not in {row["session"] for row in asf_play("ls", "--json", home=module_home).json}
        assert asf_play("status", foreign, home=module_home).rc == 64
        done = asf_play("exec", foreign, "--", "true", home=module_home)
        assert done.rc == 64 and "there is no session" in done.err, done
        done = asf_play("close.yml", "-e", "agent=cm-foreign", "-e", f"session={name}", "--json", home=module_home)
        assert done.rc == 0 and not done.json["changed"], done
        assert podman("container", "exists", container) == ""
    finally:
        remove(container)


# --- terminals --------------------------------------------------------------------------------------------------------


def test_narrow_terminals_and_colour(live: Session):
    """40 columns; colour on a terminal, none in a pipe and none with NO_COLOR."""
    for extra, colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        env = {**live.home.env, "TERM": "xterm", **extra}
        for words in (["ls"], ["status", live.id], ["events", live.id], ["logs", live.id, "decisions"]):
            with terminal(["asf-play", *words], env=env, rows=24, columns=40) as shown:
                assert shown.wait() == 0
                _narrow(shown, words)
                assert (b"\x1b[" in shown.raw) is colour, shown.raw
    assert "\x1b" not in command(live, "ls", env={"TERM": "xterm"}).out


def _narrow(shown: Terminal, words: list[str]) -> None:
    lines = [line for line in shown.text.splitlines() if not line.startswith("warning:")]
    assert lines and max(map(len, lines)) <= 40, (words, lines)
