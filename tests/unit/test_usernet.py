# SPDX-License-Identifier: BSD-4-Clause
"""The bound on what carries an uplink; a process with slirp4netns's words stands for it."""

import resource
import subprocess
import sys

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.engine import usernet

MEMORY = 512 << 20
_WAIT = "print(flush=True); import time; time.sleep(600)"


@pytest.fixture(params=["path", "pid"])
def carrier(request, tmp_path):
    """Started with the words of Podman's own: (its pid, the container's, the namespace's path)."""
    path = str(tmp_path / "netns-1")
    words = ["--netns-type=path", path] if request.param == "path" else ["424242424"]
    argv = ["slirp4netns", "-c", _WAIT, *words, "tap0"]
    with subprocess.Popen(argv, executable=sys.executable, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid, 424242424, path
        process.kill()


def test_what_serves_the_namespace_gets_the_bound(carrier):
    pid, container, namespace = carrier
    usernet.bound("gateway", container, namespace, MEMORY)
    assert resource.prlimit(pid, resource.RLIMIT_DATA) == (MEMORY, MEMORY)


def test_another_container_of_a_similar_name_is_not_meant(carrier):
    pid, container, namespace = carrier
    before = resource.prlimit(pid, resource.RLIMIT_DATA)
    with pytest.raises(EngineError, match="no process carries the uplink of the caddy"):
        usernet.bound("caddy", container // 10, namespace[:-1], MEMORY)
    assert resource.prlimit(pid, resource.RLIMIT_DATA) == before


def test_no_path_is_no_wildcard(carrier):
    with pytest.raises(EngineError, match="no process carries"):
        usernet.bound("caddy", 1, "", MEMORY)
