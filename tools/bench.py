#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""Time open and close against the bare commands, interleaved: what ``make bench`` runs.

Three figures, each beside its floor. ``open_without_broker`` and ``close``: the same Podman and wiring commands that
the plan holds, issued one after the other by subprocess, with no Ansible, no verification and no records.
``open_with_broker``: the product's own launcher and image from ``podman start`` to its liveliness answer, alone.
``several`` (``bench_several.py``): eight sessions opened at once beside the CPU time of one, and memory by part.
``first-prompt`` (``bench_prompt.py``): from the command line to Claude Code's prompt, and one more session's cost.
``modes``: opens of ``isolated`` and ``routed`` agents beside the bare commands of their plans; needs the closed network
(`make bench-modes`), because a routed open has controls to reach.
Writes ``build/bench.json``; ratios are of medians of runs made side by side on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import bench_prompt
import bench_read
import bench_several

import asf_cli  # noqa: F401  (gives asf_lib its name in a checkout)
from asf_lib.engine import bringup, netns, wiring
from asf_lib.engine.plandoc import PlanDocument
from asf_lib.engine.podman import Podman

ROOT = Path(__file__).resolve().parent.parent
AGENTS = {
    "bench-plain": "name: bench-plain\nadapter: generic\nnetwork: "
    "{allow_domains: [{name: docs.example.com, private: [198.51.100.0/24]}]}\n",
    "bench-isolated": "name: bench-isolated\nadapter: generic\nnetwork: {mode: isolated}\n",
    "bench-routed": "name: bench-routed\nadapter: generic\nnetwork: {mode: routed, "
    "allow: [{cidr: 198.51.100.10/32, protocol: tcp, ports: [443]}], "
    "verify: {address: 198.51.100.10, protocol: tcp, port: 443, blocked_port: 8443}}\n",
    "bench-broker": "name: bench-broker\nadapter: generic\nllm: {protocol: openai, mock: hello}\n",
}


class Bench:
    """One run of the benchmark: a home of its own, figures by name."""

    def __init__(self, base: Path) -> None:
        self.env = {**os.environ, "ASF_HOME": str(base / "home"), "XDG_STATE_HOME": str(base / "state")}
        os.environ.update(self.env)
        self.base, self.podman = base, Podman()
        self.times: dict[str, list[float]] = defaultdict(list)
        self.phases: dict[str, list[float]] = defaultdict(list)
        for name, text in AGENTS.items():
            folder = base / "home" / "agents" / name
            folder.mkdir(parents=True)
            (folder / "runtime.yml").write_text(text, encoding="utf-8")

    def play(self, playbook: str, agent: str) -> dict[str, Any]:
        """One run of the product; returns its JSON document. Raises when it is not ok."""
        words = [sys.executable, "-P", "-m", "asf_cli", playbook, "-e", f"agent={agent}", "--json"]
        words += ["--detach"] if playbook == "open.yml" else []
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        document: dict[str, Any] = json.loads(done.stdout)
        if not document["ok"]:
            raise SystemExit(f"bench: {playbook} of {agent} failed: {document['error']}")
        return document

    def timed(self, figure: str, playbook: str, agent: str) -> None:
        """Time the product and keep its phases."""
        began = time.monotonic()
        document = self.play(playbook, agent)
        self.times[figure].append(time.monotonic() - began)
        for phase in document["phases"]:
            self.phases[f"{figure}.{phase['name']}"].append(phase["seconds"])

    def keep(self, agent: str) -> PlanDocument:
        """Open once, keep the plan and its files for the floor, and close."""
        self.play("open.yml", agent)
        record = json.loads((self.base / "state" / "asf" / "live" / f"{agent}.main.json").read_text())
        document = json.loads(Path(record["plan"]).read_text())
        kept = self.base / "kept" / agent
        shutil.copytree(document["plan"]["run_dir"], kept)
        text = json.dumps(document["plan"]).replace(document["plan"]["run_dir"], str(kept))
        plan = json.loads(text.replace(f"asf-{agent}.main", f"floor-{agent}"))
        self.play("close.yml", agent)
        return PlanDocument("", document["digest"], plan)


def floor_open(podman: Podman, doc: PlanDocument) -> float:
    """The plan's commands, bare; seconds until all containers run."""
    began = time.monotonic()
    podman.parallel([[*c["args"]] for c in doc.plan["containers"]])
    podman.run(["init", *doc.names().values()])
    pids = podman.run(["inspect", "-f", "{{.State.Pid}}", *doc.names().values()]).stdout.split()
    wiring.wire(dict(zip(doc.names(), map(int, pids), strict=True)), doc.plan["wiring"])
    for name in doc.names().values():
        podman.run(["start", name])
    return time.monotonic() - began


def floor_close(podman: Podman, doc: PlanDocument) -> float:
    """Bare removal; seconds."""
    began = time.monotonic()
    podman.run(["rm", "-f", "-t", "0", *doc.names().values()])
    return time.monotonic() - began


def floor_boot(podman: Podman, doc: PlanDocument) -> float:
    """The broker alone, from ``podman start`` to liveliness; seconds. Its cable's address is put on ``lo``."""
    spec = next(c for c in doc.plan["containers"] if c["role"] == "broker")
    secrets = [s["name"] for s in doc.plan["secrets"] if s["part"] == "master"]
    podman.parallel([(["secret", "create", name, "-"], b"sk-0123456789abcdef0123456789abcdef") for name in secrets])
    podman.run(spec["args"])
    podman.run(["init", spec["name"]])
    pid = int(podman.run(["inspect", "-f", "{{.State.Pid}}", spec["name"]]).stdout)
    address = next(c["near"]["ip"] for c in doc.plan["wiring"]["cables"] if c["near"]["role"] == "broker")
    netns.commands(
        [
            (pid, ["ip", "addr", "add", f"{address}/32", "dev", "lo"], None),
            (pid, ["ip", "link", "set", "lo", "up"], None),
        ]
    )
    began = time.monotonic()
    podman.run(["start", spec["name"]])
    bringup.wait_broker(podman, doc, {"broker": {"pid": pid}})
    seconds = time.monotonic() - began
    podman.run(["rm", "-f", "-t", "0", spec["name"]])
    podman.parallel([["secret", "rm", name] for name in secrets])
    return seconds


def quantile(values: list[float], share: float) -> float:
    """The value at ``share`` (0..1) of the sorted list, nearest rank."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


def figure(own: list[float], floor: list[float]) -> dict[str, float]:
    """Medians, 95th percentiles and the ratio of medians."""
    p50, base = statistics.median(own), statistics.median(floor)
    return {
        "seconds_p50": round(p50, 3),
        "seconds_p95": quantile(own, 0.95),
        "floor_p50": round(base, 3),
        "floor_p95": quantile(floor, 0.95),
        "ratio_p50": round(p50 / base, 2),
    }


def measure(bench: Bench, rounds: int) -> None:
    """Interleave product and floor, so that a noisy moment meets both."""
    plain, brokered = bench.keep("bench-plain"), bench.keep("bench-broker")
    for _ in range(rounds):
        bench.timed("open_without_broker", "open.yml", "bench-plain")
        bench.timed("close", "close.yml", "bench-plain")
        bench.times["floor.open_without_broker"].append(floor_open(bench.podman, plain))
        bench.times["floor.close"].append(floor_close(bench.podman, plain))
        bench.timed("open_with_broker", "open.yml", "bench-broker")
        bench.play("close.yml", "bench-broker")
        bench.times["floor.open_with_broker"].append(floor_boot(bench.podman, brokered))


def measure_modes(bench: Bench, rounds: int) -> dict[str, dict[str, float]]:
    """Opens without a broker in each mode beside their floors, interleaved."""
    modes = ("plain", "isolated", "routed")
    kept = {mode: bench.keep(f"bench-{mode}") for mode in modes}
    for _ in range(rounds):
        for mode in modes:
            bench.timed(f"open_{mode}", "open.yml", f"bench-{mode}")
            bench.play("close.yml", f"bench-{mode}")
            bench.times[f"floor.open_{mode}"].append(floor_open(bench.podman, kept[mode]))
            floor_close(bench.podman, kept[mode])
    return {f"open_{mode}": figure(bench.times[f"open_{mode}"], bench.times[f"floor.open_{mode}"]) for mode in modes}


def report(bench: Bench, rounds: int) -> dict[str, Any]:
    """The document that is written."""
    names = ("open_without_broker", "open_with_broker", "close")
    return {
        "version": 1,
        "rounds": rounds,
        "podman": ".".join(map(str, bench.podman.version())),
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "arch": platform.machine()},
        "figures": {n: figure(bench.times[n], bench.times[f"floor.{n}"]) for n in names},
        "phases": {
            n: {"p50": round(statistics.median(v), 3), "p95": quantile(v, 0.95)} for n, v in bench.phases.items()
        },
    }


def _document(bench: Bench, rounds: int, part: str) -> dict[str, Any]:
    """Everything, or what there was with only one part measured anew."""
    path = ROOT / "build" / "bench.json"
    if part != "all":
        bench.play("open.yml", "bench-plain")  # builds what is missing
        bench.play("close.yml", "bench-plain")
        document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"version": 1, "figures": {}}
    else:
        measure(bench, rounds)
        document = report(bench, rounds)
    if part == "modes":
        document["figures"].update(measure_modes(bench, rounds))
    if part in ("all", "several"):
        document["several"] = bench_several.measure(bench.env, min(rounds, 3))
        document["memory_mib"] = bench_several.memory(bench.env)
    if part in ("all", "first-prompt"):
        document["first_prompt"] = bench_prompt.measure(bench.env, min(rounds, 5))
    if part in ("all", "read"):
        document["read"] = bench_read.measure(bench.env, 2 * rounds)
    return document


def main() -> int:
    """Measure, write ``build/bench.json`` and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parts = ["all", "several", "read", "modes", "first-prompt"]
    parser.add_argument("--part", choices=parts, default="all", help="only this part anew")
    request = parser.parse_args()
    rounds = request.rounds
    base = Path(tempfile.mkdtemp(prefix="asf-bench-", dir=Path.home()))
    try:
        bench = Bench(base)
        document = _document(bench, rounds, request.part)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "bench.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    for name, row in document["figures"].items():
        print(f"{name:20} {row['seconds_p50']:6.2f} s   floor {row['floor_p50']:6.2f} s   ratio {row['ratio_p50']:.2f}")
    print(json.dumps({key: document.get(key) for key in ("several", "memory_mib", "read", "first_prompt")}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
