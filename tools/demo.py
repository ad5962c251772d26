#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""The main job, from a sample repository to nothing left: what ``make demo`` runs in the operator's environment.

A real client (Claude Code) works in a verified sandbox against the embedded model: it edits the repository by a tool
call, tries a host that nobody declared and is refused. No key, no account, no provider.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AGENT = "demo"
README = "# sample\n\nA repository for the demo. The agent adds a file and a line here.\n"
# git with no configuration but this: the demo must not depend on whoever runs it.
GIT_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "demo",
    "GIT_AUTHOR_EMAIL": "demo@example.com",
    "GIT_COMMITTER_NAME": "demo",
    "GIT_COMMITTER_EMAIL": "demo@example.com",
}


def say(text: str) -> None:
    """A headline of the demo."""
    print(f"\n── {text}", flush=True)


def git(folder: Path, *args: str) -> str:
    """Run git in the sample repository; the agent wrote there, so nothing of its configuration may run a program."""
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "diff.external="]
    extra = ["--no-ext-diff", "--no-textconv"] if args[0] in ("diff", "show") else []
    done = subprocess.run(
        ["git", *safe, "-C", str(folder), args[0], *extra, *args[1:]],
        env={**os.environ, **GIT_ENV},
        text=True,
        capture_output=True,
        check=True,
    )
    return done.stdout


def sample(folder: Path) -> Path:
    """A small git repository with one commit."""
    folder.mkdir()
    (folder / "README.md").write_text(README, encoding="utf-8")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "A sample")
    return folder


def play(env: dict[str, str], *words: str) -> int:
    """Run asf-play as a user would, its output shown."""
    print("$ asf-play " + " ".join(words), flush=True)
    return subprocess.run([sys.executable, "-P", "-m", "asf_cli", *words], env=env, check=False).returncode


def refusals(evidence: Path) -> list[str]:
    """Lines about the denials in a session's decision log."""
    from asf_lib.core.escape import terminal

    lines = []
    for text in (evidence / "decisions.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(text)
        if record.get("decision") == "deny":
            words = (record.get(k, "") for k in ("listener", "host", "port", "reason", "key"))
            lines.append("denied: " + " ".join(terminal(str(w)) for w in words))
    return lines


def left(env: dict[str, str]) -> list[str]:
    """Containers, secrets and sessions of the demo that still exist; must be empty."""

    def ask(*argv: str) -> list[str]:
        return subprocess.run(argv, env=env, text=True, capture_output=True, check=True).stdout.split()

    found = ask("podman", "ps", "--all", "--filter", f"label=asf.session={AGENT}.main", "--format", "{{.Names}}")
    found += [n for n in ask("podman", "secret", "ls", "--format", "{{.Name}}") if n.startswith(f"asf-{AGENT}.main-")]
    return found


def newest(state: Path) -> Path:
    """The evidence folder of the session that just ended."""
    return max((state / "asf" / "evidence" / f"{AGENT}.main").iterdir(), key=lambda p: p.stat().st_mtime)


def run(base: Path) -> int:
    """The demo itself; 0 when everything happened that should."""
    env = {**os.environ, "ASF_HOME": str(base / "home"), "XDG_STATE_HOME": str(base / "state")}
    (base / "home").mkdir()
    repo = sample(base / "sample")
    say("Grant a sample repository to the agent, and open it")
    if play(env, "repo", "add", AGENT, str(repo)) or play(env, "open.yml", "-e", f"agent={AGENT}"):
        return 1
    evidence = newest(base / "state")
    say("What the agent changed")
    more_than_one = git(repo, "rev-list", "HEAD").count("\n") > 1
    changed = git(repo, "log", "--oneline") + git(repo, "diff", "HEAD~1") if more_than_one else ""
    print(changed or git(repo, "diff") or "nothing")
    say("What it was refused")
    denied = refusals(evidence)
    print("\n".join(denied) or "nothing")
    remains = left(env)
    say(f"Closed: {', '.join(remains) + ' is left' if remains else 'nothing is left'}")
    print("evidence: " + ", ".join(sorted(path.name for path in evidence.iterdir())))
    return 0 if changed and denied and not remains else 1


def main() -> int:
    """Run in a folder of its own, below the account's home, and remove it."""
    import asf_cli  # noqa: F401  (gives asf_lib its name in a checkout)

    began = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="asf-demo-", dir=Path.home()))
    try:
        code = run(base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"\ndemo: {'all of it happened' if code == 0 else 'NOT as it should be'} ({time.monotonic() - began:.0f} s)")
    return code


if __name__ == "__main__":
    sys.exit(main())
