# SPDX-License-Identifier: BSD-4-Clause
"""Asking before something is removed for good. Only a terminal is asked, and only `y` or `yes` is a yes."""

from __future__ import annotations

import sys

from .errors import CliError


def terminal(json: bool, what: str, remedy: str) -> None:
    """Raises CliError where nobody can be asked."""
    if json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CliError(f"this {what}, and there is no terminal to ask on", key="--yes", remedy=f"add {remedy}")


def yes(question: str) -> bool:
    """The answer. Raises KeyboardInterrupt for Ctrl-C, which removes nothing either."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
