# SPDX-License-Identifier: BSD-4-Clause
"""What `make agents` counts: one file per agent whose course with the real client ran, in build/agents."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "agents"


@dataclass
class Course:
    """How it went. `version` is the client's own word; `tool_calls` how many the provider saw answered."""

    ok: bool = False
    version: str = ""
    tool_calls: int = 0
    seconds: float = 0.0


@contextlib.contextmanager
def course(agent: str) -> Iterator[Course]:
    """Time a course from open to the last assertion and write it down; `ok` only when nothing was raised."""
    found, begun = Course(), time.monotonic()
    try:
        yield found
        found.ok = bool(found.version) and found.tool_calls >= 3
        assert found.ok, f"the course says too little of {agent}: {found}"
    finally:
        found.seconds = round(time.monotonic() - begun, 1)
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{agent}.json").write_text(json.dumps(asdict(found)) + "\n")
