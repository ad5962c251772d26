# SPDX-License-Identifier: BSD-4-Clause
"""The cables' addresses, and the refusal of ranges that the host uses."""

import pytest

from asf_lib.core.errors import PlanError
from asf_lib.core.topology import overlaps, topology, uplink_range


def test_addresses_are_fixed_and_peers_differ():
    t = topology("198.18.0.0/24")
    assert (t.agent.far.ip, t.agent.near.ip, t.broker.far.ip, t.broker.near.ip) == (
        "198.18.0.1",
        "198.18.0.2",
        "198.18.0.5",
        "198.18.0.6",
    )
    macs = [end.mac for cable in (t.agent, t.broker) for end in (cable.near, cable.far)]
    assert len(set(macs)) == 4 and t.agent.near.mac == "02:a5:f0:00:00:02"


@pytest.mark.parametrize("text", ["198.18.0.0/30", "198.18.0.1/24", "8.8.8.0/24", "fd00::/64", "nonsense", ""])
def test_a_range_that_cannot_hold_the_cables_is_refused_by_key(text):
    with pytest.raises(PlanError) as caught:
        topology(text)
    assert caught.value.key == "asf_session_cable_range" and caught.value.remedy


@pytest.mark.parametrize(
    "text",
    ["foo", "", "198.18.1.0/25", "198.18.0.0/16", "198.18.1.1/24", "1.2.3.0/24", "fd00::/64", "10.0.0.0/255.255.255.0"],
)
def test_the_uplink_is_a_special_purpose_24(text):
    with pytest.raises(PlanError) as caught:
        uplink_range(text)
    assert caught.value.key == "asf_session_uplink_range" and caught.value.remedy


@pytest.mark.parametrize("text", ["198.19.255.0/24", "10.9.8.0/24", "172.31.0.0/24", "192.168.7.0/24", "100.64.1.0/24"])
def test_ranges_that_are_taken(text):
    assert uplink_range(text) == topology(text).cable_range == text


@pytest.mark.parametrize(
    "other, hit",
    [
        ("198.18.0.77", True),
        ("198.18.0.0/15", True),
        ("198.19.0.0/24", False),
        ("0.0.0.0/0", False),
        ("::/0", False),
        ("10.0.0.0/8", False),
        ("fd00::1", False),
    ],
)
def test_overlap_ignores_the_default_route_and_the_other_family(other, hit):
    assert bool(overlaps("198.18.0.0/24", [other])) is hit
