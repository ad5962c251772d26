# SPDX-License-Identifier: BSD-4-Clause
"""The gate's own Go tests: standard library only, so they need neither a network nor Podman."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.product import run

GATE = Path(__file__).resolve().parents[2] / "roles/workload/files/gate"


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this host: images bring their own")
def test_gate() -> None:
    """Plan, protocol, probes, supervision. The deadline also ends a test that starts itself."""
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-buildvcs=false"}
    done = run(["go", "test", "-timeout=120s", "./..."], env=env, cwd=GATE, timeout=300)
    assert done.rc == 0, done
