# SPDX-License-Identifier: BSD-4-Clause
"""open.yml from its words to its exit code, over synthetic events; Ansible, Podman and the gate are stand-ins."""

import json
from types import SimpleNamespace

import pytest

from asf_cli import attach, errors, main, opening, play, runner
from asf_cli.errors import CliError
from asf_lib.core.errors import GateError
from asf_lib.core.redact import Redactor

PROBE = {"id": "p", "invariant": 1, "vantage": "inside", "expect": "e", "verdict": "pass", "evidence": {}}


def task(name):
    return {"event": "playbook_on_task_start", "event_data": {"task": f"{name} | x"}}


def ok(**result):
    return {"event": "runner_on_ok", "event_data": {"res": result}}


def failed(message, **fields):
    error = {"message": message, "code": "engine", **fields}
    return {"event": "runner_on_failed", "event_data": {"res": {"msg": message, "asf_error": error}}}


def stats(**counts):
    return {"event": "playbook_on_stats", "event_data": {key: {"localhost": n} for key, n in counts.items()}}


PLAN = [task("plan"), ok(asf={"session": "claude.main", "live": False})]
VERIFY = [task("verify"), ok(asf={"probes": [PROBE], "evidence": "/e"}, nonce="n" * 32), stats(ok=2)]
OPENED = [*PLAN, *VERIFY]
CLOSED = [task("close"), ok(asf={"cleanup": {"actions": ["removed"]}, "evidence": "/e", "head": "abc"}), stats(ok=1)]


class World:
    """What a test says happens, and what then did."""

    def __init__(self):
        self.log = []
        self.runs = []
        self.open_events = OPENED
        self.close_events = CLOSED
        self.interrupt = False
        self.ending = attach.Ending("exit", 0)
        self.go_fails = None
        self.interactive = True
        self.tty = True
        self.live = False
        self.terminal = True
        self.record = None

    def execute(self, run, on_event, interrupts, on_start):
        self.runs.append(run)
        name = run.playbook.name
        self.log.append(name)
        for event in self.open_events if name == "open.yml" else self.close_events:
            on_event(event)
        if name == "open.yml" and self.interrupt:
            interrupts._handle(2, None)

    def held(self, session, asf):
        def go():
            self.log.append("go")
            if self.go_fails:
                raise self.go_fails

        plan = {"workload": {"interactive": self.interactive, "tty": self.tty}}
        target = attach.Target("asf-claude.main-agent", 1, 1, self.tty)
        return SimpleNamespace(
            session=session,
            plan=plan,
            live=self.live,
            podman=None,
            go=go,
            join=lambda: self.log.append("join"),
            target=lambda: target,
            wants_stdin=lambda: False,
        )

    def attach(self, podman, to, streams, go=None):
        self.log.append("attach")
        self.streams = streams
        if go is not None:
            go()
        if isinstance(self.ending, BaseException):
            raise self.ending
        return self.ending


@pytest.fixture
def world(monkeypatch, account):
    made = World()
    monkeypatch.setattr(runner, "execute", made.execute)
    monkeypatch.setattr(opening, "Held", made.held)
    monkeypatch.setattr(attach, "attach", made.attach)
    monkeypatch.setattr(attach, "have_terminal", lambda: made.terminal)
    monkeypatch.setattr(play, "redactor", lambda asf_home: Redactor())
    from asf_lib.engine import state

    monkeypatch.setattr(state, "read", lambda session: made.record)
    return made


def call(*words):
    return main.main(["open.yml", "-e", "agent=claude", *words])


def test_on_a_terminal(world, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "screen")
    monkeypatch.setenv("COLORTERM", "truecolor")
    world.ending = attach.Ending("exit", 7)
    assert call() == 7
    assert world.log == ["open.yml", "attach", "go", "close.yml"]
    assert world.runs[0].variables == {
        "agent": "claude",
        "asf_hold": True,
        "asf_terminal": {"TERM": "screen", "COLORTERM": "truecolor"},
    }
    assert world.runs[1].variables == {"agent": "claude"}
    assert world.streams.stdin
    out, err = capsys.readouterr()
    assert out == "" and "1 probes: 1 pass" in err and "Ctrl-] twice" in err and "head: abc" in err


def test_detached(world, capsys):
    assert call("--detach") == 0
    assert world.log == ["open.yml"] and "asf_hold" not in world.runs[0].variables
    assert "1 probes: 1 pass" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--check", "--tags=verify", "--skip-tags=verify"])
def test_a_part_holds_nothing(world, option):
    assert call(option) == 0
    assert world.log == ["open.yml"] and "asf_hold" not in world.runs[0].variables


def test_without_a_terminal_an_agent_is_left_running(world, capsys):
    world.terminal = False
    assert call() == 0
    assert world.log == ["open.yml", "go"]
    assert "left running" in capsys.readouterr().err


def test_a_service_streams(world):
    world.interactive = world.tty = world.terminal = False
    world.ending = attach.Ending("exit", 3)
    assert call() == 3
    assert world.log == ["open.yml", "attach", "go", "close.yml"]
    assert not world.streams.stdin and not world.streams.quiet_stdout


@pytest.mark.parametrize(
    ("terminal", "option", "tty"), [(True, [], True), (False, [], False), (True, ["--json"], False)]
)
def test_a_command_gets_the_terminal_that_there_is(world, terminal, option, tty):
    world.terminal, world.interactive, world.tty = terminal, False, tty
    call(*option, "--", "claude", "-p", "{{ x }}")
    assert world.runs[0].variables["asf_tty"] is tty
    assert world.runs[0].command == ["claude", "-p", "{{ x }}"]
    assert "attach" in world.log and world.streams.quiet_stdout is bool(option)


def test_json_of_a_service(world, capsys):
    world.interactive = world.tty = False
    world.ending = attach.Ending("exit", 5)
    assert call("--json") == 5
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["exit_code"] == 5 and found["close"]["ok"] and found["probes"] == [PROBE]


def test_json_leaves_an_agent_running(world, capsys):
    assert call("--json") == 0
    assert world.log == ["open.yml", "go"]
    assert json.loads(capsys.readouterr().out)["session"] == "claude.main"


def test_a_live_session_is_attached_without_go(world):
    world.live = True
    world.open_events = [task("plan"), ok(asf={"session": "claude.main", "live": True}), *VERIFY]
    assert call() == 0
    assert world.log == ["open.yml", "join", "attach", "close.yml"], "it is on record who sees to its end"


@pytest.mark.parametrize(
    ("how", "code"),
    [("detached", 0), ("hangup", errors.HANGUP), ("terminated", errors.TERMINATED), ("gone", errors.ENGINE)],
)
def test_left_running(world, capsys, how, code):
    world.ending = attach.Ending(how)
    assert call() == code
    assert world.log == ["open.yml", "attach", "go"]
    assert "claude.main" in capsys.readouterr().err


def test_a_session_that_another_command_closed_is_no_success(world, capsys):
    world.interactive = world.tty = False
    world.ending = attach.Ending("gone")
    assert call("--json", "--", "make") == errors.ENGINE
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and "closed by another command" in found["error"]["message"] and "close" not in found


def test_refused(world, capsys):
    world.open_events = [task("plan"), failed("no", code="manifest", key="network.mode"), stats(failures=1)]
    assert call() == errors.REFUSED
    assert world.log == ["open.yml"]
    assert "network.mode: no" in capsys.readouterr().err


def test_verification_failed_and_was_cleaned_up_by_the_rescue(world, capsys):
    bad = {**PROBE, "verdict": "fail", "evidence": {"route": "default"}}
    fail = failed("1 probe", code="verify")
    fail["event_data"]["res"]["asf"] = {"probes": [bad]}
    world.open_events = [*PLAN, task("verify"), fail, task("teardown"), ok(), stats(failures=1, rescued=1)]
    assert call() == errors.VERIFY
    out, _err = capsys.readouterr()
    assert "route: default" in out
    assert world.log == ["open.yml"]


def test_interrupted(world, capsys):
    world.interrupt = True
    world.open_events = [*PLAN, task("network"), stats(ok=2)]
    assert call("--json") == errors.INTERRUPTED
    assert world.log == ["open.yml", "close.yml"]
    found = json.loads(capsys.readouterr().out)
    assert found["error"]["code"] == "interrupted" and found["close"]["ok"]


def test_interrupted_before_anything(world):
    world.interrupt, world.open_events = True, []
    assert call() == errors.INTERRUPTED
    assert world.log == ["open.yml"]


@pytest.mark.parametrize("known_by", ["plan", "record"])
def test_an_interruption_leaves_a_live_session_alone(world, known_by):
    world.interrupt = True
    if known_by == "plan":
        world.open_events = [task("plan"), ok(asf={"live": True}), task("verify")]
    else:
        world.record, world.open_events = {"state": "live"}, [task("plan")]
    assert call() == errors.INTERRUPTED
    assert world.log == ["open.yml"]


def test_ansible_died(world):
    world.open_events = [*PLAN, task("network")]
    assert call() == errors.ENGINE
    assert world.log == ["open.yml", "close.yml"]


def test_the_gate_does_not_go(world, capsys):
    world.go_fails = GateError("the gate did not take go", remedy="close")
    assert call() == errors.VERIFY
    assert world.log == ["open.yml", "attach", "go", "close.yml"]
    assert "the gate did not take go" in capsys.readouterr().err


def test_podman_cannot_attach(world):
    world.ending = CliError("Podman could not attach", code="engine")
    assert call() == errors.ENGINE
    assert world.log[-1] == "close.yml"


def test_a_signal_before_the_attachment(world):
    from asf_cli.interrupts import Interrupted

    world.ending = Interrupted(15)
    assert call() == errors.TERMINATED
    assert world.log[-1] == "close.yml"


@pytest.mark.parametrize(("workload", "expected"), [(0, errors.CLEANUP), (9, 9)])
def test_the_session_cannot_be_closed(world, capsys, workload, expected):
    world.ending = attach.Ending("exit", workload)
    world.close_events = [task("close"), failed("a container is left", code="cleanup"), stats(failures=1)]
    assert call() == expected
    assert "a container is left" in capsys.readouterr().err
