# SPDX-License-Identifier: BSD-4-Clause
"""The part of the benchmark about a person's wait: from the command line to Claude Code's first prompt, in a terminal.

Beside it the floor: the same client in the same image by bare ``podman run``, in turns. Both have been started before,
so that there are no questions of a first start, and need no network: the session has the embedded model, the bare
client none. And what one more session of the same agent costs, once its client waits: memory by part, and disk.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bench_several

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.terminal import Terminal, terminal  # noqa: E402

Json = dict[str, Any]
AGENT = "bench-claude"
HOME = "/home/node"
MANIFEST = f"""name: {AGENT}
adapter: claude
runtime: {{command: [claude]}}
filesystem: {{state: [{{key: claude, target: {HOME}/.claude}}]}}
llm: {{protocol: anthropic, mock: hello}}
env: {{CLAUDE_CONFIG_DIR: {HOME}/.claude}}
"""
#: What the client keeps once a person has answered the questions of its first start.
KNOWN = {
    "hasCompletedOnboarding": True,
    "theme": "dark",
    "projects": {"/workspace/repos": {"hasTrustDialogAccepted": True}},
}
#: The line below the prompt; the client moves the cursor where others write blanks.
_PROMPT = r"for\s*agents"
_PHASE = re.compile(r"✓ (\S+) +([0-9.]+) s")


def _play(words: list[str], env: Mapping[str, str], stdin: str | None = None) -> str:
    argv = [sys.executable, "-P", "-m", "asf_cli", *words]
    done = subprocess.run(argv, env=dict(env), input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: asf-play {words} failed: {done.stderr}{done.stdout}")
    return done.stdout


def _session(session: str) -> list[str]:
    return ["-e", f"agent={AGENT}", "-e", f"session={session}"]


def prepare(env: Mapping[str, str], session: str) -> Json:
    """A session whose state volume remembers a first start; its record. It stays open."""
    folder = Path(env["ASF_HOME"]) / "agents" / AGENT
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runtime.yml").write_text(MANIFEST, encoding="utf-8")
    _play(["open.yml", *_session(session), "--json", "--detach", "--", "sleep", "infinity"], env)
    _play(["exec", *_session(session), "--", "tee", f"{HOME}/.claude/.claude.json"], env, json.dumps(KNOWN))
    return bench_several._record(env, AGENT, session)


def _leave(user: Terminal) -> None:
    user.type("\x03")
    user.expect(r"again\s*to\s*exit", 30)
    user.type("\x03")
    if user.wait(120):
        raise SystemExit(f"bench: the session ended with an error: {user.shown()}")


def opened(env: Mapping[str, str], times: dict[str, list[float]]) -> None:
    """One open, attached, up to the prompt; closed again by leaving the client."""
    began = time.monotonic()
    with terminal([sys.executable, "-P", "-m", "asf_cli", "open.yml", *_session("main")], env) as user:
        user.expect("attached;", 240)
        attached = time.monotonic()
        user.expect(_PROMPT, 60)
        ready = time.monotonic()
        phases = {name: float(seconds) for name, seconds in _PHASE.findall(user.text)}
        for name, seconds in phases.items():
            times[name].append(seconds)
        times["command line and attach"].append(attached - began - sum(phases.values()))
        times["client"].append(ready - attached)
        times["all"].append(ready - began)
        _leave(user)


def bare(image: str, env: Mapping[str, str]) -> float:
    """The client alone, by ``podman run``; seconds to its prompt."""
    known = f'mkdir -p {HOME}/.claude && echo "$KNOWN" > {HOME}/.claude/.claude.json && exec claude'
    variables = {
        "KNOWN": json.dumps(KNOWN),
        "CLAUDE_CONFIG_DIR": f"{HOME}/.claude",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_OFFICIAL_MARKETPLACE_AUTOINSTALL": "1",
    }
    argv = ["podman", "run", "-it", "--rm", "--init", "--network=none", "--user=1000", f"--tmpfs={HOME}:mode=1777"]
    argv += [f"--env={name}={value}" for name, value in variables.items()]
    began = time.monotonic()
    with terminal([*argv, image, "sh", "-c", known], env) as user:
        user.expect(_PROMPT, 60)
        seconds = time.monotonic() - began
        _leave(user)
    return seconds


def _stored() -> dict[str, int]:
    """Bytes that Podman holds: images, containers, volumes."""
    form = ["podman", "system", "df", "--format", "{{.Type}}\t{{.RawSize}}"]
    rows = subprocess.run(form, capture_output=True, text=True, check=True).stdout.splitlines()
    return {kind.lower(): int(size) for kind, size in (row.split("\t") for row in rows)}


def _below(folder: str) -> int:
    return sum(entry.stat().st_size for entry in Path(folder).rglob("*") if entry.is_file() and not entry.is_symlink())


def extra(env: Mapping[str, str]) -> Json:
    """One more session beside another one of the same agent, its client at its prompt: memory in MiB, disk in KiB."""
    prepare(env, "first")
    before = _stored()
    record = prepare(env, "second")
    with terminal(
        [sys.executable, "-P", "-m", "asf_cli", "exec", *_session("second"), "-t", "--", "claude"], env
    ) as user:
        user.expect(_PROMPT, 60)
        parts = bench_several.parts(record)
        parts["claude"] = _clients(record["containers"]["agent"]["pid"])
        memory = {name: bench_several._memory(pids) for name, pids in parts.items() if pids}
        after = _stored()
        plan = json.loads(Path(record["plan"]).read_text())["plan"]
        disk = {f"podman {kind}": round((after[kind] - before[kind]) / 1024) for kind in after}
        disk["run folder"] = round(_below(plan["run_dir"]) / 1024)
        disk["evidence"] = round(_below(record["evidence"]) / 1024)
        _leave(user)
    total = {key: round(sum(one[key] for one in memory.values()), 1) for key in ("rss", "pss")}
    return {"memory_mib": {**memory, "total": total}, "disk_kib": disk}


def _clients(gate: int) -> list[int]:
    """Claude Code in the container whose first process is ``gate``: the oldest one, as its helpers come and go."""
    found = []
    inside = os.readlink(f"/proc/{gate}/ns/pid") if os.access(f"/proc/{gate}/ns/pid", os.R_OK) else ""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.readlink(entry / "ns/pid") == inside
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        if ours and name == "claude":
            found.append(int(entry.name))
    return sorted(found)[:1]


def measure(env: Mapping[str, str], rounds: int) -> Json:
    """Product and floor in turns; medians in seconds. A measurement that fails leaves no session open."""
    try:
        return _measure(env, rounds)
    finally:
        for session in ("main", "first", "second"):
            argv = [sys.executable, "-P", "-m", "asf_cli", "close.yml", *_session(session), "--json"]
            subprocess.run(argv, env=dict(env), capture_output=True, check=False)


def _measure(env: Mapping[str, str], rounds: int) -> Json:
    record = prepare(env, "main")
    rows = json.loads(Path(record["plan"]).read_text())["plan"]["containers"]
    image = str(next(row["image"] for row in rows if row["role"] == "agent"))
    _play(["close.yml", *_session("main"), "--json"], env)
    times: dict[str, list[float]] = defaultdict(list)
    floor = []
    for _ in range(rounds):
        opened(env, times)
        floor.append(bare(image, env))
    phases = {name: round(statistics.median(values), 2) for name, values in times.items()}
    whole, base = phases.pop("all"), round(statistics.median(floor), 2)
    return {"seconds": whole, "phases": phases, "bare": base, "ratio": round(whole / base, 2), "extra": extra(env)}
