# SPDX-License-Identifier: BSD-2-Clause
"""Commands that repair what doctor found. Pure: who runs them, and whether, is the caller's business.

What needs a decision (another kernel, more room, a store that must be made again) has no command; its verdict's remedy
says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .doctor_engine import NEEDED
from .doctor_facts import Facts, Verdict
from .doctor_user import IDS_MINIMUM, own_run_dir

#: check -> Debian package, for the checks that are no program of ``doctor_engine``
_PACKAGES = {"runtime": "crun", "nft": "nftables", "seccomp": "golang-github-containers-common"}


@dataclass(frozen=True)
class Repair:
    """One command for the check ``check``; ``root``: it needs root, else it is the account's own."""

    check: str
    command: tuple[str, ...]
    root: bool = True

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"check": self.check, "command": list(self.command), "root": self.root}


def repairs(facts: Facts, found: Sequence[Verdict]) -> list[Repair]:
    """What can be repaired by a command, in order, without doubles."""
    wrong = [verdict.id for verdict in found if verdict.state != "ok"]
    commands = [repair for check in wrong if check in _REPAIRS for repair in _REPAIRS[check](facts, check)]
    packages = [(check, _package(check, facts)) for check in wrong]
    names = [name for _check, name in packages if name]
    if names and facts.apt:
        first = next(check for check, name in packages if name)
        commands.insert(0, Repair(first, ("apt-get", "install", "--yes", "--no-install-recommends", *names)))
    once = {(repair.command, repair.root): repair for repair in reversed(commands)}  # the first of equals stays
    return [repair for repair in commands if once[repair.command, repair.root] is repair]


def _package(check: str, facts: Facts) -> str:
    """The package that brings what is missing; '' when something else is wrong."""
    if check in NEEDED:
        return NEEDED[check][0] if facts.programs.get(check) is None else ""
    if check == "uplink":
        modern = (facts.programs.get("podman") or (0,)) >= (5,)
        return "passt" if modern else "slirp4netns"
    missing = {"runtime": facts.programs.get("crun") is None, "nft": facts.programs.get("nft") is None, "seccomp": True}
    return _PACKAGES[check] if missing.get(check) else ""


def _userns(facts: Facts, check: str) -> Iterator[Repair]:
    yield Repair(check, ("sysctl", "--ignore", "--write", "user.max_user_namespaces=15000"))
    yield Repair(check, ("sysctl", "--ignore", "--write", "kernel.unprivileged_userns_clone=1"))
    yield Repair(check, ("sysctl", "--ignore", "--write", "kernel.apparmor_restrict_unprivileged_userns=0"))


def _subids(facts: Facts, check: str) -> Iterator[Repair]:
    free = f"{facts.subid_free}-{facts.subid_free + IDS_MINIMUM - 1}"
    yield Repair(check, ("usermod", "--add-subuids", free, "--add-subgids", free, facts.user))
    yield Repair(check, ("podman", "system", "migrate"), root=False)


def _run_dir(facts: Facts, check: str) -> Iterator[Repair]:
    if facts.systemd:
        yield Repair(check, ("loginctl", "enable-linger", facts.user))
    else:
        yield Repair(check, ("install", "-d", "-m", "0700", "-o", facts.user, own_run_dir(facts)))


def _linger(facts: Facts, check: str) -> Iterator[Repair]:
    yield Repair(check, ("loginctl", "enable-linger", facts.user))


def _tun(facts: Facts, check: str) -> Iterator[Repair]:
    yield Repair(check, ("modprobe", "tun") if facts.tun == "missing" else ("chmod", "0666", "/dev/net/tun"))


def _kvm(facts: Facts, check: str) -> Iterator[Repair]:
    if facts.kvm == "denied":
        yield Repair(check, ("usermod", "--append", "--groups", "kvm", facts.user))


def _leftovers(facts: Facts, check: str) -> Iterator[Repair]:
    yield Repair(check, ("asf-play", "prune", "--only", "runs", "--yes"), root=False)


_REPAIRS: Mapping[str, Callable[[Facts, str], Iterator[Repair]]] = {
    "user-namespaces": _userns,
    "subids": _subids,
    "run-dir": _run_dir,
    "linger": _linger,
    "tun": _tun,
    "kvm": _kvm,
    "leftovers": _leftovers,
}
