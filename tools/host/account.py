# SPDX-License-Identifier: BSD-4-Clause
"""The unprivileged account that everything runs as: ids, folders, Podman's configuration, run state. Root only."""

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path

import userland
from say import SetupError, say

_RANGE = 65536
#: No systemd, so no systemd cgroups and no journal: say so once instead of being warned by every command.
_CONTAINERS_CONF = """\
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[containers]
log_driver = "k8s-file"
[network]
network_backend = "netavark"
"""
#: Without it a minimal Debian 12 picks vfs, which copies every layer.
_STORAGE_CONF = '[storage]\ndriver = "overlay"\n'


def name():
    """Name of the account: ASF_ACCOUNT, or `asf`, or `asf-RELEASE` in another userland."""
    return os.environ.get("ASF_ACCOUNT") or "-".join(filter(None, ("asf", userland.name())))


def entry():
    """The account's passwd entry, or None."""
    try:
        return pwd.getpwnam(name())
    except KeyError:
        return None


def run_dir(uid):
    """The account's run directory."""
    return f"/run/user/{uid}"


def ensure():
    """Make the account with its subordinate ids and Podman's configuration; return its passwd entry."""
    if entry() is None:
        say(f"making the account {name()}")
        _call("useradd", "-m", "-s", "/bin/bash", name())
    account = entry()
    userland.claim(account.pw_name, os.path.exists(account.pw_dir + "/.local/share/containers"))
    if account.pw_uid == 0:
        raise SetupError(f"ASF_ACCOUNT={name()} is root: name an unprivileged account")
    for kind in ("uid", "gid"):
        if subordinate(kind) is None:
            first = _free(f"/etc/sub{kind}")
            say(f"giving {name()} the subordinate {kind}s {first}-{first + _RANGE - 1}")
            _call("usermod", f"--add-sub{kind}s", f"{first}-{first + _RANGE - 1}", name())
    return account


def subordinate(kind):
    """First range (start, count) of the account in /etc/subuid or /etc/subgid (`kind` is uid or gid), or None."""
    account = entry()
    for user, start, count in _ranges(f"/etc/sub{kind}"):
        if account and user in (account.pw_name, str(account.pw_uid)):
            return start, count
    return None


def _ranges(path):
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    fields = (line.split(":") for line in lines if line.count(":") == 2 and not line.startswith("#"))
    return [(user, int(start), int(count)) for user, start, count in fields if start.isdigit() and count.isdigit()]


def _free(path):
    return max([100000] + [start + count for _, start, count in _ranges(path)])


def _call(*argv):
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SetupError(f"`{' '.join(argv)}` failed ({done.returncode}): {done.stderr.strip()}")


def configure(account):
    """Write Podman's configuration of the account where it has none. Runs as the account, in its home."""
    folder = Path(account.pw_dir, ".config", "containers")
    folder.mkdir(parents=True, exist_ok=True)
    systemd = os.path.isdir("/run/systemd/system")
    for file, text in (("containers.conf", "" if systemd else _CONTAINERS_CONF), ("storage.conf", _STORAGE_CONF)):
        if text and not (folder / file).exists():
            (folder / file).write_text(text, encoding="utf-8")


def ensure_run_dir(account):
    """Make the run directory; drop what is stale in it.

    When no process of the account lives (first use, a reboot with /run on disk, everything killed by a CI) Podman's run
    state is a lie and wedges it ("invalid internal status"). Without the directory and the lock segment Podman takes it
    as a reboot. Never while a process lives.
    """
    uid, directory = account.pw_uid, run_dir(account.pw_uid)
    if pause(uid, directory) is None and os.path.isdir(directory) and os.listdir(directory):
        own, orphans = _alive(account)
        if not own:
            _end(orphans)
            if os.path.isdir(directory + "/libpod"):
                say(f"dropping stale run state of Podman (no process of {name()} is alive)")
            shutil.rmtree(directory)
            Path(f"/dev/shm/libpod_rootless_lock_{uid}").unlink(missing_ok=True)
    if not os.path.isdir(directory):
        os.makedirs("/run/user", 0o755, exist_ok=True)
        os.mkdir(directory, 0o700)
        os.chown(directory, uid, account.pw_gid)


def pause(uid, directory):
    """Pid of Podman's pause process when it lives, belongs to `uid` and looks like one; else None."""
    try:
        pid = int(Path(directory, "libpod/tmp/pause.pid").read_text(encoding="ascii"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        owner = os.stat(f"/proc/{pid}").st_uid
    except (OSError, ValueError):
        return None
    program = os.path.basename(words[0])
    looks = program == b"podman" or (program == b"catatonit" and words[1:2] == [b"-P"])
    return pid if owner == uid and looks else None


def end_pause(account):
    """End the pause process: it holds the mount namespace that it was first started in."""
    pid = pause(account.pw_uid, run_dir(account.pw_uid))
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
    Path(run_dir(account.pw_uid), "libpod/tmp/pause.pid").unlink(missing_ok=True)


def idle(account):
    """True when nothing of the account lives but Podman's pause process."""
    own, orphans = _alive(account)
    return not orphans and set(own) <= {pause(account.pw_uid, run_dir(account.pw_uid))}


def _alive(account):
    """Live processes: pids of the account itself, and pids of containers that run under its subordinate ids."""
    start, count = subordinate("uid") or (0, 0)
    own, orphans = [], []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines()
                if line.startswith(("State:", "Uid:"))
            )
            uid = int(fields["Uid"].split()[0])
        except (OSError, KeyError, ValueError):
            continue  # it ended meanwhile
        if fields["State"].split()[0] in "ZX":
            continue  # nobody reaps orphans on a machine whose PID 1 is not an init
        if uid == account.pw_uid:
            own.append(int(pid))
        elif start <= uid < start + count:
            orphans.append(int(pid))
    return own, orphans


def _end(pids):
    """Kill containers' processes that outlived their engine: nobody supervises them, nobody could stop them later."""
    ours = os.stat("/proc/self/ns/user").st_ino
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
            if os.stat(f"/proc/{pid}/ns/user").st_ino != ours:  # a subordinate id outside a user namespace is not ours
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                say(f"ended process {pid}, which a container had left behind")
            os.close(handle)
        except ProcessLookupError:
            continue
