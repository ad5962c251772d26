# SPDX-License-Identifier: BSD-4-Clause
"""Roles on their own, by molecule: check mode, converge, second run, verify by the kernel's word, cleanup."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support import leaks, product

pytestmark = [pytest.mark.podman, pytest.mark.slow]

_ROLES = Path(__file__).resolve().parents[2] / "roles"
_STEPS = ("syntax", "prepare", "check", "side_effect", "converge", "idempotence", "verify", "cleanup")


def _scenarios() -> list[str]:
    """``ROLE/SCENARIO``, without a scenario's name where it is the default one."""
    found = [(path.parents[2].name, path.parent.name) for path in _ROLES.glob("*/molecule/*/molecule.yml")]
    return sorted(role if scenario == "default" else f"{role}/{scenario}" for role, scenario in found)


def test_the_roles_that_have_a_scenario() -> None:
    several = ["network", "network/isolated", "network/routed"]
    assert _scenarios() == ["egress_caddy", "litellm_broker", *several, "reset", "teardown", "verify", "workload"]


@pytest.mark.parametrize("name", _scenarios())
def test_scenario(name: str, tmp_path: Path) -> None:
    """`molecule test` passes every step of its sequence and leaves nothing."""
    role, _, scenario = name.partition("/")
    env = {
        **os.environ,
        "MOLECULE_EPHEMERAL_DIRECTORY": str(tmp_path / "molecule"),
        "ASF_MOLECULE_PREFIX": product.RUN,
        "ANSIBLE_FORCE_COLOR": "0",
        "NO_COLOR": "1",
        "PY_COLORS": "0",
    }
    done = product.run(
        ["molecule", "test", f"--scenario-name={scenario or 'default'}"], env=env, cwd=_ROLES / role, timeout=840
    )
    assert done.rc == 0, str(done)
    said = done.out + done.err
    for step in _STEPS:
        assert re.search(rf"{step}: Executed: Successful", said), f"no step {step}: {done!s}"
    assert leaks.find() == []
    assert not list(tmp_path.rglob("containers.json")), "the scenario's cleanup did not remove its folders"
