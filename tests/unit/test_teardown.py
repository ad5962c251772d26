# SPDX-License-Identifier: BSD-4-Clause
"""Order, idempotence and honesty of teardown, with a stand-in for Podman (L1, L2, L4; the real one: tests/e2e)."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.engine import evidencefs, evidenceindex, procs, signals, state, teardown
from asf_lib.engine.evidencefs import Evidence
from asf_lib.engine.podman import Podman, Result

ID, OTHER = "claude.main", "claude.main2"
DENIAL = '{"msg":"decision","host":"evil.example","port":"443","decision":"deny","reason":"denied-name"}'
START = '{"asf":"supervisor","name":"broker","event":"start"}'


class FakePodman(Podman):
    """Podman's answers out of memory; every mutating call is recorded in ``done``."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.secrets: list[str] = []
        self.volumes: dict[str, dict[str, str]] = {}
        self.logs: dict[str, str] = {}
        self.refuse: dict[str, int] = {}  # name -> how often "rm" fails
        self.store = ""  # folder of Podman's secrets
        self.done: list[list[str]] = []

    def add(self, role: str, session: str = ID, **fields: Any) -> None:
        name = f"asf-{session}-{role}"
        labels = {"asf.session": session, "asf.role": role, "asf.owner": str(os.getuid())}
        base = {"Id": f"id-{name}", "Names": [name], "Labels": labels, "Pid": 0, "State": "exited", "ExitCode": 0}
        self.rows[name] = {**base, **fields}

    def run(
        self, args: Sequence[str], *, input: bytes | None = None, timeout: float = 60, check: bool = True
    ) -> Result:
        words = list(args)
        if words[0] in ("rm",) or words[1] == "rm":
            self.done.append(words)
        rc, out = self._answer(words)
        return Result(rc, out, "Error: refused" if rc else "")

    def _answer(self, words: list[str]) -> tuple[int, str]:
        if words[0] == "ps":
            return 0, json.dumps(list(self.rows.values()))
        if words[:2] == ["volume", "ls"]:
            return 0, json.dumps([{"Name": name, "Labels": labels} for name, labels in self.volumes.items()])
        if words[:2] == ["secret", "ls"]:
            return 0, "\n".join(self.secrets)
        if words[:2] == ["container", "inspect"]:
            rows = [
                f"{row['Id']} {row['ExitCode']} true {row.get('Finished', -1)} none \n" for row in self.rows.values()
            ]
            return 125, "".join(rows)
        if words[:2] == ["secret", "inspect"]:
            driver = {"Options": {"path": self.store}} if self.store else {}
            return 0, json.dumps([{"ID": f"id-{name}", "Spec": {"Driver": driver}} for name in words[2:]])
        if words[0] == "logs":
            return 0, self.logs.get(words[1].removeprefix("id-"), "")
        if words[0] == "rm":
            return self._rm([word.removeprefix("id-") for word in words[5:]])
        known = self.secrets if words[0] == "secret" else self.volumes
        for name in words[2:]:
            known.remove(name) if isinstance(known, list) else known.pop(name)
        return 0, ""

    def _rm(self, names: list[str]) -> tuple[int, str]:
        rc = 0
        for name in names:
            if self.refuse.get(name, 0) > 0:
                self.refuse[name] -= 1
                rc = 2
            else:
                self.rows.pop(name, None)
        return rc, ""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}


@pytest.fixture
def full(env: dict[str, str]) -> FakePodman:
    """A session with everything, another one beside it, and a record."""
    podman = FakePodman()
    for role in ("broker", "agent", "caddy"):
        podman.add(role)
    podman.add("agent", OTHER)
    podman.secrets = [f"asf-{ID}-token", f"asf-{ID}-master", f"asf-{OTHER}-token", f"asf-{ID}-x-token", "mine"]
    state_labels = {"asf.session": ID, "asf.owner": str(os.getuid()), "asf.volume": "state"}
    podman.volumes = {"asf-state-claude-main-home": state_labels, "scratch": {**state_labels, "asf.volume": ""}}
    podman.logs = {f"asf-{ID}-caddy": f"{DENIAL}\nnoise\n", f"asf-{ID}-broker": f"{START}\n{START}\n"}
    state.begin(ID, mode="proxy", isolation="container", plan_digest="d", env=env)
    state.begin_step(ID, "live", env, state="live")
    return podman


def test_everything_of_the_session_goes_and_nothing_else(full: FakePodman, env: dict[str, str]) -> None:
    report = teardown.teardown(full, ID, env=env)
    assert report.changed and report.left == []
    assert list(full.rows) == [f"asf-{OTHER}-agent"]
    assert full.secrets == [f"asf-{OTHER}-token", f"asf-{ID}-x-token", "mine"]
    assert list(full.volumes) == ["asf-state-claude-main-home"]
    assert state.recorded(env) == set()


def test_agent_goes_first_and_containers_go_in_one_call(full: FakePodman, env: dict[str, str]) -> None:
    teardown.teardown(full, ID, env=env)
    (call,) = [words for words in full.done if words[0] == "rm"]
    assert call == ["rm", "-f", "-v", "-t", "0", *(f"id-asf-{ID}-{role}" for role in ("agent", "caddy", "broker"))]


def test_evidence_is_made_of_the_logs_and_sealed(full: FakePodman, env: dict[str, str]) -> None:
    report = teardown.teardown(full, ID, env=env)
    found = Evidence(Path(str(report.evidence)))
    assert found.check() == [] and found.head() == report.head
    assert found.read_lines("decisions.jsonl")[0]["reason"] == "denied-name"
    assert report.decisions == {"deny": {"denied-name": 1}} and report.restarts == {"broker": 1}
    cleanup = found.read("cleanup.json")
    assert cleanup["left"] == [] and cleanup["containers"][f"asf-{ID}-agent"]["exit_code"] == 0
    assert "volume asf-state-claude-main-home not removed because it holds state" in " ".join(cleanup["actions"])


def test_a_second_time_changes_nothing(full: FakePodman, env: dict[str, str]) -> None:
    first = teardown.teardown(full, ID, env=env)
    full.volumes = {}
    again = teardown.teardown(full, ID, env=env)
    assert not again.changed and again.actions == [f"session {ID} owns nothing"]
    assert Evidence(Path(str(first.evidence))).head() == first.head


def test_a_state_volume_alone_is_no_session(full: FakePodman, env: dict[str, str]) -> None:
    teardown.teardown(full, ID, env=env)
    again = teardown.teardown(full, ID, env=env)
    assert not again.changed and state.recorded(env) == set()


def test_check_mode_only_says(full: FakePodman, env: dict[str, str]) -> None:
    report = teardown.teardown(full, ID, env=env, check=True)
    assert report.changed and full.done == [] and state.read(ID, env)["state"] == "live"  # type: ignore[index]
    assert f"would remove container asf-{ID}-agent" in report.actions and report.evidence is None
    assert "would remove the run folder" in report.actions


def test_L2_without_state_folder_all_is_found_by_label(full: FakePodman, env: dict[str, str]) -> None:
    subprocess.run(["rm", "-r", env["XDG_STATE_HOME"], str(state.run_folder(ID, env))], check=True)
    report = teardown.teardown(full, ID, env=env)
    assert report.left == [] and list(full.rows) == [f"asf-{OTHER}-agent"]
    assert Evidence(Path(str(report.evidence))).read_lines("decisions.jsonl")


def test_L4_secrets_alone_are_removed(env: dict[str, str]) -> None:
    podman = FakePodman()
    podman.secrets = [f"asf-{ID}-token"]
    assert teardown.teardown(podman, ID, env=env).changed and podman.secrets == []


def test_a_refusal_is_tried_again(full: FakePodman, env: dict[str, str]) -> None:
    full.refuse = {f"asf-{ID}-caddy": 1}
    report = teardown.teardown(full, ID, env=env)
    assert report.left == [] and f"removed container asf-{ID}-caddy" in report.actions


def test_what_cannot_be_removed_is_an_error_and_stays_visible(full: FakePodman, env: dict[str, str]) -> None:
    full.refuse = {f"asf-{ID}-caddy": 99}
    with pytest.raises(teardown.LeftError) as caught:
        teardown.teardown(full, ID, env=env)
    error = caught.value
    assert error.code == "left" and error.report.left == [f"container asf-{ID}-caddy"]
    assert any("asf-claude.main-caddy not removed because Podman refused" in one for one in error.report.actions)
    record = state.read(ID, env)
    assert record is not None and record["state"] == "closing"
    cleanup = Evidence(Path(record["evidence"])).read("cleanup.json")
    assert cleanup["left"] == error.report.left
    full.refuse = {}
    assert teardown.teardown(full, ID, env=env).left == [] and state.read(ID, env) is None


def test_a_foreign_container_with_the_name_is_left_alone(full: FakePodman, env: dict[str, str]) -> None:
    full.add("agent", Labels={})
    report = teardown.teardown(full, ID, env=env)
    assert f"asf-{ID}-agent" in full.rows and report.left == []
    assert any(f"container asf-{ID}-agent not removed because" in one for one in report.actions)


def test_a_log_that_cannot_be_read_does_not_keep_the_session(
    full: FakePodman, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[str]:
        raise EngineError("hangs")

    monkeypatch.setattr(teardown.gathering.logs, "lines", fail)
    report = teardown.teardown(full, ID, env=env)
    assert report.left == [] and "logs not collected: hangs" in report.actions


def _stored(full: FakePodman, folder: Path, **values: str) -> None:
    full.store = str(folder)
    given = {f"id-asf-{ID}-{part}": base64.b64encode(value.encode()).decode() for part, value in values.items()}
    (folder / "secretsdata.json").write_text(json.dumps(given))


def test_last_words_of_a_failed_open_are_kept_without_its_secrets(
    full: FakePodman, env: dict[str, str], tmp_path: Path
) -> None:
    _stored(full, tmp_path, token="asf-0123456789", master="sk-9876543210")
    full.logs[f"asf-{ID}-broker"] = "starting\n\nbad key sk-9876543210 given\n" + "x" * 2000 + "\n"
    state.begin_step(ID, "broker", env, state="opening")
    report = teardown.teardown(full, ID, env=env)
    cleanup = Evidence(Path(str(report.evidence))).read("cleanup.json")
    words = cleanup["containers"][f"asf-{ID}-broker"]["last_words"]
    assert words[:2] == ["starting", "bad key [redacted] given"] and len(words[2]) == 500
    assert "last_words" not in cleanup["containers"][f"asf-{ID}-agent"]


def test_no_words_are_kept_when_the_secrets_are_unknown(full: FakePodman, env: dict[str, str]) -> None:
    state.begin_step(ID, "broker", env, state="opening")
    report = teardown.teardown(full, ID, env=env)
    assert not any("last_words" in one for one in report.containers.values())
    assert any(one.startswith("last words not kept") for one in report.actions) and report.left == []


def test_what_a_killed_openers_command_made_late_goes_as_well(full: FakePodman, env: dict[str, str]) -> None:
    rows, late = dict(full.rows), f"asf-{ID}-late"

    class Late(FakePodman):
        def _rm(self, names: list[str]) -> tuple[int, str]:
            if f"asf-{ID}-agent" in names:
                self.add("late")
                self.secrets.append(f"asf-{ID}-provider")
            return super()._rm(names)

    podman = Late()
    podman.rows, podman.secrets = rows, list(full.secrets)
    report = teardown.teardown(podman, ID, env=env)
    assert f"removed container {late}" in report.actions and f"removed secret asf-{ID}-provider" in report.actions
    assert report.left == [] and list(podman.rows) == [f"asf-{OTHER}-agent"]


def test_an_opening_by_somebody_alive_is_not_disturbed(full: FakePodman, env: dict[str, str]) -> None:
    other = procs.identity(os.getppid())
    assert other is not None
    state.write({**(state.read(ID, env) or {}), "state": "opening", "controllers": [other.as_dict()]}, env)
    with pytest.raises(EngineError) as caught:
        teardown.teardown(full, ID, env=env)
    assert caught.value.code == "busy" and full.done == []


def test_the_opener_itself_and_anybody_after_its_death_may_close(full: FakePodman, env: dict[str, str]) -> None:
    record = state.begin_step(ID, "wire", env, state="opening")
    assert teardown.teardown(full, ID, env=env).changed
    state.write({**record, "controllers": [{"pid": 1, "start": 5, "boot": procs.boot_id()}]}, env)
    assert teardown.teardown(full, ID, env=env).changed


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


MARKS = ["_end", "_collect", "_calls", "_kill_orphans", "_finish"]


@pytest.mark.parametrize("where", MARKS)
def test_L1_after_a_kill_anywhere_the_next_close_goes_on(
    where: str, full: FakePodman, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(teardown, where, kill)
        with pytest.raises(Killed):
            teardown.teardown(full, ID, env=env)
    assert ID in state.recorded(env)
    report = teardown.teardown(full, ID, env=env)
    assert report.left == [] and list(full.rows) == [f"asf-{OTHER}-agent"] and state.recorded(env) == set()
    assert Evidence(Path(str(report.evidence))).read_lines("decisions.jsonl")[0]["reason"] == "denied-name"


CONMON = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
QUIET = "import signal, time; print(flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time\n"
    "for one in (signal.SIGTERM, signal.SIGHUP): signal.signal(one, signal.SIG_IGN)\n"
    "print(flush=True); time.sleep(60)"
)


@pytest.fixture
def spawn() -> Iterator[Any]:
    """Starts a stand-in for a container's first process below a stand-in for conmon; gives the pid."""
    started = []

    def start(container_id: str, body: str) -> int:
        parent = subprocess.Popen([sys.executable, "-c", CONMON, container_id, body], stdout=subprocess.PIPE, text=True)
        started.append(parent)
        assert parent.stdout is not None
        return int(parent.stdout.readline())

    yield start
    for parent in started:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize(("body", "grace", "said"), [(QUIET, 30, "ended within"), (STUBBORN, 0.2, "was killed")])
def test_a_running_workload_is_ended(
    body: str,
    grace: float,
    said: str,
    full: FakePodman,
    env: dict[str, str],
    spawn: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teardown, "AGENT_GRACE", grace)
    pid = spawn(f"id-asf-{ID}-agent", body)
    full.add("agent", State="running", Pid=pid)
    report = teardown.teardown(full, ID, env=env)
    assert procs.start_time(pid) is None
    assert any(one.startswith(f"stopped container asf-{ID}-agent") and said in one for one in report.actions)
    assert report.containers[f"asf-{ID}-agent"]["exit_code"] is None


def test_a_pid_that_is_somebody_elses_by_now_is_not_signalled(
    full: FakePodman, env: dict[str, str], spawn: Any
) -> None:
    pid = spawn("another-container", QUIET)
    full.add("agent", State="running", Pid=pid)
    teardown.teardown(full, ID, env=env)
    assert procs.start_time(pid) is not None


def test_a_process_that_outlives_its_container_is_killed(
    full: FakePodman, env: dict[str, str], spawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "_end", lambda *_: None)
    pid = spawn(f"id-asf-{ID}-agent", STUBBORN)
    full.add("agent", State="running", Pid=pid)
    report = teardown.teardown(full, ID, env=env)
    assert procs.start_time(pid) is None and any("outlived container" in one for one in report.actions)


def test_signals_reach_only_the_process_that_is_meant(spawn: Any) -> None:
    pid = spawn("x", QUIET)
    who = procs.identity(pid)
    assert who is not None
    signals.send([who._replace(start=who.start + 1)], [signal.SIGKILL])
    assert signals.wait([who], 0.1) == [who]
    signals.send([who], [signal.SIGKILL])
    assert signals.wait([who], 5) == [] and signals.wait([], 0) == []


def test_a_full_disk_does_not_keep_a_session_alive(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise EngineError("no space left on device", code="storage-full")

    podman = FakePodman()
    podman.secrets = [f"asf-{ID}-token"]
    monkeypatch.setattr(teardown.Evidence, "of", full)
    report = teardown.teardown(podman, ID, env=env)
    assert podman.secrets == [] and report.left == []
    assert any("evidence not complete" in action for action in report.actions)


def test_what_a_full_disk_kept_open_is_sealed_by_the_next_close(env: dict[str, str]) -> None:
    """The session went, its evidence could not be chained. Runs that are whole, and that of a live session, stay so."""
    runs = Path(env["XDG_STATE_HOME"]) / "asf" / "evidence" / ID
    whole, torn, empty, live = (runs / f"20300101T00000{n}Z-0000" for n in range(4))
    Evidence(whole).write("plan.json", {"whole": True})
    for folder in (torn, live):
        Evidence(folder).write("plan.json", {})
        (folder / "chain.json").unlink()
    empty.mkdir()
    chain = (whole / "chain.json").read_bytes()
    assert evidencefs.seal_unchained(ID, str(live), env) == [torn.name]
    assert Evidence(torn).check() == [] and not empty.exists() and not (live / "chain.json").exists()
    assert (whole / "chain.json").read_bytes() == chain
    report = teardown.teardown(FakePodman(), ID, env=env)
    assert report.actions[0] == f"sealed evidence {live.name}, which an earlier close could not write"
    assert [entry["run"] for entry in evidenceindex.read(env).entries] == [torn.name, live.name]


def test_a_run_that_the_index_knows_is_not_sealed_again(env: dict[str, str]) -> None:
    """Who takes the chain away does not get a new one."""
    found = Evidence.create(ID, env=env)
    found.write("plan.json", {})
    evidencefs.seal(found, env)
    (found.folder / "chain.json").unlink()
    assert evidencefs.seal_unchained(ID, None, env) == [] and not (found.folder / "chain.json").exists()


@pytest.mark.parametrize(
    ("limit", "code", "finished", "reason"),
    [
        (60, 124, 1060, "limits.time: 60 s were over"),
        (60, 124, 1030, None),  # the workload's own code: it had time left
        (60, 0, 1060, None),
        (0, 124, 1060, None),
    ],
)
def test_why_the_workload_ended(
    limit: int, code: int, finished: int, reason: str | None, full: FakePodman, env: dict[str, str]
) -> None:
    state.begin_step(ID, "live", env, time_limit=limit, started="1970-01-01T00:16:40Z")
    full.add("agent", ExitCode=code, Finished=finished)
    report = teardown.teardown(full, ID, env=env)
    assert report.containers[f"asf-{ID}-agent"].get("reason") == reason
