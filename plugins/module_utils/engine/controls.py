# SPDX-License-Identifier: BSD-2-Clause
"""Look at routed mode's controls from outside: try both ports from this host, and read the gateway's counters."""

from __future__ import annotations

import errno
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, Tuple

from ..core import controls, roles
from . import netns

Json = Dict[str, Any]

#: Seconds for a connection from this host. Who takes longer is not reached, and the open says so.
REACH = 5.0


def routed(plan: Json) -> bool:
    """Whether the plan has these controls at all."""
    return bool(plan["network"].get("verify"))


def opened(plan: Json) -> Json:
    """Both ports of the control, tried from this host, as a probe's result."""
    ends = controls.ends(plan)
    with ThreadPoolExecutor(len(ends)) as pool:
        words = list(pool.map(_word, ends))
    return controls.judge_open(plan, dict(zip(ends, words)))


def _word(end: str) -> str:
    """``connected``, or what went wrong in one word."""
    host, _, port = end.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH).close()
    except socket.timeout:
        return "timeout"
    except OSError as exc:
        return errno.errorcode.get(exc.errno or 0, type(exc).__name__)
    return "connected"


def counts(chosen: Mapping[str, Json]) -> Dict[str, int]:
    """Packets of the gateway's named counters. Raises EngineError."""
    command: Tuple[int, List[str], None] = (
        int(chosen[roles.GATEWAY]["pid"]),
        ["nft", "-j", "list", "counters"],  # of every table: a ruleset that is gone is no error, and counts nothing
        None,
    )
    (text,) = netns.commands([command])
    found = (item.get("counter") for item in json.loads(text)["nftables"])
    return {str(one["name"]): int(one["packets"]) for one in found if one}
