#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: take one ASF session down."""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_teardown
short_description: Take an ASF session down
version_added: 0.1.0
author: ASF developers (@asf-developers)
description:
  - Ends the workload, lets Caddy and the broker finish their logs, turns the logs into evidence, and removes the
    session's containers, secrets, anonymous volumes, run folder and record.
  - Resources are found by label, so that a lost state folder does not matter. What does not carry the session's labels
    is never touched; state volumes and evidence are kept.
  - Afterwards evidence of earlier sessions that is too old or too much (C(evidence) of C(config.yml)) is removed.
  - Can be repeated; a session that owns nothing is reported unchanged.
options:
  session:
    description: The session's ID, C(AGENT.NAME).
    type: str
  plan:
    description:
      - The session's plan file. Only the session's ID is read from it, and only when O(session) is absent.
    type: path
attributes:
  check_mode:
    description: Says what would be removed.
    support: full
  diff_mode:
    description: Nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Take the session down
  asf.sandbox.asf_teardown:
    session: claude.main
"""

RETURN = r"""
actions:
  description: One sentence for everything that was done, or not done and why.
  returned: success
  type: list
  elements: str
asf:
  description: The cleanup report.
  returned: always when the session was examined
  type: dict
  contains:
    session: {description: The session's ID., type: str}
    cleanup: {description: Actions, what is left (empty), how every container ended, seconds., type: dict}
    decisions: {description: Number of egress decisions by decision and reason., type: dict}
    restarts: {description: Restarts of Caddy and of the broker., type: dict}
    evidence: {description: The evidence folder., type: str}
    head: {description: Head of the evidence's chain of digests., type: str}
    swept: {description: Other sessions whose workload had ended and which were closed., type: list, elements: dict}
asf_error:
  description: What went wrong, as C(file), C(key), C(message), C(remedy), C(line), C(found), C(code).
  returned: failure
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module
from ansible_collections.asf.sandbox.plugins.module_utils.core.errors import PlanError
from ansible_collections.asf.sandbox.plugins.module_utils.engine import dirs, evidencestore, sweep, teardown
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman

SPEC = {"session": {"type": "str"}, "plan": {"type": "path"}}
RULES = {"required_one_of": [("session", "plan")]}


def session_of(params):
    """The ID to work on. Raises PlanError when the plan is needed and cannot be read."""
    if params["session"]:
        return dirs.session_id(params["session"])
    try:
        with open(params["plan"], "rb") as handle:
            return dirs.session_id(str(json.load(handle)["plan"]["session"]["id"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(
            "no plan that names a session", file=params["plan"], found=type(error).__name__, remedy="give the session"
        ) from error


def result_of(report):
    """The module's return values for a report."""
    return {
        "changed": report.changed,
        "actions": report.actions,
        "asf": {
            "session": report.session,
            "cleanup": report.cleanup(),
            "decisions": report.decisions,
            "restarts": report.restarts,
            "evidence": report.evidence,
            "head": report.head,
        },
    }


def work(params, check_mode, diff):
    """The module's result. Raises LeftError, with the report, when something is left.

    Other sessions whose workload has ended are closed as well, once this one is.
    """
    podman, session = Podman(), session_of(params)
    try:
        result = result_of(teardown.teardown(podman, session, check=check_mode))
    except teardown.LeftError as error:
        error.extra = result_of(error.report)
        raise
    swept = [] if check_mode else sweep.ended(podman, but=session)
    result["changed"] = result["changed"] or bool(swept)
    if result["changed"] and not check_mode:
        result["actions"] += evidencestore.prune_at_close()
    result["asf"].update(notes=[one.line() for one in swept], swept=[one.as_dict() for one in swept])
    return result


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
