#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: clear an agent's state volumes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_reset
short_description: Clear the state volumes of an ASF agent
version_added: 0.1.0
author: ASF developers (@asf-developers)
description:
  - Removes the volumes that an agent keeps between sessions (C(filesystem.state) of its manifest), found by label.
  - Refuses while a session or a container uses one of them; then none is removed.
  - Evidence, grants and repositories are not touched.
options:
  agent:
    description: Name of the agent.
    type: str
    required: true
  session:
    description: Only the volumes of this session; every session of the agent has volumes of its own.
    type: str
  confirm:
    description: Must be true, or nothing is removed and the volumes are listed.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be removed; needs no O(confirm).
    support: full
  diff_mode:
    description: Nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: Forget what the agent kept
  asf.sandbox.asf_reset:
    agent: claude
    confirm: true
"""

RETURN = r"""
actions:
  description: One sentence for every volume.
  returned: success
  type: list
  elements: str
asf:
  description: The volumes.
  returned: success
  type: dict
  contains:
    volumes:
      description: Those that were found, with C(name), C(agent), C(session), C(key), C(bytes), C(used_by).
      type: list
      elements: dict
    removed: {description: Names of those that were removed., type: list, elements: str}
    actions: {description: The same sentences., type: list, elements: str}
asf_error:
  description: What went wrong, as C(file), C(key), C(message), C(remedy), C(line), C(found), C(code).
  returned: failure
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module
from ansible_collections.asf.sandbox.plugins.module_utils.engine import dirs, statevolumes
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman

SPEC = {
    "agent": {"type": "str", "required": True},
    "session": {"type": "str"},
    "confirm": {"type": "bool", "default": False},
}
RULES = {}


def work(params, check_mode, diff):
    """The module's result."""
    session = params["session"] or ""
    dirs.session_id(f"{params['agent']}.{session or 'main'}")  # both are names
    found = statevolumes.clear(Podman(), params["agent"], session, confirmed=params["confirm"], check=check_mode)
    volumes = [one.as_dict() for one in found.volumes]
    asf = {"volumes": volumes, "removed": found.removed, "actions": found.actions}
    return {"changed": found.changed, "actions": found.actions, "asf": asf}


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
