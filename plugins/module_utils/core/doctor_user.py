# SPDX-License-Identifier: BSD-2-Clause
"""Checks of the account: ids, run directory, lingering, its limits."""

from __future__ import annotations

from collections.abc import Iterator

from .doctor_facts import Facts, Verdict

IDS_MINIMUM = 65536
_SHOWN = 5


def account(facts: Facts) -> Iterator[Verdict]:
    """Check: account."""
    why = "containers must belong to an unprivileged account: root's would not be confined by a user namespace"
    if facts.uid == 0:
        yield Verdict(
            "account", "fail", "this is root", why, "run as an ordinary user (`tools/operator` of a checkout does it)"
        )
    else:
        yield Verdict("account", "ok", f"{facts.user}, uid {facts.uid}", why)


def subids(facts: Facts) -> Iterator[Verdict]:
    """Check: subids."""
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


def own_run_dir(facts: Facts) -> str:
    """Where the account's run directory belongs."""
    return f"/run/user/{facts.uid}"


def run_dir(facts: Facts) -> Iterator[Verdict]:
    """Check: run dir."""
    why = "Podman and ASF keep run state there, readable by nobody else"
    own = own_run_dir(facts)
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


def linger(facts: Facts) -> Iterator[Verdict]:
    """Whether sessions outlive the login."""
    if facts.linger is None:
        yield Verdict("linger", "ok", "no systemd", "nothing ends an account's processes when it logs out")
    elif facts.linger:
        yield Verdict("linger", "ok", "on", "sessions outlive the login")
    else:
        yield Verdict(
            "linger",
            "warn",
            f"off for {facts.user}",
            "systemd ends all of an account's sessions, and removes its run directory, when it logs out",
            f"as root: `loginctl enable-linger {facts.user}`",
        )


def leftovers(facts: Facts) -> Iterator[Verdict]:
    """Run folders of processes that were killed."""
    why = "each holds what a killed command had written"
    if not facts.leftovers:
        yield Verdict("leftovers", "ok", "no run folder of a dead process", why)
        return
    yield Verdict(
        "leftovers",
        "warn",
        f"{len(facts.leftovers)} of dead processes: " + ", ".join(facts.leftovers[:_SHOWN]),
        why,
        "`asf-play prune` removes them (the next playbook that runs does, too)",
    )


def limits(facts: Facts) -> Iterator[Verdict]:
    """Check: limits."""
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
