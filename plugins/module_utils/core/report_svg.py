# SPDX-License-Identifier: BSD-2-Clause
"""A session's topology as one inline SVG, drawn from its plan: containers, cables, listeners, the way out. Pure.

One column, so that it can be read on a phone. Colours come from the page's classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .escape import html as escaped
from .report import mapping, rows

WIDTH = 340
_BOX, _GAP, _LEFT, _SPAN = 46, 58, 1, 150
_TITLES = {"gateway": "gateway", "agent": "agent", "caddy": "Caddy", "broker": "LiteLLM broker"}
#: From top to bottom: who shares a cable stands side by side.
_ORDER = ("gateway", "agent", "caddy", "broker")


def render(plan: Mapping[str, Any]) -> str:
    """The drawing; empty when the plan names no container."""
    present = {str(one.get("role")) for one in rows(plan.get("containers"))}
    roles = [role for role in _ORDER if role in present]
    if not roles:
        return ""
    parts: list[str] = []
    for place, role in enumerate(roles):
        parts += _box(_LEFT, _top(place), _SPAN, _TITLES[role], _subtitle(role, plan))
        if place:
            parts += _cable(place, roles[place - 1], role, plan)
    for place, role in enumerate(roles):
        if role in _leaving(plan):
            parts += _exit(_top(place), _outside(role, plan))
    height = _top(len(roles) - 1) + _BOX + 2
    title = f"Topology: {', '.join(_TITLES[role] for role in roles)}"
    return (
        f'<svg class="topology" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escaped(title)}">'
        f"<title>{escaped(title)}</title>{''.join(parts)}</svg>"
    )


def _top(place: int) -> int:
    return 1 + place * (_BOX + _GAP)


def _text(x: int, y: int, text: object, kind: str, limit: int) -> str:
    return f'<text x="{x}" y="{y}" class="{kind}">{escaped(text, limit)}</text>'


def _box(x: int, y: int, width: int, title: str, subtitle: str) -> list[str]:
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="{_BOX}" rx="6" class="box"/>',
        _text(x + 10, y + 20, title, "name", 24),
        _text(x + 10, y + 36, subtitle, "note", 25 if width == _SPAN else 22),
    ]


def _subtitle(role: str, plan: Mapping[str, Any]) -> str:
    if role == "agent":
        return f"gate, then {mapping(plan.get('session')).get('isolation', '')}"
    if role == "broker":
        llm = mapping(plan.get("llm"))
        return "embedded model" if llm.get("mock") else str(llm.get("provider") or "")
    if role == "gateway":
        return "nftables, no process of its own"
    return "the only way out" if rows(mapping(plan.get("network")).get("domains")) else "inference only"


def _cable(place: int, upper: str, lower: str, plan: Mapping[str, Any]) -> list[str]:
    """The line between two boxes, with both ends' addresses and the listeners on it."""
    x, top = _LEFT + 40, _top(place) - _GAP
    found = next(
        (
            cable
            for cable in rows(mapping(plan.get("wiring")).get("cables"))
            if {mapping(cable.get(end)).get("role") for end in ("near", "far")} == {upper, lower}
        ),
        None,
    )
    if found is None:
        return [_text(x + 12, top + 33, "no cable", "note", 20)]
    near, far = mapping(found.get("near")), mapping(found.get("far"))
    served = [
        f"{one.get('name')} :{str(one.get('address', '')).rpartition(':')[2]}"
        for one in rows(plan.get("listeners"))
        if str(one.get("address", "")).rpartition(":")[0] == far.get("ip")
    ]
    return [
        f'<line x1="{x}" y1="{top}" x2="{x}" y2="{top + _GAP}" class="cable"/>',
        _text(x + 12, top + 24, f"cable {near.get('ip')} - {far.get('ip')}", "note", 44),
        _text(x + 12, top + 40, ", ".join(served), "note", 44),
    ]


def _leaving(plan: Mapping[str, Any]) -> set[str]:
    """Roles with a way out."""
    return {str(one.get("role")) for one in rows(mapping(plan.get("wiring")).get("uplinks"))}


def _outside(role: str, plan: Mapping[str, Any]) -> str:
    """What the role's way out is for."""
    network = mapping(plan.get("network"))
    if role == "gateway":
        return _counted(len(rows(network.get("tuples"))), "declared range")
    brokered = any(one.get("name") == "L3" for one in rows(plan.get("listeners")))
    provider = "the provider" if brokered and not mapping(plan.get("llm")).get("mock") else ""
    return _counted(len(rows(network.get("domains"))), "declared name") or provider or "nothing"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


def _exit(y: int, words: str) -> list[str]:
    middle, start, end = y + _BOX // 2, _LEFT + _SPAN, 200
    return [
        f'<line x1="{start}" y1="{middle}" x2="{end - 7}" y2="{middle}" class="cable"/>',
        f'<path d="M{end - 8} {middle - 5}L{end} {middle}L{end - 8} {middle + 5}Z" class="arrow"/>',
        *_box(end, y, WIDTH - end - 1, "outside", words),
    ]
