# SPDX-License-Identifier: BSD-4-Clause
"""Routed sessions on real Podman, in a closed network with test hosts in a namespace of their own."""

from __future__ import annotations

from typing import Any

import pytest
from support import addresses
from support.product import Home, SessionFactory

pytestmark = [pytest.mark.podman, pytest.mark.slow]

SITE, RESOLVER = addresses.SITE, addresses.RESOLVER
ALLOW = [
    {"cidr": f"{SITE}/32", "protocol": "tcp", "ports": [443, 80]},
    {"cidr": f"{RESOLVER}/32", "protocol": "udp", "ports": [53]},
    {"cidr": f"{SITE}/32", "protocol": "icmp_echo"},
]
ROUTED: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {
        "mode": "routed",
        "allow": ALLOW,
        "verify": {"address": SITE, "port": 443, "blocked_port": 8443},
    },
}


def test_open(session: SessionFactory, home: Home) -> None:
    home.agent("routed", ROUTED)
    opened = session.open("routed")
    print(opened.exec("python3", "-c", "import socket; print(socket.create_connection(('198.51.100.10',443),3))"))
    print(opened.exec("sh", "-c", "cat /proc/net/route; ip route; cat /proc/self/status | grep Cap"))
