# SPDX-License-Identifier: BSD-4-Clause
"""Which session a command is about: ``AGENT``, ``AGENT.SESSION``, ``-e``, or the only one that there is."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from . import variables
from .errors import CliError
from .nearmiss import near

_WHERE = "asf-play ls shows the sessions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A session as a word, or as for a playbook (``-e agent=… -e session=…``)."""
    word = parser.add_argument(
        "target", nargs="?", metavar="AGENT[.SESSION]", help="the session; may be left out when only one lives"
    )
    word.complete = ("session",)  # type: ignore[attr-defined]
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The session as for a playbook, where its word stands among others."""
    parser.add_argument(
        "-e", "--extra-vars", dest="extra", action="append", default=[], metavar="NAME=VALUE", help="agent=, session="
    )


def named(request: argparse.Namespace) -> dict[str, Any]:
    """``agent`` and ``session`` as far as the request names them, checked. Raises CliError."""
    given = variables.parse(request.extra)
    word = getattr(request, "target", None)
    if word is None:
        return given
    agent, dot, name = word.partition(".")
    found = {"agent": agent, **({"session": name} if dot else {})}
    for key, value in found.items():
        variables.check_identity(key, value)
        if given.get(key, value) != value:
            raise CliError(f"{key} is named twice", key=key, found=f"{value}, {given[key]}", remedy="name it once")
    return {**given, **found}


def session(request: argparse.Namespace, known: Sequence[Mapping[str, Any]] | None = None, past: bool = False) -> str:
    """ID of the session that is meant, out of those that exist (``known``: rows of ``state.sessions``).

    An agent alone means its session ``main``, or the only one it has; ``past``: a closed session that left evidence
    will do when it is named. Raises CliError when nothing is named and not exactly one session exists, or when what is
    named does not exist; then the likely name is told.
    """
    given = named(request)
    if known is None:
        from asf_lib.engine import state

        exact = _exact(given)
        if "agent" in given and state.has_record(exact):
            return exact  # without asking Podman: what a user names most of the time
        known = _rows()
        if "agent" in given and not any(row["agent"] == given["agent"] for row in known):
            return _closed(exact, known, past)
    return choose(given, known)


def _closed(session: str, known: Sequence[Mapping[str, Any]], past: bool) -> str:
    """A session that is no more, but has left evidence. Raises CliError when that is not what is wanted, or not so."""
    from asf_lib.engine import evidencefs

    runs = evidencefs.runs(session)
    if runs and past:
        return session
    if runs:
        raise CliError(
            f"session {session} is closed",
            key="session",
            found=f"evidence in {runs[-1]}",
            remedy=f"asf-play events {session} tells what happened; {_WHERE} that live",
            code="no-session",
        )
    raise unknown(session, [str(row["session"]) for row in known])


def _exact(given: Mapping[str, Any]) -> str:
    return f"{given.get('agent')}.{given.get('session', variables.DEFAULT_SESSION)}"


def choose(given: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The pure half of ``session``."""
    found = [str(row["session"]) for row in rows if row["agent"] == given.get("agent", row["agent"])]
    if "agent" in given:
        exact = _exact(given)
        if exact in found:
            return exact
        if "session" in given or not found:
            raise unknown(exact, [str(row["session"]) for row in rows])
    if "session" in given and "agent" not in given:
        found = [one for one in found if one.partition(".")[2] == given["session"]]
    if len(found) == 1:
        return found[0]
    raise _undecided(found)


def _undecided(found: Sequence[str]) -> CliError:
    if not found:
        return CliError(
            "there is no session", key="agent", remedy="open one: asf-play open.yml -e agent=NAME", code="no-session"
        )
    return CliError(
        "several sessions exist, and none is named",
        key="agent",
        found=", ".join(sorted(found)),
        remedy="name one of them",
    )


def unknown(wanted: str, known: Sequence[str]) -> CliError:
    """The error for a session that does not exist, with the likely name."""
    remedy = f"{near(wanted, known)}{_WHERE}"
    return CliError(f"there is no session {wanted}", key="session", found=wanted, remedy=remedy, code="no-session")


def _rows() -> list[dict[str, Any]]:
    from asf_lib.engine import state
    from asf_lib.engine.podman import Podman

    return state.sessions(Podman())
