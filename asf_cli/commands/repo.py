# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play repo add|remove|list``: which repositories an agent gets."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from .. import render, variables
from ..play import show_document

EXAMPLES = """\
  asf-play repo add claude ~/projects/my-api
  asf-play repo add claude ~/projects/docs --mode ro
  asf-play repo remove claude my-api
  asf-play repo list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="add|remove|list", parser_class=type(parser))
    add = verbs.add_parser("add", help="grant a repository", allow_abbrev=False)
    agents = [add.add_argument("agent", metavar="AGENT", help="the agent that gets it")]
    add.add_argument("path", metavar="PATH", help="a folder of yours").complete = ("file",)  # type: ignore[attr-defined]
    modes = "rw (default), ro, or clone (refused by this version)"
    add.add_argument("--mode", choices=("rw", "ro", "clone"), default="rw", help=modes)
    remove = verbs.add_parser("remove", help="take a grant back", allow_abbrev=False)
    agents.append(remove.add_argument("agent", metavar="AGENT", help="the agent that loses it"))
    remove.add_argument("repository", metavar="PATH|NAME", help="as repo list shows it").complete = ("file",)  # type: ignore[attr-defined]
    show = verbs.add_parser("list", help="show grants", allow_abbrev=False)
    agents.append(show.add_argument("agent", metavar="AGENT", nargs="?", help="only this agent's"))
    for word in agents:
        word.complete = ("agent",)  # type: ignore[attr-defined]
    for one in (add, remove, show):
        one.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Carry out the request; returns the exit code. Raises GrantError (asf_lib) for a grant that is refused."""
    from asf_lib.engine import grantfs

    if request.agent is not None:
        variables.check_identity("agent", request.agent)
    if request.action == "add":
        # Made absolute, not resolved: whether a link is acceptable is the core's to say.
        path = os.path.abspath(os.path.expanduser(request.path))
        return _done(request, grantfs.add(request.agent, path, request.mode), "granted")
    if request.action == "remove":
        return _done(request, grantfs.remove(request.agent, _named(request.repository)), "removed")
    return _list(request, grantfs.list_grants(request.agent))


def _named(repository: str) -> str:
    """A grant's name as it is; a path made absolute."""
    return os.path.abspath(os.path.expanduser(repository)) if "/" in repository else repository


def _done(request: argparse.Namespace, result: dict[str, Any], word: str) -> int:
    found = dict(result)
    warnings = found.pop("warnings", [])
    if request.json:
        show_document({"ok": True, **found, "warnings": warnings})
        return 0
    style = render.style(sys.stderr, os.environ)
    for text in warnings:
        print(render.warning(text, style), file=sys.stderr)
    path, mode, target = (render.safe(found.get(key), 300) for key in ("path", "mode", "target"))
    print(f"{word}: {path} ({mode}) for {request.agent}, at {target}")
    return 0


def _list(request: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    if request.json:
        show_document({"ok": True, "grants": rows})
        return 0
    if not rows:
        print("no repository is granted; asf-play repo add AGENT PATH grants one")
        return 0
    columns = ("agent", "mode", "path", "target")
    cells = [[row.get(column) for column in columns] for row in rows]
    print("\n".join(render.table(columns, cells, render.style(sys.stdout, os.environ))))
    return 0
