# SPDX-License-Identifier: GPL-3.0-or-later
"""Run an ASF module inside Ansible's own worker when the target is this host.

Packing a module with the shared code, and unpacking and importing it in a new interpreter, costs more than most of
what the modules do (0.4 to 0.7 s of CPU each, measured). On a local connection without become, the worker that Ansible
forked for the task is already a process of the right account on the right host, so the module's own function is called
there; the shared code is imported once, before the fork. Everywhere else the module is sent as usual.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.asf.sandbox.plugins.module_utils import module as asf_module


class InProcess(ActionBase):
    """Base of the action plugins; ``module`` has ``SPEC``, ``RULES`` (for the validator) and ``work``."""

    module: ModuleType

    def run(self, tmp: Any = None, task_vars: Any = None) -> dict[str, Any]:
        """Run the module, here or there."""
        super().run(tmp, task_vars)
        if self._connection.transport != "local" or self._play_context.become:
            sent: dict[str, Any] = self._execute_module(task_vars=task_vars)
            return sent
        _, params = self.validate_argument_spec(argument_spec=self.module.SPEC, **self.module.RULES)
        plain = json.loads(json.dumps(params))  # values out of templates are tagged subclasses
        return asf_module.outcome(lambda: self.module.work(plain, self._task.check_mode, self._task.diff))
