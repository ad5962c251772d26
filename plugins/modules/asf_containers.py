#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Create, initialize and start the containers of a session"""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_containers
short_description: Create, initialize and start the containers of a session
version_added: "0.1.0"
description:
  - Brings the containers of a plan to a state, all that are named in one call.
  - A container that exists is never recreated because of drift; a session that is only partly there is an error.
author: ASF developers (@asf)
options:
  plan:
    description: Absolute path of the session's plan, as returned by M(asf.sandbox.asf_plan).
    type: path
    required: true
  state:
    description:
      - V(initialized) makes files, secrets, volumes and all containers of the plan and initializes them.
      - V(started) starts the containers of O(roles), which must be initialized and wired.
      - V(ready) does the same and waits until they answer.
    type: str
    choices: [initialized, started, ready]
    required: true
  roles:
    description: Which containers to start or wait for.
    type: list
    elements: str
    choices: [agent, caddy, broker]
    default: []
  home:
    description: ASF's root folder; the provider's key is read from its secrets folder.
    type: path
  collection:
    description: Root of this collection, where shipped agents lie; needed with V(initialized).
    type: path
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what it would do and does nothing.
"""

EXAMPLES = r"""
- name: Create everything that the plan names
  asf.sandbox.asf_containers:
    plan: "{{ asf_session_plan }}"
    state: initialized

- name: Start Caddy
  asf.sandbox.asf_containers:
    plan: "{{ asf_session_plan }}"
    state: started
    roles: [caddy]
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
from ansible_collections.asf.sandbox.plugins.module_utils.engine import bringup, keys, plandoc, state  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman  # noqa: E402

SPEC = {
    "plan": {"type": "path", "required": True},
    "state": {"type": "str", "required": True, "choices": ["initialized", "started", "ready"]},
    "roles": {"type": "list", "elements": "str", "choices": ["agent", "caddy", "broker"], "default": []},
    "home": {"type": "path"},
    "collection": {"type": "path", "default": ""},
}
RULES = {}


def _started(podman, doc, roles, check_mode):
    done = [bringup.start(podman, doc, role, check_mode) for role in roles if role in doc.names()]
    return {
        "changed": any(one["changed"] for one in done),
        "actions": [sentence for one in done for sentence in one["actions"]],
    }


def _ready(podman, doc, roles, check_mode):
    waits = {"caddy": bringup.wait_listening, "broker": bringup.wait_broker}
    out = _started(podman, doc, roles, check_mode)
    if check_mode:
        return out
    chosen = bringup.chosen(doc)
    for role in roles:
        if role in doc.names() and role in waits:
            waits[role](podman, doc, chosen)
            out["actions"].append(f"{doc.names()[role]} answers")
    return out


def work(params, check_mode, diff):
    """The module's result."""
    doc, podman = plandoc.read(params["plan"]), Podman()
    with state.lock(doc.session):
        if params["state"] == "initialized":
            out = bringup.create(podman, doc, keys.reader(params["home"], params["collection"], doc.plan), check_mode)
            out["asf"] = {"session": doc.session, "containers": out.pop("containers")}
            return out
        step = _started if params["state"] == "started" else _ready
        return step(podman, doc, params["roles"], check_mode)


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
