# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play secret set|list|check|rotate``: the keys in ASF's secrets folder, none of which is ever shown."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from typing import Any

from .. import errors, render, variables
from ..errors import CliError
from ..play import show_document

EXAMPLES = """\
  asf-play secret set claude ANTHROPIC_API_KEY
  pass show anthropic | asf-play secret set claude ANTHROPIC_API_KEY
  asf-play secret list
  asf-play secret check claude codex
  asf-play secret rotate -e agent=claude       # the live session's broker takes the key of now
"""
_LONGEST = 16 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    verbs = parser.add_subparsers(
        dest="action", required=True, metavar="set|list|check|rotate", parser_class=type(parser)
    )
    put = verbs.add_parser("set", help="ask for a value, or read it from a pipe, and store it", allow_abbrev=False)
    put.add_argument("file", metavar="FILE", help="claude stands for secrets/claude.env")
    put.add_argument("variable", metavar="VARIABLE", help="such as ANTHROPIC_API_KEY")
    put.add_argument("refused", metavar="", nargs="*", help=argparse.SUPPRESS)
    show = verbs.add_parser("list", help="files, names of variables, and which agents use them", allow_abbrev=False)
    check = verbs.add_parser("check", help="is each agent's key there, and of the right form?", allow_abbrev=False)
    agent = check.add_argument("agent", metavar="AGENT", nargs="*", help="only these")
    agent.complete = ("agent",)  # type: ignore[attr-defined]
    turn = verbs.add_parser("rotate", help="give a live session's broker the key of now", allow_abbrev=False)
    turn.add_argument("-e", dest="extra", action="append", default=[], metavar="NAME=VALUE", help="agent, session")
    turn.add_argument("-C", "--check", action="store_true", help="change nothing, say what would change")
    for one in (put, show, check, turn):
        one.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Carry out the request; returns the exit code. Raises SecretError and ManifestError (asf_lib)."""
    from asf_lib.engine import hidden, home as homes, secretstore

    if request.action == "rotate":
        return _rotate(request)
    hidden.undumped()
    if request.action == "set":
        return _set(request)
    if request.action == "list":
        return _list(request, secretstore.listing(homes.resolve()))
    home = homes.resolve()
    for name in request.agent:
        variables.check_identity("agent", name)
    names = list(dict.fromkeys(request.agent)) or homes.agents(home)
    return _check(request, [secretstore.checked(home, name) for name in names])


def _rotate(request: argparse.Namespace) -> int:
    """The playbook ``rotate.yml``, with the same words."""
    from ..parser import parse
    from ..play import play

    given = [word for one in request.extra for word in ("-e", one)]
    switches = [f"--{name}" for name in ("json", "check") if getattr(request, name)]
    return play(parse(["rotate.yml", *given, *switches]))


def _set(request: argparse.Namespace) -> int:
    from asf_lib.engine import home as homes, secretstore

    if request.refused or "=" in request.variable:
        raise CliError(
            "a value on the command line is in the shell's history and seen by every process of this host: not taken",
            key="VARIABLE",
            remedy="give the name alone and type the value when asked, or pipe it in; and replace the key you typed",
        )
    name, home = secretstore.file_name(request.file), homes.resolve()
    source = secretstore.source_of(home, request.variable)
    path = secretstore.put(home, name, request.variable, _value(request.variable))
    if request.json:
        show_document({"ok": True, "file": str(path), "variable": request.variable, "source": source})
        return errors.OK
    print(f"{render.safe(request.variable, 100)} is set in {render.safe(str(path), 300)}")
    if source is not None:
        text = f"config.yml names {source} as its source, which comes before every file"
        print(render.warning(text, render.style(sys.stderr, os.environ)), file=sys.stderr)
    return errors.OK


def _value(variable: str) -> str:
    """Typed without echo on a terminal, else standard input without the newline at its end. Raises CliError."""
    if sys.stdin.isatty():
        try:
            return getpass.getpass(f"{variable[:100]} (not shown): ")
        except EOFError:
            return ""
    data = sys.stdin.buffer.read(_LONGEST + 1)
    if len(data) > _LONGEST:
        raise CliError("standard input is too long for a key", remedy="pipe the key alone")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise CliError("standard input is not UTF-8", remedy="pipe the key alone") from None
    return text[:-2] if text.endswith("\r\n") else text[:-1] if text.endswith("\n") else text


def _list(request: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    if request.json:
        show_document({"ok": True, "secrets": rows})
        return errors.OK
    if not rows:
        print("there is no secrets file; asf-play secret set FILE VARIABLE makes one")
        return errors.OK
    cells = [
        [
            row["file"],
            ", ".join(row["variables"]) or "-",
            ", ".join(row["agents"]) or "-",
            row["problem"] or row.get("source") or "",
        ]
        for row in rows
    ]
    print("\n".join(render.table(("file", "variables", "agents", "notes"), cells, _style())))
    return errors.OK


def _check(request: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    ok = all(row["state"] in ("present", "unneeded") for row in rows)
    if request.json:
        show_document({"ok": ok, "secrets": rows})
    else:
        columns = ("agent", "variable", "state", "source", "detail")
        print("\n".join(render.table(columns, [[row[one] or "" for one in columns] for row in rows], _style())))
    return errors.OK if ok else errors.REFUSED


def _style() -> render.Style:
    return render.style(sys.stdout, os.environ)
