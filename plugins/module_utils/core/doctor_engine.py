# SPDX-License-Identifier: BSD-2-Clause
"""Checks of Podman and the programs around it: versions, storage, run state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .advisories import DATE, known
from .doctor_facts import Facts, Verdict, Version, text

#: Podman 4.3 is the first with ``keep-id:uid=,gid=``.
PODMAN_MINIMUM: Version = (4, 3)

#: program -> (Debian package, why)
NEEDED: Mapping[str, tuple[str, str]] = {
    "podman": ("podman", "it runs the containers"),
    "conmon": ("conmon", "Podman needs it for every container"),
    "newuidmap": ("uidmap", "it gives containers their ids"),
    "ip": ("iproute2", "it plugs the cables"),
    "git": ("git", "grants are git repositories"),
    "mmdebstrap": ("mmdebstrap", "it builds the base image from the distribution's packages"),
}

_GIB = 1024**3
#: place -> bytes that are comfortable, bytes without which it fails, why, remedy
_ROOM: Mapping[str, tuple[int, int, str, str]] = {
    "store": (
        10 * _GIB,
        2 * _GIB,
        "the images take about 5 GiB, each with a mapped copy",
        "make room (`asf-play prune` removes old images), or move the store (`graphroot` in storage.conf)",
    ),
    "state": (
        _GIB,
        _GIB // 10,
        "each session leaves evidence, and none starts without a record",
        "make room, or name another folder (XDG_STATE_HOME)",
    ),
    "cache": (
        5 * _GIB,
        _GIB,
        "builds unpack images and packages there",
        "make room (`asf-play prune` clears caches), or name another folder (XDG_CACHE_HOME)",
    ),
}


def programs(facts: Facts) -> Iterator[Verdict]:
    """Check: programs."""
    for name, (package, why) in NEEDED.items():
        version = facts.programs.get(name)
        if version is None:
            yield Verdict(name, "fail", "missing", why, f"as root: `apt-get install {package}`")
        elif name == "podman" and any(version) and version < PODMAN_MINIMUM:
            yield Verdict(
                name,
                "fail",
                text(version),
                "keep-id with chosen ids exists from 4.3 on",
                "install Podman 4.3 or newer (Debian 12 has it)",
            )
        else:
            yield Verdict(name, "ok", text(version) if any(version) else "found", why)


def advisories(facts: Facts) -> Iterator[Verdict]:
    """Versions known as dangerous; runc's only where Podman uses it."""
    versions = {**facts.programs, "kernel": facts.kernel}
    if facts.kernel[2:] in ((), (0,)):  # a distribution's number, which does not say what is repaired
        versions.pop("kernel")
    if facts.runtime != "runc":
        versions.pop("runc", None)
    clean = True
    for name, version in versions.items():
        found = list(known(name, version))
        if found:
            clean = False
            yield Verdict(
                f"advisory-{name}",
                "fail" if any(entry.breaks for entry in found) else "warn",
                f"{name} {text(version)}: " + ", ".join(entry.id for entry in found),
                "; ".join(f"{entry.id}: {entry.why}" for entry in found),
                f"install a newer {name}, or make sure that your distribution has repaired this one",
            )
    if clean:
        yield Verdict("advisories", "ok", "none for these versions", f"known ones up to {DATE}; looked up offline")


def runtime(facts: Facts) -> Iterator[Verdict]:
    """Check: runtime."""
    why = "ASF's profile and mappings are measured with crun"
    if facts.programs.get("crun") is None:
        yield Verdict("runtime", "fail", "crun is missing", why, "as root: `apt-get install crun`")
    elif facts.runtime and facts.runtime != "crun":
        yield Verdict(
            "runtime",
            "warn",
            f"Podman uses {facts.runtime}",
            why,
            'set `runtime = "crun"` in containers.conf, [engine]',
        )
    else:
        yield Verdict("runtime", "ok", "crun " + text(facts.programs.get("crun")), why)


def engine(facts: Facts) -> Iterator[Verdict]:
    """Check: engine."""
    why = "everything else asks Podman"
    if facts.programs.get("podman") is None:
        return
    if facts.podman_error:
        stale = facts.stale_pause or "invalid internal status" in facts.podman_error
        remedy = (
            "its run state is stale (processes were killed or the machine went down): end all processes of "
            f"{facts.user}, then remove /run/user/{facts.uid} and /dev/shm/libpod_rootless_lock_{facts.uid} "
            "(tools/operator as root does this)"
            if stale
            else "repair what the message names; `podman info` shows it again"
        )
        yield Verdict("engine", "fail", f"`podman info` fails: {facts.podman_error}", why, remedy)
    else:
        yield Verdict("engine", "ok", "`podman info` answers", why)


def storage(facts: Facts) -> Iterator[Verdict]:
    """Check: storage."""
    why = "image layers are shared and copied fast"
    conf = "~/.config/containers/storage.conf"
    if facts.podman_error or not facts.storage_driver:
        return
    if facts.storage_driver != "overlay":
        yield Verdict(
            "storage",
            "fail",
            facts.storage_driver,
            "it copies every layer of every container",
            f'set `driver = "overlay"` under [storage] in {conf} before the first use (or `podman system reset` first)',
        )
    elif not facts.storage_native:
        yield Verdict(
            "storage",
            "warn",
            "overlay through fuse-overlayfs",
            "the broker's start takes twice as long, on every open",
            f"take mount_program out of {conf} and remove {facts.storage_root}/overlay/.has-mount-program (one call "
            "with that option is enough to switch a store for good)",
        )
    else:
        yield Verdict("storage", "ok", f"native overlay in {facts.storage_root}", why)


def disk(facts: Facts) -> Iterator[Verdict]:
    """Room for images, evidence and builds."""
    for place in facts.disks:
        wanted, least, why, remedy = _ROOM[place.name]
        state = "ok" if place.free >= wanted else "warn" if place.free >= least else "fail"
        found = f"{place.free / _GIB:.1f} GiB free at {place.path}"
        yield Verdict(f"disk-{place.name}", state, found, why, "" if state == "ok" else remedy)


def seccomp(facts: Facts) -> Iterator[Verdict]:
    """Check: seccomp."""
    why = "ASF's profile is the engine's default made stricter"
    if facts.seccomp:
        yield Verdict("seccomp", "ok", facts.seccomp, why)
    else:
        yield Verdict(
            "seccomp",
            "fail",
            "the engine's default profile is not installed",
            why,
            "as root: `apt-get install golang-github-containers-common` (containers-common elsewhere)",
        )
