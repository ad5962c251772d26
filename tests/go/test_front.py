# SPDX-License-Identifier: BSD-4-Clause
"""Fuzzing and race detector of the inference front. Its plain Go tests are test_caddy.py's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.product import run

CADDY = Path(__file__).resolve().parents[2] / "roles/egress_caddy/files/caddy"
ENV = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-buildvcs=false -mod=readonly"}

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this host: images bring their own")


TARGETS = (
    ("front", "FuzzScan"),  # whatever passes, encoding/json reads, and reads in the same way
    ("front", "FuzzCheck"),
    ("front", "FuzzSearch"),
    ("asf", "FuzzReadHello"),
)


@pytest.mark.parametrize(("package", "target"), TARGETS)
def test_fuzzing(package: str, target: str) -> None:
    """A bounded number of inputs for each reader of what an agent sends."""
    # a count, because a time limit may end as "context deadline exceeded" on a busy machine
    words = ["go", "test", f"./{package}", "-run=^$", f"-fuzz=^{target}$", "-fuzztime=100000x", "-parallel=2"]
    done = run(words, env={**os.environ, **ENV}, cwd=CADDY, timeout=600)
    assert done.rc == 0, done


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the race detector needs a C compiler")
def test_no_race() -> None:
    """Front, proxy, tunnels, transparent listener (L1t) and reloads, under the race detector."""
    env = {**os.environ, **ENV, "CGO_ENABLED": "1"}
    done = run(["go", "test", "-race", "-timeout=600s", "./front", "./asf"], env=env, cwd=CADDY, timeout=900)
    assert done.rc == 0, done
