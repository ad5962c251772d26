# SPDX-License-Identifier: BSD-2-Clause
"""The last words of containers that did not do what they should, for the evidence: redacted, then bounded.

A library's message may quote the key that it was given. So the session's own secrets are taken out first, as Podman
keeps them; when they cannot be read, no words are kept either.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Sequence

from ..core.redact import Redactor
from . import regular
from .podman import Podman

#: Lines of one container, and characters of one line.
LINES = 40
LENGTH = 500
_STORE_LIMIT = 4 * 1024 * 1024


def _stored(folder: str, limit: int = _STORE_LIMIT) -> dict[str, str]:
    content, _ = regular.read(os.path.join(folder, "secretsdata.json"), limit)
    found = json.loads(content)
    return found if isinstance(found, dict) else {}


def redactor(podman: Podman, names: Sequence[str]) -> Redactor:
    """Redactor of these secrets' values. Raises EngineError, OSError, ValueError or KeyError when one is unknown."""
    values: list[str] = []
    stores: dict[str, dict[str, str]] = {}
    for row in podman.json(["secret", "inspect", *names]) if names else []:
        folder = str(row["Spec"]["Driver"]["Options"]["path"])
        if folder not in stores:
            stores[folder] = _stored(folder)
        values.append(base64.b64decode(stores[folder][row["ID"]]).decode("utf-8", "surrogateescape"))
    return Redactor(values)


def of(lines: Sequence[str], known: Redactor) -> list[str]:
    """The last lines that say anything, each redacted before it is cut."""
    said = [known.text(line.rstrip()) for line in lines if line.strip()]
    return [line if len(line) <= LENGTH else line[: LENGTH - 1] + "…" for line in said[-LINES:]]
