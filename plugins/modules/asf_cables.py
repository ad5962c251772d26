#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plug the cables of a session and load the rules of its enforcement point"""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_cables
short_description: Plug the cables of a session and load the rules of its enforcement point
version_added: "0.1.0"
description:
  - Works from outside, in the namespaces of containers that are initialized and not started, as the operator.
  - The rules are loaded before a cable is plugged. Nothing is changed on a session that is wired.
  - A routed session's gateway, which only holds its namespace, is started here as well.
author: ASF developers (@asf)
options:
  plan:
    description: Absolute path of the session's plan, as returned by M(asf.sandbox.asf_plan).
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Says what it would do and does nothing.
"""

EXAMPLES = r"""
- name: Wire the session
  asf.sandbox.asf_cables:
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
from ansible_collections.asf.sandbox.plugins.module_utils.core.nftables import as_text  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.core.roles import GATEWAY  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine import bringup, plandoc, state, wiring  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman  # noqa: E402

SPEC = {"plan": {"type": "path", "required": True}}
RULES = {}


def work(params, check_mode, diff):
    """The module's result."""
    doc = plandoc.read(params["plan"])
    wires = doc.plan["wiring"]
    if not wires["cables"]:
        return {"changed": False, "actions": ["this session has no cable"]}
    shown = {"before": "", "after": "".join(as_text(item["rules"]) for item in wires["nft"])}
    if check_mode and state.read(doc.session) is None:
        return {
            "changed": True,
            "actions": ["would plug the cables and load the rules"],
            **({"diff": shown} if diff else {}),
        }
    with state.lock(doc.session):
        pids = {role: int(one["pid"]) for role, one in bringup.chosen(doc).items()}
        plugged = all(wiring.plugged(pids, wires["cables"]))
        if not plugged and not check_mode:
            state.begin_step(doc.session, "wire")
            wiring.wire(pids, wires)
        held = _held(doc, check_mode)
    if plugged:
        return {**held, "actions": ["the cables are plugged already", *held["actions"]]}
    names = ", ".join(cable["name"] for cable in wires["cables"])
    told = [f"loaded the rules and plugged: {names}", *held["actions"]]
    return {"changed": True, "actions": told, **({"diff": shown} if diff else {})}


def _held(doc, check_mode):
    """Start the gateway where there is one: it does nothing but hold what was just put into its namespace."""
    if GATEWAY not in doc.names():
        return {"changed": False, "actions": []}
    return bringup.start(Podman(), doc, GATEWAY, check_mode)


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
