# SPDX-License-Identifier: BSD-4-Clause
"""From a plan to containers: what is decided before anything is done, files and secrets. Podman is a fake."""

import json
import os
import queue
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.engine import bringup, hidden, netns, state
from asf_lib.engine.plandoc import PlanDocument

ROLES = ("caddy", "broker", "agent")


class FakePodman:
    """Answers `ps` and `inspect` from `rows`, records every other call."""

    def __init__(self, rows=(), status="initialized"):
        self.rows, self.status, self.calls = list(rows), status, []

    def json(self, args, timeout=60, check=True):
        self.calls.append(list(args))
        return self.rows if args[0] == "ps" else [{"State": {"Status": self.status}}]

    def run(self, args, *, input=None, timeout=60, check=True):
        self.calls.append(list(args))
        return type("Result", (), {"rc": 0, "stdout": "last line\n", "stderr": ""})()

    def parallel(self, calls, *, timeout=60, check=True):
        self.calls += [list(call[0]) if isinstance(call[0], list) else list(call) for call in calls]
        self.given = {call[0][-2]: call[1] for call in calls if isinstance(call[0], list)} or self.given
        return []

    given: dict = {}


@pytest.fixture
def doc(tmp_path):
    plan = {
        "session": {"id": "a.main"},
        "owner": {"uid": 1001},
        "run_dir": str(tmp_path / "a.main"),
        "containers": [
            {"role": r, "name": f"asf-a.main-{r}", "args": ["create", f"--name=asf-a.main-{r}", "image"]} for r in ROLES
        ],
        "secrets": [
            {"name": "asf-a.main-token", "part": "token", "source": "random"},
            {"name": "asf-a.main-master", "part": "master", "source": "random"},
            {"name": "asf-a.main-provider", "part": "provider", "source": "file"},
        ],
        "listeners": [{"role": "caddy", "name": "L1", "address": "198.18.0.1:3128"}],
        "files": [
            {"path": "gate.json", "json": {"version": 1}},
            {"path": "caddy/caddy.json", "json": {"admin": {"disabled": True}}},
            {"path": "broker/launch.py", "text": "print()\n"},
        ],
    }
    os.mkdir(plan["run_dir"], 0o700)
    return PlanDocument(str(tmp_path / "plan.json"), "D" * 64, plan)


def row(role, plan="D" * 64):
    return {"Names": [f"asf-a.main-{role}"], "Labels": {"asf.plan": plan}, "Id": role}


# --- what is there ----------------------------------------------------------------------------------------------------


def test_nothing_there_means_make_all(doc):
    assert bringup._settled(doc, {}) is False


def test_all_there_means_nothing_to_do(doc):
    assert bringup._settled(doc, {role: row(role) for role in ROLES}) is True


def test_a_part_of_a_session_is_never_completed(doc):
    with pytest.raises(EngineError, match="only partly there: agent missing") as caught:
        bringup._settled(doc, {role: row(role) for role in ("caddy", "broker")})
    assert caught.value.code == "partial-session" and "close" in caught.value.remedy


@pytest.mark.parametrize("labels", [{"asf.plan": "other"}, {}, None])
def test_containers_of_another_plan_are_no_session(doc, labels):
    found = {role: row(role) for role in ROLES}
    found["broker"]["Labels"] = labels
    with pytest.raises(EngineError, match="broker made from another plan"):
        bringup._settled(doc, found)


def test_present_goes_by_label_and_name(doc):
    podman = FakePodman([row("agent"), {"Names": ["somebody-elses"], "Labels": {"asf.session": "a.main"}}])
    assert list(bringup.present(podman, doc)) == ["agent"]
    assert "label=asf.session=a.main" in podman.calls[0]


def test_a_second_run_changes_nothing(doc, monkeypatch):
    monkeypatch.setattr(state, "read", lambda session: {"containers": {"agent": {"pid": 5}}})
    podman = FakePodman([row(role) for role in ROLES])
    got = bringup.create(podman, doc, lambda entry: pytest.fail("no key is read"))
    assert got["changed"] is False and got["containers"] == {"agent": {"pid": 5}}
    assert [call[0] for call in podman.calls] == ["ps"]


def test_check_mode_names_what_it_would_create(doc):
    podman = FakePodman()
    got = bringup.create(podman, doc, lambda entry: "key", check_mode=True)
    assert got["changed"] and got["actions"][0] == "would create asf-a.main-caddy"
    assert [call[0] for call in podman.calls] == ["ps"] and os.listdir(doc.plan["run_dir"]) == []


def test_all_creates_come_before_one_init_of_all(doc, monkeypatch):
    monkeypatch.setattr(state, "begin_step", lambda *a, **k: {})
    monkeypatch.setattr(bringup, "_chosen", lambda podman, doc: {"agent": {"pid": 5}})
    monkeypatch.setattr(hidden, "apart", lambda work: work())  # in this process, where the fake's record is
    podman = FakePodman()
    got = bringup.create(podman, doc, lambda entry: "sk-provider")
    words = [call[0] for call in podman.calls]
    assert words == ["ps", "secret", "secret", "secret", "create", "create", "create", "init"]
    assert podman.calls[-1] == ["init", *(f"asf-a.main-{r}" for r in ROLES)]
    assert podman.calls[4][:2] == ["create", f"--label=asf.plan={'D' * 64}"]
    assert got["containers"] == {"agent": {"pid": 5}}


# --- files and secrets ------------------------------------------------------------------------------------------------


def test_files_are_readable_in_a_private_folder_and_the_gate_gets_the_digest(doc):
    bringup.write_files(doc)
    root = doc.plan["run_dir"]
    text = {entry["path"]: Path(root, entry["path"]).read_text() for entry in doc.plan["files"]}
    assert json.loads(text["gate.json"]) == {"version": 1, "plan_digest": "D" * 64}
    assert json.loads(text["caddy/caddy.json"]) == {"admin": {"disabled": True}}
    assert text["broker/launch.py"] == "print()\n"
    modes = {path: stat.S_IMODE(os.stat(f"{root}/{path}").st_mode) for path in ("", "caddy", "caddy/caddy.json")}
    assert modes == {"": 0o700, "caddy": 0o755, "caddy/caddy.json": 0o644}


def test_secrets_are_random_or_read_and_go_by_standard_input(doc):
    calls = bringup._secret_calls(doc, lambda entry: "sk-of-the-provider")
    given = {args[-2]: value for args, value in calls}
    assert given["asf-a.main-provider"] == b"sk-of-the-provider"
    token, master = given["asf-a.main-token"], given["asf-a.main-master"]
    assert token.startswith(b"asf-") and master.startswith(b"sk-") and len(token) == 4 + 64 and len(master) == 3 + 64
    again = {args[-2]: value for args, value in bringup._secret_calls(doc, lambda entry: "x")}
    assert again["asf-a.main-token"] != token
    assert all(args[-1] == "-" and "sk-" not in " ".join(args) for args, _ in calls)  # S3: never a word of a command


# --- start ------------------------------------------------------------------------------------------------------------


def test_an_initialized_container_is_started(doc):
    podman = FakePodman([row("caddy")])
    assert bringup.start(podman, doc, "caddy")["changed"] is True
    assert podman.calls[-1] == ["start", "asf-a.main-caddy"]


def test_a_running_one_is_left_alone(doc):
    podman = FakePodman([row("caddy")], "Running")
    assert bringup.start(podman, doc, "caddy") == {"changed": False, "actions": ["asf-a.main-caddy runs already"]}


@pytest.mark.parametrize("status", ["created", "exited", "stopped", "paused"])
def test_any_other_state_is_refused(doc, status):
    """A container that is not initialized would get new namespaces, without cable and rules."""
    podman = FakePodman([row("agent")], status)
    with pytest.raises(EngineError, match=f"is {status}, not initialized"):
        bringup.start(podman, doc, "agent")
    assert not [call for call in podman.calls if call[0] == "start"]


@pytest.mark.parametrize("rows, said", [([], "would start"), ([row("agent")], "would start")])
def test_check_mode_starts_nothing(doc, rows, said):
    podman = FakePodman(rows)
    assert said in bringup.start(podman, doc, "agent", check_mode=True)["actions"][0]
    assert not [call for call in podman.calls if call[0] == "start"]


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_caddy_that_does_not_listen_is_told_with_its_last_words(doc, monkeypatch):
    monkeypatch.setattr(netns, "in_net", lambda pid, work, timeout: ["198.18.0.1:3128"])
    with pytest.raises(EngineError, match=r"Caddy does not listen on 198\.18\.0\.1:3128") as caught:
        bringup.wait_listening(FakePodman(), doc, {"caddy": {"pid": 5}})
    assert caught.value.code == "caddy-not-started" and caught.value.found == "last line"


def test_listening_ends_when_all_is_there_when_time_is_up_or_when_the_process_is_gone(monkeypatch):
    monkeypatch.setattr(bringup.observe, "listening", lambda text: ["198.18.0.1:3128"])
    later = bringup.time.monotonic() + 60
    assert bringup._listening(["198.18.0.1:3128"], os.getpid(), later) == []
    assert bringup._listening(["198.18.0.1:4000"], os.getpid(), 0) == ["198.18.0.1:4000"]
    assert bringup._listening(["198.18.0.1:4000"], 2**22 + 1, later) == ["198.18.0.1:4000"]


def test_the_last_word_is_the_programs_and_not_its_supervisors():
    words = 'Error: no such key\n{"asf":"supervisor","name":"broker","event":"start"}'
    assert bringup._silent("broker", "x", words).found == "Error: no such key"
    assert bringup._silent("broker", "x", words.splitlines()[1]).found.startswith('{"asf"')
    assert bringup._silent("broker", "x", "").found is None


def test_a_program_that_ends_again_and_again_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(bringup.observe, "listening", lambda text: [])
    children = iter(range(100, 1000))
    monkeypatch.setattr(bringup.procs, "children", lambda pid: [next(children)])
    later = bringup.time.monotonic() + 60
    assert bringup._listening(["198.18.0.1:4000"], os.getpid(), later) == ["198.18.0.1:4000"]
    assert next(children) == 100 + bringup.MAX_ENDS + 1
    assert bringup._answers("127.0.0.1", 1, later, os.getpid()) is False


def test_one_child_all_the_time_is_waited_for(monkeypatch):
    seen = set()
    monkeypatch.setattr(bringup.procs, "children", lambda pid: [7])
    assert not any(bringup._hopeless(os.getpid(), seen) for _ in range(20)) and seen == {7}


def test_children_as_the_kernel_lists_them():
    with subprocess.Popen(["sleep", "30"]) as child:
        assert child.pid in bringup.procs.children(os.getpid())
        child.kill()
    assert bringup.procs.children(2**22 + 1) == []


@pytest.mark.parametrize("record", [None, {}, {"containers": {}}, {"containers": []}])
def test_without_a_record_of_the_containers_nothing_is_entered(doc, monkeypatch, record):
    monkeypatch.setattr(state, "read", lambda session: record)
    with pytest.raises(EngineError, match="no record of its containers"):
        bringup.chosen(doc)


def test_children_of_every_thread_are_seen():
    """The gate's runtime forks from whichever thread it happens to run on."""
    started, done = queue.Queue(), threading.Event()

    def work():
        started.put(subprocess.Popen(["sleep", "20"]))
        done.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    with started.get(timeout=10) as child:
        assert child.pid in bringup.procs.children(os.getpid())
        child.kill()
    done.set()
    thread.join()
