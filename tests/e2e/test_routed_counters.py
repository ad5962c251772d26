# SPDX-License-Identifier: BSD-4-Clause
"""What a routed session's gateway has counted: in status, in the evidence and in the report; on real Podman."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import schemas
from support.product import Home, Session, SessionFactory, asf_play, podman
from support.routed import RESOLVER, SITE, routed

pytestmark = [pytest.mark.podman, pytest.mark.slow]

# one connection that is allowed, one that is not, a datagram that is larger than an ordinary link's
_TALK = f"""
import socket
with socket.create_connection(("{SITE}", 443), 5):
    pass
with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
    sock.settimeout(0.5)
    sock.connect_ex(("{SITE}", 22))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.sendto(bytes(9000), ("{RESOLVER}", 53))
"""


def _status(session: Session) -> dict[str, Any]:
    done = asf_play("status", session.id, "--json", home=session.home)
    assert done.rc == 0 and done.json, done
    routed_: dict[str, Any] = done.json["status"]["routed"]
    return routed_


def _packets(rows: list[dict[str, Any]], name: str) -> dict[str, int]:
    return {row[name]: row["packets"] for row in rows}


def _towards(rows: list[dict[str, Any]]) -> set[tuple[str, str, int | None]]:
    return {(row["protocol"], row["address"], row["port"]) for row in rows}


def test_counters_are_in_status_and_stay_as_evidence(session: SessionFactory, home: Home) -> None:
    home.agent("counted", routed())
    opened = session.open("counted")
    before = _status(opened)
    assert opened.exec("python3", "-c", _TALK).rc == 0
    after = _status(opened)
    rules = [_packets(found["rules"], "key") for found in (before, after)]
    assert rules[1]["network.allow[0]"] >= rules[0]["network.allow[0]"] + 4, "handshake and end, both ways"
    assert rules[1]["network.allow[1]"] > rules[0]["network.allow[1]"]
    sent = {row["key"]: row["bytes"] for row in after["rules"]}["network.allow[1]"]
    assert sent > 9000, "a large datagram passes the cable in one piece"
    drops = [_packets(found["drops"], "reason") for found in (before, after)]
    assert drops[1]["unlisted"] > drops[0]["unlisted"] and drops[1]["fragment"] == drops[0]["fragment"]
    assert ("tcp", SITE, 22) in _towards(after["denials"]) and ("tcp", SITE, 443) in _towards(after["flows"])
    text = asf_play("status", opened.id, home=home).out
    assert "unlisted" in text and SITE in text
    assert opened.close().rc == 0
    kept = json.loads((opened.evidence / "routed.json").read_text())
    assert kept["lost"] is None and _packets(kept["rules"], "key")["network.allow[0]"] >= rules[1]["network.allow[0]"]
    assert schemas.evidence_problems(opened.evidence) == []
    assert "Gateway" in (opened.evidence / "report.html").read_text()


def test_counters_of_a_gateway_that_died_are_said_to_be_lost(session: SessionFactory, home: Home) -> None:
    home.agent("bereft", routed())
    opened = session.open("bereft")
    podman("kill", opened.container("gateway"))
    podman("wait", opened.container("gateway"), check=False)
    assert "dead" in _status(opened)["lost"]
    assert opened.close().rc == 0
    kept = json.loads((opened.evidence / "routed.json").read_text())
    assert "dead" in kept["lost"] and kept["rules"] == []
    cleanup = json.loads((opened.evidence / "cleanup.json").read_text())
    assert [action for action in cleanup["actions"] if action.startswith("the gateway's counters are lost")]
    assert schemas.evidence_problems(opened.evidence) == []
