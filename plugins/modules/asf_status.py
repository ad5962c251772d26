#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: state of the ASF sessions of this account."""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_status
short_description: Tell the state of ASF sessions
version_added: 0.1.0
author: ASF developers (@asf-developers)
description:
  - Lists the sessions that still own resources, from the records in the state folder and from the labels of Podman's
    resources together. Whether a container lives is read from C(/proc).
  - Changes nothing.
options:
  session:
    description: Tell everything about this session, C(AGENT.NAME); without it, all sessions are listed.
    type: str
attributes:
  check_mode:
    description: Changes nothing anyway.
    support: full
  diff_mode:
    description: Nothing to compare.
    support: none
"""

EXAMPLES = r"""
- name: List the sessions
  asf.sandbox.asf_status:
  register: found

- name: Look at one session
  asf.sandbox.asf_status:
    session: claude.main
"""

RETURN = r"""
asf:
  description: The sessions.
  returned: success
  type: dict
  contains:
    session: {description: The ID that was asked for., type: str}
    sessions:
      description:
        - One row for each session, with C(session), C(agent), C(name), C(mode), C(isolation), C(state) (C(opening),
          C(live), C(closing), C(broken), C(ended)), C(reasons) (why it is broken), C(created), C(age_s), and
          C(requests) and C(denied), as Caddy counted them.
      type: list
      elements: dict
    status:
      description:
        - Of the session that was asked for, or null when it owns nothing. Adds containers, restarts, decisions by
          reason, evidence folder, plan digest and warnings.
      type: dict
asf_error:
  description: What went wrong, as C(file), C(key), C(message), C(remedy), C(line), C(found), C(code).
  returned: failure
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module
from ansible_collections.asf.sandbox.plugins.module_utils.engine import dirs, status
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman

SPEC = {"session": {"type": "str"}}
RULES = {}


def work(params, check_mode, diff):
    """The module's result: one session, or the list of all."""
    wanted = params["session"]
    if not wanted:
        return {
            "changed": False,
            "asf": {"session": None, "status": None, "sessions": status.rows(status.sessions(Podman()))},
        }
    found = status.session(Podman(), dirs.session_id(wanted))
    rows = status.rows([found] if found else [])
    return {"changed": False, "asf": {"session": wanted, "status": found, "sessions": rows}}


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
