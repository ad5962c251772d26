# SPDX-License-Identifier: BSD-2-Clause
"""Load the gateway's rules once in a network namespace that nobody uses, before anything of a session exists.

Whether a kernel gives connection tracking, NAT and dynamic sets to a user namespace depends on its version, its
configuration, its modules and on nft's own build; only loading the very rules tells (invariant 8). It takes some 15 ms.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, List, Optional

from ..core import roles
from ..core.errors import EngineError, HostError
from . import netns

Json = Dict[str, Any]


def gateway(plan: Json) -> None:
    """Raises HostError when this host does not load the gateway's rules; says nothing of a plan without a gateway."""
    rules = next((item["rules"] for item in plan["wiring"]["nft"] if item["role"] == roles.GATEWAY), None)
    if rules is None:
        return
    try:
        refused = netns.forked(lambda: _load(rules))
    except EngineError as exc:
        refused = exc.message
    if refused is not None:
        raise HostError(
            "this host cannot enforce the routed network mode: its kernel or nft does not load the gateway's rules",
            key="network.mode",
            found=refused,
            remedy="the kernel must give nf_tables, conntrack and NAT to user namespaces (modules nf_tables, nft_ct, "
            "nft_nat, nft_masq, nft_connlimit); nothing was created",
            code="routed-host",
        )


def _load(rules: List[Json]) -> Optional[str]:
    """Runs in a forked process: nft's last words, or None when all is loaded and packets can be forwarded."""
    netns.enter_parent_user()
    netns.unshare_net()
    done = subprocess.run(
        ["nft", "-j", "-f", "-"],
        input=json.dumps({"nftables": [{"add": one} for one in rules]}),
        capture_output=True,
        text=True,
        check=False,
        timeout=15,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return lines[0][:300] if lines else f"nft ended with {done.returncode}"
    return None if os.path.exists("/proc/sys/net/ipv4/ip_forward") else "there is no net.ipv4.ip_forward"
