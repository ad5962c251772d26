# SPDX-License-Identifier: BSD-4-Clause
"""The gate as PID 1 on real Podman: waiting for go, starting, forwarding, reaping, ending (S7; invariants 3 and 4)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest
from support import netns
from support.mutate import Run, mutated
from support.product import Home, podman
from support.waiting import wait_for

from asf_lib.core import inside_rules
from asf_lib.engine import bringup

pytestmark = [pytest.mark.podman]

CANARY = "canary-of-the-operators-environment"
OPERATOR = {
    "AWS_SECRET_ACCESS_KEY": CANARY,
    "ANTHROPIC_API_KEY": CANARY,
    "HTTPS_PROXY": f"http://{CANARY}:1",
    "EDITOR": CANARY,
}


def manifest(*command: str, **more: Any) -> Mapping[str, Any]:
    network = {"allow_domains": [{"name": "docs.example.com", "private": ["198.51.100.0/24"]}]}
    return {
        "adapter": "generic",
        "runtime": {"mode": "service", "command": list(command)},
        "network": network,
        **more,
    }


def ended(run: Run, within: float = 20) -> int:
    """The agent container's exit code."""
    name = run.container("agent")
    wait_for(lambda: podman("inspect", "--format={{.State.Status}}", name) == "exited", within)
    return int(podman("inspect", "--format={{.State.ExitCode}}", name))


def said(run: Run) -> str:
    return bringup.last_words(run.podman, run.container("agent"))


def say(run: Run, words: str) -> list[str]:
    """Talk to the waiting gate as the operator's side does: what it says until it closes, line by line."""
    name = "\0" + run.doc.plan["gate"]["socket"]

    def talk() -> list[str]:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            line.connect(name)
            reader = line.makefile("r")
            lines = [reader.readline()]
            if words:
                line.sendall(words.encode() + b"\n")
                lines.append(reader.readline())
            return lines

    answer: list[str] = netns.in_netns(run.pids["agent"], talk)
    return answer


def test_dropped_connections_and_wrong_orders_leave_it_waiting(home: Home) -> None:
    """A connection that ends without an order changes nothing; an order must carry the report's nonce."""
    home.agent("plain", manifest("sh", "-c", "exit 7"))
    with mutated(home, "plain") as run:
        assert run.error is None, str(run)
        say(run, "")
        assert say(run, "go " + "0" * 32)[1] == "no\n"
        assert say(run, "GO")[1] == "no\n"
        assert podman("inspect", "--format={{.State.Status}}", run.container("agent")) == "running"
        run.go()
        assert ended(run) == 7
        assert said(run) == ""


def test_told_to_stop_it_starts_nothing(home: Home) -> None:
    home.agent("plain", manifest("echo", "the workload ran"))
    with mutated(home, "plain") as run:
        assert say(run, "stop a probe\x1b[2J failed")[1] == "ok\n"
        assert ended(run) == 76
        assert said(run) == "gate: told to stop: a probe?[2J failed"


def test_without_go_it_ends_at_its_deadline(home: Home) -> None:
    home.agent("plain", manifest("echo", "the workload ran"))
    with mutated(home, "plain", gate_deadline=10) as run:
        assert run.error is None, str(run)
        assert ended(run) == 75
        assert said(run) == "gate: nobody said go within 10 s"


def test_term_reaches_the_workload(home: Home) -> None:
    """`podman stop` asks PID 1, the gate passes it on: no waiting for the kill, and the workload's own exit code."""
    home.agent("plain", manifest("sh", "-c", "trap 'echo stopped; exit 5' TERM; echo up; while :; do sleep 0.05; done"))
    with mutated(home, "plain") as run:
        run.go()
        wait_for(lambda: "up" in said(run), 60)
        podman("stop", "-t", "50", run.container("agent"))
        assert ended(run) == 5  # killed, it would be 137
        assert "stopped" in said(run)


def test_orphans_are_reaped(home: Home) -> None:
    """Processes whose parents went are PID 1's children; none of them stays as a zombie."""
    script = "for i in 1 2 3 4 5 6 7 8 9; do (sh -c 'sleep 0.2 & exit 0'); done; sleep 1; echo done; exec sleep 600"
    home.agent("plain", manifest("sh", "-c", script))
    with mutated(home, "plain") as run:
        run.go()
        wait_for(lambda: "done" in said(run), 60)
        rows = podman("exec", run.container("agent"), "/asf/gate", "exec", "--", "ps", "-e", "-o", "stat=,args=")
        assert [row for row in rows.splitlines() if row.startswith("Z")] == [], rows
        assert "sleep 600" in rows


def test_time_limit_ends_the_workload(home: Home) -> None:
    """`limits.time`: TERM, and the gate's own exit code whatever the workload made of it."""
    command = ("sh", "-c", "trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done")
    home.agent("plain", manifest(*command, limits={"time": "3s"}))
    with mutated(home, "plain") as run:
        assert run.doc.plan["gate"]["time_s"] == 3
        run.go()
        assert ended(run) == 124
        assert "limits.time is 3 s" in said(run)
        assert "asked" in said(run)


def environment(pid: int) -> dict[str, str]:
    """Environment block of a process, read as root of the parent user namespace: PID 1 shows it to nobody else."""
    text = netns.in_userns_root(f"tr '\\0' '\\n' < /proc/{pid}/environ")
    return dict(line.split("=", 1) for line in text.splitlines() if line)


def test_environment_is_the_planned_one(home: Home) -> None:
    """S7: PID 1, the workload and what is executed later; the operator's own variables are nowhere."""
    home.agent("plain", manifest("sleep", "600", env={"COLOUR": "blue {{ 1 }}"}))
    with mutated(home, "plain", env=OPERATOR) as run:
        run.go()
        planned = run.doc.plan["gate"]["env"]
        assert planned["COLOUR"] == "blue {{ 1 }}"
        first = environment(run.pids["agent"])
        assert set(first) <= inside_rules.ENGINE_ENV
        (workload,) = netns.in_userns_root(f"cat /proc/{run.pids['agent']}/task/*/children").split()
        assert environment(int(workload)) == planned
        out = podman("exec", run.container("agent"), "/asf/gate", "exec", "--", "/usr/bin/env", "-0")
        assert dict(line.split("=", 1) for line in out.split("\0") if line) == planned
        assert CANARY not in str([first, planned, out])


def test_workload_cannot_look_into_the_gate(home: Home) -> None:
    """PID 1 is not dumpable: neither its environment nor its memory nor its descriptors can be read from inside."""
    home.agent("plain", manifest("sleep", "600"))
    with mutated(home, "plain") as run:
        run.go()
        script = "for f in environ mem maps; do head -c1 /proc/1/$f 2>&1 >/dev/null; done; ls /proc/1/fd 2>&1; true"
        out = podman("exec", run.container("agent"), "/asf/gate", "exec", "--", "sh", "-c", script)
        assert out.count("Permission denied") == 4, out


def test_the_gate_is_execute_only_for_the_workload(home: Home) -> None:
    """A program that cannot be read is undumpable from its first instruction: nobody traces a fresh run's probes."""
    home.agent("life", manifest("sleep", "60"))
    with mutated(home, "life", live=lambda pids: None) as run:
        assert run.error is None, run  # the fresh run on a live session works all the same
        read = run.podman.run(["exec", run.container("agent"), "cat", "/asf/gate"], check=False)
        assert read.rc != 0 and "Permission denied" in read.stderr
