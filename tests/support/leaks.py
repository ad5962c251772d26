# SPDX-License-Identifier: BSD-4-Clause
"""What this test run's sessions left behind. Other sessions of the same account are none of its business."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support.product import RUN, podman


def _rows(*args: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(podman(*args, "--format", "json") or "[]")
    return rows


def find(run: str = RUN) -> list[str]:
    """Containers, secrets, volumes, run folders and processes that carry the run's mark; empty when all is clean."""
    found = []
    for row in _rows("ps", "-a"):
        text = f"{row.get('Names')} {(row.get('Labels') or {}).get('asf.session', '')}"
        if run in text:
            found.append(f"container {row['Names']} ({row.get('State')})")
    found += [f"secret {name}" for name in podman("secret", "ls", "--format", "{{.Name}}").split() if run in name]
    found += [f"volume {name}" for name in podman("volume", "ls", "-q").split() if run in name]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")) / "asf"
    found += [f"run folder {path}" for path in folder.glob("*") if run in path.name]
    found += [f"lock {path}" for path in folder.glob("locks/*") if run in path.name and _held(path)]
    return found


def _held(path: Path) -> bool:
    """True when some process holds the lock file open; an unlocked file that stays is no leak."""
    inode = path.stat().st_ino
    return any(f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())
