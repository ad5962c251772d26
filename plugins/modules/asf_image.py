#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: ASF developers
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the images of a session that are missing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: asf_image
short_description: Build the images of a session that are missing
version_added: "0.1.0"
author: ASF developers (@asf)
description:
  - Builds images rootless, without a container registry, from pinned sources, and pays the copies for their mappings.
  - An image is named by a digest of its inputs. One that exists is never built again; asking costs one Podman call.
  - What went into each one is written to C($XDG_STATE_HOME/asf/images/NAME-DIGEST.json).
options:
  names:
    description:
      - What to have. V(gate) is a program, not an image.
      - Parents are built when a child is missing.
    type: list
    elements: str
    default: []
  agent:
    description: Have everything that this agent's manifest needs.
    type: str
  home:
    description: ASF's root folder, for O(agent) and for C(ca_bundle) of C(config.yml); the usual places when absent.
    type: path
  collection:
    description: Root of this collection, where the sources of images lie.
    type: path
    required: true
  pins:
    description:
      - Versions and hashes of what goes into images; C(asf_image_pins) of C(inventory/group_vars/all/pins.yml).
    type: dict
    required: true
  options:
    description:
      - Settings of builds.
      - V(base_image) (a registry image by digest that replaces the distribution's packages) and V(mirror) (lines of
        C(sources.list), or one URI) change the images' names, so M(asf.sandbox.asf_plan) needs the same.
      - V(ca_bundle), V(proxy), V(no_proxy), V(pip_index), V(npm_registry) and V(go) do not.
      - Bundle and proxy default to C(SSL_CERT_FILE) and C(ASF_BUILD_PROXY) of the environment; the usual proxy
        variables are not looked at.
    type: dict
    default: {}
  progress:
    description: A file to which a JSON line C({image, step, seconds}) is appended at each step.
    type: path
  prune:
    description: Then remove ASF's images that are not named by these sources and pins and that nothing uses.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says what would be built and builds nothing.
  diff_mode:
    support: none
    description: Images have no text to compare.
"""

EXAMPLES = r"""
- name: Have what the agent needs
  asf.sandbox.asf_image:
    agent: claude
    collection: "{{ role_path | dirname | dirname }}"
    pins: "{{ asf_image_pins }}"
"""

RETURN = r"""
images:
  description: Tag of every wanted image; path of every wanted program.
  returned: success
  type: dict
actions:
  description: A sentence per image.
  returned: success
  type: list
  elements: str
seconds:
  description: Seconds per thing built, and in total.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module
from ansible_collections.asf.sandbox.plugins.module_utils.engine import images, imaging

SPEC = {
    "names": {"type": "list", "elements": "str", "default": []},
    "agent": {"type": "str"},
    "home": {"type": "path"},
    "collection": {"type": "path", "required": True},
    "pins": {"type": "dict", "required": True},
    "options": {"type": "dict", "default": {}},
    "progress": {"type": "path"},
    "prune": {"type": "bool", "default": False},
}
RULES = {"required_one_of": [("names", "agent")]}


def work(params, check_mode, diff):
    """The module's result."""
    prune = params.pop("prune")
    host, names = imaging.prepare(**params, everything=prune)
    done = images.ensure(host, names, dry=check_mode)
    removed = images.prune(host) if prune and not check_mode else []
    result = {**done._asdict(), "changed": done.changed or bool(removed), "actions": done.actions + removed}
    return {**result, "asf": {"images": done.images, "actions": result["actions"]}}


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True, **RULES)
    asf_module.call(module, lambda: work(dict(module.params), module.check_mode, module._diff))


if __name__ == "__main__":
    main()
