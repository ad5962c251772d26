#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prove the policy of a session in its own namespaces"""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_verify
short_description: Prove the policy of a session in its own namespaces
version_added: "0.1.0"
description:
  - Judges outside probes, starts the gate of a session that waits, takes its report and judges the inside probes.
  - On a live session the inside probes are run by a fresh process of the same gate.
  - A probe that fails or is inconclusive fails the task; the workload is not started.
author: ASF developers (@asf)
options:
  plan:
    description: Absolute path of the session's plan, as returned by M(asf.sandbox.asf_plan).
    type: path
  session:
    description: ID of a live session, AGENT.NAME; its plan is found by its record.
    type: str
attributes:
  check_mode:
    support: full
    description: Says what it would do and does nothing.
"""

EXAMPLES = r"""
- name: Verify
  asf.sandbox.asf_verify:
    plan: "{{ asf_session_plan }}"
"""

RETURN = r"""
actions:
  description: A sentence per thing done, or not done and why.
  returned: success
  type: list
  elements: str
asf:
  description: What the command line gathers; its keys are described in the role that calls this module.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.core.errors import EngineError  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine import plandoc, state, verification  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman  # noqa: E402

SPEC = {"plan": {"type": "path"}, "session": {"type": "str"}}
RULES = {"required_one_of": [("plan", "session")]}


def _plan_path(params):
    if params["plan"]:
        return params["plan"]
    record = state.read(params["session"])
    if record is None or not record.get("plan"):
        raise EngineError(
            f"session {params['session']} is not open",
            code="not-open",
            remedy="open it first: asf-play open.yml -e agent=NAME; asf-play ls lists what is open",
        )
    return record["plan"]


def work(params, check_mode, diff):
    """The module's result."""
    doc = plandoc.read(_plan_path(params))
    record = state.read(doc.session)
    if check_mode and ((record or {}).get("state") != "live" or record.get("plan") != doc.path):
        return {"changed": False, "actions": ["nothing to verify before the plan is in force"], "asf": {"probes": []}}
    with state.lock(doc.session):
        live = (record or {}).get("state") == "live"
        report = verification.verify(Podman(), doc)
    passed = sum(r["verdict"] == "pass" for r in report["probes"])
    return {
        "changed": not live,
        "actions": [f"{passed} of {len(report['probes'])} probes passed"],
        "nonce": report["nonce"],
        "asf": {
            "session": doc.session,
            "probes": report["probes"],
            "evidence": (record or {}).get("evidence"),
            "live": live,
        },
    }


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
