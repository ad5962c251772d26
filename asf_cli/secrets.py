# SPDX-License-Identifier: BSD-4-Clause
"""The operator's secrets, for one purpose: to take them out of what is shown."""

from __future__ import annotations

import os
from pathlib import Path

_FILE_LIMIT = 1 << 16


def values(home: Path | None = None) -> set[str]:
    """Every value of every ``secrets/*.env`` of ASF's home. Loose reading on purpose: what is no value does no harm."""
    folder = (home or root()) / "secrets"
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


def root() -> Path:
    """ASF's home: ``$ASF_HOME``, else the checkout that the program runs from, else ``$XDG_CONFIG_HOME/asf``."""
    given = os.environ.get("ASF_HOME", "")
    if given:
        return Path(given)
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file():
        return checkout
    config = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(config) if os.path.isabs(config) else Path.home() / ".config") / "asf"
