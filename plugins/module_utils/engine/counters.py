# SPDX-License-Identifier: BSD-2-Clause
"""Read what a routed session's gateway has counted, from outside, in its network namespace."""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping, Optional

from ..core import gateway, gateway_counts, nftables
from ..core.errors import EngineError
from ..core.lifecycle import Container
from ..core.roles import GATEWAY, ROUTED
from . import netns

Json = dict[str, Any]

_LIST = ["nft", "-j", "list", "table", nftables.TABLE["family"], nftables.TABLE["table"]]


def read(pid: int, tuples: list[Json], most: int = gateway.LOG_SIZE) -> Json:
    """Counters of the gateway whose first process is ``pid`` (``gateway_counts.told``); about 30 ms.

    ``tuples`` are the plan's. Raises EngineError when the namespace or the rules are not there.
    """
    listing = netns.commands([(pid, _LIST, None)])[0]
    try:
        return gateway_counts.told(json.loads(listing)["nftables"], tuples, most)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(f"the gateway's rules are not those of its plan: {type(error).__name__} {error}") from None


def of(plan: Mapping[str, Any], containers: Iterable[Container], most: int = gateway.LOG_SIZE) -> Optional[Json]:
    """Counters of a session; None when it is not routed. Those that cannot be read are said to be lost, and why."""
    if (plan.get("session") or {}).get("mode") != ROUTED:
        return None
    found = next((one for one in containers if one.role == GATEWAY), None)
    if found is None or not found.alive:
        return gateway_counts.lost("the gateway was dead: its counters went with its network namespace")
    try:
        return read(found.pid, list(plan["network"]["tuples"]), most)
    except EngineError as error:
        said = error.stderr or error.message
        return gateway_counts.lost(f"not read: {said.strip()[:300]}")
