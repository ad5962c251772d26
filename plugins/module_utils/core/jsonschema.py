# SPDX-License-Identifier: BSD-2-Clause
"""A specification of ``schema.py`` as JSON Schema (draft 2020-12), for editors and for other people's checks.

The JSON Schema never refuses what the validator accepts. The validator knows more: near misses, facts between keys.
"""

from __future__ import annotations

from typing import Any

from .schema import (
    MISSING,
    Anything,
    ByKind,
    Choice,
    Flag,
    ListOf,
    MapOf,
    Number,
    Section,
    Spec,
    Text,
    Variants,
    When,
    default_of,
)

Json = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def document(spec: Section, title: str) -> Json:
    """The whole schema document."""
    return {"$schema": DIALECT, "title": title, **render(spec)}


def render(spec: Spec) -> Json:
    """One specification as a schema."""
    if isinstance(spec, Text):
        limits: Json = {"type": "string", "minLength": spec.min_length, "maxLength": spec.max_length}
        return {**limits, "pattern": spec.form.pattern} if spec.form else limits
    if isinstance(spec, Choice):
        return {"enum": list(spec.values)}
    if isinstance(spec, Flag):
        return {"type": "boolean"}
    if isinstance(spec, Number):
        kind = "number" if spec.decimal else "integer"
        return {"type": kind, "minimum": spec.minimum, "maximum": spec.maximum}
    if isinstance(spec, ListOf):
        out: Json = {"type": "array", "items": render(spec.item), "maxItems": spec.max_items}
        if spec.min_items:
            out["minItems"] = spec.min_items
        return {**out, "uniqueItems": True} if spec.unique else out
    if isinstance(spec, MapOf):
        names = {"pattern": spec.key.pattern}
        return {
            "type": "object",
            "propertyNames": names,
            "additionalProperties": render(spec.value),
            "maxProperties": spec.max_items,
        }
    if isinstance(spec, Anything):
        return {"not": {"type": "null"}}
    if isinstance(spec, (ByKind, Variants)):
        return {"anyOf": [render(option) for option in spec.options]}
    return _section(spec)


def _section(spec: Section) -> Json:
    properties: Json = {}
    for name, key in spec.keys.items():
        shown: Json = {"description": key.doc, **render(key.spec)}
        if key.default is not MISSING:
            shown["default"] = key.default
        properties[name] = shown
    out: Json = {"type": "object", "additionalProperties": False, "properties": properties}
    required = [name for name, key in spec.keys.items() if key.required]
    if required:
        out["required"] = required
    if spec.rules:
        out["allOf"] = [_rule(rule, spec) for rule in spec.rules]
    return out


def _nest(path: str, leaf: Any, needed: bool) -> Json:
    """A schema that says ``leaf`` of the value at a dotted path, which must be there if ``needed``."""
    inner = leaf
    for step in reversed(path.split(".")):
        inner = {"properties": {step: inner}, **({"required": [step]} if needed else {})}
    return dict(inner)


def _rule(rule: When, spec: Section) -> Json:
    # Where the condition holds by default, an absent key must match as well: then nothing is required of it.
    needed = default_of(spec, rule.path) not in rule.values
    then = [_nest(path, True, True) for path in rule.needs]
    then += [_nest(path, _empty(spec, path), False) for path in rule.forbids]
    return {"if": _nest(rule.path, {"enum": list(rule.values)}, needed), "then": {"allOf": then}}


def _empty(spec: Spec, path: str) -> Any:
    """What may stand at a path where the key is forbidden: an empty list, or nothing at all."""
    for step in path.split("."):
        if isinstance(spec, Section):
            spec = spec.keys[step].spec
    return {"type": "array", "maxItems": 0} if isinstance(spec, ListOf) else False
