# SPDX-License-Identifier: BSD-4-Clause
"""Several sessions at once, of one agent and of several: apart, undisturbed, and nothing shared (N3, N6, S5)."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.client import World
from support.product import Completed, Home, Session, SessionFactory, asf_play, podman, sample_repo
from support.waiting import wait_for

from asf_lib.core import probes

pytestmark = [pytest.mark.podman, pytest.mark.slow]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
STATEFUL = {**PLAIN, "filesystem": {"state": [{"key": "notes", "target": "/home/node/notes"}]}}
BROKERED = {**PLAIN, "llm": {"protocol": "openai", "mock": "hello"}}
AT_ONCE = 8


class Opening:
    """`asf-play PLAYBOOK` of one session, begun and not waited for."""

    def __init__(self, session: Session, playbook: str = "open.yml", *more: str) -> None:
        self.session = session
        argv = ["asf-play", playbook, *session.selector(), "--json", *more]
        self.process = subprocess.Popen(
            argv, env=session.home.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def wait(self, timeout: float = 400) -> Completed:
        out, err = self.process.communicate(timeout=timeout)
        text = out.decode(errors="replace")
        done = Completed(self.process.returncode, text, err.decode(errors="replace"), json.loads(text))
        self.session.document = done.json
        return done


def all_at_once(sessions: list[Session], playbook: str, *more: str) -> list[Completed]:
    """Run a playbook on every one of them, all begun before any has ended."""
    begun = [Opening(one, playbook, *more) for one in sessions]
    return [one.wait() for one in begun]


def record(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((session.home.state / "asf" / "live" / f"{session.id}.json").read_bytes())
    return found


def test_eight_sessions_of_two_agents_are_opened_and_closed_at_the_same_moment(
    home: Home, session: SessionFactory
) -> None:
    agents = ("sv-one", "sv-two")
    for agent in agents:
        home.agent(agent, STATEFUL)
    asked = [session.adopt(agents[number % 2]) for number in range(AT_ONCE)]
    for done in all_at_once(asked, "open.yml", "--detach"):
        assert done.rc == 0 and done.json["ok"], done

    records = [record(one) for one in asked]
    chosen = [one for found in records for one in found["containers"].values()]
    for key in ("id", "name", "pid", "net"):
        assert len({one[key] for one in chosen}) == 2 * AT_ONCE, f"{key} is shared"
    for key in ("run", "evidence", "plan"):
        assert len({found[key] for found in records}) == AT_ONCE, f"{key} is shared"
    volumes = [mount["Name"] for one in asked for mount in one.inspect("agent")["Mounts"] if mount["Type"] == "volume"]
    assert len(volumes) == len(set(volumes)) == AT_ONCE, volumes
    rows = {row["session"]: row["state"] for row in asf_play("ls", "--json", home=home).json}
    assert {rows.get(one.id) for one in asked} == {"live"}, rows

    for done in all_at_once(asked, "close.yml"):
        assert done.rc == 0 and done.json["cleanup"]["left"] == [], done
    assert not any(one.id in podman("ps", "-a", "--format", "{{.Names}}") for one in asked)


# --- two sessions of one agent ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(module_home: Home, module_session: SessionFactory) -> tuple[Session, Session]:
    """Two brokered sessions of one agent, as like one another as sessions can be."""
    module_home.agent("sv-pair", BROKERED)
    first = module_session.open("sv-pair")
    return first, module_session.open("sv-pair")


_TOKEN = "import os; print(os.environ['OPENAI_API_KEY'])"
#: Asks the front of the own session for its control route, with a token; prints the status.
_ASK = """
import http.client, sys
line = http.client.HTTPConnection("198.18.0.1", 4000, timeout=10)
line.request("GET", "/asf/control", headers={"Authorization": "Bearer " + sys.argv[1]})
print(line.getresponse().status)
"""


def test_N3_one_session_has_no_way_into_another(pair: tuple[Session, Session]) -> None:
    """Both have the same addresses: what answers there is always the own session's."""
    one, other = pair
    own, foreign = (found.exec("python3", "-c", _TOKEN).out.strip() for found in pair)
    assert own != foreign and own.startswith("asf-")
    assert one.exec("python3", "-c", _ASK, own).out == "204\n"
    assert one.exec("python3", "-c", _ASK, foreign).out == "401\n", "the other session's token opens nothing here"
    mark = f"{one.name}.example.com"
    assert one.probe("connect", proxy=["198.18.0.1", 3128], target=f"{mark}:443")["status"] == 403
    assert one.decided(mark) == ["denied-name"]
    assert mark not in {entry.get("host") for entry in other.decisions()}


def _attempts(targets: list[tuple[int, str, int]]) -> dict[str, str]:
    found = {}
    for family, address, port in targets:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as line:
                line.settimeout(2)
                line.connect((address, port))
            found[f"{address}:{port}"] = "open"
        except OSError as error:
            found[f"{address}:{port}"] = type(error).__name__
    return found


def test_N3_nothing_of_another_session_answers_over_v4_or_v6(pair: tuple[Session, Session]) -> None:
    """From the agent, with all capabilities of its namespace: only its own cable's three listeners are open."""
    one, _ = pair
    ports = (3128, 4000, 3129, 80, 443)
    v4 = [(socket.AF_INET, f"198.18.0.{last}", port) for last in (1, 2, 5, 6) for port in ports]
    v6 = [(socket.AF_INET6, address, 4000) for address in ("::ffff:198.18.0.5", "fe80::1", "fd00::1", "2001:db8::1")]
    found = one.in_netns("agent", lambda: _attempts(v4 + v6), timeout=120)
    own = {"198.18.0.1:3128", "198.18.0.1:4000", "198.18.0.1:443"}
    assert {place for place, how in found.items() if how == "open"} == own, found


def test_N3_no_namespace_is_shared_and_each_open_has_checked_it(pair: tuple[Session, Session]) -> None:
    nets = [entry["net"] for one in pair for entry in record(one)["containers"].values()]
    assert len(set(nets)) == 6, nets
    checked = {probe["id"]: probe for probe in pair[1].document["probes"]}
    for role in ("agent", "caddy", "broker"):
        for name in ("peers", "alone"):
            assert checked[f"{role}-{name}"]["verdict"] == "pass", checked[f"{role}-{name}"]
    # Opened second, it has looked at the first one's three containers, and at two of its own.
    others = int(checked["agent-alone"]["evidence"].split("the ")[1].split()[0])
    assert others >= 5, checked["agent-alone"]
    assert {"peers", "alone"} <= {probe.name for probe in probes.PROBES}


#: Reads the endless stream of a site through the session's Caddy, and counts what came into a file.
_STREAM = """
import http.client, ssl
line = http.client.HTTPSConnection("198.18.0.1", 3128, timeout=20, context=ssl._create_unverified_context())
line.set_tunnel("docs.example.com", 443)
line.request("GET", "/stream?interval=0.05")
answer, seen = line.getresponse(), 0
while answer.read1(4096):
    seen += 1
    open("/tmp/seen", "w").write(str(seen))
open("/tmp/cut", "w").close()
"""


def test_N6_closing_one_session_disturbs_no_other(
    module_home: Home, module_session: SessionFactory, world: World
) -> None:
    module_home.agent("sv-neighbour", PLAIN)
    going, staying = module_session.open("sv-neighbour"), module_session.open("sv-neighbour")
    podman("exec", "-d", staying.container("agent"), "/asf/gate", "exec", "--", "python3", "-c", _STREAM)

    def seen() -> int:
        return int(staying.exec("cat", "/tmp/seen").out.strip() or 0)

    wait_for(lambda: seen() > 3, 60, "the stream to flow", 0.2)
    assert going.close().rc == 0
    after = seen()
    wait_for(lambda: seen() > after + 20, 60, "the stream to go on", 0.2)
    assert staying.exec("test", "-e", "/tmp/cut").rc == 1, "it was never cut, not even for a moment"
    assert staying.play("verify.yml").rc == 0
    status = staying.play("status.yml").json["status"]
    assert status["state"] == "live" and set(status["restarts"].values()) == {0}, status


# --- grants -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True], ids=["same", "overlapping"])
def test_of_two_opens_that_race_for_a_tree_one_gets_it(
    nested: bool, home: Home, session: SessionFactory, tmp_path: Path
) -> None:
    repo = sample_repo(tmp_path / "repo")
    inner = sample_repo(repo / "inner") if nested else repo
    for agent, path in (("sv-outer", repo), ("sv-inner", inner)):
        home.agent(agent, PLAIN)
        home.grant(agent, path)
    both = [session.adopt("sv-outer"), session.adopt("sv-inner")]
    done = all_at_once(both, "open.yml", "--detach")
    assert sorted(one.rc == 0 for one in done) == [False, True], [str(one)[:1500] for one in done]
    (won,) = [one for one, how in zip(both, done, strict=True) if how.rc == 0]
    (lost,) = [how for how in done if how.rc]
    assert won.id in json.dumps(lost.json["error"]) and lost.json["error"]["code"] == "grant", lost
    assert lost.rc == 220, lost


def test_the_tree_of_an_ended_session_is_free_again(home: Home, session: SessionFactory, tmp_path: Path) -> None:
    repo = sample_repo(tmp_path / "repo")
    for agent, command in (("sv-short", ["true"]), ("sv-next", ["sleep", "600"])):
        home.agent(agent, {**PLAIN, "runtime": {"mode": "service", "command": command}})
        home.grant(agent, repo)
    first = session.open("sv-short")
    wait_for(lambda: _state(first) == "ended", 60, "the first one to end", 0.2)
    done, _ = session.attempt("sv-next")
    assert done.rc == 0 and [one["session"] for one in done.json["swept"]] == [first.id], done


def _state(session: Session) -> str:
    rows = asf_play("ls", "--json", home=session.home).json
    return str(next((row["state"] for row in rows if row["session"] == session.id), "gone"))


def test_a_second_session_has_state_of_its_own(home: Home, session: SessionFactory) -> None:
    home.agent("sv-state", STATEFUL)
    one, other = session.open("sv-state"), session.open("sv-state")
    assert one.exec("sh", "-c", "echo mine > ~/notes/a").rc == 0
    assert other.exec("sh", "-c", "ls ~/notes").out == ""
    volumes = {name for name in podman("volume", "ls", "-q").split() if one.name in name or other.name in name}
    assert len(volumes) == 2, volumes
