# SPDX-License-Identifier: BSD-2-Clause
"""Arguments of ``podman create`` for the three containers of a session (invariant 1), and the mounts they imply.

Flags were measured on Podman 4.3 to 6.1; an unknown flag fails there, which is why argv lists are used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

Json = Dict[str, Any]

ENFORCER_UID = 10001


@dataclass(frozen=True)
class Limits:
    """What one container may use: bytes, CPUs, processes; ``log`` is how many bytes of its output are kept."""

    memory: int
    cpus: float
    pids: int
    log: int = 16 << 20


@dataclass(frozen=True)
class Mount:
    """One mount of a container. ``kind`` is bind, volume or tmpfs; ``source`` a host path or a volume's name."""

    kind: str
    target: str
    rw: bool
    source: str = ""
    size: int = 0
    mode: str = "1777"

    def argument(self) -> str:
        """The option for ``podman create``. A path with a comma or a quote is CSV-quoted, as ``--mount`` is parsed."""
        if self.kind == "tmpfs":
            return f"--tmpfs={self.target}:rw,nosuid,nodev,size={self.size},mode={self.mode}"
        fields = [f"type={self.kind}", f"source={self.source}", f"destination={self.target}"]
        if not self.rw:
            fields.append("readonly")
        if self.kind == "bind":
            fields.append("bind-propagation=private")
        return "--mount=" + ",".join(_csv(field) for field in fields)


def _csv(field: str) -> str:
    """RFC 4180: a field with a comma, a quote or a line break is quoted, quotes are doubled."""
    if any(c in field for c in ',"\r\n'):
        return '"' + field.replace('"', '""') + '"'
    return field


@dataclass(frozen=True)
class Spec:
    """One container of the plan."""

    role: str
    name: str
    image: str
    network: str
    user: Tuple[int, int]
    userns: str
    hostname: str
    entrypoint: Sequence[str]
    command: Sequence[str]
    seccomp: str
    limits: Limits
    mounts: Sequence[Mount] = ()
    secrets: Sequence[Tuple[str, str]] = ()  # (name, file name below /run/secrets)
    env: Sequence[Tuple[str, str]] = ()
    ulimits: Sequence[str] = ()
    extra: Sequence[str] = ()
    log: str = "k8s-file"


# No core dumps; a bounded number of descriptors.
ULIMITS = ("core=0:0", "nofile=16384:16384")

# Everything a containers.conf might otherwise decide is said: no host namespace, no inherited environment, no pull.
_HARDENED = (
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--read-only",
    "--read-only-tmpfs=false",
    "--http-proxy=false",
    "--env-host=false",
    "--pull=never",
    "--restart=no",
    "--systemd=false",
    "--image-volume=ignore",
    "--ipc=private",
    "--pid=private",
    "--uts=private",
    "--cgroupns=private",
    "--no-healthcheck",
    "--sysctl=net.ipv6.conf.all.disable_ipv6=1",
    "--sysctl=net.ipv6.conf.default.disable_ipv6=1",
    "--stop-timeout=5",
)


def create_args(spec: Spec, labels: Dict[str, str]) -> List[str]:
    """The words after ``podman``; the image and the command come last. The plan's label is added by the caller."""
    uid, gid = spec.user
    out = ["create", f"--name={spec.name}", *_HARDENED, f"--security-opt=seccomp={spec.seccomp}"]
    out += [
        f"--network={spec.network}",
        f"--userns={spec.userns}",
        f"--user={uid}:{gid}",
        f"--hostname={spec.hostname}",
    ]
    out += [f"--label={key}={value}" for key, value in sorted(labels.items())]
    out += [f"--memory={spec.limits.memory}", f"--memory-swap={spec.limits.memory}"]
    out += [f"--cpus={spec.limits.cpus:g}", f"--pids-limit={spec.limits.pids}"]
    out += [f"--ulimit={u}" for u in (*ULIMITS, *spec.ulimits)]
    out += [m.argument() for m in spec.mounts]
    out += [
        f"--secret={name},type=mount,target={target},uid={uid},gid={gid},mode=0400" for name, target in spec.secrets
    ]
    out += [f"--env={key}={value}" for key, value in spec.env]
    out += [f"--log-driver={spec.log}", *([f"--log-opt=max-size={spec.limits.log}"] if spec.log == "k8s-file" else [])]
    out += [f"--entrypoint={json.dumps(list(spec.entrypoint))}", *spec.extra, spec.image, *spec.command]
    return out


def mount_rows(spec: Spec) -> List[Json]:
    """Rows of the plan's ``mounts``: what probes expect to find. ``size`` is a tmpfs's, ``source`` a bind mount's."""
    rows = [
        {
            "role": spec.role,
            "target": m.target,
            "rw": m.rw,
            "kind": m.kind,
            "source": m.source if m.kind == "bind" else "",
            "size": m.size,
        }
        for m in spec.mounts
    ]
    secret = {"role": spec.role, "rw": False, "kind": "secret", "source": "", "size": 0}
    return rows + [{**secret, "target": f"/run/secrets/{target}"} for _, target in spec.secrets]


#: The last number of the address that a container has on its uplink.
UPLINK_HOST = 100


def uplink(helper: str, uplink_range: str) -> str:
    """The ``--network`` value of Caddy's private user-mode network: no host loopback, no mapping, no IPv6.

    pasta with IPv6 off by sysctl needs ``--ipv4-only``; without ``--map-guest-addr,none`` it shows the host at
    169.254.1.2 (both measured). Addresses follow slirp4netns: .2 gateway, .3 resolver, .100 the guest.
    """
    base = uplink_range.rsplit(".", 1)[0]
    if helper == "slirp4netns":
        return f"slirp4netns:cidr={uplink_range},enable_ipv6=false,allow_host_loopback=false"
    return f"pasta:--ipv4-only,-a,{base}.{UPLINK_HOST},-n,24,-g,{base}.2,--ns-ifname,tap0,--map-guest-addr,none"


def tmpfs(target: str, size: int, mode: Optional[str] = None) -> Mount:
    """A sized tmpfs, writable by the container's user."""
    return Mount("tmpfs", target, True, size=size, mode=mode or "1777")
