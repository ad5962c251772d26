#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start the workload of a verified session"""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_go
short_description: Start the workload of a verified session
version_added: "0.1.0"
description:
  - Says go to the gate whose report was verified. A session whose workload runs is left alone.
author: ASF developers (@asf)
options:
  plan:
    description: Absolute path of the session's plan, as returned by M(asf.sandbox.asf_plan).
    type: path
    required: true
  nonce:
    description: The nonce of the verified report, as returned by M(asf.sandbox.asf_verify).
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what it would do and does nothing.
"""

EXAMPLES = r"""
- name: Let the workload start
  asf.sandbox.asf_go:
    plan: "{{ asf_session_plan }}"
    nonce: "{{ __asf_verify_result.nonce }}"
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
from ansible_collections.asf.sandbox.plugins.module_utils.engine import plandoc, state, verification  # noqa: E402

SPEC = {"plan": {"type": "path", "required": True}, "nonce": {"type": "str", "default": ""}}
RULES = {}


def work(params, check_mode, diff):
    """The module's result."""
    doc = plandoc.read(params["plan"])
    if check_mode:
        plandoc.drop_checked(doc)
        return {
            "changed": (state.read(doc.session) or {}).get("state") != "live",
            "actions": ["would start the workload"],
        }
    with state.lock(doc.session):
        out = verification.go(doc, params["nonce"])
    out["asf"] = {"session": doc.session}
    return out


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
