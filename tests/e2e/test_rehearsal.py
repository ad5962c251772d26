# SPDX-License-Identifier: BSD-4-Clause
"""A host that cannot hold the gateway's rules is told so before anything exists (invariant 8)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.product import podman

from asf_lib.core import errors, gateway, nftables
from asf_lib.core.topology import topology
from asf_lib.engine import rehearsal

pytestmark = [pytest.mark.podman]

Json = dict[str, Any]


@pytest.fixture
def plan() -> Json:
    podman("unshare", "true")  # the parent user namespace exists
    tuples = [{"cidr": "198.51.100.0/24", "protocol": "tcp", "ports": [443], "key": "network.allow[0]"}]
    wires = topology("198.18.0.0/24")
    rules = gateway.rules(wires.gateway, "tap0", "198.18.1.100", ["198.18.0.0/23"], tuples)
    return {"wiring": {"nft": [{"role": "gateway", "rules": rules}]}}


def test_a_host_that_can_is_not_refused(plan: Json) -> None:
    rehearsal.gateway(plan)
    rehearsal.gateway({"wiring": {"nft": []}})


def test_what_the_kernel_does_not_load_is_an_error_with_its_words(plan: Json) -> None:
    """A chain that is not there stands for a module that this kernel lacks: nft refuses both while loading."""
    broken = copy.deepcopy(plan)
    broken["wiring"]["nft"][0]["rules"].append(nftables.rule("forward", {"jump": {"target": "not-there"}}))
    with pytest.raises(errors.HostError) as caught:
        rehearsal.gateway(broken)
    assert caught.value.key == "network.mode" and caught.value.code == "routed-host"
    assert caught.value.found and "No such file" in caught.value.found
    assert "nothing was created" in caught.value.remedy
