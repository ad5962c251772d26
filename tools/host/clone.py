# SPDX-License-Identifier: BSD-4-Clause
"""The clone that tools/operator lies in, and the digest of everything that set-up depends on."""

import hashlib
import os
from pathlib import Path

_INPUTS = (
    "tools/operator",
    "tools/host",
    "requirements",
    "plugins/module_utils/core/doctor.py",
    "plugins/module_utils/core/doctor_engine.py",
    "plugins/module_utils/core/doctor_kernel.py",
    "plugins/module_utils/core/doctor_network.py",
    "plugins/module_utils/core/doctor_user.py",
    "plugins/module_utils/engine/hostfacts.py",
    "plugins/module_utils/engine/hostprograms.py",
)


class Clone:
    """One checkout: where it lies (`path`), a short name for that place (`key`), who owns it (`uid`, `gid`)."""

    def __init__(self, path):
        self.path = Path(path)
        self.key = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]
        status = os.stat(self.path)
        self.uid, self.gid = status.st_uid, status.st_gid
        self.identity = (status.st_dev, status.st_ino)

    def digest(self):
        """Digest (hex) of the files that decide what set-up does: when one changes, set-up runs again."""
        seen = hashlib.sha256()
        for name in _INPUTS:
            base = self.path / name
            for path in sorted(base.rglob("*")) if base.is_dir() else [base]:
                if path.is_file():
                    seen.update(str(path.relative_to(self.path)).encode() + b"\0" + path.read_bytes() + b"\0")
        return seen.hexdigest()

    def within(self, directory):
        """The part of `directory` below the clone ('' for the clone itself), or None when it lies elsewhere."""
        try:
            relative = Path(directory).relative_to(self.path)
        except ValueError:
            return None
        return "" if relative == Path(".") else str(relative)


def here():
    """The clone that this file belongs to."""
    return Clone(Path(__file__).resolve().parents[2])
