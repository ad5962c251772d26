# SPDX-License-Identifier: BSD-2-Clause
"""What the outside probes look at, read back from the kernel and the engine.

One forked process enters the parent user namespace and reads everything: ``/proc/PID`` of each container's init, and,
by the host's own ``ip`` and ``nft``, its network namespace. Nothing is executed from inside, no link is followed in a
place that the agent can write, and what comes back is data for ``core/probes.py``.
"""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from ..core.errors import EngineError
from ..core.probes import SEPARATE, uplink
from . import apart, netns, regular
from .podman import Podman

Json = Dict[str, Any]

MAX_READ = 1 << 20
_MARK, _STATUS = "\x1e", "\x1d"
# A kernel without IPv6 has no such file, and nothing to read; any other failure leaves the reading out.
_IF_IPV6 = "if [ -e /proc/net/if_inet6 ]; then {}; else {}; fi"
# One shell for all readings: each is a fixed command of the host, none takes a word from anywhere.
_READINGS = {
    "links": "ip -j -d link show",
    "addresses": "ip -j addr show",
    "routes": "ip -j -4 route show table all",
    "routes6": _IF_IPV6.format("ip -j -6 route show table all", "echo '[]'"),
    "neighbours": "ip -j neigh show nud all",
    "nft": "nft -j list ruleset",
    "ip_forward": "cat /proc/sys/net/ipv4/ip_forward",
    "ipv6_disabled": _IF_IPV6.format("cat /proc/sys/net/ipv6/conf/all/disable_ipv6", "echo 1"),
    "listeners": "cat /proc/net/tcp /proc/net/udp && " + _IF_IPV6.format("cat /proc/net/tcp6 /proc/net/udp6", ":"),
}
_NET_SCRIPT = "\n".join(f"{{ {command}; }}; printf '{_STATUS}%d{_MARK}' $?" for command in _READINGS.values())
_LISTEN, _UDP_OPEN = "0A", "07"


def _read(path: str) -> str:
    """A file of the kernel's, to its end: one read(2) gives a page at most, and many mounts need more than that."""
    data = b""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        while chunk := os.read(fd, MAX_READ):
            data += chunk
            if len(data) > MAX_READ:
                raise ValueError(f"{path} is longer than {MAX_READ} bytes")
    finally:
        os.close(fd)
    return data.decode("utf-8", "replace")


def _namespaces(pid: str) -> Dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in SEPARATE}


def _network(pid: int) -> Json:
    done = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "/bin/sh", "-c", _NET_SCRIPT],
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    )
    out: Json = {}
    for name, part in zip(_READINGS, done.stdout.split(_MARK)):
        text, _, status = part.rpartition(_STATUS)
        if status == "0":  # what failed is left out, and its probes become inconclusive
            out.update(_guarded(_reading, name, text.strip()))
    return out


def _reading(name: str, text: str) -> Json:
    if name == "listeners":
        return {name: listening(text)}
    if name == "nft":
        return {name: json.loads(text)["nftables"]}
    if name in ("ip_forward", "ipv6_disabled"):
        return {name: text}
    return {name: json.loads(text or "[]")}


def listening(table: str) -> List[str]:
    """``address:port`` of listening TCP and of unconnected UDP sockets in the text of ``/proc/net/{tcp,udp}{,6}``."""
    found = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[3] not in (_LISTEN, _UDP_OPEN):
            continue
        address, port = fields[1].split(":")
        raw = b"".join(bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8))
        text = str(ipaddress.ip_address(raw))
        found.append(f"[{text}]:{int(port, 16)}" if ":" in text else f"{text}:{int(port, 16)}")
    return found


def _status(pid: int) -> Dict[str, str]:
    pairs = (line.split(":", 1) for line in _read(f"/proc/{pid}/status").splitlines() if ":" in line)
    return {key: value.strip() for key, value in pairs}


def _cgroup(pid: int) -> Dict[str, str]:
    """Limits of the process's control group (cgroup v2); a file of a controller that the host lacks is absent."""
    line = next((x for x in _read(f"/proc/{pid}/cgroup").splitlines() if x.startswith("0::")), "0::/")
    folder = "/sys/fs/cgroup" + line[len("0::") :].rstrip("/")
    names = ("memory.max", "pids.max", "cpu.max")
    return {name: _read(f"{folder}/{name}").strip() for name in names if os.path.exists(f"{folder}/{name}")}


def _inside(pid: int, target: str) -> int:
    """A descriptor (O_PATH) of what lies there in a container, reached step by step without following a link."""
    fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY)
    for part in target.strip("/").split("/"):
        try:
            inner = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _root_of(pid: int, target: str) -> List[int]:
    """Device and inode of a mount's root."""
    fd = _inside(pid, target)
    try:
        info = os.fstat(fd)
        return [info.st_dev, info.st_ino]
    finally:
        os.close(fd)


def _hosts(pid: int) -> Json:
    """``/etc/hosts`` as the container sees it; a regular file only."""
    folder = _inside(pid, "/etc")
    try:
        content, _ = regular.read("hosts", MAX_READ, dir_fd=folder)
    except regular.NotRegularError as exc:
        raise ValueError(f"/etc/hosts: {exc}") from exc
    finally:
        os.close(folder)
    if len(content) > MAX_READ:
        raise ValueError("/etc/hosts is too long")
    return {"hosts": content.decode("utf-8", "replace")}


def _process(pid: int, targets: Sequence[str]) -> Json:
    stat = _read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
    return {
        "pid": pid,
        "start": int(stat[19]),
        "ns": _namespaces(str(pid)),
        "status": _status(pid),
        "uid_map": _read(f"/proc/{pid}/uid_map"),
        "mountinfo": _read(f"/proc/{pid}/mountinfo"),
        "limits": _read(f"/proc/{pid}/limits"),
        "cgroup": _cgroup(pid),
        "roots": {target: _root_of(pid, target) for target in targets},
    }


def _guarded(work: Callable[..., Json], *args: Any) -> Json:
    """A reading that fails is absent (its probes become inconclusive); the others are still judged."""
    try:
        return work(*args)
    except (OSError, ValueError, IndexError, KeyError, EngineError, subprocess.SubprocessError) as exc:
        return {"unread": f"{type(exc).__name__}: {exc}"}


def _cables(pid: int, seen: Json, peers: Mapping[str, int]) -> Json:
    netns.enter_net(pid)
    return {"cables": apart.cables(seen["links"], peers)}


def _kernel_side(
    pids: Mapping[str, int], targets: Mapping[str, Sequence[str]], peers: Mapping[str, int]
) -> Dict[str, Json]:
    def inside() -> Dict[str, Json]:
        netns.enter_parent_user()
        parent = os.readlink("/proc/self/ns/user")
        seen = {
            role: {
                "parent_user": parent,
                **_guarded(_process, pid, targets.get(role, [])),
                **_guarded(_hosts, pid),
                **_guarded(_network, pid),
            }
            for role, pid in pids.items()
        }
        for role, found in _guarded(apart.neighbours, pids).items():
            if role in seen:
                seen[role]["neighbourhood"] = found
        for role, pid in pids.items():  # last: it leaves this process in a container's network namespace
            seen[role].update(_guarded(_cables, pid, seen[role], peers))
        return seen

    answer: Dict[str, Json] = netns.forked(inside, timeout=30)
    return answer


def inspect(podman: Podman, names: Mapping[str, str]) -> Dict[str, Json]:
    """The few fields of ``podman inspect`` that probes and callers use, by role; missing containers are absent."""
    found = {}
    by_name = {name: role for role, name in names.items()}
    answer = podman.run(["inspect", "--type", "container", *names.values()], check=False).stdout
    for item in json.loads(answer or "[]"):
        host, config = item["HostConfig"], item["Config"]
        found[by_name[item["Name"]]] = {
            "id": item["Id"],
            "pid": int(item["State"]["Pid"]),
            "status": item["State"]["Status"].lower(),
            "exit_code": item["State"].get("ExitCode"),
            "read_only": bool(host.get("ReadonlyRootfs")),
            "privileged": bool(host.get("Privileged")),
            "devices": host.get("Devices") or [],
            "effective_caps": item.get("EffectiveCaps") or [],
            "bounding_caps": item.get("BoundingCaps") or [],
            "labels": config.get("Labels") or {},
            "image": item.get("ImageName", ""),
            "network": host.get("NetworkMode", ""),
            "namespace": (item.get("NetworkSettings") or {}).get("SandboxKey") or "",
            "resolv_conf": item.get("ResolvConfPath") or "",
        }
    return found


def _nameservers(path: str) -> List[str]:
    with open(path, encoding="utf-8", errors="replace") as handle:
        return [line.split()[1] for line in handle.read(65536).splitlines() if line.startswith("nameserver ")]


def _sources(plan: Json) -> Dict[str, List[int]]:
    out = {}
    for mount in plan["mounts"]:
        if mount.get("source"):
            info = os.lstat(mount["source"])
            out[mount["target"]] = [info.st_dev, info.st_ino]
    return out


def _alias_targets(plan: Json) -> List[Tuple[str, int]]:
    return [(a["address"], a["port"]) for a in plan["network"]["aliases"]]


def _aliases(plan: Json, pid: int) -> Dict[str, str]:
    targets = _alias_targets(plan)
    got: List[str] = netns.in_net(pid, lambda: netns.try_connect(targets))
    return {f"{host}:{port}": result for (host, port), result in zip(targets, got)}


def session(
    podman: Podman, plan: Json, digest: str, chosen: Mapping[str, Json], roles: Sequence[str] = ()
) -> Dict[str, Json]:
    """Observe the containers of a session, all or those of ``roles``.

    ``chosen`` maps roles to ``{pid, start, net}`` recorded at init.
    """
    names = {c["role"]: c["name"] for c in plan["containers"] if not roles or c["role"] in roles}
    inspected = inspect(podman, names)
    pids = {role: got["pid"] for role, got in inspected.items() if got["pid"] > 0}
    targets = {role: [m["target"] for m in plan["mounts"] if m["role"] == role and m.get("source")] for role in pids}
    seen = _kernel_side(pids, targets, {role: int(entry["pid"]) for role, entry in chosen.items()})
    host_ns = _namespaces("self")
    for role, entry in seen.items():
        entry.update(inspect=inspected[role], chosen=chosen.get(role), host_ns=host_ns, plan_digest=digest)
        entry.update(_guarded(lambda: {"sources": _sources(plan)}))
    if "caddy" in seen and uplink(plan, "caddy"):
        path = inspected["caddy"]["resolv_conf"]
        seen["caddy"].update(_guarded(lambda: {"nameservers": _nameservers(path)}))
        seen["caddy"].update(_guarded(lambda: {"aliases": _aliases(plan, pids["caddy"])}))
    return seen
