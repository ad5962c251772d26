# SPDX-License-Identifier: BSD-2-Clause
"""What this host can do for ASF: verdicts from facts.

``engine/hostfacts.py`` collects :class:`Facts`; :func:`verdicts` judges them and looks at nothing else. Each verdict
says its state, what was found, why it matters and what to do. `asf-play doctor`, ``playbooks/setup.yml`` and the set-up
of a checkout all show the same list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

Version = tuple[int, ...]

#: Podman 4.3 is the first with ``keep-id:uid=,gid=``.
PODMAN_MINIMUM: Version = (4, 3)
#: From Podman 5 on a container's private network is pasta's; older ones pass it options that it does not know.
PASTA_FROM: Version = (5, 0)
#: ``--map-guest-addr``, without which the host answers at an alias, is as old as this (versions of passt are dates).
PASTA_MINIMUM: Version = (2024, 8, 21)
SLIRP_MINIMUM: Version = (1, 1)
KERNEL_MINIMUM: Version = (5, 11)
IDS_MINIMUM = 65536
DISK_WANTED = 10 * 1024**3
DISK_MINIMUM = 2 * 1024**3
#: program -> release -> why it must not be used
KNOWN_BAD: Mapping[str, Mapping[Version, str]] = {
    "crun": {(1, 11): "it ignores `noexec` on volumes (containers/crun issue 1335); fixed in 1.11.1"},
}


@dataclass(frozen=True)
class Facts:
    """Facts about the host and the user who asks. Versions are tuples, None where the program is not there.

    ``controllers`` are the cgroup controllers that this user's containers can really be limited by. ``run_dir_owner``
    and ``run_dir_mode`` are None when the folder does not exist. ``podman_error`` is what `podman info` said when it
    failed. ``subid_free`` is the first id that nobody has as a subordinate one. ``resolvers`` are the nameservers of
    the system, ``resolver`` is the one of ``config.yml``. Sizes are bytes.
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
    disk_free: int
    podman_error: str
    stale_pause: bool
    tun: str
    seccomp: Optional[str]
    resolvers: Sequence[str]
    resolver: Optional[str]
    ipv6: bool
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


def line(verdict: Verdict) -> str:
    """One line of text: ``fail  subids: found. Why. Remedy``."""
    text = f"{verdict.state:<4} {verdict.id}: {verdict.found}"
    if verdict.state == "ok":
        return f"{text} ({verdict.why})"
    return f"{text}; {verdict.why}. Do: {verdict.remedy}" if verdict.remedy else f"{text}; {verdict.why}."


def verdicts(facts: Facts) -> list[Verdict]:
    """Judge `facts`; the order is that in which things should be repaired."""
    checks = (
        _account,
        _kernel,
        _userns,
        _subids,
        _run_dir,
        _programs,
        _runtime,
        _uplink,
        _nft,
        _tun,
        _engine,
        _storage,
        _disk,
        _seccomp,
        _cgroup,
        _limits,
        _resolver,
        _ipv6,
    )
    return [verdict for check in checks for verdict in check(facts)]


def ready(found: Sequence[Verdict]) -> bool:
    """True when nothing failed."""
    return all(verdict.state != "fail" for verdict in found)


def text(version: Optional[Version]) -> str:
    """A version as people write it."""
    return ".".join(str(part) for part in version) if version else "missing"


def _account(facts: Facts) -> Iterator[Verdict]:
    why = "containers must belong to an unprivileged account: root's would not be confined by a user namespace"
    if facts.uid == 0:
        yield Verdict(
            "account", "fail", "this is root", why, "run as an ordinary user (`tools/operator` of a checkout does it)"
        )
    else:
        yield Verdict("account", "ok", f"{facts.user}, uid {facts.uid}", why)


def _kernel(facts: Facts) -> Iterator[Verdict]:
    why = "rootless overlay mounts exist from Linux 5.11 on; without them every image layer is copied"
    state = "ok" if facts.kernel >= KERNEL_MINIMUM else "fail"
    yield Verdict(
        "kernel",
        state,
        f"Linux {text(facts.kernel)}",
        why,
        "" if state == "ok" else "use a kernel of at least " + text(KERNEL_MINIMUM),
    )


def _userns(facts: Facts) -> Iterator[Verdict]:
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


def _subids(facts: Facts) -> Iterator[Verdict]:
    why = "containers need ids of their own, which are nobody's on the host"
    low = [
        f"{kind}: {count}"
        for kind, count in (("subuid", facts.subuids), ("subgid", facts.subgids))
        if count < IDS_MINIMUM
    ]
    if not low:
        yield Verdict("subids", "ok", f"{facts.subuids} subordinate uids, {facts.subgids} gids", why)
        return
    free = f"{facts.subid_free}-{facts.subid_free + IDS_MINIMUM - 1}"
    yield Verdict(
        "subids",
        "fail",
        f"{facts.user} has too few subordinate ids ({', '.join(low)}; {IDS_MINIMUM} are needed)",
        why,
        f"as root: `usermod --add-subuids {free} --add-subgids {free} {facts.user}`, then as {facts.user}: "
        "`podman system migrate`",
    )


def _run_dir(facts: Facts) -> Iterator[Verdict]:
    why = "Podman and ASF keep run state there, readable by nobody else"
    own = f"/run/user/{facts.uid}"
    login = (
        "this is no login session (sudo, su and become_user open none): as root "
        f"`loginctl enable-linger {facts.user}` once (without systemd: `install -d -m 0700 -o {facts.user} {own}` at "
        f"every boot), then `export XDG_RUNTIME_DIR={own}`"
    )
    if not facts.run_dir:
        yield Verdict("run-dir", "fail", "XDG_RUNTIME_DIR is not set", why, login)
    elif facts.run_dir_owner is None:
        yield Verdict("run-dir", "fail", f"XDG_RUNTIME_DIR={facts.run_dir} does not exist", why, login)
    elif facts.run_dir_owner != facts.uid:
        yield Verdict(
            "run-dir", "fail", f"XDG_RUNTIME_DIR={facts.run_dir} belongs to uid {facts.run_dir_owner}", why, login
        )
    elif facts.run_dir_mode is not None and facts.run_dir_mode & 0o066:  # Podman itself adds --x--x--x
        yield Verdict(
            "run-dir",
            "fail",
            f"{facts.run_dir} has mode {facts.run_dir_mode:04o}",
            why,
            f"`chmod 0700 {facts.run_dir}`",
        )
    else:
        yield Verdict("run-dir", "ok", facts.run_dir, why)


#: program -> (Debian package, why)
_NEEDED: Mapping[str, tuple[str, str]] = {
    "podman": ("podman", "it runs the containers"),
    "conmon": ("conmon", "Podman needs it for every container"),
    "newuidmap": ("uidmap", "it gives containers their ids"),
    "ip": ("iproute2", "it plugs the cables"),
    "git": ("git", "grants are git repositories"),
    "mmdebstrap": ("mmdebstrap", "it builds the base image from the distribution's packages"),
}


def _programs(facts: Facts) -> Iterator[Verdict]:
    for name, (package, why) in _NEEDED.items():
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
    for name, releases in KNOWN_BAD.items():
        reason = releases.get(_short(facts.programs.get(name)))
        if reason:
            yield Verdict(name, "fail", text(facts.programs[name]), reason, f"install another release of {name}")


def _short(version: Optional[Version]) -> Version:
    """`version` without trailing zeros: 1.11.0 and 1.11 are one release."""
    found = tuple(version or ())
    while found and found[-1] == 0:
        found = found[:-1]
    return found


def _runtime(facts: Facts) -> Iterator[Verdict]:
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


def uplink_helper(programs: Mapping[str, Optional[Version]]) -> Optional[str]:
    """What gives Caddy its way out: pasta from Podman 5 on when it is new enough, else slirp4netns, else None."""
    podman, pasta, slirp = (programs.get(name) for name in ("podman", "pasta", "slirp4netns"))
    if podman and podman >= PASTA_FROM and pasta and pasta >= PASTA_MINIMUM:
        return "pasta"
    return "slirp4netns" if slirp and slirp >= SLIRP_MINIMUM else None


def _uplink(facts: Facts) -> Iterator[Verdict]:
    why = "Caddy's private user-mode network; nothing of the host may answer in it"
    helper = uplink_helper(facts.programs)
    if helper:
        yield Verdict("uplink", "ok", f"{helper} {text(facts.programs[helper])}", why)
        return
    found = f"slirp4netns {text(facts.programs.get('slirp4netns'))}, pasta {text(facts.programs.get('pasta'))}"
    yield Verdict(
        "uplink",
        "fail",
        found,
        why,
        "as root: `apt-get install slirp4netns` (or, with Podman 5, a pasta of at least "
        + "-".join(f"{part:02}" for part in PASTA_MINIMUM)
        + ")",
    )


def _nft(facts: Facts) -> Iterator[Verdict]:
    why = "it loads the rules of Caddy's namespace, as JSON"
    if facts.programs.get("nft") is None:
        yield Verdict("nft", "fail", "missing", why, "as root: `apt-get install nftables`")
    elif not facts.nft_json:
        yield Verdict(
            "nft",
            "fail",
            f"{text(facts.programs['nft'])} without JSON",
            why,
            "install an nftables that is built with JSON",
        )
    else:
        yield Verdict("nft", "ok", text(facts.programs["nft"]), why)


def _tun(facts: Facts) -> Iterator[Verdict]:
    why = "the user-mode network is a TAP device"
    remedy = {"missing": "as root: `modprobe tun`", "denied": "as root: `chmod 0666 /dev/net/tun`"}
    state = "ok" if facts.tun == "ok" else "fail"
    yield Verdict("tun", state, f"/dev/net/tun: {facts.tun}", why, remedy.get(facts.tun, ""))


def _engine(facts: Facts) -> Iterator[Verdict]:
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


def _storage(facts: Facts) -> Iterator[Verdict]:
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


def _disk(facts: Facts) -> Iterator[Verdict]:
    why = "the images take about 5 GiB, each with a mapped copy"
    state = "ok" if facts.disk_free >= DISK_WANTED else "warn" if facts.disk_free >= DISK_MINIMUM else "fail"
    found = f"{facts.disk_free / 1024**3:.1f} GiB free at {facts.storage_root or 'the home folder'}"
    yield Verdict(
        "disk", state, found, why, "" if state == "ok" else "make room, or move the store (`graphroot` in storage.conf)"
    )


def _seccomp(facts: Facts) -> Iterator[Verdict]:
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


def _cgroup(facts: Facts) -> Iterator[Verdict]:
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


def _limits(facts: Facts) -> Iterator[Verdict]:
    why = "a manifest's limits bite per container only with the controller delegated to this user"
    missing = [name for name in ("memory", "pids", "cpu") if name not in facts.controllers]
    if not missing:
        yield Verdict("limits", "ok", "memory, pids and cpu can be limited", why)
        return
    words = {
        "memory": "memory is bounded per process",
        "pids": "processes are counted per user",
        "cpu": "CPU time is not limited",
    }
    yield Verdict(
        "limits",
        "warn",
        "no controller for " + ", ".join(missing),
        "; ".join(words[name] for name in missing),
        "with systemd, as root: `Delegate=cpu memory pids` for user@.service; elsewhere accept the stated fallback",
    )


def _resolver(facts: Facts) -> Iterator[Verdict]:
    why = "Caddy resolves declared names by one explicit, recorded resolver, from its own network"
    if facts.resolver:
        yield Verdict("resolver", "ok", f"{facts.resolver} (config.yml)", why)
        return
    usable = [address for address in facts.resolvers if not loopback(address) and ":" not in address]
    if usable:
        yield Verdict("resolver", "ok", f"{usable[0]} (the system's)", why)
        return
    found = f"the system's resolver is {facts.resolvers[0]}" if facts.resolvers else "the system names no resolver"
    yield Verdict(
        "resolver",
        "warn",
        found + ", which Caddy cannot reach",
        why,
        "write `resolver: ADDRESS` (an IPv4 address outside loopback) into config.yml",
    )


def loopback(address: str) -> bool:
    """True for addresses that mean the host itself."""
    return address.startswith("127.") or address in ("::1", "0.0.0.0", "::")  # noqa: S104


def _ipv6(facts: Facts) -> Iterator[Verdict]:
    found = "this host has IPv6" if facts.ipv6 else "this host has no IPv6"
    yield Verdict("ipv6", "ok", found, "either works: it is switched off inside every container, and probed")
