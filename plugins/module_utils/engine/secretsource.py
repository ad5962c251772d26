# SPDX-License-Identifier: BSD-2-Clause
"""The value of a source of the operator's `config.yml` (``core/sources.py``), read anew each time, kept by nobody."""

from __future__ import annotations

from ..core.secretfile import Entry
from ..core.sources import COMMAND, ENV, KEYRING, Source
from . import secretcommand, secretenv, secretkeyring, secretvault


def entry(source: Source, file: str) -> Entry:
    """The variable with its value, as if it stood in ``file``. Raises SecretError."""
    return Entry(source.variable, _value(source, file), 0)


def _value(source: Source, file: str) -> str:
    if source.kind == COMMAND:
        return secretcommand.value(source.command, file, source.path)
    if source.kind == ENV:
        return secretenv.value(source, file)
    return secretkeyring.value(source, file) if source.kind == KEYRING else secretvault.value(source, file)
