# SPDX-License-Identifier: BSD-4-Clause
"""Supervision without a daemon: what ends with what, what is told of it, and who sweeps (B8, L5, P15)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from support.netns import in_userns_root
from support.product import Completed, Home, Session, SessionFactory, asf_play, podman
from support.schemas import evidence_problems
from support.waiting import wait_for

from asf_lib.engine import procs
from asf_lib.engine.evidencefs import Evidence

pytestmark = [pytest.mark.podman, pytest.mark.slow]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "watch.json").read_text())
#: Ends with code 3 as soon as somebody asks it to, in a session of which nobody holds the streams.
OBEDIENT = "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 3"
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sh", "-c", OBEDIENT]},
    "network": {"allow_domains": [DOCS]},
}
BROKERED = {**PLAIN, "llm": {"protocol": "openai", "mock": "hello"}}


@pytest.fixture
def plain(home: Home) -> str:
    """An agent without broker."""
    home.agent("sv-plain", PLAIN)
    return "sv-plain"


@pytest.fixture
def brokered(home: Home) -> str:
    """An agent with front, broker and the embedded model."""
    home.agent("sv-brokered", BROKERED)
    return "sv-brokered"


def row(opened: Session) -> dict[str, Any]:
    """The session's row of `asf-play ls --json`; empty when it is not listed."""
    done = asf_play("ls", "--json", home=opened.home)
    assert done.rc == 0, done
    return next((one for one in done.json if one["session"] == opened.id), {})


def state_of(opened: Session) -> str:
    return str(row(opened).get("state", "gone"))


def pids(opened: Session) -> dict[str, int]:
    """First processes by role, as recorded when they were chosen."""
    record = json.loads((opened.home.state / "asf" / "live" / f"{opened.id}.json").read_bytes())
    return {role: one["pid"] for role, one in record["containers"].items()}


def over(numbers: dict[str, int]) -> bool:
    return all(procs.start_time(pid) is None for pid in numbers.values())


def ids(opened: Session) -> set[str]:
    return set(podman("ps", "-aq", "--filter", f"label=asf.session={opened.id}").split())


def kill(*numbers: int) -> None:
    """SIGKILL to processes of the operator's containers, which may belong to other uids."""
    in_userns_root("kill -9 " + " ".join(map(str, numbers)))


def evidence(opened: Session) -> Evidence:
    return Evidence(max((opened.home.state / "asf" / "evidence" / opened.id).iterdir()))


def snapshot(opened: Session) -> dict[str, bytes]:
    """Every file of the session's record and evidence."""
    places = [opened.home.state / "asf" / "live" / f"{opened.id}.json", *Path(opened.document["evidence"]).iterdir()]
    return {str(path): path.read_bytes() for path in places}


# --- the workload ends, and nobody is there ---------------------------------------------------------------------------


def test_P15_a_detached_session_ends_by_itself_keeps_its_evidence_and_is_swept(
    session: SessionFactory, brokered: str, plain: str
) -> None:
    opened = session.open(brokered)
    running = pids(opened)
    assert set(running) == {"agent", "caddy", "broker"}
    denied = opened.probe("connect", proxy=["198.18.0.1", 3128], target="undeclared.example.com:443")
    assert denied["status"] == 403, denied
    opened.exec("touch", "/tmp/end")
    wait_for(lambda: over(running), 60, "agent, Caddy and broker to end by themselves", 0.1)

    before, there = snapshot(opened), ids(opened)
    found = row(opened)
    assert (found["state"], found["exit_code"], found["reasons"]) == ("ended", 3, []), found
    status = opened.play("status.yml").json["status"]
    assert (status["state"], status["exit_code"]) == ("ended", 3), status
    verified = opened.play("verify.yml")
    assert verified.rc == 222 and "has ended with code 3" in verified.json["error"]["message"], verified
    shown = asf_play("ls", home=opened.home).out
    assert "ended (3)" in next(line for line in shown.splitlines() if opened.id in line), shown
    assert snapshot(opened) == before and ids(opened) == there, "who only looks changes nothing"

    other, second = session.attempt(plain)
    assert other.rc == 0, other
    (swept,) = other.json["swept"]
    assert (swept["session"], swept["exit_code"], swept["problem"]) == (opened.id, 3, None), swept
    assert any(f"closed session {opened.id}, whose workload ended with code 3" in one for one in other.json["notes"])
    assert ids(opened) == set() and state_of(opened) == "gone"
    assert state_of(second) == "live"
    _swept_evidence(opened, swept)


def _swept_evidence(opened: Session, swept: dict[str, Any]) -> None:
    """Nothing is lost because nobody was there: exit code, decisions, supervision, a sealed chain."""
    found = evidence(opened)
    assert str(found.folder) == swept["evidence"] and found.head() == swept["head"] and found.check() == []
    agent = found.read("cleanup.json")["containers"][opened.container("agent")]
    assert agent["exit_code"] == 3, agent
    assert [one["host"] for one in found.read_lines("decisions.jsonl") if one["reason"] == "denied-name"]
    stops = {one["role"]: one["status"] for one in found.read_lines("supervisor.jsonl") if one["event"] == "stop"}
    assert evidence_problems(found.folder) == []
    assert stops == {"caddy": "cable agent0 is gone", "broker": "cable eth0 is gone"}, stops


#: Runs in the agent: the workload is told to end while a stream flows through Caddy.
_STREAM = """
import http.client, ssl, time
line = http.client.HTTPSConnection("198.18.0.1", 3128, timeout=20, context=ssl._create_unverified_context())
line.set_tunnel("docs.example.com", 443)
line.request("GET", "/stream?interval=0.05")
line.getresponse().read1(64)
open("/tmp/end", "w").close()
time.sleep(600)
"""


def test_P15_an_open_tunnel_is_cut_and_logged_when_the_workload_ends(session: SessionFactory, plain: str) -> None:
    """Caddy writes the decision of a tunnel that was cut, though nobody asked it to close."""
    opened = session.open(plain)
    running = pids(opened)
    opened.exec("python3", "-c", _STREAM)
    wait_for(lambda: over(running), 60, "everything to end", 0.1)
    closed = opened.close()
    assert closed.rc == 0, closed
    found = [one for one in evidence(opened).read_lines("decisions.jsonl") if one.get("host") == "docs.example.com"]
    # Whichever comes first: the end of the client's connection, or Caddy's own stop.
    assert found[-1]["decision"] == "allow" and found[-1]["reason"] in ("ok", "closed") and found[-1]["down"] > 64, (
        found[-1]
    )


def test_close_tells_the_exit_code_and_sweeps_others(session: SessionFactory, plain: str) -> None:
    ended, closed = session.open(plain), session.open(plain)
    running = pids(ended)
    ended.exec("touch", "/tmp/end")
    wait_for(lambda: over(running), 60, "everything to end", 0.1)
    done = closed.close()
    assert done.rc == 0 and [one["session"] for one in done.json["swept"]] == [ended.id], done
    assert ids(ended) == ids(closed) == set()


def test_open_again_after_the_end_says_how_it_ended(session: SessionFactory, plain: str) -> None:
    opened = session.open(plain)
    running = pids(opened)
    opened.exec("touch", "/tmp/end")
    wait_for(lambda: over(running), 60, "everything to end", 0.1)
    again, _ = session.attempt(plain, name=opened.name)
    assert again.rc == 0 and any("its workload had ended with code 3" in one for one in again.json["notes"]), again
    assert state_of(opened) == "live" and pids(opened) != running


# --- a container goes -------------------------------------------------------------------------------------------------


def _is_broken(opened: Session, said: str) -> None:
    """ls, status and verify agree, and open mends it only by closing and opening anew."""
    found = wait_for(lambda: (one := row(opened))["state"] == "broken" and one, 60, "ls to say broken", 0.2)
    assert any(said in reason for reason in found["reasons"]), found
    assert opened.play("status.yml").json["status"]["state"] == "broken"
    verified = opened.play("verify.yml")
    assert verified.rc != 0 and not verified.json["ok"], verified
    before = ids(opened)
    again = asf_play("open.yml", *opened.selector(), "--json", "--detach", home=opened.home)
    assert again.rc == 0 and again.json["changed"], again
    note = next(one for one in again.json["notes"] if f"closed what was left of {opened.id}" in one)
    assert "broken" in note and said in note, note
    assert not before & ids(opened) and state_of(opened) == "live"


def test_without_caddys_container_the_session_is_dead_for_the_network_and_says_so(
    session: SessionFactory, brokered: str
) -> None:
    opened = session.open(brokered)
    podman("kill", opened.container("caddy"))
    answer = opened.exec("python3", "-c", "import socket; socket.create_connection(('198.18.0.1', 3128), 5)")
    assert answer.rc != 0 and "unreachable" in answer.err, answer
    assert opened.exec("cat", "/sys/class/net/lo/operstate").rc == 0, "the workload itself goes on"
    wait_for(lambda: procs.start_time(pids(opened)["broker"]) is None, 60, "the broker to end with its cable", 0.1)
    _is_broken(opened, "the caddy container is dead")


def test_without_the_brokers_container_the_session_is_broken(session: SessionFactory, brokered: str) -> None:
    opened = session.open(brokered)
    podman("kill", opened.container("broker"))
    _is_broken(opened, "the broker container is dead")


def test_a_restarted_caddy_has_no_cables_and_ends_at_once(session: SessionFactory, plain: str) -> None:
    opened = session.open(plain)
    podman("restart", "-t", "1", opened.container("caddy"))
    wait_for(lambda: not opened.inspect("caddy")["State"]["Running"], 60, "Caddy to end", 0.1)
    wait_for(lambda: "there is no network interface agent0" in opened.logs("caddy"), 60, "its last words")
    _is_broken(opened, "the caddy container")


# --- what Podman says is not believed ---------------------------------------------------------------------------------


def _conmons(opened: Session) -> list[int]:
    found = [procs.parent(pid) for pid in pids(opened).values()]
    assert all(found), found
    return [pid for pid in found if pid]


def test_F_without_their_conmons_nothing_is_logged_so_nothing_is_decided(session: SessionFactory, plain: str) -> None:
    """Podman says "Up"; Caddy ends rather than decide what nobody can read later, and the session says so."""
    opened = session.open(plain)
    kill(*_conmons(opened))
    assert podman("ps", "--format", "{{.Names}}", "--filter", f"label=asf.session={opened.id}").count("asf-") == 2
    answer = opened.probe("connect", proxy=["198.18.0.1", 3128], target="undeclared.example.com:443")
    assert answer["status"] in (0, 403), answer
    _is_broken(opened, "the caddy container's monitor (conmon) is dead")


@pytest.mark.parametrize("role", ["agent", "caddy"])
def test_F_conmons_and_a_container_are_killed(role: str, session: SessionFactory, plain: str) -> None:
    opened = session.open(plain)
    kill(*_conmons(opened))
    kill(pids(opened)[role])
    wait_for(lambda: procs.start_time(pids(opened)[role]) is None, 60)
    _is_broken(opened, f"the {role} container is dead")
    assert opened.close().json["cleanup"]["left"] == []


def test_the_workload_is_killed_from_outside(session: SessionFactory, plain: str) -> None:
    opened = session.open(plain)
    running = pids(opened)
    kill(running["agent"])
    wait_for(lambda: over(running), 60, "everything to end", 0.1)
    found = wait_for(lambda: (one := row(opened))["state"] == "ended" and one, 60, "ls to say ended", 0.2)
    assert found["exit_code"] == 137, found


def test_without_its_uplink_caddy_says_that_upstream_is_down(session: SessionFactory, plain: str) -> None:
    """slirp4netns or pasta is killed: trouble of the infrastructure, told as such and not as policy."""
    opened = session.open(plain)
    kill(*_uplink(opened))
    answer = opened.probe("connect", proxy=["198.18.0.1", 3128], target="docs.example.com:443")
    assert answer["status"] == 502 and "upstream" in str(answer), answer
    denied = opened.probe("connect", proxy=["198.18.0.1", 3128], target="undeclared.example.com:443")
    assert denied["status"] == 403, denied
    _is_broken(opened, "the caddy container's way out (slirp4netns or pasta) is dead")


def _uplink(opened: Session) -> list[int]:
    """Caddy's user-mode network: slirp4netns has Caddy's pid on its command line, pasta the namespace's path."""
    places = {str(pids(opened)["caddy"]).encode(), opened.inspect("caddy")["NetworkSettings"]["SandboxKey"].encode()}
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = entry.read_bytes().split(b"\0")
            if places & set(words[1:]) - {b""} and Path(os.fsdecode(words[0])).name.startswith(
                ("slirp4netns", "pasta")
            ):
                found.append(int(entry.parent.name))
    assert found, f"nothing serves {places}"
    return found


# --- processes, restarted inside --------------------------------------------------------------------------------------


def test_B8_a_killed_program_comes_back_and_that_is_on_record(session: SessionFactory, brokered: str) -> None:
    """First Caddy's, then the broker's, in one session: its broker takes seconds to boot."""
    opened = session.open(brokered)
    before, restarts = pids(opened), {"caddy": 0, "broker": 0}
    for role in restarts:
        (child,) = procs.children(before[role])
        kill(child)
        wait_for(lambda role=role, dead=child: procs.children(before[role]) not in ([], [dead]), 60, "another start")
        assert pids(opened) == before and state_of(opened) == "live"
        wait_for(lambda: opened.play("verify.yml").rc == 0, 200, "the session to verify again", 0.5)
        restarts[role] = 1
        assert opened.play("status.yml").json["status"]["restarts"] == restarts
    closed = opened.close()
    assert closed.json["restarts"] == restarts, closed
    for role in restarts:
        events = [one for one in evidence(opened).read_lines("supervisor.jsonl") if one["role"] == role]
        assert [one["event"] for one in events][:3] == ["start", "exit", "start"], events
        assert events[1]["status"] == "signal 9", events


# --- limits.time ------------------------------------------------------------------------------------------------------


def _timed(home: Home, script: str) -> str:
    home.agent(
        "sv-timed", {**PLAIN, "runtime": {"mode": "service", "command": ["sh", "-c", script]}, "limits": {"time": "3s"}}
    )
    return "sv-timed"


@pytest.mark.parametrize(
    ("script", "words"),
    [("echo begun; sleep 600", "begun"), ("trap '' TERM HUP INT; echo begun; while :; do sleep 0.2; done", "begun")],
    ids=["obedient", "stubborn"],
)
def test_limits_time_bites_attached(script: str, words: str, home: Home, session: SessionFactory) -> None:
    agent = _timed(home, script)
    target = session.adopt(agent)
    done: Completed = asf_play("open.yml", *target.selector(), home=home)
    assert done.rc == 124 and words in done.out, done
    assert "limits.time is 3 s" in done.err, done
    assert ids(target) == set()
    ending = evidence(target).read("cleanup.json")["containers"][target.container("agent")]
    assert ending["exit_code"] == 124 and "limits.time" in str(ending.get("reason")), ending
    assert evidence_problems(evidence(target).folder) == []


def test_limits_time_bites_detached_though_the_workload_ignores_signals(home: Home, session: SessionFactory) -> None:
    opened = session.open(_timed(home, "trap '' TERM HUP INT; while :; do sleep 0.2; done"))
    running = pids(opened)
    wait_for(lambda: over(running), 60, "time limit and grace", 0.2)
    found = row(opened)
    assert (found["state"], found["exit_code"]) == ("ended", 124), found
    assert opened.close().rc == 0
    ending = evidence(opened).read("cleanup.json")["containers"][opened.container("agent")]
    assert ending["exit_code"] == 124 and "limits.time" in str(ending.get("reason")), ending


# --- watch ------------------------------------------------------------------------------------------------------------


class Watching:
    """`asf-play watch --json` in the background, its lines as they come."""

    def __init__(self, opened: Session) -> None:
        argv = ["asf-play", "watch", *opened.selector(), "--json", "--interval", "2"]
        self.process = subprocess.Popen(argv, env=opened.home.env, stdout=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []

    def until(self, **fields: Any) -> dict[str, Any]:
        """Read on until a line has these fields."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(json.loads(text))
            jsonschema.validate(self.lines[-1], SCHEMA)
            if all(self.lines[-1].get(key) == value for key, value in fields.items()):
                return self.lines[-1]
        raise AssertionError(f"no line with {fields}: {self.lines}")

    def end(self) -> int:
        """Its exit code, after the last line."""
        self.until(event="summary")
        return self.process.wait(30)


@pytest.fixture
def watching() -> Iterator[Callable[[Session], Watching]]:
    started: list[Watching] = []

    def start(opened: Session) -> Watching:
        started.append(Watching(opened))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def test_watch_tells_decisions_restarts_and_how_it_ended(
    session: SessionFactory, plain: str, watching: Callable[[Session], Watching]
) -> None:
    opened = session.open(plain)
    before = snapshot(opened)
    watch = watching(opened)
    watch.until(event="state", state="live")
    assert watch.until(event="verified")["probes"] > 50
    opened.probe("connect", proxy=["198.18.0.1", 3128], target="undeclared.example.com:443")
    watch.until(event="decision", decision="deny", host="undeclared.example.com")
    (child,) = procs.children(pids(opened)["caddy"])
    kill(child)
    watch.until(event="exited", program="caddy", status="signal 9")
    watch.until(event="restarted", program="caddy")
    watch.until(event="verified")
    assert snapshot(opened) == before, "who only watches changes nothing"
    opened.exec("touch", "/tmp/end")
    watch.until(event="ended", how="exit", exit_code=3)
    assert watch.end() == 3
    assert watch.lines[-1]["drifted"] == [] and watch.lines[-1]["denied"] >= 1, watch.lines[-1]


def test_watch_sees_a_probe_drift_and_recover(
    session: SessionFactory, plain: str, watching: Callable[[Session], Watching]
) -> None:
    opened = session.open(plain)
    watch = watching(opened)
    watch.until(event="verified")
    opened.wire_sh("caddy", "nft add rule inet asf input counter accept")
    found = watch.until(event="drift", probe="caddy-rules")
    assert found["verdict"] == "fail" and found["vantage"] == "outside", found
    handle = "nft -a list chain inet asf input | sed -n 's/.*counter.*handle //p'"
    opened.wire_sh("caddy", f"nft delete rule inet asf input handle $({handle})")
    watch.until(event="recovered", probe="caddy-rules")
    opened.close()
    watch.until(event="ended", how="closed")
    assert watch.end() == 221 and watch.lines[-1]["drifted"] == ["caddy-rules"]
