# SPDX-License-Identifier: BSD-4-Clause
"""The account's kept mount namespace. Root only.

It is kept by a bind mount of /proc/PID/ns/mnt and not by a process, so it outlives whatever is killed. In it, and only
in it: a plain cgroup v2 hierarchy (crun refuses hybrid ones), device nodes that the account may open, and the clones.
The machine's own cgroups, device nodes and mounts stay as they are.
"""

import errno
import os
from pathlib import Path

import account as accounts
import kernel
import userland
from say import SetupError, say

BASE = "/run/asf-ns"
#: device -> (major, minor); they are 0666 on ordinary distributions and root-only on some minimal ones
_DEVICES = {"net/tun": (10, 200), "kvm": (10, 232)}


def folder():
    """Where everything of the account's namespace lies."""
    return f"{BASE}/{accounts.name()}"


def handle():
    """File that the namespace is bound to."""
    return folder() + "/mnt"


def _record():
    """File that says which folder of the machine is the namespace's root."""
    return Path(folder(), "root")


def _root_of_kept():
    return _record().read_text(encoding="utf-8") if _record().exists() else "/"


def stamp(key):
    """File that remembers that set-up was done for the clone `key`."""
    return f"{folder()}/stamps/{key}"


def prepare_base():
    """Make the folders; the base is a private mount of its own, or the kernel refuses to bind a namespace below it."""
    for directory in (BASE, folder(), folder() + "/clones", folder() + "/stamps"):
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o711)  # noqa: S103  the account passes through, and cannot list
    if not mounted(BASE):
        kernel.mount(BASE, BASE, flags=kernel.MS_BIND)
        kernel.mount(None, BASE, flags=kernel.MS_PRIVATE)


def mounted(path):
    """True when something is mounted at `path`; os.path.ismount does not see a bind on the same file system."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        return any(line.split()[4] == path for line in table)


def ensure(account):
    """Make the namespace when it is not there."""
    root = str(userland.folder() or "/")
    if kernel.is_namespace(handle()):
        if _root_of_kept() == root:
            return
        if not accounts.idle(account):
            raise SetupError(
                f"the kept namespace of {account.pw_name} has another root than {root}, and processes of the account "
                "live in it: close its sessions, end its processes, and run this again"
            )
        kernel.detach(handle())
    say(f"preparing the mount namespace of {account.pw_name}")
    prepare_base()
    accounts.end_pause(account)  # it would hold the old mount namespace
    Path(handle()).touch()
    _record().write_text(root, encoding="utf-8")
    # The kernel binds a namespace only in an older one and (6.18) tells their age by numbers that each CPU hands out
    # from a range of its own: on the CPU where the present namespace was made, the new one is taken for younger.
    if not any(_make(account, cpu) for cpu in sorted(os.sched_getaffinity(0))):
        raise SetupError(
            f"the kernel refuses to keep a mount namespace at {handle()}: run this outside nested namespaces"
        )


def _make(account, cpu):
    """Build a namespace in a child on `cpu` and bind it to its file; False when the kernel takes it for too old."""
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _child(account, cpu, ready[1], go_on)
    os.close(ready[1])
    os.close(go_on[0])
    problem = os.read(ready[0], 4096).decode()
    try:
        if problem != "ok":  # never keep half of one
            raise SetupError("could not prepare the mount namespace: " + (problem or "its first process died"))
        kernel.mount(f"/proc/{child}/ns/mnt", handle(), flags=kernel.MS_BIND)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        os.close(go_on[1])
        os.close(ready[0])
        os.waitpid(child, 0)
    return True


def _child(account, cpu, ready, go_on):
    """Build the namespace, report, stay until the parent has bound it."""
    code = 1
    try:
        os.close(go_on[1])
        os.sched_setaffinity(0, {cpu})
        _build(account)
        os.write(ready, b"ok")
        os.read(go_on[0], 1)
        code = 0
    except OSError as error:
        os.write(ready, str(error).encode())
    finally:
        os._exit(code)


def _build(account):
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    if not kernel.is_cgroup2("/sys/fs/cgroup"):
        _plain_cgroup2()
    _devices(account)
    _small(account)
    userland.enter(account)
    kernel.mount(None, "/", flags=kernel.MS_REC | kernel.MS_SHARED)  # Podman wants a shared root


def _plain_cgroup2():
    if mounted("/sys/fs/cgroup"):
        kernel.detach("/sys/fs/cgroup")
    try:
        kernel.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", data="nsdelegate")
    except OSError:
        kernel.mount("cgroup2", "/sys/fs/cgroup", "cgroup2")


def _small(account):
    """A file system of 2 MiB that belongs to the account: tests fill it."""
    place = folder() + "/small"
    os.makedirs(place, exist_ok=True)
    kernel.mount("tmpfs", place, "tmpfs", data=f"mode=0700,size=2m,uid={account.pw_uid},gid={account.pw_gid}")


def _devices(account):
    own = folder() + "/dev"
    os.makedirs(own, exist_ok=True)
    kernel.mount("tmpfs", own, "tmpfs", data="mode=0711,size=64k")  # /run may be mounted without devices
    for name, (major, minor) in _DEVICES.items():
        target = "/dev/" + name
        if not os.path.exists(target) or os.stat(target).st_mode & 0o006 == 0o006:
            continue
        node = f"{own}/{os.path.basename(name)}"
        os.mknod(node, 0o020600, os.makedev(major, minor))
        os.chown(node, account.pw_uid, account.pw_gid)
        kernel.mount(node, target, flags=kernel.MS_BIND)
