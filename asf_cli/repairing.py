# SPDX-License-Identifier: BSD-4-Clause
"""Root's half of ``doctor --fix``: look at the host as the account sees it, run what needs root, look again.

Root decides by facts that the account's own process collected, and that process may lie. What of them reaches a command
root knows itself: the account's name and uid, and the subordinate ids that are free.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import paths
from .errors import CliError

if TYPE_CHECKING:
    from asf_lib.core.doctor_facts import Facts
    from asf_lib.core.doctor_repair import Repair

#: Seconds that one repair may take; apt-get on a slow mirror is the longest.
_DEADLINE = 900
#: Seconds that the account's own look at the host may take: it must not hold root up.
_LOOK_DEADLINE = 120
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}


def account(named: str | None, env: Mapping[str, str]) -> pwd.struct_passwd:
    """Whose host it is: ``named``, or who called sudo. Raises CliError when there is nobody, or it is root."""
    name = named or env.get("SUDO_USER") or env.get("ASF_ACCOUNT")
    if not name:
        raise CliError(
            "root repairs the host for an account, and none is named", key="--account", remedy="add --account NAME"
        )
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise CliError(
            "there is no such account", key="--account", found=name, remedy=f"as root: `useradd -m {name}`"
        ) from None
    if found.pw_uid == 0:
        raise CliError("sessions do not run as root", key="--account", found=name, remedy="name an ordinary account")
    return found


def operator() -> Path | None:
    """``tools/operator`` of the checkout that this program runs from, None for an installed one."""
    path = paths.content() / "tools" / "operator"
    return path if os.access(path, os.X_OK) else None


def look(whose: pwd.struct_passwd, resolver: str | None) -> Facts:
    """The host as the account sees it, in its own namespace where a checkout prepares one. Raises CliError."""
    from asf_lib.core import doctor_facts
    from asf_lib.engine import hostfacts

    prepared = operator()
    argv = [sys.executable, "-P", "-m", "asf_cli.repairing", resolver or ""]
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": False, "timeout": _LOOK_DEADLINE}
    if prepared:
        argv, how["env"] = [str(prepared), "python3", *argv[1:]], {**os.environ, "ASF_ACCOUNT": whose.pw_name}
    else:
        home = {"HOME": whose.pw_dir, "USER": whose.pw_name, "XDG_RUNTIME_DIR": f"/run/user/{whose.pw_uid}"}
        groups = os.getgrouplist(whose.pw_name, whose.pw_gid)
        how |= {"user": whose.pw_uid, "group": whose.pw_gid, "extra_groups": groups, "cwd": "/"}
        how["env"] = {**_ENVIRONMENT, **home}
    said = f"no answer within {_LOOK_DEADLINE} s"
    try:
        done = subprocess.run(argv, **how)
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        facts = doctor_facts.of(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        raise CliError(
            f"{whose.pw_name} cannot look at this host",
            found=said,
            remedy="install asf-play where the account can read it",
            code="host",
        ) from None
    # A range that the account chose could hold the uids of others, root's too, and newuidmap(1) would hand them out.
    return dataclasses.replace(facts, uid=whose.pw_uid, user=whose.pw_name, subid_free=hostfacts.free_ids())


def carry_out(repairs: Sequence[Repair], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Run what needs root, one after the other, telling each first; what is the account's own is told only."""
    return [_one(repair, say) for repair in repairs]


def _one(repair: Repair, say: Callable[[str], None]) -> dict[str, Any]:
    if not repair.root:
        return {**repair.as_dict(), "rc": None}
    say(f"{repair.check}: running `{' '.join(repair.command)}`")
    try:
        done = subprocess.run(
            repair.command,
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_DEADLINE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"{repair.check}: failed: {error}")
        return {**repair.as_dict(), "rc": 127}
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no message"])[-1]
        say(f"{repair.check}: failed ({done.returncode}): {last}")
    return {**repair.as_dict(), "rc": done.returncode}


if __name__ == "__main__":  # as the account, for look()
    import asf_cli  # noqa: F401  gives the shared code its name
    from asf_lib.engine import hostfacts

    print(json.dumps(dataclasses.asdict(hostfacts.collect(sys.argv[1] or None))))
