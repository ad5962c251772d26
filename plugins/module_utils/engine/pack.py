# SPDX-License-Identifier: BSD-2-Clause
"""A file or folder of this host as a tar stream, read through open folders: no link on the way is followed."""

from __future__ import annotations

import os
import stat
import tarfile
from typing import IO, Any, cast

from ..core.escape import terminal
from ..core.untar import ArchiveError, Limits
from .unpack import Copied

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TOLD = 50


def pack(parent: int, name: str, top: str, sink: IO[bytes], limits: Limits, skip: bool) -> Copied:
    """Write the entry ``name`` of the open folder ``parent`` under the name ``top``.

    Links are packed as links. ``skip`` leaves sockets, FIFOs and devices out instead of refusing. Raises ArchiveError,
    and BrokenPipeError when the reader is gone.
    """
    with tarfile.open(
        fileobj=cast(Any, sink), mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        packer = _Packer(archive, limits, skip)
        packer.entry(parent, name, top)
    return packer.copied


class _Packer:
    def __init__(self, archive: tarfile.TarFile, limits: Limits, skip: bool) -> None:
        self._archive, self._limits, self._skip = archive, limits, skip
        self.copied = Copied()

    def entry(self, parent: int, name: str, path: str) -> None:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        self._bounded()
        info = tarfile.TarInfo(path)
        info.mtime, info.mode = int(found.st_mtime), stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISDIR(found.st_mode):
            self._folder(parent, name, path, info)
        elif stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=parent)
            self._archive.addfile(info)
            self.copied.links += 1
        elif stat.S_ISREG(found.st_mode):
            self._file(parent, name, info)
        else:
            self._special(path)

    def _folder(self, parent: int, name: str, path: str, info: tarfile.TarInfo) -> None:
        info.type = tarfile.DIRTYPE
        self._archive.addfile(info)
        self.copied.folders += 1
        folder = os.open(name, _FOLDER, dir_fd=parent)
        try:
            for one in sorted(os.listdir(folder)):
                self.entry(folder, one, f"{path}/{one}")
        finally:
            os.close(folder)

    def _file(self, parent: int, name: str, info: tarfile.TarInfo) -> None:
        with os.fdopen(os.open(name, _FILE, dir_fd=parent), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                self._special(info.name)
                return
            info.size = found.st_size
            self.copied.bytes += info.size
            self._bounded()
            try:
                self._archive.addfile(info, stream)
            except OSError as error:
                if error.errno is not None:
                    raise
                # tarfile says "unexpected end of data" without a number
                raise ArchiveError("a file became shorter while it was read", file=terminal(info.name, 200)) from error
        self.copied.files += 1

    def _special(self, path: str) -> None:
        if not self._skip:
            raise ArchiveError(
                "neither file, folder nor link", file=terminal(path, 200), remedy="--skip-unsafe copies the rest"
            )
        self.copied.left_out_count += 1
        if len(self.copied.left_out) < _TOLD:
            self.copied.left_out.append(f"{terminal(path, 200)}: a special file")

    def _bounded(self) -> None:
        made = self.copied
        if made.files + made.folders + made.links >= self._limits.entries:
            raise ArchiveError(
                "more entries than allowed", found=f"more than {self._limits.entries}", remedy="raise --max-files"
            )
        if made.bytes > self._limits.size:
            raise ArchiveError("more than allowed", found=f"over {self._limits.size} bytes", remedy="raise --max-size")
