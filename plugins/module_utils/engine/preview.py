# SPDX-License-Identifier: BSD-2-Clause
"""The plan that an open would have, computed without one: nothing is created, and Podman need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core.marked import LIST, MAP, Node
from . import hostprograms, planning, yamlload
from .planning import Inputs
from .podman import Podman

Json = Dict[str, Any]

#: Where the playbooks' own defaults of limits and pins are.
DEFAULTS = ("inventory/group_vars/all/limits.yml", "inventory/group_vars/all/pins.yml")


def defaults(collection: str) -> Json:
    """Variables of the shipped inventory, which hold no template. Raises ManifestError when they cannot be read."""
    found: Json = {}
    for name in DEFAULTS:
        node = yamlload.load(str(Path(collection) / name))
        found.update(_plain(node) if node is not None else {})
    return found


def _plain(node: Node) -> Any:
    if node.kind == MAP:
        return {str(key.value): _plain(value) for key, value in node.pairs()}
    return [_plain(item) for item in node.items()] if node.kind == LIST else node.value


def podman() -> Optional[Podman]:
    """Podman, or None where it is not installed."""
    return Podman() if hostprograms.program("podman") else None


def compute(inputs: Inputs, engine: Optional[Podman]) -> Tuple[Json, List[Any], List[str]]:
    """``(plan, warnings, assumed)``. Raises what an open would, but for what the host lacks and secrets do not hold."""
    assumed: List[str] = []
    plan, _, warnings = planning.compute(engine, inputs, assumed)
    return plan, warnings, assumed


def inputs(collection: str, given: Mapping[str, Any]) -> Inputs:
    """What an open with these extravars would be given."""
    usual = {**defaults(collection), **given}
    return Inputs(
        agent=given["agent"],
        collection=collection,
        session=given.get("session", "main"),
        home=given.get("asf_home") or None,
        isolation=given.get("isolation") or None,
        llm_mock=str(given.get("llm_mock", "")).lower() in ("true", "yes", "1", "on"),
        limits=usual["asf_limits"],
        pins=usual["asf_image_pins"],
        image_options=usual.get("asf_image_options") or {},
        cable_range=str(given.get("asf_session_cable_range", Inputs.cable_range)),
        uplink_range=str(given.get("asf_session_uplink_range", Inputs.uplink_range)),
    )
