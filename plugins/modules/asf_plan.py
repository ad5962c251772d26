#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the plan of a session and record it as opening"""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_plan
short_description: Compute the plan of a session and record it as opening
version_added: "0.1.0"
description:
  - Reads manifest, grants, settings and host facts, and computes everything that the session will consist of.
  - Whatever is wrong is an error here, before anything exists. What a crashed run left is cleared.
  - A live session is found again; inputs that give another plan are refused by the keys that differ.
author: ASF developers (@asf)
options:
  agent:
    description: Agent to open, the name of a folder below C(agents/).
    type: str
    required: true
  session:
    description: Name of the session.
    type: str
    default: main
  collection:
    description: Root of this collection; a module runs from an archive and cannot find it.
    type: path
    required: true
  home:
    description: ASF's root folder; else E(ASF_HOME), the checkout, or E(XDG_CONFIG_HOME).
    type: path
  isolation:
    description: Overrides the manifest's key of this name.
    type: str
  llm_mock:
    description: Open with front and broker on and the embedded model behind them.
    type: bool
    default: false
  command_file:
    description: JSON file with the words that the workload is started with, under the key C(command).
    type: path
  tty:
    description: Give a command a terminal.
    type: bool
    default: false
  terminal:
    description: C(TERM) and C(COLORTERM) of the terminal that the workload will be attached to.
    type: dict
    default: {}
  cable_range:
    description: Special-purpose IPv4 range of the cables.
    type: str
    default: 198.18.0.0/24
  uplink_range:
    description: Special-purpose IPv4 range behind Caddy's uplink.
    type: str
    default: 198.18.1.0/24
  limits:
    description: Limits per role, in bytes, CPUs and processes.
    type: dict
    required: true
  pins:
    description: Versions and hashes of what goes into images.
    type: dict
    required: true
  image_options:
    description: Settings of image builds that change an image's name.
    type: dict
    default: {}
  gate_deadline:
    description: Seconds that a verified gate waits for go.
    type: int
    default: 120
attributes:
  check_mode:
    support: full
    description: Computes the plan; records and clears nothing.
"""

EXAMPLES = r"""
- name: Plan
  asf.sandbox.asf_plan:
    agent: claude
    collection: /srv/asf
    limits: "{{ asf_limits }}"
    pins: "{{ asf_image_pins }}"
"""

RETURN = r"""
plan:
  description: Path of the plan's file, the one input of every other module.
  returned: success
  type: str
session:
  description: ID of the session, AGENT.NAME.
  returned: success
  type: str
live:
  description: Whether the session is open already.
  returned: success
  type: bool
brokered:
  description: Whether the session has a broker and a front.
  returned: success
  type: bool
roles:
  description: Roles of the session's containers, which its network mode and broker decide.
  returned: success
  type: list
  elements: str
images:
  description: Names of the images that the session needs.
  returned: success
  type: list
  elements: str
volumes_missing:
  description: State volumes that do not exist yet, with their labels.
  returned: success
  type: list
  elements: dict
actions:
  description: A sentence per thing done.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule  # noqa: E402

from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.core import revision  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine import planning, sweep  # noqa: E402
from ansible_collections.asf.sandbox.plugins.module_utils.engine.podman import Podman  # noqa: E402

SPEC = {
    "agent": {"type": "str", "required": True},
    "session": {"type": "str", "default": "main"},
    "collection": {"type": "path", "required": True},
    "home": {"type": "path"},
    "isolation": {"type": "str"},
    "llm_mock": {"type": "bool", "default": False},
    "command_file": {"type": "path"},
    "tty": {"type": "bool", "default": False},
    "terminal": {"type": "dict", "default": {}},
    "cable_range": {"type": "str", "default": "198.18.0.0/24"},
    "uplink_range": {"type": "str", "default": "198.18.1.0/24"},
    "limits": {"type": "dict", "required": True},
    "pins": {"type": "dict", "required": True},
    "image_options": {"type": "dict", "default": {}},
    "gate_deadline": {"type": "int", "default": 120},
}
RULES = {}


def work(params, check_mode, diff):
    """The module's result. Ended sessions are closed first: one may hold the tree that this one wants."""
    podman = Podman()
    swept = [] if check_mode else sweep.ended(podman, but=f"{params['agent']}.{params['session']}")
    result = planning.plan_session(podman, planning.Inputs(**params), check_mode)
    plan = result.doc.plan
    shown = {"before": result.before, "after": revision.policy_text(plan)}
    return {
        **({"diff": shown} if diff and result.live and result.changed else {}),
        "changed": result.changed or bool(swept),
        "plan": result.doc.path,
        "session": result.doc.session,
        "live": result.live,
        "brokered": plan["llm"] is not None,
        "roles": [one["role"] for one in plan["containers"]],
        "images": result.images,
        "volumes_missing": result.volumes_missing,
        "actions": result.actions,
        "asf": {
            "session": result.doc.session,
            "plan": result.doc.path,
            "live": result.live,
            "evidence": result.evidence,
            "warnings": result.warnings,
            "notes": [*(one.line() for one in swept), *result.notes],
            "swept": [one.as_dict() for one in swept],
            "interactive": plan["workload"]["interactive"],
            "tty": plan["workload"]["tty"],
        },
    }


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
