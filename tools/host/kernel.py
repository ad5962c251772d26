# SPDX-License-Identifier: BSD-4-Clause
"""The few system calls that Python 3.11 has no function for. Each raises OSError, naming what it was for."""

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 1, 0x20, 0x1000, 0x4000, 0x40000, 0x100000
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC, MOUNT_ATTR_IDMAP = 1, 2, 4, 8, 0x100000

_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 0x4
#: numbers are the same on every architecture but alpha
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CGROUP2_MAGIC, _NSFS_MAGIC = 0x63677270, 0x6E736673
_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def _check(result, what):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _bytes(path):
    return None if path is None else os.fsencode(path)


def unshare(flags):
    """Leave the namespaces named by `flags` (CLONE_NEW*) for new ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor, kind):
    """Enter the namespace that `descriptor` stands for; `kind` is its CLONE_NEW* flag."""
    _check(_libc.setns(descriptor, kind), "setns")


def mount(source, target, kind=None, flags=0, data=None):
    """mount(2)."""
    _check(
        _libc.mount(_bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags), _bytes(data)),
        f"mount {source} on {target}",
    )


def detach(target):
    """umount(2) of everything at `target`, lazily: who still uses it keeps it."""
    _check(_libc.umount2(_bytes(target), MNT_DETACH), f"umount {target}")


def pivot_root(new, old):
    """pivot_root(2)."""
    _check(_libc.pivot_root(_bytes(new), _bytes(old)), f"pivot_root {new}")


def open_tree(path):
    """Descriptor of a detached copy of the mount at `path`, without what is mounted below it."""
    flags = ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC)
    return _check(_libc.syscall(_OPEN_TREE, _AT_FDCWD, _bytes(path), flags), f"open_tree {path}")


def move_mount(tree, target):
    """Attach the detached mount `tree` at `target`."""
    flags = ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, _bytes(target), flags), f"move_mount {target}")


def mount_setattr(tree, attributes, userns=0):
    """Set MOUNT_ATTR_* on the detached mount `tree`; `userns` is the descriptor that MOUNT_ATTR_IDMAP needs."""
    argument = _MountAttr(set=attributes, userns=userns)
    _check(
        _libc.syscall(
            _MOUNT_SETATTR,
            tree,
            b"",
            ctypes.c_uint(_AT_EMPTY_PATH),
            ctypes.byref(argument),
            ctypes.c_size_t(ctypes.sizeof(argument)),
        ),
        "mount_setattr",
    )


def drop_capabilities():
    """Empty the effective, permitted and inheritable sets of this thread."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _magic(path):
    """Type number of the file system at `path`, 0 when there is nothing."""
    buffer = (ctypes.c_long * 32)()  # struct statfs begins with the type, a long on the architectures of Debian
    return buffer[0] if _libc.statfs(_bytes(path), buffer) == 0 else 0


def is_namespace(path):
    """True when a namespace is bound at `path`."""
    return _magic(path) == _NSFS_MAGIC


def is_cgroup2(path):
    """True when `path` lies on a plain cgroup v2 hierarchy."""
    return _magic(path) == _CGROUP2_MAGIC
