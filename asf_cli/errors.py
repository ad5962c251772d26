# SPDX-License-Identifier: BSD-4-Clause
"""Exit codes of ``asf-play``, and how an error of any origin becomes one (docs/cli.md).

ASF's own codes lie where neither programs (0-63), sysexits (64-78), Podman (125), shells (126, 127) nor signals (128+n)
put theirs, so that the exit code of a workload is not mistaken for one of them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OK = 0
USAGE = 64
REFUSED = 220
VERIFY = 221
ENGINE = 222
HOST = 223
CLEANUP = 224
INTERNAL = 225
HANGUP = 129
INTERRUPTED = 130
TERMINATED = 143

#: ``code`` of an error (``core/errors.py``: the default of each class) -> exit code.
_BY_CODE = {
    "usage": USAGE,
    "no-session": USAGE,
    "no-log": USAGE,
    "no-evidence": USAGE,
    "exists": REFUSED,
    "archive": REFUSED,
    "manifest": REFUSED,
    "grant": REFUSED,
    "secret": REFUSED,
    "plan": REFUSED,
    "verify": VERIFY,
    "gate": VERIFY,
    "engine": ENGINE,
    "host": HOST,
    "cleanup": CLEANUP,
    "internal": INTERNAL,
}
#: Phase in which an error with a code of its own came up -> exit code.
_BY_PHASE = {"plan": REFUSED, "verify": VERIFY, "go": VERIFY, "teardown": CLEANUP, "close": CLEANUP}


class CliError(Exception):
    """An error that the CLI itself found. ``fields`` has the shape of ``error`` in every JSON document of ASF."""

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        file: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        code: str = "usage",
    ) -> None:
        super().__init__(message)
        self.fields: dict[str, Any] = {
            "file": file,
            "key": key,
            "message": message,
            "remedy": remedy,
            "line": None,
            "found": found,
            "code": code,
        }


def fields(error: BaseException) -> dict[str, Any]:
    """The error as plain data: a CliError, anything with ``as_dict`` (core/errors.py), or an unexpected exception."""
    if isinstance(error, CliError):
        return dict(error.fields)
    if hasattr(error, "as_dict"):
        given = dict(error.as_dict())
        given.setdefault("kind", getattr(error, "default_code", None))
        return given
    return CliError(
        f"{type(error).__name__}: {error}",
        code="internal",
        remedy="this is a defect of asf-play; run it again with -vvv for the traceback",
    ).fields


def signal_code(number: int | None) -> int:
    """Exit code when the CLI itself was ended by a signal."""
    return {1: HANGUP, 15: TERMINATED}.get(number or 2, INTERRUPTED)


def exit_code(error: Mapping[str, Any], phase: str | None = None) -> int:
    """Exit code for an error given as data. Its kind decides, then its code, then the phase it came up in."""
    for word in (error.get("kind"), error.get("code")):
        if isinstance(word, str) and word in _BY_CODE:
            return _BY_CODE[word]
    return _BY_PHASE.get(phase or "", ENGINE)
