# SPDX-License-Identifier: BSD-4-Clause
"""What kills a whole account: everything that Podman runs, or the machine. The account must have no other session.

Only the processes of containers and of Podman's own helpers are killed, from inside where they belong to subordinate
ids; the test itself, and whoever started it, lives on.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from asf_lib.engine import netns, procs, recovery, signals
from support.crash import recovered, untruths
from support.crash_lab import PLAIN, Case, Lab, Verdict
from support.product import Home, asf_play, podman
from support.waiting import wait_for

_HELPERS = ("conmon", "slirp4netns", "pasta", "pasta.avx2", "passt", "passt.avx2", "catatonit", "podman")


def strangers(*names: str) -> list[str]:
    """Running containers of the account that are none of these sessions' names: then nothing may be killed."""
    rows = [line.split() for line in podman("ps", "--format", "{{.Names}} {{.Pid}}").splitlines()]
    return [name for name, _ in rows if not any(mine in name for mine in names)]


def _helpers() -> list[int]:
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            if os.stat(f"/proc/{pid}").st_uid == os.getuid() and name in _HELPERS:
                found.append(pid)
    return found


def _identities(pids: list[int]) -> list[procs.Identity]:
    return [who for who in map(procs.identity, pids) if who is not None]


def kill_podman(containers: bool = True) -> None:
    """SIGKILL conmon, user-mode networks and the pause process, and before them (or not) every container's process."""
    if containers:
        inside = _identities([one.pid for one in recovery.survivors()])
        pause = {netns.pause_pid()}
        signals.send([who for who in inside if who.pid not in pause], [signal.SIGKILL])
    for pid in _helpers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not _helpers(), 20, "Podman's helpers to end")
    if containers:
        wait_for(lambda: not list(recovery.survivors()), 20, "the containers' processes to end")


def reboot(home: Home) -> None:
    """What is left after the machine was started anew: the store and the state folder, of another boot."""
    kill_podman()
    runtime = Path(os.environ["XDG_RUNTIME_DIR"])
    for part in ("libpod", "containers", "crun", "asf"):
        shutil.rmtree(runtime / part, ignore_errors=True)
        if (runtime / part).exists():  # parts of it belong to subordinate ids
            (runtime / part).rename(runtime / f"before-the-reboot-{part}-{os.getpid()}")
    Path(f"/dev/shm/libpod_rootless_lock_{os.getuid()}").unlink(missing_ok=True)
    for record in (home.state / "asf" / "live").glob("*.json"):
        text = record.read_text().replace(procs.boot_id(), "00000000-0000-4000-8000-000000000000")
        json.loads(text)
        record.write_text(text)


def tidy() -> None:
    """Remove what `reboot` could only rename."""
    for left in Path(os.environ["XDG_RUNTIME_DIR"]).glob(f"before-the-reboot-*-{os.getpid()}"):
        podman("unshare", "rm", "-rf", "--", str(left), check=False)


# --- cases ------------------------------------------------------------------------------------------------------------


def _wedged(lab: Lab) -> list[str]:
    """Everything was killed: Podman is wedged, and recovers with the next command."""
    kill_podman()
    return _comes_back(lab, "close.yml")


def _rebooted(lab: Lab) -> list[str]:
    """The machine was started anew."""
    reboot(lab.home)
    problems = _comes_back(lab, "open.yml")
    tidy()
    return problems


def _survivors(lab: Lab) -> list[str]:
    """As `_wedged`, but the containers' processes live: it is said which, and the remedy's commands end them."""
    kill_podman(containers=False)
    done = asf_play("ls", "--json", home=lab.home)
    error = (done.json or {}).get("error") if isinstance(done.json, dict) else None
    if not error or error["code"] != "podman-wedged":
        return [f"living processes of a wedged Podman are not refused: {done}"]
    for command in error["remedy"].partition(": ")[2].split("; "):
        subprocess.run(command.split(), check=False, timeout=20)
    wait_for(lambda: not list(recovery.survivors()), 20, "the containers' processes to end")
    return _comes_back(lab, "close.yml")


def _comes_back(lab: Lab, how: str) -> list[str]:
    row = lab.row(PLAIN)  # the command that repairs
    facts = lab.facts(PLAIN)
    problems = untruths(row, facts) + ([] if row and row["state"] == "broken" else [f"ls says {row}"])
    lab.live = ""
    problems += recovered(lab, Case("open.yml", PLAIN, "", "kill", recover=how), facts)
    if how == "close.yml":
        lab.ready(Case("verify.yml", PLAIN, "", "kill"))
    lab.close()
    return problems + [f"left: {one}" for one in lab.left(PLAIN)]


CASES: dict[str, Callable[[Lab], list[str]]] = {
    "outage: all processes of the account are killed": _wedged,
    "outage: all of Podman's own processes are killed, the containers' live": _survivors,
    "outage: the machine is started anew": _rebooted,
}


def play_outage(lab: Lab, name: str) -> Verdict:
    """One of CASES, in an account that has no other session: else that is the problem."""
    began = time.monotonic()
    try:
        lab.ready(Case("verify.yml", PLAIN, "", "kill"))
        others = strangers(lab.name)
        problems = [f"other containers of this account run: {', '.join(others)}"] if others else CASES[name](lab)
    except AssertionError as error:
        problems = [str(error)]
    if problems:
        lab.reset()
    return Verdict(name, problems, time.monotonic() - began)
