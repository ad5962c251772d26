# SPDX-License-Identifier: BSD-4-Clause
"""The likely word for one that is wrong. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def near(wanted: str, known: Sequence[str]) -> str:
    """``did you mean …? `` (with a blank at its end) when one of the words is close; else nothing."""
    import difflib

    found = difflib.get_close_matches(wanted[:80], known, n=1, cutoff=0.6)
    return f"did you mean {found[0]}? " if found else ""
