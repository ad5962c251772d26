# SPDX-License-Identifier: BSD-4-Clause
"""Go tests of Caddy's own module and program. Its modules were fetched before (tools/fetch_modules): no network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.product import run

CADDY = Path(__file__).resolve().parents[2] / "roles/egress_caddy/files/caddy"


@pytest.mark.skipif(shutil.which("go") is None, reason="no Go on this host: images bring their own")
def test_caddy() -> None:
    """Proxy decisions, tunnels, front, guard, L1t, reload; under the race detector where it can be built.

    One run, because the first build of Caddy takes minutes on a small machine, and one with the detector is another.
    """
    race = shutil.which("gcc") is not None  # the detector needs a C compiler
    env = {**os.environ, "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-buildvcs=false -mod=readonly"}
    env["CGO_ENABLED"] = str(int(race))
    done = run(["go", "test", *(["-race"] if race else []), "-timeout=600s", "./..."], env=env, cwd=CADDY, timeout=1500)
    assert done.rc == 0, done
