# SPDX-License-Identifier: BSD-2-Clause
"""A hostile tar stream made into a file or folder on this host: beside the target first, then renamed as a whole.

Every step goes through open folders and ``O_NOFOLLOW``, so that neither a link in the archive nor one that somebody
puts in the way is followed. Owner, groups, set-uid bits and extended attributes of the archive are not taken over; of a
file's mode only whether it may be executed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from dataclasses import dataclass, field
from typing import Callable, Iterator

from ..core.escape import terminal
from ..core.untar import LEFT_OUT, ArchiveError, Limits, Member, Reader, Unsafe, Vetting

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RENAME_NOREPLACE = 1  # renameat2(2)
_LIBC = ctypes.CDLL(None, use_errno=True)
_TOLD = 50
#: Name of the folder that a copy is made in, beside its target.
_BESIDE = re.compile(r"\.asf-cp-[0-9a-f]{16}\Z")
#: Seconds that such a folder may be there before whoever makes it holds it.
_FRESH = 60


@dataclass
class Copied:
    """What was made; ``left_out`` names entries that were not, at most ``_TOLD`` of ``left_out_count``."""

    files: int = 0
    folders: int = 0
    links: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    left_out_count: int = 0


def unpack(
    read: Callable[[int], bytes],
    finish: Callable[[], None],
    parent: int,
    name: str,
    top: str,
    limits: Limits,
    force: bool,
    skip: bool,
) -> Copied:
    """Make ``name`` in the open folder ``parent`` out of the archive's entry ``top``.

    ``finish`` is called when all was read, and raises when the sender has not ended well: then nothing is made.
    ``skip`` leaves unsafe entries out instead of refusing all; ``force`` replaces what is there. Raises ArchiveError or
    OSError; then nothing is left behind, and what was there before is untouched.
    """
    if not force and _exists(parent, name):
        raise _taken(name)
    with _beside(parent) as folder:
        copied = _Writer(folder, Vetting(top, limits), skip).run(Reader(read))
        finish()
        _place(folder, parent, name, force)
    return copied


@contextlib.contextmanager
def _beside(parent: int) -> Iterator[int]:
    """A new folder in ``parent``, which goes with all that is in it at the end. Those of killed copies go first."""
    _sweep(parent)
    name = f".asf-cp-{secrets.token_hex(8)}"
    os.mkdir(name, 0o700, dir_fd=parent)
    folder = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with contextlib.suppress(OSError):  # where there are no locks nothing is swept
            fcntl.flock(folder, fcntl.LOCK_EX)  # says that whoever made it lives
        yield folder
    finally:
        os.close(folder)
        _remove(parent, name)


def _sweep(parent: int) -> None:
    """Remove what killed copies left: folders of this account that nobody holds, and that are not being made now.

    ``parent`` may be opened by O_PATH, which cannot be listed itself (open(2)).
    """
    for name in filter(_BESIDE.match, os.listdir(f"/proc/self/fd/{parent}")):
        with contextlib.suppress(OSError):
            folder = os.open(name, _FOLDER, dir_fd=parent)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found = os.fstat(folder)
                if found.st_uid == os.getuid() and time.time() - found.st_mtime > _FRESH:
                    _remove(parent, name)
            finally:
                os.close(folder)


def _remove(parent: int, name: str) -> None:
    shutil.rmtree(f"/proc/self/fd/{parent}/{name}", ignore_errors=True)


class _Writer:
    """Writes the entry as ``x`` in the open folder."""

    def __init__(self, folder: int, vetting: Vetting, skip: bool) -> None:
        self._folder, self._vetting, self._skip = folder, vetting, skip
        self._links: list[tuple[tuple[str, ...], str]] = []
        self._now = int(time.time())
        self.copied = Copied()

    def run(self, reader: Reader) -> Copied:
        for member in reader.members():
            try:
                path = self._vetting.admit(member)
            except Unsafe as error:
                self._refused(error)
                continue
            self._make(member, ("x", *path), reader)
        if self._vetting.kinds.get(()) in (None, LEFT_OUT):
            raise ArchiveError("there is nothing to copy")
        # Last, so that no entry can be made through one of them.
        for path, target in self._links:
            with self._opened(path[:-1]) as parent:
                os.symlink(target, path[-1], dir_fd=parent)
        return self.copied

    def _refused(self, error: Unsafe) -> None:
        if not self._skip:
            error.remedy = "--skip-unsafe copies the rest"
            raise error
        self.copied.left_out_count += 1
        if len(self.copied.left_out) < _TOLD:
            self.copied.left_out.append(f"{error.found}: {error.message}")

    def _make(self, member: Member, path: tuple[str, ...], reader: Reader) -> None:
        if member.kind == "folder":
            with self._opened(path):
                return
        if member.kind == "symlink":
            self._links.append((path, member.link))
            self.copied.links += 1
            return
        with self._opened(path[:-1]) as parent:
            if member.kind == "hardlink":
                source = ("x", *self._vetting.path(member.link))
                with self._opened(source[:-1]) as other:
                    os.link(source[-1], path[-1], src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
            else:
                self._file(member, path[-1], parent, reader)
        self.copied.files += 1

    def _file(self, member: Member, name: str, parent: int, reader: Reader) -> None:
        handle = os.open(name, _NEW, 0o777 if member.mode & 0o100 else 0o666, dir_fd=parent)
        with os.fdopen(handle, "wb", buffering=0) as stream:
            for part in reader.content():
                while part:
                    part = part[stream.write(part) or 0 :]
            changed = min(max(0, member.mtime), self._now)
            os.utime(stream.fileno(), (changed, changed))
        self.copied.bytes += member.size

    @contextlib.contextmanager
    def _opened(self, path: tuple[str, ...]) -> Iterator[int]:
        """The folder at a path, made where it is missing; never through a link."""
        here = os.dup(self._folder)
        try:
            for part in path:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=here)
                    self.copied.folders += 1
                below = os.open(part, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


def _exists(parent: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _taken(name: str) -> ArchiveError:
    return ArchiveError(
        "there is something of this name already",
        found=terminal(name, 200),
        remedy="name another place, or give --force to replace it",
        code="exists",
    )


def _place(folder: int, parent: int, name: str, force: bool) -> None:
    """Rename the finished copy to its place; with ``force`` what was there goes, and comes back if that fails."""
    moved = False
    if force and _exists(parent, name):
        os.rename(name, "old", src_dir_fd=parent, dst_dir_fd=folder)
        moved = True
    try:
        _rename_new(folder, "x", parent, name)
    except BaseException:
        if moved:
            os.rename("old", name, src_dir_fd=folder, dst_dir_fd=parent)
        raise


def _rename_new(folder: int, old: str, parent: int, new: str) -> None:
    """Rename unless the new name is taken. Where the file system cannot promise that, it is looked at before."""
    done = _LIBC.renameat2(folder, os.fsencode(old), parent, os.fsencode(new), _RENAME_NOREPLACE)
    code = ctypes.get_errno()
    if done == 0:
        return
    if code == errno.EEXIST or (code == errno.EINVAL and _exists(parent, new)):
        raise _taken(new)
    if code != errno.EINVAL:
        raise OSError(code, os.strerror(code), new)
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=parent)
