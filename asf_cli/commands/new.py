# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play new``: a folder for an agent of one's own, made from another agent's."""

from __future__ import annotations

import argparse
import shlex

from .. import render, variables
from ..play import show_document

EXAMPLES = """\
  asf-play new my-agent                        a copy of python-agent under a name of its own
  asf-play new reviewer --from claude
  asf-play new my-graph --from langgraph --json
"""
_DEFAULT = "python-agent"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("name", metavar="NAME", help="the new agent's name: lower-case letters, digits, - and _")
    source = parser.add_argument(
        "--from", dest="source", metavar="AGENT", default=_DEFAULT, help=f"the agent that is copied ({_DEFAULT})"
    )
    source.complete = ("agent",)  # type: ignore[attr-defined]
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Make the folder and say what comes next. Raises ManifestError (asf_lib) where that is not possible."""
    from asf_lib.core.errors import HostError
    from asf_lib.engine import home as homes, scaffold

    variables.check_identity("agent", request.name)
    variables.check_identity("agent", request.source)
    home = homes.resolve()
    try:
        made = scaffold.make(home, request.name, request.source)
    except OSError as error:
        remedy = "set ASF_HOME to a folder that this account may write"
        message = f"ASF's root cannot be written: {error.strerror}"
        raise HostError(message, file=str(home.root), key=home.origin, remedy=remedy) from None
    folder = str(made.folder)
    if request.json:
        show_document({"ok": True, "agent": made.name, "from": made.source, "folder": folder, "files": [*made.files]})
        return 0
    print(render.safe(f"made {folder} from {made.source}: {', '.join(made.files)}", 2000))
    print(f"next: edit {render.safe(shlex.quote(f'{folder}/runtime.yml'), 300)}, then")
    for line in ("policy {0}", "build.yml -e agent={0}", "repo add {0} PATH", "open.yml -e agent={0}"):
        print(f"  asf-play {line.format(made.name)}")
    return 0
