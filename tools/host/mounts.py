# SPDX-License-Identifier: BSD-4-Clause
"""Clones inside the account's mount namespace. Root only.

The account must be able to use a clone wherever it lies (below a root-only folder, made under umask 077) and must not
be able to change code that root later runs from it. So the clone is mounted read-only at a fixed place inside the
namespace, id-mapped: the owner of the files appears as the account. `build/` alone is mounted writable over it, so that
what a command leaves there lies in the clone. That folder belongs to the account and is not id-mapped: through a
mapping of root the account could leave a set-uid program of root there, and run it by the clone's own path.
"""

import json
import os
import stat
from pathlib import Path

import kernel
import namespace
from say import SetupError, say

_SAFE = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
_BUILD_FLAGS = os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC


def place(clone):
    """Where `clone` lies inside the namespace."""
    return f"{namespace.folder()}/clones/{clone.key}"


def _is_mounted(identity, path):
    """True when this very folder (device, inode) is mounted at `path`. Call it inside the namespace."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == identity


def _is_safe(path, account):
    """True when what is mounted at `path` is the account's, not id-mapped, writable, and gives no program a way."""
    flags = os.statvfs(path).f_flag
    return os.stat(path).st_uid == account.pw_uid and flags & (_BUILD_FLAGS | os.ST_RDONLY) == _BUILD_FLAGS


def ensure(clone, account, outside, inside):
    """Mount `clone` when needed; ends inside the namespace. `outside`, `inside`: descriptors of mount namespaces."""
    build, gone = _make_build(clone, account), _gone(clone)
    target, below = place(clone), place(clone) + "/build"
    kernel.setns(inside, kernel.CLONE_NEWNS)
    for path in gone:
        _forget(path)
    whole = _is_mounted(clone.identity, target)
    if whole and _is_mounted(build, below) and _is_safe(below, account):
        return
    kernel.setns(outside, kernel.CLONE_NEWNS)
    trees = [] if whole else [(_tree(clone, account), target)]
    trees.append((_build_tree(clone), below))
    os.makedirs(target, mode=0o755, exist_ok=True)
    Path(target + ".json").write_text(
        json.dumps({"path": str(clone.path), "identity": clone.identity}), encoding="utf-8"
    )
    kernel.setns(inside, kernel.CLONE_NEWNS)
    for _, path in reversed(trees):
        _unmount(path)
    for tree, path in trees:
        kernel.move_mount(tree, path)
        os.close(tree)


def _make_build(clone, account):
    """Make `build/` and give it to the account with what lies in it; returns its device and inode."""
    build = clone.path / "build"
    if build.is_symlink() or (build.exists() and not build.is_dir()):
        raise SetupError(f"{build} is not a folder: remove it, ASF keeps results there")
    build.mkdir(mode=0o755, exist_ok=True)
    if build.stat().st_uid != account.pw_uid:
        _give(build, account)
    status = build.stat()
    return status.st_dev, status.st_ino


def _give(build, account):
    """Chown what lies in the folder, which takes set-uid bits away, then the folder."""
    for _path, folders, files, inside in os.fwalk(build, topdown=False, follow_symlinks=False):
        for name in folders + files:
            status = os.stat(name, dir_fd=inside, follow_symlinks=False)
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=inside)  # its other name may be a file of the system
            else:
                os.chown(name, account.pw_uid, account.pw_gid, dir_fd=inside, follow_symlinks=False)
    os.chown(build, account.pw_uid, account.pw_gid, follow_symlinks=False)


def _build_tree(clone):
    tree = kernel.open_tree(str(clone.path / "build"))
    kernel.mount_setattr(tree, _SAFE | kernel.MOUNT_ATTR_NOEXEC)
    return tree


def _tree(clone, account):
    tree = kernel.open_tree(str(clone.path))
    kernel.mount_setattr(tree, kernel.MOUNT_ATTR_RDONLY | _SAFE)
    if (clone.uid, clone.gid) == (account.pw_uid, account.pw_gid):
        return tree
    userns = _userns(clone, account)
    try:
        kernel.mount_setattr(tree, kernel.MOUNT_ATTR_IDMAP, userns)
    except OSError as error:
        say(
            f"{clone.path} is mounted for {account.pw_name} without mapping its owner ({error}): the account sees only "
            "what everybody may read there"
        )
    finally:
        os.close(userns)
    return tree


def _userns(clone, account):
    """Descriptor of a user namespace that maps the clone's owner to the account."""
    ready, finish = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(finish[1])
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(ready[1], b"1")
            os.read(finish[0], 1)
        finally:
            os._exit(0)
    os.close(ready[1])
    os.close(finish[0])
    try:
        if not os.read(ready[0], 1):
            raise SetupError("this kernel gives root no user namespace: set user.max_user_namespaces above 0")
        Path(f"/proc/{child}/uid_map").write_text(f"{clone.uid} {account.pw_uid} 1", encoding="ascii")
        Path(f"/proc/{child}/gid_map").write_text(f"{clone.gid} {account.pw_gid} 1", encoding="ascii")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(finish[1])
        os.close(ready[0])
        os.waitpid(child, 0)


def _gone(clone):
    """Places of clones that no longer exist where they were. Call it outside the namespace."""
    found = []
    for record in Path(namespace.folder(), "clones").glob("*.json"):
        known = json.loads(record.read_text(encoding="utf-8"))
        try:
            status = os.stat(known["path"])
            same = [status.st_dev, status.st_ino] == known["identity"]
        except OSError:
            same = False
        if not same and record.stem != clone.key:
            found.append(str(record.with_suffix("")))
    return found


def _forget(path):
    """Drop the place of a clone that is gone, and the stamp of its set-up. Call it inside the namespace."""
    _unmount(path)
    os.rmdir(path)
    os.unlink(path + ".json")
    Path(namespace.stamp(os.path.basename(path))).unlink(missing_ok=True)


def _unmount(path):
    while namespace.mounted(path):  # more than one may lie on top of each other
        kernel.detach(path)
