# SPDX-License-Identifier: BSD-4-Clause
"""Clones inside the account's mount namespace. Root only.

The account must be able to use a clone wherever it lies (below a root-only folder, made under umask 077) and must not
be able to change code that root later runs from it. So the clone is mounted read-only at a fixed place inside the
namespace, id-mapped: the owner of the files appears as the account. `build/` alone is mounted writable over it, so that
what a command leaves there lies in the clone and belongs to the clone's owner.
"""

import json
import os
from pathlib import Path

import kernel
import namespace
from say import SetupError, say

_SAFE = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV


def place(clone):
    """Where `clone` lies inside the namespace."""
    return f"{namespace.folder()}/clones/{clone.key}"


def _is_mounted(clone, build):
    """True when this very clone is mounted at its place, and its `build` too. Call it inside the namespace."""
    try:
        inside = [os.stat(place(clone)), os.stat(place(clone) + "/build")]
    except FileNotFoundError:
        return False
    same = [(status.st_dev, status.st_ino) for status in inside] == [clone.identity, (build.st_dev, build.st_ino)]
    return same and not os.statvfs(place(clone) + "/build").f_flag & os.ST_RDONLY


def ensure(clone, account, outside, inside):
    """Mount `clone` when needed; ends inside the namespace. `outside`, `inside`: descriptors of mount namespaces."""
    build, gone = _make_build(clone), _gone(clone)
    kernel.setns(inside, kernel.CLONE_NEWNS)
    for path in gone:
        _forget(path)
    if _is_mounted(clone, build):
        return
    kernel.setns(outside, kernel.CLONE_NEWNS)
    trees = [
        _tree(clone, str(clone.path), account, kernel.MOUNT_ATTR_RDONLY),
        _tree(clone, str(clone.path / "build"), account, 0),
    ]
    os.makedirs(place(clone), mode=0o755, exist_ok=True)
    Path(place(clone) + ".json").write_text(
        json.dumps({"path": str(clone.path), "identity": clone.identity}), encoding="utf-8"
    )
    kernel.setns(inside, kernel.CLONE_NEWNS)
    _unmount(place(clone))
    kernel.move_mount(trees[0], place(clone))
    kernel.move_mount(trees[1], place(clone) + "/build")
    for tree in trees:
        os.close(tree)


def _make_build(clone):
    build = clone.path / "build"
    if build.is_symlink() or (build.exists() and not build.is_dir()):
        raise SetupError(f"{build} is not a folder: remove it, ASF keeps results there")
    if not build.exists():
        build.mkdir(mode=0o755)
        os.chown(build, clone.uid, clone.gid)
    return build.stat()


def _tree(clone, path, account, attributes):
    tree = kernel.open_tree(path)
    kernel.mount_setattr(tree, attributes | _SAFE)
    if (clone.uid, clone.gid) == (account.pw_uid, account.pw_gid):
        return tree
    userns = _userns(clone, account)
    try:
        kernel.mount_setattr(tree, kernel.MOUNT_ATTR_IDMAP, userns)
    except OSError as error:
        say(
            f"{path} is mounted for {account.pw_name} without mapping its owner ({error}): the account sees only what "
            "everybody may read there" + ("" if attributes else f", and {path} is given to it")
        )
        if not attributes:
            os.chown(path, account.pw_uid, account.pw_gid)
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
