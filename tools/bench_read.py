# SPDX-License-Identifier: BSD-4-Clause
"""How long the read-only commands take while ten sessions live: the ``read`` part of the benchmark.

Wall time is what a user waits; CPU time (of the command and all that it started) is what a busy machine leaves of it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import bench_several

SESSIONS = 10
AGENT = "bench-plain"
#: Seconds that ``ls`` and ``status`` may take.
GOAL = 0.4


def _timed(words: list[str], env: Mapping[str, str]) -> tuple[float, float]:
    """``(wall, CPU)`` seconds of one command. Raises SystemExit when it fails."""
    before, began = os.times(), time.monotonic()
    done = subprocess.run([sys.executable, "-P", "-m", "asf_cli", *words], env=env, capture_output=True, check=False)
    wall, after = time.monotonic() - began, os.times()
    if done.returncode:
        raise SystemExit(f"bench: {words} failed: {done.stderr.decode(errors='replace')[-500:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, cpu


def measure(env: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """Figures of each command, with ``SESSIONS`` sessions open."""
    names = [f"read{number}" for number in range(SESSIONS)]
    commands = {
        "ls": ["ls"],
        "status": ["status", f"{AGENT}.{names[0]}"],
        "status_all": ["status"],
        "completion": ["completion", "--words", "--", "status", ""],
    }
    bench_several.run("open.yml", AGENT, names, env)
    try:
        taken = {name: [_timed(words, env) for _ in range(rounds)] for name, words in commands.items()}
    finally:
        bench_several.run("close.yml", AGENT, names, env)
    return {
        "sessions": SESSIONS,
        "goal_s": GOAL,
        **{
            name: {
                "seconds_p50": round(statistics.median(wall for wall, _ in found), 3),
                "seconds_min": round(min(wall for wall, _ in found), 3),
                "cpu_p50": round(statistics.median(cpu for _, cpu in found), 3),
            }
            for name, found in taken.items()
        },
    }
