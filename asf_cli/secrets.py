# SPDX-License-Identifier: BSD-4-Clause
"""The operator's secrets, for one purpose: to take them out of what is shown."""

from __future__ import annotations

import os
from pathlib import Path

_FILE_LIMIT = 1 << 16


def values(asf_home: str | None = None) -> set[str]:
    """Every value of every ``secrets/*.env`` of ASF's home, and of the variables of this environment that its sources
    name. Loose reading on purpose: what is no value does no harm. From then on nobody reads this process's memory.
    """
    from asf_lib.engine import hidden

    from .environment import named

    hidden.undumped()
    found: set[str] = {value.strip() for value in named(asf_home).values()}
    try:
        files = sorted(_folder(asf_home).glob("*.env"))
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


def _folder(asf_home: str | None) -> Path:
    from asf_lib.core.errors import HostError
    from asf_lib.engine import home

    try:
        return home.resolve(asf_home).secrets_dir
    except HostError:
        return Path(os.devnull)  # no home that may be used: the playbook says so, and no secret of it is read
