# SPDX-License-Identifier: GPL-3.0-or-later
"""Run M(asf.sandbox.asf_rotate) inside the worker on this host."""

from __future__ import annotations

from ansible_collections.asf.sandbox.plugins.modules import asf_rotate
from ansible_collections.asf.sandbox.plugins.plugin_utils.inprocess import InProcess


class ActionModule(InProcess):
    """The module's function, called where the task runs."""

    module = asf_rotate
