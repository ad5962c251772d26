# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play evidence list|show|verify|export|prune``: what sessions left behind (docs/evidence.md)."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .. import document, errors, render, target
from ..errors import CliError
from ..nearmiss import near

EXAMPLES = """\
  asf-play evidence list
  asf-play evidence show claude                    the last run of claude.main
  asf-play evidence show claude --html > report.html
  asf-play evidence verify                         every run, and the index
  asf-play evidence verify ./handed-over --head HEAD
  asf-play evidence export claude ./handed-over
  asf-play evidence prune --dry-run
"""
_WHICH = "a session (its last run), RUN, SESSION/RUN, or a folder by a path with a slash"
_RUN = re.compile(r"[a-z0-9_.-]+/\d{8}T\d{6}Z-[0-9a-f]{4}\Z")
_BARE = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}\Z")
_HEAD = re.compile(r"[0-9a-f]{64}\Z")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    verbs = parser.add_subparsers(
        dest="action", required=True, metavar="list|show|verify|export|prune", parser_class=type(parser)
    )
    listed = verbs.add_parser("list", help="the runs", allow_abbrev=False)
    listed.add_argument("target", nargs="?", metavar="AGENT[.SESSION]", help="only this session's, or this agent's")
    show = verbs.add_parser("show", help="a summary of one run", allow_abbrev=False)
    show.add_argument("target", nargs="?", metavar="WHICH", help=f"{_WHICH}; the last run when absent")
    show.add_argument("--html", action="store_true", help="the report, made anew, on standard output")
    verify = verbs.add_parser("verify", help="hold runs against their chains, and these against the index")
    verify.add_argument("target", nargs="?", metavar="WHICH", help=f"{_WHICH}; all runs and the index when absent")
    verify.add_argument("--head", help="the head that was printed at close, instead of the index")
    export = verbs.add_parser("export", help="copy one run to a new folder", allow_abbrev=False)
    export.add_argument("target", metavar="WHICH", help=_WHICH)
    export.add_argument("folder", metavar="FOLDER", help="must not exist")
    prune = verbs.add_parser("prune", help="remove what is too old or too much (config.yml: evidence)")
    prune.add_argument("--dry-run", action="store_true", help="say what would be removed")
    for one in (listed, show, verify, export, prune):
        one.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Carry out the request; 221 when a check did not pass. Raises CliError, EngineError."""
    return int(_ACTIONS[request.action](request))


def _say(request: argparse.Namespace, found: Any, lines: Sequence[str]) -> None:
    print(document.dump(found) if request.json else "\n".join(lines))


def _style() -> render.Style:
    return render.style(sys.stdout, os.environ)


# --- which run -----------------------------------------------------------------------------------------------------


def _rows(word: str | None) -> list[dict[str, Any]]:
    """Rows of ``evidencestore.listing``, oldest first: all, an agent's or a session's. Raises CliError: none."""
    from asf_lib.engine import evidencestore

    every = evidencestore.listing()
    if word is None:
        return every
    target.named(argparse.Namespace(extra=[], target=word))  # checks the words
    found = [row for row in every if word in (row["session"], row["session"].partition(".")[0])]
    if not found:
        names = sorted({name for row in every for name in (row["session"], row["session"].partition(".")[0])})
        raise CliError(
            f"there is no evidence of {word}",
            key="session",
            found=word,
            remedy=f"{near(word, names)}asf-play evidence list shows what there is",
            code="no-evidence",
        )
    return found


def _folder(word: str | None) -> str:
    """The folder that is meant. An agent alone means its session ``main`` when that has one, else its last run.

    Raises CliError when there is none.
    """
    from asf_lib.engine import evidencestore

    if word is not None and _RUN.match(word):
        return str(evidencestore.store() / word)
    if word is not None and "/" in word:
        return os.path.abspath(os.path.expanduser(word))
    if word is not None and _BARE.match(word):
        rows = [row for row in _rows(None) if row["folder"] and row["run"] == word]
    else:
        rows = [row for row in _rows(word) if row["folder"]]
    rows = [row for row in rows if row["session"] == f"{word}.main"] or rows
    if not rows:
        raise CliError("there is no evidence", remedy="asf-play evidence list shows what there was", code="no-evidence")
    return str(rows[-1]["folder"])


# --- actions -------------------------------------------------------------------------------------------------------


def _list(request: argparse.Namespace) -> int:
    rows = _rows(request.target)
    columns = ("session", "run", "state", "size", "head")
    shown = [
        (row["session"], row["run"], row["state"], render_size(row["bytes"]), (row["head"] or "-")[:16]) for row in rows
    ]
    _say(request, {"runs": rows}, render.table(columns, shown, _style()) if rows else ["there is no evidence"])
    return errors.OK


def _show(request: argparse.Namespace) -> int:
    from asf_lib.core import report, report_html
    from asf_lib.engine import evidencecheck

    folder = _folder(request.target)
    found = evidencecheck.check(folder)
    documents = found.documents()
    if not documents:
        raise CliError("not an evidence folder", file=folder, found=found.problems[0], code="no-evidence")
    if request.html:
        sys.stdout.write(report_html.render(documents).decode("ascii"))
        return errors.OK
    told = {"folder": folder, **report.summary(documents), "problems": found.problems}
    _say(request, told, _summary(told))
    return errors.OK


def _summary(told: Mapping[str, Any]) -> list[str]:
    """A run for people."""
    style = _style()
    words = [word for word in ("session", "run", "opened", "closed", "folder") if told[word]]
    lines = [f"{word}: {render.safe(told[word], 300)}" for word in words]
    verification = told["verification"]
    if verification is None:
        lines.append(style.paint("not verified", "red"))
    else:
        verdicts = ", ".join(
            f"{count} {render.safe(word, 20)}" for word, count in sorted(verification["verdicts"].items())
        )
        lines.append(f"probes: {verdicts}")
        lines += [
            f"  {render.safe(probe.get('verdict'), 20)} {render.safe(probe.get('id'), 60)}: "
            f"{render.safe(probe.get('evidence'), 300)}"
            for probe in verification["not_passed"]
        ]
    lines += _decisions(told["decisions"], style)
    for name, one in told["containers"].items():
        ended = f", exit code {one['exit_code']}" if one.get("exit_code") is not None else ""
        lines.append(f"container {render.safe(name, 130)}: found {render.safe(one.get('before'), 40)}{ended}")
    left = told["left"]
    lines.append("not closed" if left is None else f"left: {', '.join(render.safe(x, 200) for x in left) or 'nothing'}")
    lines.append(f"head: {render.safe(told['chain']['head'], 64)}")
    return lines + [f"{style.paint('problem:', 'red')} {render.safe(text, 300)}" for text in told["problems"]]


def _decisions(decided: Mapping[str, Any] | None, style: render.Style) -> list[str]:
    if decided is None:
        return ["decisions: none yet, they are recorded at close; those of a live session: asf-play logs … decisions"]
    columns = ("decision", "listener", "destination", "port", "reason", "times")
    rows = [[row["count"] if name == "times" else row[name] for name in columns] for row in decided["destinations"]]
    more = decided["more_destinations"]
    lines = render.table(columns, rows, style) if rows else ["decisions: none"]
    return lines + ([f"{more} more destinations"] if more else [])


def _verify(request: argparse.Namespace) -> int:
    from asf_lib.engine import evidenceindex, evidencestore

    if request.head is not None and (request.target is None or not _HEAD.match(request.head)):
        raise CliError("--head wants 64 hexadecimal digits, and one run", key="--head", found=request.head)
    index = evidenceindex.read()
    places, found_index = evidencestore.places(), None
    if request.target is None:
        runs = [evidencestore.verify(place, index) for place in places]
        found_index = {"entries": len(index.entries), "problems": evidencestore.verify_index(index)}
    else:
        folder = _folder(request.target)
        place = next((place for place in places if str(place.folder) == folder), None)
        if place is None or request.head:
            runs = [evidencestore.verify_copy(folder, index, request.head)]
        else:
            runs = [evidencestore.verify(place, index)]
    ok = all(run["ok"] for run in runs) and not (found_index or {}).get("problems")
    found = {"ok": ok, "runs": runs, "index": found_index}
    _say(request, found, _verdicts(found))
    return errors.OK if ok else errors.VERIFY


_NOTES = {
    "unsealed": "no head of it is known: nothing vouches for it (compare with --head)",
    "live": "the session is open: it grows",
}


def _verdicts(found: Mapping[str, Any]) -> list[str]:
    style = _style()
    lines = []
    for run in found["runs"]:
        word = style.paint("ok ", "green") if run["ok"] else style.paint("BAD", "red")
        note = _NOTES.get(run["state"])
        lines.append(f"{word} {render.safe(run['session'], 130)} {render.safe(run['run'], 40)} {run['head'][:16]}")
        lines += [f"    {render.safe(text, 400)}" for text in [*run["problems"], *([note] if note else [])]]
    if found["index"] is not None:
        problems = found["index"]["problems"]
        word = style.paint("BAD", "red") if problems else style.paint("ok ", "green")
        lines.append(f"{word} index, {found['index']['entries']} entries")
        lines += [f"    {render.safe(text, 400)}" for text in problems]
    return lines


def _export(request: argparse.Namespace) -> int:
    from asf_lib.engine import evidencestore

    folder = os.path.abspath(os.path.expanduser(request.folder))
    found = evidencestore.export(_folder(request.target), folder)
    lines = [f"exported to {render.safe(folder, 400)}", f"head: {found['head']}"]
    _say(request, found, lines + [f"problem: {render.safe(text, 300)}" for text in found["problems"]])
    return errors.OK if found["ok"] else errors.VERIFY


def _prune(request: argparse.Namespace) -> int:
    from asf_lib.engine import evidencestore, home

    limits = home.load_settings(home.resolve()).evidence
    found = evidencestore.prune(limits, check_only=request.dry_run)
    word = "would remove" if request.dry_run else "removed"
    lines = [
        f"{word} {row['session']} {row['run']}: {row['why']}, {render_size(row['bytes'])}" for row in found["removed"]
    ]
    lines += [render.safe(text, 300) for text in found["kept"]]
    lines.append(f"{word} {len(found['removed'])} runs, {render_size(found['bytes'])}")
    _say(request, {"dry_run": request.dry_run, **found}, lines)
    return errors.OK


def render_size(size: int) -> str:
    """Bytes for people."""
    amount, unit = float(size), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


_ACTIONS = {"list": _list, "show": _show, "verify": _verify, "export": _export, "prune": _prune}
