# SPDX-License-Identifier: BSD-4-Clause
"""The operator's secrets, for one purpose: to take them out of what is shown."""

from __future__ import annotations

from pathlib import Path

_FILE_LIMIT = 1 << 16


def values(folder: Path | None = None) -> set[str]:
    """Every value of every ``secrets/*.env`` of ASF's home. Loose reading on purpose: what is no value does no harm."""
    from asf_lib.engine import home

    folder = folder or home.resolve().secrets_dir
    found: set[str] = set()
    try:
        files = sorted(folder.glob("*.env"))
    except OSError:
        return found
    for path in files:
        try:
            with open(path, encoding="utf-8-sig", errors="replace") as stream:
                lines = stream.read(_FILE_LIMIT).splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, value = line.partition("=")
            if equals and not name.lstrip().startswith("#"):
                found |= {value.strip(), value.strip().strip("\"'")}
    return found - {""}
