#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""The main job, from a sample repository to nothing left: what ``make demo`` runs in the operator's environment.

A real client (Claude Code) works in a verified sandbox against the embedded model: it edits the repository by a tool
call, tries a host that nobody declared and is refused. No key, no account, no provider.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
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
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "demo",
    "GIT_AUTHOR_EMAIL": "demo@example.com",
    "GIT_COMMITTER_NAME": "demo",
    "GIT_COMMITTER_EMAIL": "demo@example.com",
}
_COMMIT = re.compile(r"[0-9a-f]{40}")


def say(text: str) -> None:
    """A headline of the demo."""
    print(f"\n── {text}", flush=True)


def git(folder: Path, *args: str) -> str:
    """Run git in a repository that nobody but this program has written to: its configuration may name programs."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "-C", str(folder), *args],
        env={**env, **GIT_ENV},
        encoding="utf-8",
        errors="surrogateescape",
        capture_output=True,
        check=True,
        timeout=60,
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


def commit_of(repo: Path) -> str:
    """The commit that the branch ``main`` is at, out of its file. Raises ValueError or OSError when there is none.

    The agent may have written anything there, in ``.git`` too: a link, a pipe, any text.
    """
    descriptor = os.open(repo / ".git/refs/heads/main", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        text = os.read(descriptor, 64) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    finally:
        os.close(descriptor)
    commit = text.decode("ascii", "replace").strip()
    if not _COMMIT.fullmatch(commit):
        raise ValueError("the file of the branch main holds no commit")
    return commit


def changes(repo: Path, before: str, reader: Path) -> str:
    """What was committed since ``before``, safe for a terminal; empty when nothing was, or it cannot be read.

    ``reader``, a folder that does not exist yet, becomes a bare repository that borrows the objects of ``repo``. So git
    takes no configuration, no attributes and no hooks from where the agent could write them (case F3).
    """
    from asf_lib.core.escape import terminal

    try:
        after = commit_of(repo)
        if after == before:
            return ""
        git(repo.parent, "init", "-q", "--bare", "--template=", str(reader))
        (reader / "objects/info").mkdir(exist_ok=True)
        (reader / "objects/info/alternates").write_text(f"{repo}/.git/objects\n", encoding="utf-8")
        text = git(reader, "log", "--oneline", after) + git(reader, "diff", before, after)
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        print(f"what was committed cannot be read: {terminal(error)}")
        return ""
    return "\n".join(terminal(line) for line in text.splitlines())


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
    before = commit_of(repo)
    say("Grant a sample repository to the agent, and open it")
    if play(env, "repo", "add", AGENT, str(repo)) or play(env, "open.yml", "-e", f"agent={AGENT}"):
        return 1
    evidence = newest(base / "state")
    say("What the agent changed")
    changed = changes(repo, before, base / "reader.git")
    print(changed or "no commit")
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
