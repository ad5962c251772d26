# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play doctor``: what this host offers and lacks, and how it is repaired."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from .. import document, errors, render
from ..errors import CliError

if TYPE_CHECKING:
    from asf_lib.core.doctor_facts import Facts, Verdict
    from asf_lib.core.doctor_repair import Repair

EXAMPLES = """\
  asf-play doctor
  asf-play doctor --fix                        the commands that repair; nothing is run
  sudo asf-play doctor --fix [--account NAME]  runs those that need root, telling each
  asf-play doctor --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("--fix", action="store_true", help="print the commands that repair; as root, run them")
    parser.add_argument("--account", metavar="NAME", help="root only: whose host it is (default: who called sudo)")
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Show what the host offers and lacks; 223 when something that every session needs is missing."""
    from asf_lib.core import doctor as judge, doctor_repair
    from asf_lib.engine import home, hostfacts

    if request.fix and os.geteuid() == 0:
        return _as_root(request)
    if request.account:
        raise CliError("only root, with --fix, acts for another account", key="--account", remedy="leave it out")
    facts = hostfacts.collect(home.load_settings(home.resolve()).resolver)
    verdicts = judge.verdicts(facts)
    found = doctor_repair.repairs(facts, verdicts)
    content: dict[str, Any] = {"repairs": [repair.as_dict() for repair in found]} if request.fix else {}
    return _tell(request, verdicts, content, _commands(facts, found) if request.fix else _hint(found))


def _as_root(request: argparse.Namespace) -> int:
    from asf_lib.core import doctor as judge, doctor_repair

    from .. import repairing

    def say(text: str) -> None:
        print(render.safe(text, 600), file=sys.stderr, flush=True)

    whose = repairing.account(request.account, os.environ)
    prepared = repairing.operator()
    first = []
    if prepared:  # packages, ids, run directory, stale run state, and a namespace, as set-up makes them
        first = [doctor_repair.Repair("set-up", ("env", f"ASF_ACCOUNT={whose.pw_name}", str(prepared), "true"))]
    done = repairing.carry_out(first, say)
    facts = repairing.look(whose, None)
    found = doctor_repair.repairs(facts, judge.verdicts(facts))
    done += repairing.carry_out(found, say)
    facts = repairing.look(whose, None)
    own = [repair for repair in doctor_repair.repairs(facts, judge.verdicts(facts)) if not repair.root]
    return _tell(request, judge.verdicts(facts), {"repairs": done}, _commands(facts, own))


def _commands(facts: Facts, found: list[Repair]) -> list[str]:
    """The commands, each with who runs it."""
    if not found:
        return ["", "nothing of this is repaired by a command"]
    return ["", *(f"as {'root' if repair.root else facts.user}: {shlex.join(repair.command)}" for repair in found)]


def _hint(found: list[Repair]) -> list[str]:
    return ["", "asf-play doctor --fix tells the commands that repair"] if found else []


def _tell(request: argparse.Namespace, verdicts: list[Verdict], content: dict[str, Any], more: list[str]) -> int:
    from asf_lib.core import doctor as judge

    ok, checks = judge.ready(verdicts), [verdict.as_dict() for verdict in verdicts]
    if request.json:
        print(document.dump({"ok": ok, "checks": checks, **content}))
    else:
        lines = render.checks(checks, render.style(sys.stdout, os.environ))
        print("\n".join([*lines, *(render.safe(line, 600) for line in more)]))
    return errors.OK if ok else errors.HOST
