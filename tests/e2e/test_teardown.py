# SPDX-License-Identifier: BSD-4-Clause
"""Teardown and status on real Podman, with tiny containers instead of a whole session (L1, L2, L4, L5, F8).

The containers are what ASF makes in owner, labels, names and user namespaces; what they run is a shell.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.product import RUN, remove

from asf_lib.core.lifecycle import Container
from asf_lib.engine import inventory, procs, state, status, teardown
from asf_lib.engine.evidencefs import Evidence
from asf_lib.engine.podman import Podman

pytestmark = pytest.mark.podman

#: Of this test run alone: others may be at work under the same account.
NAME = f"{RUN}-one"
ID, NEIGHBOUR = f"td-agent.{NAME}", f"td-agent.{NAME}2"
IMAGE = f"localhost/td-tiny:{RUN}"
KEPT, SCRATCH = f"td-state-{RUN}", f"td-scratch-{RUN}"
NS = {"agent": "keep-id:uid=1000,gid=1000", "caddy": "nomap", "broker": "nomap"}
DENIAL = '{"msg":"decision","host":"evil.example","port":"443","decision":"deny","reason":"denied-name"}'
LAST = '{"msg":"decision","host":"open.example","port":"443","decision":"allow","reason":"closed"}'
#: Says something at once and, as Caddy does for cut tunnels, something more when it is told to stop.
SERVICE = f"last() {{ echo '{LAST}'; exit 0; }}; trap last TERM; echo '{DENIAL}'; while :; do sleep 0.05; done"
WORKLOAD = 'trap "exit 3" TERM; while :; do sleep 0.05; done'
STUBBORN = 'trap "" TERM HUP; while :; do sleep 0.05; done'


def _rootfs() -> bytes:
    """A shell and what it needs, out of this machine's own files."""
    programs = ["/bin/sh", "/bin/sleep"]
    files = set(programs)
    for program in programs:
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        files |= set(re.findall(r"(/\S+)", told))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in sorted(files):
            info = tar.gettarinfo(os.path.realpath(file), file.lstrip("/"))
            info.uid = info.gid = 0
            with open(file, "rb") as stream:
                tar.addfile(info, stream)
        for folder in ("etc", "proc", "sys", "dev", "run", "tmp", "data"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    found = Podman()
    if found.run(["image", "exists", IMAGE], check=False).rc:
        found.run(["import", "-q", "-", IMAGE], input=_rootfs(), timeout=120)
    yield found
    found.run(["image", "rm", "-f", IMAGE], check=False)


class Tiny:
    """A session of tiny containers, recorded as ASF records its own."""

    def __init__(self, podman: Podman, env: dict[str, str], session: str, folder: Path) -> None:
        self.podman, self.env, self.session, self.folder = podman, env, session, folder

    def name(self, role: str) -> str:
        return f"asf-{self.session}-{role}"

    def _create(self, role: str, body: str) -> list[str]:
        labels = {"asf.session": self.session, "asf.role": role, "asf.owner": str(os.getuid())}
        mount = [f"--volume={self.folder}:/data:rw"] if role == "agent" else []
        return [
            *("create", f"--name={self.name(role)}", *(f"--label={key}={value}" for key, value in labels.items())),
            *(f"--userns={NS[role]}", "--network=none", "--volume=/anonymous", *mount, IMAGE, "sh", "-c", body),
        ]

    def open(self, workload: str = WORKLOAD, start: bool = True) -> dict[str, Any]:
        state.begin(self.session, mode="proxy", isolation="container", plan_digest="d" * 64, env=self.env)
        secrets = [
            (["secret", "create", f"asf-{self.session}-{one}", "-"], b"0123456789") for one in ("token", "master")
        ]
        self.podman.parallel(secrets)
        self.podman.parallel([self._create(role, workload if role == "agent" else SERVICE) for role in NS], timeout=180)
        names = [self.name(role) for role in NS]
        self.podman.run(["init", *names])
        if not start:
            return state.read(self.session, self.env) or {}
        self.podman.run(["start", *names])
        chosen = {
            one.role: {"id": one.id, "name": one.name, "pid": one.pid, "start": one.start} for one in self.found()
        }
        return state.begin_step(self.session, "live", self.env, state="live", containers=chosen)

    def found(self) -> list[Container]:
        return [one for one in inventory.Inventory(self.podman).containers if one.session == self.session]

    def close(self) -> teardown.Report:
        return teardown.teardown(self.podman, self.session, env=self.env)

    def state(self) -> str | None:
        found = status.session(self.podman, self.session, self.env)
        return found["state"] if found else None

    def gone(self, before: list[Container]) -> None:
        """Nothing of the session exists, as Podman and the kernel see it."""
        survey = inventory.Inventory(self.podman).of(self.session)
        assert survey.empty(), survey
        assert self.session not in state.recorded(self.env)
        assert [one.name for one in before if procs.start_time(one.pid) == one.start and one.start is not None] == []


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """State of this test's own; the run folder is the account's, because Podman's is."""
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def tiny(podman: Podman, env: dict[str, str], tmp_path: Path) -> Iterator[Tiny]:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "file").write_text("content")
    session = Tiny(podman, env, ID, folder)
    yield session
    session.close()


@pytest.fixture
def neighbour(podman: Podman, env: dict[str, str], tmp_path: Path) -> Iterator[Tiny]:
    session = Tiny(podman, env, NEIGHBOUR, tmp_path)
    session.open()
    yield session
    session.close()


def _anonymous(podman: Podman) -> set[str]:
    return {row["Name"] for row in podman.json(["volume", "ls", "--format", "json"]) if row.get("Anonymous")}


def _conmons(containers: list[Container]) -> list[int]:
    return [above for one in containers if (above := procs.parent(one.pid)) is not None]


def test_close_takes_all_of_one_session_and_nothing_of_its_neighbour(tiny: Tiny, neighbour: Tiny) -> None:
    volumes = _anonymous(tiny.podman)
    tiny.open()
    before, beside = tiny.found(), neighbour.found()
    assert tiny.state() == "live" and len(_anonymous(tiny.podman)) == len(volumes) + 3
    report = tiny.close()
    tiny.gone(before)
    assert report.left == [] and report.changed and _anonymous(tiny.podman) == volumes
    assert neighbour.found() == beside and neighbour.state() == "live"
    assert len(inventory.Inventory(tiny.podman).of(NEIGHBOUR).secrets) == 2
    again = tiny.close()
    assert not again.changed and again.actions == [f"session {ID} owns nothing"]


def test_P15_last_words_of_caddy_become_evidence(tiny: Tiny) -> None:
    tiny.open()
    report = tiny.close()
    found = Evidence(Path(str(report.evidence)))
    assert [one["reason"] for one in found.read_lines("decisions.jsonl")] == ["denied-name", "closed"], report.actions
    assert found.check() == [] and found.head() == report.head
    assert report.head in (Path(tiny.env["XDG_STATE_HOME"]) / "asf" / "index.jsonl").read_text()


def test_a_workload_that_ended_is_told_with_its_code(tiny: Tiny) -> None:
    tiny.open("exit 7")
    end = time.monotonic() + 20
    while tiny.state() != "ended":
        assert time.monotonic() < end, tiny.state()
        time.sleep(0.1)
    report = tiny.close()
    assert report.containers[tiny.name("agent")]["exit_code"] == 7
    assert report.containers[tiny.name("agent")]["oom_killed"] is False


def test_a_workload_that_ignores_signals_is_killed(tiny: Tiny) -> None:
    tiny.open(STUBBORN)
    before = tiny.found()
    report = tiny.close()
    tiny.gone(before)
    assert any("agent: it did not end within" in one for one in report.actions)


def test_check_mode_touches_nothing(tiny: Tiny) -> None:
    tiny.open()
    before = tiny.found()
    report = teardown.teardown(tiny.podman, ID, env=tiny.env, check=True)
    assert report.changed and tiny.found() == before and tiny.state() == "live"


def test_only_initialized_containers_go_quickly(tiny: Tiny) -> None:
    tiny.open(start=False)
    before = tiny.found()
    assert tiny.state() == "opening"
    assert not any("stopped" in one for one in tiny.close().actions)
    tiny.gone(before)


def test_L2_without_state_and_run_folder(tiny: Tiny) -> None:
    tiny.open()
    before = tiny.found()
    subprocess.run(["rm", "-rf", tiny.env["XDG_STATE_HOME"], str(state.run_folder(ID, tiny.env))], check=True)
    assert tiny.state() == "broken"
    report = tiny.close()
    tiny.gone(before)
    assert Evidence(Path(str(report.evidence))).read_lines("decisions.jsonl")


def test_L4_only_secrets_are_left(tiny: Tiny) -> None:
    tiny.podman.run(["secret", "create", f"asf-{ID}-token", "-"], input=b"0123456789")
    assert tiny.state() == "broken"
    assert tiny.close().actions == [f"removed secret asf-{ID}-token"]
    tiny.gone([])


def test_L5_conmons_are_dead_that_is_told_and_the_session_closes(tiny: Tiny) -> None:
    """The processes live; what they log is lost, and Caddy ends rather than decide what nobody can read later."""
    tiny.open()
    before = tiny.found()
    for pid in _conmons(before):
        os.kill(pid, signal.SIGKILL)
    assert all(procs.start_time(one.pid) for one in before) and tiny.state() == "broken"
    found = status.session(tiny.podman, ID, tiny.env)
    assert found is not None and any("(conmon) is dead" in reason for reason in found["reasons"])
    assert tiny.close().left == []
    tiny.gone(before)


def test_status_does_not_trust_podman_when_all_is_dead(tiny: Tiny) -> None:
    """With conmon dead, ``podman ps`` goes on saying Up, and the first ``rm -f`` fails."""
    tiny.open()
    before = tiny.found()
    for pid in _conmons(before):
        os.kill(pid, signal.SIGKILL)
    first = [procs.Identity(one.pid, one.start or 0, procs.boot_id()) for one in before]
    teardown.signals.send(first, [signal.SIGKILL])
    assert teardown.signals.wait(first, 5) == []
    assert tiny.state() == "broken"
    found = status.session(tiny.podman, ID, tiny.env)
    assert found is not None and any("is dead" in reason for reason in found["reasons"])
    assert tiny.close().left == []
    tiny.gone(before)


def test_a_container_restarted_behind_asf_is_broken(tiny: Tiny) -> None:
    tiny.open()
    tiny.podman.run(["restart", "-t", "0", tiny.name("agent")])
    assert tiny.state() == "broken"
    before = tiny.found()
    tiny.close()
    tiny.gone(before)


def test_a_removed_caddy_is_broken(tiny: Tiny) -> None:
    tiny.open()
    before = tiny.found()
    remove(tiny.name("caddy"))
    assert tiny.state() == "broken"
    tiny.close()
    tiny.gone(before)


def test_F8_the_granted_folder_is_as_before(tiny: Tiny) -> None:
    tiny.open()
    os.kill(_conmons(tiny.found())[0], signal.SIGKILL)
    tiny.close()
    assert [path.name for path in tiny.folder.iterdir()] == ["file"]
    assert (tiny.folder / "file").read_text() == "content"


CLOSER = """
import sys
import asf_cli
from asf_lib.engine import teardown
from asf_lib.engine.podman import Podman
report = teardown.teardown(Podman(), sys.argv[1])
print(report.left)
"""


def _closer(tiny: Tiny) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CLOSER, ID], env=tiny.env, stdout=subprocess.PIPE, start_new_session=True
    )


#: What has just been written or removed when the kill comes; every step of a teardown leaves such a mark.
MARKS = {
    "record": lambda tiny, before: (state.read(ID, tiny.env) or {}).get("state") == "closing",
    "agent": lambda tiny, before: procs.start_time(next(one.pid for one in before if one.role == "agent")) is None,
    "services": lambda tiny, before: all(procs.start_time(one.pid) is None for one in before),
    "evidence": lambda tiny, before: bool(list(Path(tiny.env["XDG_STATE_HOME"]).rglob("decisions.jsonl"))),
    "run folder": lambda tiny, before: not os.path.exists(state.run_folder(ID, tiny.env)),
    "cleanup": lambda tiny, before: bool(list(Path(tiny.env["XDG_STATE_HOME"]).rglob("cleanup.json"))),
}


@pytest.mark.parametrize("mark", MARKS)
def test_L1_close_is_killed_and_repeated(mark: str, tiny: Tiny) -> None:
    tiny.open()
    before = tiny.found()
    closer = _closer(tiny)
    end = time.monotonic() + 60
    while closer.poll() is None and not MARKS[mark](tiny, before):
        assert time.monotonic() < end
        time.sleep(0.001)
    os.killpg(closer.pid, signal.SIGKILL)
    closer.wait()
    assert tiny.state() in ("broken", None)
    assert tiny.close().left == []
    tiny.gone(before)
    (decisions,) = Path(tiny.env["XDG_STATE_HOME"]).rglob("decisions.jsonl")
    assert json.loads(decisions.read_text().splitlines()[0])["reason"] == "denied-name"


def test_two_closers_at_once(tiny: Tiny) -> None:
    tiny.open()
    before = tiny.found()
    closers = [_closer(tiny) for _ in range(2)]
    answers = [closer.communicate(timeout=100)[0] for closer in closers]
    assert [closer.returncode for closer in closers] == [0, 0] and answers == [b"[]\n"] * 2
    tiny.gone(before)


def test_containers_that_vanish_meanwhile_are_no_error(tiny: Tiny) -> None:
    tiny.open()
    before = tiny.found()
    other = threading.Thread(target=tiny.podman.run, args=(["rm", "-f", "-v", "-t", "0", tiny.name("broker")],))
    other.start()
    assert tiny.close().left == []
    other.join()
    tiny.gone(before)


def test_a_foreign_container_with_the_name_stays(tiny: Tiny) -> None:
    name = tiny.name("agent")
    tiny.podman.run(["create", f"--name={name}", "--network=none", IMAGE, "sh"])
    try:
        tiny.podman.run(["secret", "create", f"asf-{ID}-token", "-"], input=b"0123456789")
        report = tiny.close()
        assert any(f"container {name} not removed because" in one for one in report.actions) and report.left == []
        assert tiny.podman.run(["container", "exists", name], check=False).rc == 0
    finally:
        remove(name)


def test_state_volumes_outlive_the_session(tiny: Tiny) -> None:
    labels = {"asf.session": ID, "asf.owner": str(os.getuid()), "asf.volume": "state"}
    args = [f"--label={key}={value}" for key, value in labels.items()]
    tiny.podman.run(["volume", "create", *args, KEPT])
    try:
        tiny.podman.run(["volume", "create", *args[:2], SCRATCH])
        tiny.open()
        report = tiny.close()
        assert f"removed volume {SCRATCH}" in report.actions
        assert tiny.podman.run(["volume", "exists", KEPT], check=False).rc == 0
        assert tiny.close().changed is False
    finally:
        tiny.podman.run(["volume", "rm", KEPT])


def test_the_list_holds_what_still_owns_something(tiny: Tiny, neighbour: Tiny) -> None:
    tiny.open()
    rows = {row["session"]: row for row in status.sessions(tiny.podman, tiny.env)}
    assert rows[ID]["state"] == rows[NEIGHBOUR]["state"] == "live" and rows[ID]["agent"] == "td-agent"
    assert rows[ID]["name"] == NAME and rows[ID]["mode"] == "proxy" and rows[ID]["isolation"] == "container"
    tiny.close()
    assert ID not in {row["session"] for row in status.sessions(tiny.podman, tiny.env)}
