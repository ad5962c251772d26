# SPDX-License-Identifier: BSD-4-Clause
"""Which cases the crash matrix has: every step of a recorded open, verify and close, so that none is forgotten."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from support import chaos
from support.crash_lab import AGENTS, Case, Lab

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PLAYS = ("open.yml", "verify.yml", "close.yml")
Points = list[dict[str, Any]]
Recorded = dict[tuple[str, str], Points]


def record(lab: Lab) -> Recorded:
    """What open, verify and close of each agent do, step by step. Raises AssertionError when one fails.

    `lab.missed` is what an open has left and no point explains: a step that the recorder did not see.
    """
    found: Recorded = {}
    for agent in AGENTS:
        built = lab.play("build.yml", agent, timeout=900)
        assert built.rc == 0, f"the images of {agent}: {built}"
    for agent in AGENTS:
        for play in PLAYS:
            done, points, _ = lab.chaos(play, agent)
            assert done.rc == 0, f"{play} of {agent} without any fault: {done}"
            found[play, agent] = points
            lab.missed += _missed(lab, agent, points) if play == "open.yml" else []
        lab.live = ""
    return found


def without_deadline(recorded: Recorded) -> list[str]:
    """External commands that nobody would end if they hung."""
    ended = (entry for points in recorded.values() for entry in points if entry["point"].endswith(" ended"))
    # What Ansible itself starts is bounded by the task's own `timeout`.
    endless = {entry["point"] for entry in ended if entry.get("timeout") is None}
    return sorted(point for point in endless if "ansible.local" not in point)


def _missed(lab: Lab, agent: str, points: Points) -> list[str]:
    seen = {entry["point"].partition(": ")[2] for entry in points}
    named = {what.partition(" ")[2] for what in seen}
    helper = chaos.Chaos.__new__(chaos.Chaos)
    helper.config = {"session": lab.id(agent)}
    runtime, state = Path(os.environ["XDG_RUNTIME_DIR"]) / "asf", lab.home.state / "asf"
    paths = [f"STATE/{path.relative_to(state)}" for path in state.rglob("*") if lab.id(agent) in str(path)]
    folder = runtime / lab.id(agent)
    paths += [f"RUN/{path.relative_to(runtime)}" for path in [folder, *folder.rglob("*")]]
    containers = [f"podman create {name} ended" for name in lab.facts(agent).containers]
    return [
        *(shown for shown in map(helper.plain, paths) if shown not in named),
        *(command for command in map(helper.plain, containers) if command not in seen),
    ]


#: A point and how often it was reached before, plus one.
Step = tuple[str, int]

#: `starts` is where the command before has ended: a point for the fault of the command itself. Nothing was changed
#: between the start of a command that only looks and its end, or by the mode of a file in a folder of the operator's.
_SAME = re.compile(
    r" starts$|os\.chmod |"
    r"(podman (ps|inspect|info|images?|volume ls|secret ls|container inspect|logs|exec)\b.*|podman|ip -j .*|sh -c"
    r"|\S+ (--version|-V)) started$"
)
#: Steps that are one as often as they come; all others are the same each time (locks, the CLI's own run folder).
_EACH = re.compile(
    r"os\.(rename|remove) (STATE|RUN/SESSION)|(podman (create|init|start|rm|secret|volume rm)|ip -b|nft).* ended$|"
    r"sendall"
)


_ONCE = re.compile(r"os\.mkdir RUN(/(locks|cli))?$")


def _steps(points: list[dict[str, Any]], known: set[Step]) -> list[Step]:
    """What is new in a run, in its order. `known` grows."""
    count: dict[str, int] = {}
    found = []
    for entry in points:
        point = entry["point"]
        count[point] = count.get(point, 0) + 1
        step = (point, count[point])
        if step not in known and (count[point] == 1 or _EACH.search(point)):
            known.add(step)
            found.append(step)
    return found


def cases(recorded: Recorded) -> list[Case]:
    """The whole matrix."""
    found: list[Case] = []
    ours: set[Step] = set()  # what the CLI does around its run is the same for every playbook
    for play in PLAYS:
        known: set[Step] = set(ours)
        for agent in AGENTS:
            found += _of(play, agent, _steps(recorded[play, agent], known))
        ours |= {step for step in known if step[0].startswith("cli ")}
    return found


def _of(play: str, agent: str, steps: list[Step]) -> list[Case]:
    """Cases of the steps of one run: everybody is killed at each, one alone and a signal now and then."""
    found: list[Case] = []

    def add(chosen: Iterable[Step], action: Callable[[int], tuple[str, Any]]) -> None:
        for n, (point, nth) in enumerate(chosen):
            recover = ("close.yml", "open.yml")[(n // 2) % 2]
            what, argument = action(n)
            found.append(Case(play, agent, point, what, argument, nth, recover))

    # How often Ansible itself starts an interpreter differs from run to run; what runs in it has steps of its own.
    # Folders of the account are made once in its life, and the other worker stands in them: no case gets there again.
    steps = [step for step in steps if "ansible.local" not in step[0] and not _ONCE.search(step[0])]
    after = [step for step in steps if not _SAME.search(step[0])]
    inner = [step for step in after if not step[0].startswith("cli ")]
    commands = [step for step in steps if step[0].endswith(" starts")]
    add(after, lambda n: ("kill", "all"))
    add(inner[::5], lambda n: ("kill", ("cli", "play", "task")[n % 3]))
    add(inner[2::8], lambda n: ("signal", [int(_SIGNALS[n % 3]), 1 + n % 2]))
    add(commands, lambda n: (("fail", "hang")[n % 2], None))
    for place in ("STATE", "RUN"):
        changes = [step for step in inner if f" {place}/" in step[0] and "os.remove" not in step[0]]
        add(changes[::4], lambda n, place=place: (("full", "read-only")[n % 2], place))  # type: ignore[misc]
    return found
