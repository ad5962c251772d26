# SPDX-License-Identifier: BSD-2-Clause
"""ASF's seccomp profile: the engine's default, minus what invariant 1 takes away.

The default is an input (the caller reads the engine's own file, ``/usr/share/containers/seccomp.json`` on Debian), so
that the list of ordinary system calls is the distribution's and gets its updates. Why "default minus a few names" is
not enough, all of it measured on the defaults of Podman 4.3 and 5.4:

* The default's sub-architectures let ``int $0x80`` reach the 32-bit table, where ``socketcall`` has no argument to
  compare: AF_VSOCK opens. Without them libseccomp kills such a call.
* A deny list on ``socket`` compares 64 bits where the kernel reads 32: ``0x100000009`` passes "not 9" and opens
  NETLINK_AUDIT. Hence an allow list, where high bits lead to refusal.
* ``clone3`` takes its flags from memory, which a filter cannot read. ENOSYS makes libraries fall back to ``clone``.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .errors import HostError

Json = Dict[str, Any]

EPERM, ENOSYS = 1, 38

#: Flags of clone that make a namespace. CLONE_NEWTIME exists in ``unshare`` and ``clone3`` only: its bit is a signal's.
CLONE_NEW = {
    "CLONE_NEWNS": 0x00020000,
    "CLONE_NEWCGROUP": 0x02000000,
    "CLONE_NEWUTS": 0x04000000,
    "CLONE_NEWIPC": 0x08000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}

#: What sandboxes of clients need (bubblewrap, Chromium): given back by ``nested_sandbox``.
NESTED = ("unshare", "setns", "mount", "umount", "umount2", "pivot_root", "chroot")

#: Refused with EPERM in every container. The first group only serves those who may mount.
REFUSED = (
    *("fsopen", "fsmount", "fsconfig", "fspick", "move_mount", "open_tree", "open_tree_attr", "mount_setattr"),
    *("keyctl", "add_key", "request_key", "bpf", "userfaultfd", "perf_event_open"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("name_to_handle_at", "open_by_handle_at", "fanotify_init", "fanotify_mark", "lookup_dcookie"),
    *("reboot", "quotactl", "quotactl_fd", "acct", "swapon", "swapoff", "syslog"),
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module"),
)

#: Architectures that the gate's probes cover; on others no session is opened with a filter that nobody has tested.
ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_RAW, _SOCK_TYPE_MASK = 1, 2, 3, 0xF


def profile(default: Mapping[str, Any], *, nested_sandbox: bool = False, net_raw: bool = False) -> Json:
    """The profile for one container, as the engine's ``--security-opt=seccomp=FILE`` takes it.

    ``default`` is the engine's default profile, parsed; it is not modified. ``nested_sandbox`` gives user namespaces
    and the classic mount calls back, ``net_raw`` raw IP sockets (AF_PACKET stays refused: ``ping`` and traceroute do
    not need it). Raises HostError when ``default`` is empty, which is how a caller says that the engine's file does
    not exist, or is no profile that ASF understands.
    """
    _check(default)
    out: Json = copy.deepcopy(dict(default))
    out["defaultAction"], out["defaultErrnoRet"], out["defaultErrno"] = "SCMP_ACT_ERRNO", ENOSYS, "ENOSYS"
    out["archMap"] = [
        {"architecture": entry["architecture"], "subArchitectures": []}
        for entry in default["archMap"]
        if entry.get("architecture") in ARCHITECTURES
    ]
    own = set(REFUSED) | set(NESTED) | {"clone", "clone3", "socket", "socketpair", "socketcall"}
    out["syscalls"] = _ordinary(default["syscalls"], own)
    out["syscalls"] += _namespaces(nested_sandbox)
    out["syscalls"].append(_rule(REFUSED, errno=EPERM))
    out["syscalls"] += _sockets(net_raw)
    return out


def _check(default: Mapping[str, Any]) -> None:
    remedy = "install the package that holds the engine's default profile (Debian: golang-github-containers-common)"
    if not default:
        raise HostError("the engine's default seccomp profile was not found", remedy=remedy)
    rules, archs = default.get("syscalls"), default.get("archMap")
    if not isinstance(rules, list) or not all(isinstance(r, dict) and isinstance(r.get("names"), list) for r in rules):
        raise HostError("the engine's default seccomp profile has no list `syscalls` with `names`", remedy=remedy)
    if default.get("defaultAction") != "SCMP_ACT_ERRNO":
        raise HostError(
            "the engine's default seccomp profile is not an allow list",
            found=str(default.get("defaultAction")),
            remedy=remedy,
        )
    known = [e.get("architecture") for e in archs if isinstance(e, dict)] if isinstance(archs, list) else []
    if not set(known) & set(ARCHITECTURES):
        raise HostError("the engine's default seccomp profile has no architecture that ASF supports", remedy=remedy)


def _ordinary(rules: Sequence[Mapping[str, Any]], own: "set[str]") -> List[Json]:
    """The default's rules without the names that ASF decides itself, and without those that need a capability."""
    out = []
    for rule in rules:
        names = [name for name in rule["names"] if name not in own]
        if names and not (rule.get("includes") or {}).get("caps"):
            out.append({**copy.deepcopy(dict(rule)), "names": names})
    return out


def _namespaces(nested: bool) -> List[Json]:
    out = [_rule(["clone3"], errno=ENOSYS)]
    if nested:
        return [*out, _rule(["clone", *NESTED])]
    mask = sum(CLONE_NEW.values())
    out.append(_rule(["clone"], [_masked(0, mask, 0)]))
    # Without these a refused clone would be ENOSYS, which clients take for a broken kernel.
    out += [_rule(["clone"], [_masked(0, bit, bit)], errno=EPERM) for bit in CLONE_NEW.values()]
    out.append(_rule(NESTED, errno=EPERM))
    return out


def _sockets(net_raw: bool) -> List[Json]:
    """An allow list. What matches no rule gets the profile's ENOSYS, which the kernel never gives for a socket."""
    kinds = (_SOCK_STREAM, _SOCK_DGRAM) + ((_SOCK_RAW,) if net_raw else ())
    out = [_rule(["socket"], [_equal(0, _AF_UNIX)])]
    for family in (_AF_INET, _AF_INET6):
        # the type's upper bits are SOCK_CLOEXEC and SOCK_NONBLOCK; the kernel masks them in the same way
        out += [_rule(["socket"], [_equal(0, family), _masked(1, _SOCK_TYPE_MASK, kind)]) for kind in kinds]
    out.append(_rule(["socket"], [_equal(0, _AF_NETLINK), _equal(2, 0)]))  # NETLINK_ROUTE
    out.append(_rule(["socketpair"], [_equal(0, _AF_UNIX)]))
    return out


def _rule(names: Sequence[str], args: Optional[List[Json]] = None, errno: Optional[int] = None) -> Json:
    rule: Json = {"names": list(names), "action": "SCMP_ACT_ALLOW", "args": args or [], "comment": "ASF"}
    rule.update(includes={}, excludes={})
    if errno is not None:
        rule.update(action="SCMP_ACT_ERRNO", errnoRet=errno)
    return rule


def _equal(index: int, value: int) -> Json:
    return {"index": index, "value": value, "valueTwo": 0, "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, value: int) -> Json:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
