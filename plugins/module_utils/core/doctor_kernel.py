# SPDX-License-Identifier: BSD-2-Clause
"""Checks of the kernel: what it can do, what it lets this account do, what it is known to get wrong."""

from __future__ import annotations

from collections.abc import Iterator

from .doctor_facts import Facts, Verdict, Version, text

KERNEL_MINIMUM: Version = (5, 11)


def kernel(facts: Facts) -> Iterator[Verdict]:
    """Check: kernel."""
    why = "rootless overlay mounts exist from Linux 5.11 on; without them every image layer is copied"
    state = "ok" if facts.kernel >= KERNEL_MINIMUM else "fail"
    yield Verdict(
        "kernel",
        state,
        f"Linux {text(facts.kernel)}",
        why,
        "" if state == "ok" else "use a kernel of at least " + text(KERNEL_MINIMUM),
    )


def userns(facts: Facts) -> Iterator[Verdict]:
    """Check: userns."""
    why = "rootless containers are user namespaces"
    if facts.user_namespaces:
        yield Verdict("user-namespaces", "ok", "an unprivileged process can make one", why)
        return
    yield Verdict(
        "user-namespaces",
        "fail",
        "an unprivileged process cannot make one",
        why,
        "as root: `sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 "
        "kernel.apparmor_restrict_unprivileged_userns=0` (those that exist), and keep them in /etc/sysctl.d",
    )


def tun(facts: Facts) -> Iterator[Verdict]:
    """Check: tun."""
    why = "the user-mode network is a TAP device"
    remedy = {"missing": "as root: `modprobe tun`", "denied": "as root: `chmod 0666 /dev/net/tun`"}
    state = "ok" if facts.tun == "ok" else "fail"
    yield Verdict("tun", state, f"/dev/net/tun: {facts.tun}", why, remedy.get(facts.tun, ""))


def kvm(facts: Facts) -> Iterator[Verdict]:
    """Whether guests can be made; that one boots is for a microVM's own preflight (case K7)."""
    why = "`isolation: microvm` needs it, containers do not"
    found = {
        "missing": (
            "there is no /dev/kvm",
            "as root: `modprobe kvm_intel` or `modprobe kvm_amd`; in a virtual machine "
            "its host must allow nested virtualization",
        ),
        "denied": (
            "/dev/kvm may not be opened",
            f"as root: `usermod --append --groups kvm {facts.user}`, then log in again",
        ),
        "useless": ("/dev/kvm makes no machine", "see the kernel's log for what kvm says"),
    }
    if facts.kvm in found:
        yield Verdict("kvm", "warn", found[facts.kvm][0], why, found[facts.kvm][1])
    elif not facts.hardware_virtualization:
        yield Verdict(
            "kvm",
            "warn",
            "/dev/kvm makes a machine, but the CPU shows neither vmx nor svm: a guest may not boot",
            why,
            "use a host with hardware virtualization",
        )
    else:
        yield Verdict("kvm", "ok", "/dev/kvm makes a machine", why)


def selinux(facts: Facts) -> Iterator[Verdict]:
    """SELinux's mode (case F7)."""
    why = "ASF relabels nothing of yours, so SELinux may refuse a workload the repositories that it was granted"
    if facts.selinux == "enforcing":
        yield Verdict(
            "selinux",
            "warn",
            "enforcing",
            why,
            "label granted repositories by hand: `chcon --recursive --type container_file_t PATH`",
        )
    else:
        yield Verdict("selinux", "ok", facts.selinux or "not in use", why)


def cgroup(facts: Facts) -> Iterator[Verdict]:
    """Check: cgroup."""
    why = "crun needs a plain cgroup v2 hierarchy"
    if facts.cgroup == "v2":
        yield Verdict("cgroup", "ok", "version 2", why)
    else:
        yield Verdict(
            "cgroup",
            "fail",
            facts.cgroup,
            why,
            "boot with `systemd.unified_cgroup_hierarchy=1` (tools/operator as root makes a mount namespace with one)",
        )
