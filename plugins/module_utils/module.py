# SPDX-License-Identifier: BSD-2-Clause
"""What every ASF module does around its one call into the engine: translate errors once, return in one shape.

``asf`` in a result is what the CLI gathers (session, probes, evidence, containers, warnings…); ``asf_error`` is the
typed error. No Ansible import: the AnsibleModule object is handed in.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from .core.errors import AsfError, EngineError
from .core.escape import terminal

Json = Dict[str, Any]
#: Lines of a message, and characters of one.
_LINES, _LENGTH = 60, 2000


def outcome(work: Callable[[], Json]) -> Json:
    """The result of ``work``, or of its error: then with ``failed``, ``msg`` and ``asf_error``."""
    try:
        return work()
    except AsfError as exc:
        results = getattr(exc, "results", None)
        extra: Json = {} if results is None else {"asf": {"probes": results}}
        extra.update(getattr(exc, "extra", {}))
        return {"failed": True, "msg": _shown(exc), "asf_error": exc.as_dict(), **extra}
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        remedy = "look at that path: does it exist, may this account use it, is its file system full?"
        error = EngineError(f"a file could not be used: {reason}", file=_name(exc.filename), remedy=remedy, code="file")
        return {"failed": True, "msg": _shown(error), "asf_error": error.as_dict()}


def _shown(error: AsfError) -> str:
    """The error's text as Ansible prints it, which escapes nothing: a workload's last words may stand in it."""
    return "\n".join(terminal(line, _LENGTH) for line in str(error).splitlines()[:_LINES])


def _name(path: Any) -> Optional[str]:
    return None if path is None else str(path)


def call(module: Any, work: Callable[[], Json]) -> None:
    """Run ``work`` and leave the module with its result or its error; never returns."""
    result = outcome(work)
    if result.pop("failed", False):
        module.fail_json(**result)
    module.exit_json(**result)
