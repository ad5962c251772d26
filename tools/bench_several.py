# SPDX-License-Identifier: BSD-4-Clause
"""The part of the benchmark about several sessions: eight opened at the same moment, and memory by part of a session.

Eight opens cost what one costs in CPU time, eight times, spread over the cores; what goes beyond that is waiting for
each other. CPU time of one open is what its processes used, those that were waited for and those that live on. What
others on the machine used meanwhile is measured too: a wall time says little beside a busy neighbour.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import asf_cli  # noqa: F401  (gives asf_lib its name in a checkout)
from asf_lib.engine import netns, procs

AT_ONCE = 8
_TICK = os.sysconf("SC_CLK_TCK")
Json = dict[str, Any]


def _words(playbook: str, agent: str, session: str) -> list[str]:
    words = [sys.executable, "-P", "-m", "asf_cli", playbook, "-e", f"agent={agent}", "-e", f"session={session}"]
    return [*words, "--json", *(["--detach"] if playbook == "open.yml" else [])]


def run(playbook: str, agent: str, sessions: Sequence[str], env: Mapping[str, str]) -> float:
    """Run a playbook on all of these sessions at once; seconds until the last has ended. Raises when one fails."""
    began = time.monotonic()
    started = [
        subprocess.Popen(_words(playbook, agent, one), env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for one in sessions
    ]
    documents = [json.loads(one.communicate()[0]) for one in started]
    spent = time.monotonic() - began
    for document in documents:
        if not document["ok"]:
            raise SystemExit(f"bench: {playbook} of {agent} failed: {document['error']}")
    return spent


# --- processes of a session -------------------------------------------------------------------------------------


def _record(env: Mapping[str, str], agent: str, session: str) -> Json:
    path = Path(env["XDG_STATE_HOME"]) / "asf" / "live" / f"{agent}.{session}.json"
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def parts(record: Json) -> dict[str, list[int]]:
    """Pids of everything that lives because of a session, by what it is."""
    found: dict[str, list[int]] = {"conmon": [], "uplink": []}
    for role, one in record["containers"].items():
        children = procs.children(one["pid"])
        names = {"agent": ("gate", "workload"), "caddy": ("supervisor of caddy", "caddy")}
        first, second = names.get(role, (f"supervisor of {role}", role))
        found[first], found[second] = [one["pid"]], children
        found["conmon"] += [above for above in [procs.parent(one["pid"])] if above]
        if role == "caddy":
            found["uplink"] = _uplink(one["id"], one["pid"])
    return found


def _uplink(container: str, pid: int) -> list[int]:
    """The user-mode network of a container: slirp4netns has its pid on the command line, pasta its namespace's path."""
    form = "{{.NetworkSettings.SandboxKey}}"
    asked = subprocess.run(["podman", "inspect", "-f", form, container], capture_output=True, check=True)
    places = {str(pid).encode(), asked.stdout.strip()} - {b""}
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if places & set(words[1:]) and Path(os.fsdecode(words[0])).name.startswith(("slirp4netns", "pasta")):
            found.append(int(entry.parent.name))
    return found


def _cpu(pid: int) -> float:
    """CPU seconds that a process used, with what it has waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text[text.rfind(")") + 2 :].split()
    return sum(map(int, fields[11:15])) / _TICK


def _memory(pids: Sequence[int]) -> dict[str, float]:
    """MiB of these processes together: ``rss``, and ``pss``, which shares out what several map."""

    def read() -> dict[str, int]:
        netns.enter_parent_user()  # Caddy and the broker are other uids
        total = {"Rss": 0, "Pss": 0}
        for pid in pids:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                name, _, rest = line.partition(":")
                if name in total:
                    total[name] += int(rest.split()[0])
        return total

    found = netns.forked(read)
    return {key.lower(): round(value / 1024, 1) for key, value in found.items()}


# --- figures ----------------------------------------------------------------------------------------------------


def _busy() -> float:
    """CPU seconds that the whole machine has been busy."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _idle, _wait, irq, soft, *_ = map(int, words)
    return (user + nice + system + irq + soft) / _TICK


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Spent:
    """CPU seconds of sessions that are opened, and of everybody else meanwhile."""

    def __init__(self) -> None:
        self.began, self.waited, self.busy = time.monotonic(), _children(), _busy()

    def done(self, records: Sequence[Json]) -> tuple[float, float]:
        """``(own, others)``."""
        busy, own = _busy() - self.busy, _children() - self.waited  # before anything else is asked
        own += sum(_cpu(pid) for record in records for pids in parts(record).values() for pid in pids)
        return own, max(0.0, busy - own)


def measure(env: Mapping[str, str], rounds: int) -> Json:
    """Open one, then eight at once; several rounds, of which the least disturbed counts."""
    cores, best = os.cpu_count() or 1, None
    names = [f"s{number}" for number in range(AT_ONCE)]
    for _ in range(rounds):
        spent = _Spent()
        run("open.yml", "bench-plain", names[:1], env)
        one, _ = spent.done([_record(env, "bench-plain", names[0])])
        run("close.yml", "bench-plain", names[:1], env)
        spent = _Spent()
        wall = run("open.yml", "bench-plain", names, env)
        own, others = spent.done([_record(env, "bench-plain", name) for name in names])
        closed = run("close.yml", "bench-plain", names, env)
        bound = AT_ONCE * one / cores
        row = {
            "sessions": AT_ONCE,
            "cpu_of_one_open": round(one, 2),
            "cpu_of_all": round(own, 2),
            "cpu_of_others": round(others, 2),
            "wall": round(wall, 2),
            "wall_of_close": round(closed, 2),
            "bound": round(1.3 * bound, 2),
            "ratio": round(wall / bound, 2),
            # what is left of it when the time goes off that the cores worked for others
            "ratio_without_others": round((wall - others / cores) / bound, 2),
        }
        best = row if best is None or row["cpu_of_others"] < best["cpu_of_others"] else best
    return best or {}


def memory(env: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Memory of one brokered session by part, after it has been verified."""
    run("open.yml", "bench-broker", ["memory"], env)
    found = {name: _memory(pids) for name, pids in parts(_record(env, "bench-broker", "memory")).items() if pids}
    run("close.yml", "bench-broker", ["memory"], env)
    total = {key: round(sum(one[key] for one in found.values()), 1) for key in ("rss", "pss")}
    return {**found, "total": total}
