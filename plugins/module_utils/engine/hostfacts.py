# SPDX-License-Identifier: BSD-2-Clause
"""Facts about this host and this user, for ``core/doctor.py`` and for the plan. Only reads, and asks programs.

Nothing here raises for a host that lacks something: what is not there is a fact.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import pwd
import re
import socket
import stat
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

from ..core.doctor_facts import Disk, Facts, Version
from ..core.doctor_network import loopback, uplink_helper
from ..core.errors import HostError
from . import dirs, hostprograms, podman, rundirs

_SECCOMP = ("/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json")
_CLONE_NEWUSER = 0x10000000
_KVM_CREATE_VM = 0xAE01


def collect(resolver: Optional[str] = None) -> Facts:
    """All facts; about 0.3 s. `resolver` is the setting of ``config.yml``."""
    with ThreadPoolExecutor(8) as pool:
        told = dict(zip(hostprograms.PROGRAMS, pool.map(hostprograms.told, hostprograms.PROGRAMS)))
        info, problem = _podman_info() if told["podman"] is not None else ({}, "")
    store, host = info.get("store") or {}, info.get("host") or {}
    directory = os.environ.get("XDG_RUNTIME_DIR")
    root = store.get("graphRoot") or str(Path.home())
    run_dir = _stat(directory)
    return Facts(
        uid=os.getuid(),
        user=_user(),
        kernel=_kernel(os.uname()),
        user_namespaces=_userns_works(),
        cgroup=cgroup(),
        controllers=controllers(),
        subuids=sum(count for _, count in subordinate("subuid")),
        subgids=sum(count for _, count in subordinate("subgid")),
        subid_free=free_ids(),
        run_dir=directory,
        run_dir_owner=run_dir and run_dir.st_uid,
        run_dir_mode=run_dir and stat.S_IMODE(run_dir.st_mode),
        programs={name: hostprograms.version(name, text) for name, text in told.items()},
        runtime=(host.get("ociRuntime") or {}).get("name", ""),
        nft_json=bool(re.search(r"json:\s+yes", told["nft"] or "")),
        storage_driver=store.get("graphDriverName", ""),
        storage_native=(store.get("graphStatus") or {}).get("Native Overlay Diff") == "true",
        storage_root=root,
        disks=_disks(root),
        podman_error=problem,
        stale_pause=_stale_pause(directory),
        tun=_tun(),
        seccomp=_first_file(_SECCOMP),
        resolvers=tuple(resolvers()),
        resolver=resolver,
        ipv6=any(":" in a for a in addresses()),
        systemd=_systemd(),
        linger=_linger(_user()) if _systemd() else None,
        kvm=_kvm(),
        hardware_virtualization=_virtualization(),
        selinux={"1": "enforcing", "0": "permissive"}.get(_read("/sys/fs/selinux/enforce").strip(), ""),
        leftovers=tuple(_leftovers()),
        apt=hostprograms.program("apt-get") is not None,
        addresses=tuple(addresses()),
        routes=tuple(routes()),
    )


def for_plan(version: Version, resolver: Optional[str] = None) -> dict[str, Any]:
    """The facts that the plan is a function of, named as the fields of ``core/plan.py``'s Host; about 30 ms.

    `version` is the engine's. An empty ``resolver`` or ``uplink_helper`` means none; the plan refuses.
    """
    programs = {name: hostprograms.version(name, hostprograms.told(name)) for name in ("pasta", "slirp4netns")}
    usable = [address for address in resolvers() if not loopback(address) and ":" not in address]
    profile = _first_file(_SECCOMP)
    return {
        "uid": os.getuid(),
        "gid": os.getgid(),
        "podman": version,
        "uplink_helper": uplink_helper({**programs, "podman": version}) or "",
        "resolver": resolver or (usable[0] if usable else ""),
        "addresses": addresses(),
        "routes": routes(),
        "controllers": list(controllers()),
        "seccomp_default": json.loads(Path(profile).read_text(encoding="utf-8")) if profile else {},
        "icmp": _icmp(),
    }


# --- engine ---------------------------------------------------------------------------------------------------


def _podman_info() -> tuple[dict[str, Any], str]:
    try:
        done = subprocess.run(
            [hostprograms.program("podman") or "podman", "info", "--format", "json"],
            env=podman.environment(None),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return (json.loads(done.stdout), "") if done.returncode == 0 else ({}, _last_line(done.stderr))
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {}, str(error)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "no message"


# --- kernel ------------------------------------------------------------------------------------------------------


def _icmp() -> bool:
    """Whether this account may open an ICMP socket, by which alone slirp4netns and pasta carry echo requests."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()
    except OSError:
        return False
    return True


def _userns_works() -> bool:
    """Try it in a child: four different settings can forbid it, and only the kernel knows them all."""
    libc = ctypes.CDLL(None)
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.unshare(_CLONE_NEWUSER) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def cgroup() -> str:
    """``v2``, ``hybrid``, ``v1`` or ``none``."""
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    if Path("/sys/fs/cgroup/unified/cgroup.controllers").exists():
        return "hybrid"
    return "v1" if Path("/sys/fs/cgroup/memory").exists() else "none"


def controllers() -> tuple[str, ...]:
    """Controllers that limit this user's containers: those of a cgroup that the user may make children in.

    Podman's own list (`podman info`) also names controllers that nobody delegated; limits are then accepted and void.
    """
    if cgroup() != "v2":
        return ()
    uid = os.getuid()
    places = [f"/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service", "/sys/fs/cgroup" + _own_cgroup()]
    for place in places:
        if os.access(place, os.W_OK) and os.access(place + "/cgroup.procs", os.W_OK):
            return tuple(_read(place + "/cgroup.controllers").split())
    return ()


def _own_cgroup() -> str:
    return next((row[3:] for row in _read("/proc/self/cgroup").splitlines() if row.startswith("0::")), "/")


def _kernel(told: os.uname_result) -> Version:
    """The stable release. Debian's own number (``6.1.0-18``) does not say it, its version does."""
    debian = re.search(r"Debian (\d+\.\d+\.\d+)", told.version)
    return hostprograms.numbers(debian.group(1) if debian else told.release)


def _kvm() -> str:
    """``ok``, ``missing``, ``denied`` or ``useless``: a machine is really made, and dropped at once."""
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        return "missing" if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO) else "denied"
    try:
        os.close(fcntl.ioctl(device, _KVM_CREATE_VM, 0))
    except OSError:
        return "useless"
    finally:
        os.close(device)
    return "ok"


def _virtualization() -> bool:
    """Only x86 says it in the CPU's flags; elsewhere it is not known to be missing."""
    flags = re.search(r"^flags\s*:(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return flags is None or bool({"vmx", "svm"} & set(flags.group(1).split()))


def _tun() -> str:
    if not Path("/dev/net/tun").exists():
        return "missing"
    return "ok" if os.access("/dev/net/tun", os.R_OK | os.W_OK) else "denied"


# --- user --------------------------------------------------------------------------------------------------------


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _systemd() -> bool:
    return os.path.isdir("/run/systemd/system")


def _linger(user: str) -> bool:
    """logind's own mark; asking `loginctl` needs its bus, which a session without a login does not have."""
    return os.path.exists(f"/var/lib/systemd/linger/{user}")


def _leftovers() -> list[str]:
    try:
        return [path.name for path in rundirs.dead(rundirs.base())]
    except HostError:  # there is no run directory, which is a check of its own
        return []


def subordinate(kind: str) -> list[tuple[int, int]]:
    """The user's ranges (first, count), in /etc/subuid or /etc/subgid or (`getsubids`) in a name service.

    ``kind`` is ``subuid`` or ``subgid``.
    """
    names = {_user(), str(os.getuid())}
    rows = [row.split(":") for row in _read("/etc/" + kind).splitlines()]
    own = [row for row in rows if len(row) == 3 and row[0] in names]
    if not own and hostprograms.program("getsubids") is not None:
        own = [row.split() for row in _ask_subids(kind).splitlines()]  # "0: ann 100000 65536"
    ends = [row[-2:] for row in own if len(row) >= 3]
    return [(int(first), int(count)) for first, count in ends if first.isdigit() and count.isdigit()]


def free_ids() -> int:
    """The first number past every range of /etc/subuid and /etc/subgid, 100000 at least."""
    rows = (row.split(":") for row in (_read("/etc/subuid") + "\n" + _read("/etc/subgid")).splitlines())
    return max([100000] + [int(row[1]) + int(row[2]) for row in rows if len(row) == 3 and (row[1] + row[2]).isdigit()])


def _ask_subids(kind: str) -> str:
    argv = [hostprograms.program("getsubids") or "getsubids", *(["-g"] if kind == "subgid" else []), _user()]
    try:
        return hostprograms.ask(argv).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _stat(path: Optional[str]) -> Optional[os.stat_result]:
    try:
        return os.stat(path) if path else None
    except OSError:
        return None


def _stale_pause(directory: Optional[str]) -> bool:
    """True when Podman's pid file names a process that is gone."""
    text = _read(f"{directory}/libpod/tmp/pause.pid").strip() if directory else ""
    return text.isdigit() and not Path("/proc", text).exists()


def _disks(store: str) -> tuple[Disk, ...]:
    places = {"store": store}
    with contextlib.suppress(HostError):  # no home: the store's check fails, too
        places.update(state=str(dirs.state_dir()), cache=str(dirs.cache_dir()))
    return tuple(Disk(name, path, _free(path)) for name, path in places.items())


def _free(path: str) -> int:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


# --- network -----------------------------------------------------------------------------------------------------


def resolvers() -> list[str]:
    """Nameservers of /etc/resolv.conf, in order."""
    rows = (row.split() for row in _read("/etc/resolv.conf").splitlines())
    return [row[1] for row in rows if len(row) > 1 and row[0] == "nameserver"]


def addresses() -> list[str]:
    """This host's own addresses without loopback's, IPv4 and IPv6, as the kernel lists them."""
    six = [_six(row.split()[0]) for row in _read("/proc/net/if_inet6").splitlines() if row.split()[5] != "lo"]
    return sorted({*_local_four(), *six})


def _six(digits: str) -> str:
    return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def _local_four() -> set[str]:
    """IPv4 addresses that the kernel's local table holds (each is a `/32 host LOCAL` leaf of the trie)."""
    found, last = set(), ""
    for row in _read("/proc/net/fib_trie").splitlines():
        leaf = re.search(r"\|-- (\S+)", row)
        if leaf:
            last = leaf.group(1)
        elif "/32 host LOCAL" in row and not loopback(last):
            found.add(last)
    return found


def routes() -> list[str]:
    """IPv4 networks that this host has a route to, in CIDR form, without the default route."""
    found = set()
    for row in _read("/proc/net/route").splitlines()[1:]:
        fields = row.split()
        network, mask = (struct.pack("<L", int(fields[index], 16)) for index in (1, 7))
        if any(mask):
            found.add(f"{socket.inet_ntoa(network)}/{bin(int.from_bytes(mask, 'big')).count('1')}")
    return sorted(found)


# --- files -------------------------------------------------------------------------------------------------------


def _first_file(paths: tuple[str, ...]) -> Optional[str]:
    return next((path for path in paths if os.path.isfile(path)), None)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
