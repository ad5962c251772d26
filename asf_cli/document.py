# SPDX-License-Identifier: BSD-4-Clause
"""The one JSON document that ``--json`` prints (a stable interface, docs/cli.md). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a list of sessions need not wait for it
    from .events import Outcome

#: Said by modules for the CLI alone.
_INTERNAL = frozenset({"attach", "tty", "hold", "nonce", "stdin"})
_ERROR_FIELDS = ("file", "key", "message", "remedy", "line", "found", "code")
_PROBE_FIELDS = ("id", "invariant", "vantage", "expect", "verdict", "evidence")


def failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The document of something that failed before any playbook ran."""
    return {
        "ok": False,
        "session": None,
        "changed": False,
        "phases": [],
        "probes": [],
        "evidence": None,
        **_error(error),
    }


def nothing(playbook: str, why: str) -> dict[str, Any]:
    """The document of a request that there was nothing to do for."""
    return {
        "ok": True,
        "playbook": playbook,
        "session": None,
        "changed": False,
        "phases": [],
        "probes": [],
        "evidence": None,
        "warnings": [],
        "cleanup": {"actions": [why]},
    }


def build(outcome: Outcome, playbook: str) -> dict[str, Any]:
    """The document of one run. What ASF's modules gave beyond the fixed fields is added under its own name."""
    error = outcome.final_error()
    document: dict[str, Any] = {
        "ok": error is None,
        "playbook": playbook,
        "session": outcome.asf.get("session"),
        "changed": outcome.changed,
        "phases": [{"name": phase.name, "seconds": round(phase.seconds, 3)} for phase in outcome.phases],
        "probes": [_probe(probe) for probe in outcome.asf.get("probes", [])],
        "evidence": outcome.asf.get("evidence"),
        "warnings": outcome.asf.get("warnings", []),
    }
    for key, value in outcome.asf.items():
        if key not in _INTERNAL:
            document.setdefault(key, value)
    if error is not None:
        document.update(_error(error))
    return document


def _probe(probe: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: probe.get(key) for key in _PROBE_FIELDS}, **probe}


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"error": {key: error.get(key) for key in _ERROR_FIELDS}}
    for key in ("cmd", "rc", "stderr"):
        if error.get(key) not in (None, "", []):
            found["error"][key] = error[key]
    if isinstance(error.get("problems"), list):
        found["problems"] = error["problems"]
    return found


def dump(document: object) -> str:
    """The document as text: ASCII only, so that no terminal and no locale gets in the way."""
    return json.dumps(document, indent=2, sort_keys=False, default=str)
