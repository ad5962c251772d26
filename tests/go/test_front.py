# SPDX-License-Identifier: BSD-4-Clause
"""Fuzzing of what reads the bodies of an agent. The Go tests, under the race detector, are test_caddy.py's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.product import run

CADDY = Path(__file__).resolve().parents[2] / "roles/egress_caddy/files/caddy"
ENV = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-buildvcs=false -mod=readonly"}

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this host: images bring their own")


@pytest.mark.parametrize("target", ["FuzzScan", "FuzzCheck", "FuzzSearch"])
def test_fuzzing(target: str) -> None:
    """A bounded number of inputs: whatever the front lets through, encoding/json reads, and reads in the same way."""
    # a count, because a time limit may end as "context deadline exceeded" on a busy machine
    words = ["go", "test", "./front", "-run=^$", f"-fuzz=^{target}$", "-fuzztime=100000x", "-parallel=2"]
    done = run(words, env={**os.environ, **ENV}, cwd=CADDY, timeout=600)
    assert done.rc == 0, done
