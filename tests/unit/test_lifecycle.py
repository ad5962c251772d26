# SPDX-License-Identifier: BSD-4-Clause
"""States of a session and what teardown may take (invariant 6; cases L1, L2, L4, L5)."""

from __future__ import annotations

from typing import Any

import pytest

from asf_lib.core import lifecycle
from asf_lib.core.lifecycle import Container, Survey, Volume

ID, UID = "claude.main", 1000


def container(role: str = "agent", **fields: Any) -> Container:
    base: dict[str, Any] = {
        "id": role * 3,
        "name": f"asf-{ID}-{role}",
        "role": role,
        "session": ID,
        "owner": str(UID),
        "status": "running",
        "pid": 7,
        "alive": True,
        "start": 99,
    }
    return Container(**{**base, **fields})


def record(state: str = "live", **containers: Any) -> dict[str, Any]:
    known = containers or {"agent": {"pid": 7, "start": 99}, "caddy": {"pid": 7, "start": 99}}
    return {"session": ID, "state": state, "containers": known}


DEAD_CADDY = container("caddy", alive=False, status="exited", exit_code=137)
BOTH = [container("agent"), container("caddy")]


@pytest.mark.parametrize(
    ("said", "containers", "controller", "expected"),
    [
        ("opening", [], True, "opening"),
        ("opening", BOTH, False, "broken"),  # L1: killed while opening
        ("closing", BOTH, True, "closing"),
        ("closing", [], False, "broken"),
        ("live", BOTH, False, "live"),  # L5: the tool is gone, the session goes on
        ("live", [BOTH[0]], False, "broken"),  # Caddy is gone
        ("live", [BOTH[0], container("caddy", alive=False, status="running")], False, "broken"),  # ps still says Up
        ("live", [BOTH[0], container("caddy", pid=8)], False, "broken"),  # restarted: no cables
        ("live", [BOTH[0], container("caddy", start=100)], False, "broken"),  # the number was given to somebody else
        ("live", [container("agent", alive=False, status="exited"), BOTH[1]], False, "ended"),
        ("live", [container("agent", alive=False, status="running"), BOTH[1]], False, "broken"),  # conmon is dead
        ("live", [BOTH[0], container("caddy", monitored=False)], False, "broken"),  # its decisions are lost
        ("live", [container("agent", alive=False, status="exited"), DEAD_CADDY], False, "ended"),
        ("live", [container("agent", alive=False, status="stopping"), BOTH[1]], False, "broken"),
        ("live", [], False, "broken"),
        ("nonsense", BOTH, True, "broken"),
    ],
)
def test_states(said: str, containers: list[Container], controller: bool, expected: str) -> None:
    assert lifecycle.state(record(said), containers, controller) == expected
    assert expected in lifecycle.STATES


def test_L2_resources_without_a_record_are_broken() -> None:
    assert lifecycle.state(None, BOTH, True) == "broken"
    assert "label" in lifecycle.problems(None, BOTH)[0]


def test_problems_name_the_container_and_the_reason() -> None:
    found = lifecycle.problems(
        record(), [container("agent", pid=1), container("caddy", alive=False, status="stopping")]
    )
    assert "agent container was restarted" in found[0] and "caddy container is dead (Podman says stopping)" in found[1]
    assert lifecycle.problems(record(), [container("agent", alive=False, status="exited"), BOTH[1]]) == []


def test_caddy_and_broker_end_with_the_workload() -> None:
    over = container("agent", alive=False, status="exited", exit_code=3)
    assert lifecycle.problems(record(), [over, container("caddy", alive=False, status="exited", exit_code=0)]) == []
    (found,) = lifecycle.problems(record(), [over, DEAD_CADDY])
    assert "did not end with the workload: exit code 137" in found


@pytest.mark.parametrize(
    ("links", "expected"), [({"lo", "tap0", "agent0"}, "live"), ({"lo", "agent0"}, "broken"), (None, "live")]
)
def test_without_its_uplink_a_session_is_broken(links: set[str] | None, expected: str) -> None:
    known = record(agent={"pid": 7, "start": 99}, caddy={"pid": 7, "start": 99, "uplink": "tap0"})
    caddy = container("caddy", links=frozenset(links) if links else None)
    assert lifecycle.state(known, [BOTH[0], caddy], False) == expected
    assert ("way out" in str(lifecycle.problems(known, [BOTH[0], caddy]))) == (expected == "broken")


def test_damaged_records_are_survived() -> None:
    for wrong in (None, [], "x", {"agent": None}, {"agent": {"pid": "7"}}):
        lifecycle.state({"state": "live", "containers": wrong}, BOTH, False)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("asf-claude.main-token", ("claude.main", "token")),
        ("asf-claude.main-x-token", ("claude.main-x", "token")),
        ("asf-claude.main", None),
        ("asf-claude.main-Token", None),
        ("asf-claude-main-token", None),
        ("my-claude.main-token", None),
        ("asf-a.b-token\n", None),
    ],
)
def test_secrets_are_told_by_their_exact_form(name: str, expected: object) -> None:
    assert lifecycle.secret_session(name) == expected


def test_no_session_is_the_prefix_of_another() -> None:
    names = ["asf-a.b-token", "asf-a.b2-token", "asf-a.b-x-token", "asf-a.b-master", "asf-aa.b-token", "asf-a.b-"]
    assert lifecycle.secrets_of("a.b", names) == ("asf-a.b-master", "asf-a.b-token")


def test_only_labelled_resources_of_this_owner_go() -> None:
    survey = Survey(
        containers=(
            container("caddy"),
            container("agent"),
            container("probe", id="p"),
            container("broker", owner="1001"),
            container("gateway", session="", owner=""),
        ),
        volumes=(
            Volume("state", ID, str(UID), "state"),
            Volume("scratch", ID, str(UID), ""),
            Volume("foreign", ID, "0", ""),
        ),
        secrets=("asf-claude.main-token", "asf-claude.main2-token", "mine"),
    )
    found = lifecycle.removal(ID, UID, survey)
    assert [one.role for one in found.containers] == ["agent", "probe", "caddy"]
    assert found.volumes == ("scratch",) and found.secrets == ("asf-claude.main-token",)
    assert len(found.kept) == 4 and all("not removed because" in sentence for sentence in found.kept)


def test_what_is_left_is_named() -> None:
    survey = Survey(containers=(container(),), secrets=("asf-claude.main-token",), run_folder=True)
    assert lifecycle.left(ID, UID, survey) == [
        "container asf-claude.main-agent",
        "secret asf-claude.main-token",
        "run folder",
    ]
    assert lifecycle.left(ID, UID, Survey(volumes=(Volume("s", ID, str(UID), "state"),))) == []
    assert Survey().empty() and not survey.empty() and lifecycle.removal(ID, UID, Survey()).empty()
