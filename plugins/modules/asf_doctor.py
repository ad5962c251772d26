#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: ASF developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check what a host can do for ASF."""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_doctor
short_description: Check whether a host can run verified sessions
version_added: 0.1.0
author: ASF developers (@asf)
description:
  - Collects facts about the host and the user that the module runs as, and judges each.
  - Changes nothing.
options:
  resolver:
    description:
      - The resolver that the operator's C(config.yml) gives Caddy.
      - Without it the system's first one outside loopback is used.
    type: str
  strict:
    description:
      - Fail when one of the checks fails.
    type: bool
    default: true
attributes:
  check_mode:
    description: Works the same in check mode.
    support: full
  diff_mode:
    description: Nothing changes, so there is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Check the host
  asf.sandbox.asf_doctor:
    resolver: 192.0.2.53
  register: __asf_host
"""

RETURN = r"""
checks:
  description: One entry per check, in the order in which things should be repaired.
  returned: always
  type: list
  elements: dict
  contains:
    id:
      description: Stable name of the check.
      type: str
    state:
      description: V(ok), V(warn) or V(fail).
      type: str
    found:
      description: What was found.
      type: str
    why:
      description: Why it matters.
      type: str
    remedy:
      description: What to do; empty when nothing is to be done.
      type: str
ready:
  description: Whether no check failed.
  returned: always
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.asf.sandbox.plugins.module_utils.core import doctor
from ansible_collections.asf.sandbox.plugins.module_utils.engine import hostfacts


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"resolver": {"type": "str"}, "strict": {"type": "bool", "default": True}},
        supports_check_mode=True,
    )
    checks = doctor.verdicts(hostfacts.collect(module.params["resolver"]))
    result = {"changed": False, "checks": [check.as_dict() for check in checks], "ready": doctor.ready(checks)}
    if module.params["strict"] and not result["ready"]:
        failed = [doctor.line(check) for check in checks if check.state == "fail"]
        module.fail_json(msg="This host is not ready:\n" + "\n".join(failed), **result)
    for check in checks:
        if check.state == "warn":
            module.warn(doctor.line(check))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
