# SPDX-License-Identifier: BSD-2-Clause
"""Plug cables and load rules, from outside, in the namespaces of initialized containers.

A cable is a veth pair; ARP is off from its first moment (switched off later, the kernel empties the permanent entries:
measured), peers are /32, neighbours permanent. It dies with either namespace, so there is nothing to clean up.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Sequence, Set

from ..core.errors import EngineError
from ..core.roles import GATEWAY
from . import netns

Json = Dict[str, Any]


#: Name of a cable's far end while it waits in the near container's own namespace.
_PARKED = "parked0"


def _near_batch(cable: Json, far_pid: int) -> str:
    return _new_batch(cable, cable["far"]["interface"], f" netns {far_pid}")


def _new_batch(cable: Json, peer: str, where: str) -> str:
    """A new pair, its near end ready; the far one has the name ``peer`` and lies where the words say (ip-link(8))."""
    near, far, mtu = cable["near"], cable["far"], cable["mtu"]
    return (
        "\n".join(
            [
                f"link add {near['interface']} mtu {mtu} address {near['mac']} arp off type veth "
                f"peer name {peer} mtu {mtu} address {far['mac']} arp off{where}",
                f"addr add {near['ip']}/32 peer {far['ip']} dev {near['interface']}",
                f"link set {near['interface']} up",
                "link set lo up",
                f"neigh replace {far['ip']} lladdr {far['mac']} nud permanent dev {near['interface']}",
            ]
        )
        + "\n"
    )


def _far_batch(cable: Json) -> str:
    near, far = cable["near"], cable["far"]
    return (
        "\n".join(
            [
                f"addr add {far['ip']}/32 peer {near['ip']} dev {far['interface']}",
                f"link set {far['interface']} up",
                f"neigh replace {near['ip']} lladdr {near['mac']} nud permanent dev {far['interface']}",
            ]
        )
        + "\n"
    )


def park(pid: int, cable: Json) -> None:
    """A cable whose near container is there and whose far end waits beside it, for ``replug``. Raises EngineError."""
    netns.commands([(pid, ["ip", "-batch", "-"], _new_batch(cable, _PARKED, ""))])


def replug(near_pid: int, far_pid: int, cable: Json) -> None:
    """Put a parked cable in the place of the one that is plugged, if there still is one. Raises EngineError."""
    interface = cable["far"]["interface"]
    batch: List[netns.Command] = []
    if interface in _links(netns.commands([(far_pid, _LINKS, None)])[0]):
        batch.append((far_pid, ["ip", "-batch", "-"], f"link del {interface}\n"))
    move = f"link set {_PARKED} netns {far_pid} name {interface}\n"
    batch.append((near_pid, ["ip", "-batch", "-"], move))
    netns.commands([*batch, (far_pid, ["ip", "-batch", "-"], _far_batch(cable))])


_LINKS = ["ip", "-j", "link", "show"]


def _links(listed: str) -> Set[str]:
    return {str(link.get("ifname")) for link in json.loads(listed)}


def plugged(pids: Mapping[str, int], cables: Sequence[Json]) -> List[bool]:
    """For each cable: does its near interface exist in the near container's namespace?"""
    outs = netns.commands([(pids[c["near"]["role"]], _LINKS, None) for c in cables])
    return [c["near"]["interface"] in _links(out) for c, out in zip(cables, outs)]


def _route_batch(planned: Json) -> str:
    """Static routes over a cable; its peer is on the link already."""
    return "".join(f"route add {cidr} via {planned['via']} dev {planned['interface']}\n" for cidr in planned["to"])


def _batch(pids: Mapping[str, int], wiring: Json) -> List[netns.Command]:
    """Rules first, then every cable, then routes: no cable is ever unfiltered."""
    batch: List[netns.Command] = []
    for item in wiring["nft"]:
        document = {"nftables": [{"add": obj} for obj in item["rules"]]}
        batch.append((pids[item["role"]], ["nft", "-j", "-f", "-"], json.dumps(document)))
    for cable in wiring["cables"]:
        near, far = cable["near"], cable["far"]
        batch.append((pids[near["role"]], ["ip", "-batch", "-"], _near_batch(cable, pids[far["role"]])))
        batch.append((pids[far["role"]], ["ip", "-batch", "-"], _far_batch(cable)))
    for planned in wiring["routes"]:
        batch.append((pids[planned["role"]], ["ip", "-batch", "-"], _route_batch(planned)))
    return batch


def reload(pids: Mapping[str, int], wiring: Json) -> None:
    """Rules in place of those that are loaded, in one transaction each; a gateway's, which hold its counters, stay.

    Raises EngineError; then the old rules stand.
    """
    documents = [
        (item["role"], {"nftables": [{"flush": {"ruleset": None}}, *({"add": obj} for obj in item["rules"])]})
        for item in wiring["nft"]
        if item["role"] != GATEWAY
    ]
    if documents:
        netns.commands([(pids[role], ["nft", "-j", "-f", "-"], json.dumps(text)) for role, text in documents])


def wire(pids: Mapping[str, int], wiring: Json) -> None:
    """Load the rules, plug every cable, add the routes: one forked process does all of it, and nothing without any.

    ``pids`` maps roles to the pids chosen at init. Raises EngineError; nothing is half-made in a way that matters,
    because the containers have not started and are removed by whoever called.
    """
    batch = _batch(pids, wiring)
    try:
        if batch:
            netns.commands(batch)
    except EngineError as exc:
        exc.remedy = exc.remedy or "see `asf-play doctor`: the kernel must offer veth and nf_tables to user namespaces"
        raise
