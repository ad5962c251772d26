# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play policy``: what an agent could reach, read, write and spend, without opening anything."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from .. import document, errors, paths, policytext, render, target
from ..errors import CliError

EXAMPLES = """\
  asf-play policy claude                          in words, with the key that says each thing
  asf-play policy -e agent=claude -e llm_mock=true
  asf-play policy claude --rules                  with the nftables rules of the session
  asf-play policy claude --json
"""
#: Variables of a playbook that change a plan; any other has no meaning here.
_TAKEN = (
    *("agent", "session", "isolation", "llm_mock", "asf_home"),
    *("asf_limits", "asf_image_pins", "asf_image_options", "asf_session_cable_range", "asf_session_uplink_range"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    word = parser.add_argument("target", nargs="?", metavar="AGENT[.SESSION]", help="the agent, opened or not")
    word.complete = ("agent",)  # type: ignore[attr-defined]
    target.add_options(parser)
    parser.add_argument("--rules", action="store_true", help="also the nftables rules")
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Show the policy that an open would enforce. Raises what the open would: a manifest, grant or plan error."""
    from asf_lib.core.effective import effective
    from asf_lib.engine import preview

    inputs = preview.inputs(str(paths.content()), _given(request))
    plan, warnings, assumed = preview.compute(inputs, preview.podman())
    found = effective(plan, warnings, assumed)
    if request.json:
        print(document.dump(found))
    else:
        print("\n".join(policytext.lines(found, render.style(sys.stdout, os.environ), request.rules)))
    return errors.OK


def _given(request: argparse.Namespace) -> dict[str, Any]:
    given = target.named(request)
    if "agent" not in given:
        raise CliError("no agent is named", key="agent", remedy="asf-play policy AGENT")
    for key in given:
        if key not in _TAKEN:
            message = "this variable changes no policy"
            raise CliError(message, key="-e", found=key, remedy=f"policy takes {', '.join(_TAKEN)}")
    return given
