# SPDX-License-Identifier: BSD-4-Clause
"""The courses of all shipped agents with their real clients: runs tests/e2e/agents and writes build/agents.json.

One object keyed by agent: ``ok``, ``version`` (the client's own word), ``tool_calls`` (results that the provider got),
``seconds`` (from open to the second session's end) and ``image_mb`` (10^6 bytes of the agent's image, its parents
included). An agent whose course did not run is not ok, and neither is the exit code then.

With ``--sizes`` no course runs: what each layer of the images adds is printed (docs/cost.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COURSES, TARGET = ROOT / "build" / "agents", ROOT / "build" / "agents.json"
#: Agent -> name of its image.
IMAGES = {
    "claude": "agent-claude",
    "codex": "agent-codex",
    "hermes": "agent-hermes",
    "python-agent": "agent-generic",
    "langgraph": "packages-langgraph",
    "crewai": "packages-crewai",
    "smolagents": "packages-smolagents",
}
_NOTHING = {"ok": False, "version": "", "tool_calls": 0, "seconds": 0.0}


def layers(image: str) -> list[int]:
    """Bytes that each layer of the newest image of this name adds, the base's first; empty when there is none.

    ``podman images`` counts an image's topmost layer twice when it has a copy for a user mapping (4.3), so the
    history is asked.
    """
    listed = _podman("images", "--quiet", "--filter", f"reference=localhost/asf/{image}", "--sort", "created")
    if not listed:
        return []
    rows = json.loads(_podman("history", "--format", "json", listed.split()[0]))
    return [int(row["size"]) for row in reversed(rows) if int(row["size"])]


def _podman(*argv: str) -> str:
    return subprocess.run(["podman", *argv], capture_output=True, text=True, check=True).stdout


def collected() -> dict[str, dict[str, Any]]:
    """What the courses wrote down, with the sizes of images."""
    found = {}
    for agent, image in IMAGES.items():
        file = COURSES / f"{agent}.json"
        course = json.loads(file.read_text(encoding="utf-8")) if file.exists() else _NOTHING
        found[agent] = {**course, "image_mb": round(sum(layers(image)) / 1e6)}
    return found


def sizes() -> int:
    """Print what the layers of each image add, in 10^6 bytes."""
    for agent, image in IMAGES.items():
        added = [round(size / 1e6) for size in layers(image)]
        print(f"| `{agent}` | {' + '.join(map(str, added))} | {sum(added)} |")
    return 0


def main() -> int:
    """Run the courses in the closed network that the caller made; 1 when one of them is not ok."""
    if sys.argv[1:] == ["--sizes"]:
        return sizes()
    for file in COURSES.glob("*.json"):
        file.unlink()
    code = subprocess.run(["pytest", "-q", "tests/e2e/agents", *sys.argv[1:]], cwd=ROOT, check=False).returncode
    found = collected()
    TARGET.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for agent, row in found.items():
        word = "ok" if row["ok"] else "NOT ok"
        print(f"{agent:<13} {word:<7} {row['image_mb']:>5} MB  {row['seconds']:>6} s  {row['version']}")
    return code or (0 if all(row["ok"] for row in found.values()) else 1)


if __name__ == "__main__":
    sys.exit(main())
