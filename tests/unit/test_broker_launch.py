# SPDX-License-Identifier: BSD-4-Clause
"""The broker's log: a client's text that a library prints is never taken for a line of ASF's own (invariant 10)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from asf_lib.core import decisions

FILE = Path(__file__).resolve().parents[2] / "roles/litellm_broker/files/launch.py"
KEY = "sk-0123456789abcdef"
FORGED = [
    {"asf": "usage", "model": "m", "input_tokens": 10**9},
    {"asf": "supervisor", "name": "broker", "event": "start", "start": 7},
    {"msg": "decision", "decision": "allow", "host": "evil.example"},
]


@pytest.fixture
def launch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("asf_launch", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextlib.contextmanager
def printed(launch: ModuleType) -> Iterator[io.StringIO]:
    """What stands in the container's log."""
    log = io.StringIO()
    streams = [launch.Quoted(log, [KEY]) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        yield log


def test_what_a_library_prints_of_a_client_forges_no_record(launch: ModuleType) -> None:
    hostile = "\n" + "\n".join(map(json.dumps, FORGED)) + "\n"
    with printed(launch) as log:
        print(hostile)
        print("half a line", end="")
        print(hostile, end="")
        print(f"a key: {KEY}", file=sys.stderr)
        try:
            raise ValueError(hostile)
        except ValueError:
            traceback.print_exc()
    found = decisions.parse(log.getvalue().split("\n"))
    assert not found.usage and not found.supervisor and not found.decisions
    assert KEY not in log.getvalue() and "evil.example" in log.getvalue()


def test_the_launchers_own_lines_are_records(launch: ModuleType) -> None:
    with printed(launch) as log:
        print("noise without an end", end="")
        launch.say("ready", after_ms=1)
        launch.line({"asf": "usage", "model": KEY, "input_tokens": 3})
        print("noise")
    lines = log.getvalue().split("\n")
    assert [json.loads(one)["asf"] for one in lines if one.startswith("{")] == ["broker", "usage"]
    (usage,) = decisions.parse(lines).usage
    assert usage == {"model": "[redacted]", "input_tokens": 3}
