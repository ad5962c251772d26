#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give a live session's broker the provider key of now"""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_rotate
short_description: Give a live session's broker the provider key of now
version_added: "0.1.0"
description:
  - Reads the key where the manifest and the operator's configuration say, and boots a second broker with it.
  - That one takes the first one's place on the cable; the agent goes on, and is told to wait for a moment by the front.
  - What was interrupted is finished by calling it again.
author: ASF developers (@asf)
options:
  session:
    description: ID of the session, C(AGENT.NAME).
    type: str
    required: true
  collection:
    description: Root of the collection that the code runs from.
    type: path
    required: true
  home:
    description: ASF's root, where it is not the default one.
    type: path
  patience:
    description: Seconds that requests in flight get; those that still run then are cut and counted.
    type: int
    default: 30
attributes:
  check_mode:
    support: full
    description: Says what it would do and does nothing.
"""

EXAMPLES = r"""
- name: The key was renewed
  asf.sandbox.asf_rotate:
    session: claude.main
    collection: "{{ playbook_dir }}/.."
"""

RETURN = r"""
actions:
  description: A sentence per thing done.
  returned: success
  type: list
  elements: str
cut:
  description: Connections of the front to the old broker that were open when its cable was unplugged.
  returned: success
  type: int
asf:
  description: What the command line gathers; its keys are described in the role that calls this module.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine import rotating  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman  # noqa: E402

SPEC = {
    "session": {"type": "str", "required": True},
    "collection": {"type": "path", "required": True},
    "home": {"type": "path"},
    "patience": {"type": "int", "default": 30},
}
RULES = {}


def work(params, check_mode, diff):
    """The module's result."""
    session = params["session"]
    if check_mode:
        return {"changed": True, "actions": [f"would give the broker of {session} the key of now"], "cut": 0}

    out = rotating.rotate(Podman(), session, params["home"], params["collection"], params["patience"])
    notes = [f"{out['cut']} requests in flight were cut"] if out["cut"] else []
    return {**out, "asf": {"session": session, "notes": notes}}


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
