# SPDX-License-Identifier: BSD-2-Clause
"""What doctor's checks take and give: facts about a host, and verdicts about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

Version = tuple[int, ...]


@dataclass(frozen=True)
class Disk:
    """Room in one of ASF's places: ``name`` is store, state or cache; ``free`` is bytes."""

    name: str
    path: str
    free: int


@dataclass(frozen=True)
class Facts:
    """Facts about the host and the user who asks. Versions are tuples, None where the program is not there.

    ``controllers`` are the cgroup controllers that this user's containers can really be limited by. ``run_dir_owner``
    and ``run_dir_mode`` are None when the folder does not exist. ``podman_error`` is what `podman info` said when it
    failed. ``subid_free`` is the first id that nobody has as a subordinate one. ``resolvers`` are the nameservers of
    the system, ``resolver`` is the one of ``config.yml``. ``kernel`` is the stable release that a distribution's kernel
    is made from, where it says so. ``linger`` is None without systemd. ``kvm`` is ok, missing, denied or useless (no
    machine can be made); ``hardware_virtualization``: the CPU shows that it has it. ``selinux`` is '', permissive or
    enforcing. ``leftovers`` are run folders of processes that are gone. ``apt``: the host installs by apt.
    """

    uid: int
    user: str
    kernel: Version
    user_namespaces: bool
    cgroup: str
    controllers: Sequence[str]
    subuids: int
    subgids: int
    subid_free: int
    run_dir: Optional[str]
    run_dir_owner: Optional[int]
    run_dir_mode: Optional[int]
    programs: Mapping[str, Optional[Version]]
    runtime: str
    nft_json: bool
    storage_driver: str
    storage_native: bool
    storage_root: str
    disks: Sequence[Disk]
    podman_error: str
    stale_pause: bool
    tun: str
    seccomp: Optional[str]
    resolvers: Sequence[str]
    resolver: Optional[str]
    ipv6: bool
    systemd: bool
    linger: Optional[bool]
    kvm: str
    hardware_virtualization: bool
    selinux: str
    leftovers: Sequence[str]
    apt: bool
    addresses: Sequence[str] = field(default=())
    routes: Sequence[str] = field(default=())


@dataclass(frozen=True)
class Verdict:
    """One check: ``state`` is ok, warn or fail; ``remedy`` is empty when there is nothing to do."""

    id: str
    state: str
    found: str
    why: str
    remedy: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dict(vars(self))


def text(version: Optional[Version]) -> str:
    """A version as people write it."""
    return ".".join(str(part) for part in version) if version else "missing"


def of(data: Any) -> Facts:
    """Facts from what ``dataclasses.asdict`` and JSON made of them. Raises KeyError or TypeError for anything else."""
    if not isinstance(data, Mapping):
        raise TypeError("no facts")
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    values["programs"] = {
        str(name): None if version is None else tuple(int(part) for part in version)
        for name, version in data["programs"].items()
    }
    values["kernel"] = tuple(int(part) for part in data["kernel"])
    values["subid_free"] = int(data["subid_free"])
    values["disks"] = tuple(Disk(**disk) for disk in data["disks"])
    return Facts(**values)
