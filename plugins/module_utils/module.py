# SPDX-License-Identifier: BSD-2-Clause
"""What every ASF module does around its one call into the engine: translate errors once, return in one shape.

``asf`` in a result is what the CLI gathers (session, probes, evidence, containers, warnings…); ``asf_error`` is the
typed error. No Ansible import: the AnsibleModule object is handed in.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from .core.errors import AsfError

Json = Dict[str, Any]


def call(module: Any, work: Callable[[], Json]) -> None:
    """Run ``work`` and leave the module with its result or its error; never returns."""
    try:
        result = work()
    except AsfError as exc:
        extra: Json = {}
        results = getattr(exc, "results", None)
        if results is not None:
            extra["asf"] = {"probes": results}
        module.fail_json(msg=str(exc), asf_error=exc.as_dict(), **extra)
    module.exit_json(**result)
