# SPDX-License-Identifier: BSD-2-Clause
"""What tells one session's wires and namespaces from another's (case N3). For a process that ``observe`` forked.

All sessions have the same addresses, interface names and MACs, so a cable that ends in the wrong container looks right
from its near end. What cannot be mistaken is which network namespace the far end is in: the kernel names it by a number
of the near namespace's own (``link_netnsid``), and tells by RTM_GETNSID which number a given process's has.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Dict, Iterator, List, Mapping, Sequence, Set, Tuple

from ..core.probes import SEPARATE
from . import procs

#: linux/rtnetlink.h and linux/net_namespace.h
_RTM_NEWNSID, _RTM_GETNSID, _NLM_F_REQUEST = 88, 90, 1
_NETNSA_NSID, _NETNSA_PID = 1, 2
_HEAD, _FAMILY, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=B3x"), struct.Struct("=HH")

Namespaces = Mapping[str, str]


def namespace_id(pid: int) -> int:
    """The number that the caller's network namespace has for that of process ``pid``; -1 when it has none.

    The caller is in the namespace that is asked about; links have been listed before, which hands the numbers out.
    Raises OSError.
    """
    body = _FAMILY.pack(socket.AF_UNSPEC) + _ATTRIBUTE.pack(8, _NETNSA_PID) + struct.pack("=I", pid)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as line:
        line.settimeout(2)
        line.sendto(_HEAD.pack(_HEAD.size + len(body), _RTM_GETNSID, _NLM_F_REQUEST, 1, 0) + body, (0, 0))
        return _answer(line.recv(4096))


def _answer(message: bytes) -> int:
    """The number in an RTM_NEWNSID message. Raises OSError for an error message, ValueError for anything else."""
    _, kind, _, _, _ = _HEAD.unpack_from(message)
    if kind != _RTM_NEWNSID:
        code = -struct.unpack_from("=i", message, _HEAD.size)[0] if kind == 2 else 0  # NLMSG_ERROR
        raise OSError(code, os.strerror(code)) if code else ValueError(f"netlink message {kind}")
    place = _HEAD.size + _FAMILY.size
    while place + _ATTRIBUTE.size <= len(message):
        size, name = _ATTRIBUTE.unpack_from(message, place)
        if name == _NETNSA_NSID:
            return int(struct.unpack_from("=i", message, place + _ATTRIBUTE.size)[0])
        place += max(_ATTRIBUTE.size, (size + 3) & ~3)
    raise ValueError("an answer without a number")


def _processes() -> Iterator[Tuple[int, Dict[str, str]]]:
    """Every process that the caller may look at, with its namespaces: all of the operator's own, in whatever user
    namespace, for root of the parent user namespace."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                yield int(name), {kind: os.readlink(f"/proc/{name}/ns/{kind}") for kind in SEPARATE}
            except OSError:
                continue  # ended meanwhile, or somebody else's


def neighbours(pids: Mapping[str, int]) -> Dict[str, Dict[str, object]]:
    """For the first process of each role: who else lives in its namespaces.

    ``{role: {seen, others, strangers}}``: whether the process itself was among those looked at, how many other
    containers (pid namespaces) were, and ``PID KIND…`` of every process of another container that shares a namespace.
    A process in the caller's own pid namespace is the engine's or ASF's helper: no container.
    """
    known = dict(_processes())
    host = os.readlink("/proc/self/ns/pid")
    found: Dict[str, Dict[str, object]] = {}
    for role, pid in pids.items():
        own = known.get(pid, {})
        elsewhere = {who: ns for who, ns in known.items() if own and ns["pid"] not in (host, own["pid"])}
        found[role] = {
            "seen": bool(own),
            "others": len({ns["pid"] for ns in elsewhere.values()}),
            "strangers": _strangers(own, elsewhere, known),
        }
    return found


def _strangers(own: Namespaces, elsewhere: Mapping[int, Namespaces], known: Mapping[int, Namespaces]) -> List[str]:
    out = []
    for pid, ns in elsewhere.items():
        shared = [kind for kind in SEPARATE if ns[kind] == own[kind]]
        if shared and not _descends(pid, own["pid"], known):
            out.append(f"{pid} {' '.join(shared)}")
    return sorted(out)


def _descends(pid: int, pid_namespace: str, known: Mapping[int, Namespaces]) -> bool:
    """Whether one of its ancestors is in that pid namespace: a workload may make pid namespaces below its own."""
    passed: Set[int] = set()
    above = procs.parent(pid)
    while above and above not in passed:
        if known.get(above, {}).get("pid") == pid_namespace:
            return True
        passed.add(above)
        above = procs.parent(above)
    return False


def cables(links: Sequence[Mapping[str, object]], peers: Mapping[str, int]) -> Dict[str, Dict[str, object]]:
    """Where each link of the caller's network namespace leads: ``{interface: {netns, roles}}``.

    ``netns`` is the far end's number (None: no other namespace), ``roles`` the number of every role's namespace.
    """
    numbers = {role: namespace_id(pid) for role, pid in peers.items()}
    return {str(link["ifname"]): {"netns": link.get("link_netnsid"), "roles": numbers} for link in links}
