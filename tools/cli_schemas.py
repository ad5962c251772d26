# SPDX-License-Identifier: BSD-4-Clause
"""JSON Schemas (draft 2020-12) of what ``asf-play … --json`` prints. ``tools/gen_docs.py`` writes them to docs/schemas.

``SCHEMAS`` has one entry for each document; the tests validate every document that any of them makes. Objects are
closed, but for a playbook's own fields.
"""

from __future__ import annotations

import json
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT}
SESSION: Schema = {"type": "string", "pattern": r"^[a-z0-9][a-z0-9_-]*\.[a-z0-9][a-z0-9_-]*$"}
STATE: Schema = {"enum": ["opening", "live", "closing", "broken", "ended"]}


def several(items: Schema) -> Schema:
    """An array."""
    return {"type": "array", "items": items}


def maybe(one: Schema) -> Schema:
    """Also null."""
    return {"anyOf": [one, {"type": "null"}]}


def by_name(value: Schema) -> Schema:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": value}


def closed(required: Schema, optional: Schema | None = None, more: bool = False) -> Schema:
    """An object with these fields; ``more`` allows others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": more}


ERROR = closed(
    {
        "file": maybe(TEXT),
        "key": maybe(TEXT),
        "message": TEXT,
        "remedy": maybe(TEXT),
        "line": maybe(COUNT),
        "found": maybe(TEXT),
        "code": maybe(TEXT),
    },
    {"cmd": TEXTS, "rc": {"type": "integer"}, "stderr": TEXT},
)
PROBE = closed(
    {
        "id": TEXT,
        "invariant": COUNT,
        "vantage": {"enum": ["outside", "inside"]},
        "expect": TEXT,
        "verdict": {"enum": ["pass", "fail", "inconclusive", "warn"]},
        "evidence": {},
    },
    more=True,
)
#: A record of the evidence: what Caddy decided. ``count``: the line stands for so many.
DECISION = closed(
    {"decision": TEXT},
    {
        **{key: TEXT for key in ("listener", "method", "host", "target", "reason", "detail", "key", "addr")},
        **{key: {"type": "integer"} for key in ("port", "status", "up", "down", "ms")},
        "ts": {"type": ["number", "string"]},
    },
    more=True,
)
_AMOUNT: Schema = {"packets": COUNT, "bytes": COUNT}
_NOTED = closed({"protocol": TEXT, "address": TEXT, "port": maybe(COUNT), **_AMOUNT, "age_s": COUNT})
_GATEWAY: Schema = {
    "lost": {**maybe(TEXT), "description": "Why there are none: they lived with the gateway's namespace."},
    "rules": {
        **several(
            closed(
                {
                    "key": TEXT,
                    "cidr": TEXT,
                    "protocol": {"enum": ["tcp", "udp", "icmp_echo"]},
                    "ports": {"anyOf": [several(COUNT), {"const": "any"}]},
                    **_AMOUNT,
                }
            )
        ),
        "description": "By rule of the manifest: packets and bytes, both ways, of the flows that it let in.",
    },
    "drops": several(closed({"reason": TEXT, **_AMOUNT})),
    "control": {**maybe(closed(_AMOUNT)), "description": "Dropped on their way to network.verify's blocked port."},
    "flows": {**several(_NOTED), "description": "Packets that began a flow, by destination, the most frequent first."},
    "denials": {**several(_NOTED), "description": "Packets that were dropped, by destination."},
    "more": {**by_name(COUNT), "description": "Rows of flows and denials that are not listed here."},
    "full": {**TEXTS, "description": "Logs that were full: later destinations are counted and not noted."},
}
#: What a routed session's gateway has counted; null in other modes.
ROUTED = closed(_GATEWAY)
#: The same as evidence.
ROUTED_FILE = closed({"version": {"const": 1}, "session": SESSION, "at": TEXT, **_GATEWAY}, {"dropped": COUNT})
_MONEY: Schema = {"type": "number", "minimum": 0}
_KINDS = ("input_tokens", "cached_tokens", "cache_write_tokens", "output_tokens")
#: What the front has counted of a session's use of the model, its budgets, and what they leave.
INFERENCE = closed(
    {"limits": by_name({"type": "number"}), "left": by_name({"type": "number"})},
    {**{name: COUNT for name in ("requests", *_KINDS, "unpriced_requests")}, "cost_usd": _MONEY},
)
ROW = closed(
    {
        "session": SESSION,
        "agent": TEXT,
        "name": TEXT,
        "mode": TEXT,
        "isolation": TEXT,
        "state": STATE,
        "reasons": TEXTS,
        "exit_code": maybe({"type": "integer"}),
        "created": maybe(TEXT),
        "age_s": maybe(COUNT),
        "requests": maybe(COUNT),
        "denied": maybe(COUNT),
        "tokens": maybe(COUNT),
        "cost_usd": maybe(_MONEY),
    }
)
CONTAINER = closed(
    {
        "role": TEXT,
        "name": TEXT,
        "id": TEXT,
        "status": TEXT,
        "pid": COUNT,
        "alive": FLAG,
        "exit_code": maybe({"type": "integer"}),
    }
)
STATUS = closed(
    {
        **ROW["properties"],
        "started": maybe(TEXT),
        "verified": maybe(closed({"at": maybe(TEXT), "ok": maybe(FLAG), "verdicts": by_name(COUNT)})),
        "step": maybe(TEXT),
        "controllers": several(closed({"pid": COUNT, "start": COUNT, "boot": TEXT}, {"host": TEXT})),
        "containers": several(CONTAINER),
        "secrets": TEXTS,
        "evidence": maybe(TEXT),
        "plan": maybe(TEXT),
        "plan_digest": maybe(TEXT),
        "revision": {**maybe(COUNT), "description": "How often the live session's policy was changed."},
        "warnings": several({"type": ["string", "object"]}),
        "grants": several(closed({"path": TEXT, "mode": {"enum": ["rw", "ro"]}, "target": TEXT})),
        "domains": TEXTS,
        "limits": by_name({}),
        "time_left_s": maybe(COUNT),
        "routed": maybe(ROUTED),
        "decisions": by_name(by_name(COUNT)),
        "hosts": by_name(closed({"allow": COUNT, "deny": COUNT})),
        "restarts": by_name({"type": "integer"}),
        "inference": {**maybe(INFERENCE), "description": "null without a broker, or before the first request."},
    },
    more=True,
)
LINE = closed({"time": TEXT, "stream": TEXT, "text": TEXT})
EVENT = {
    **closed(
        {
            "at": maybe(NUMBER),
            "event": {
                "enum": ["opened", "verified", "started", "exited", "restarted", "refused", "ended", "closed"],
            },
        },
        more=True,
    )
}
OK: Schema = {"ok": {"const": True}}
GRANT = closed({"agent": TEXT, "path": TEXT, "mode": TEXT, "target": TEXT})
ROLE = {"enum": ["agent", "broker", "caddy", "gateway"]}
POLICY = closed(
    {
        **OK,
        "session": SESSION,
        "agent": TEXT,
        "mode": {"enum": ["proxy", "isolated", "routed"]},
        "isolation": TEXT,
        "destinations": several(
            closed(
                {
                    "who": ROLE,
                    "via": {"enum": ["L1", "L3", "gateway"]},
                    "to": TEXT,
                    "protocol": {"enum": ["tcp", "udp", "icmp_echo"]},
                    "ports": {"anyOf": [several(COUNT), {"enum": ["any", None]}]},
                    "tls": {"enum": ["required", "any", None]},
                    "private": TEXTS,
                    "key": TEXT,
                    "transparent": FLAG,
                }
            )
        ),
        "dropped": several(closed({"name": TEXT, "key": TEXT, "why": TEXT})),
        "control": maybe(closed({"to": TEXT, "blocked": maybe(COUNT), "key": TEXT})),
        "front": maybe(
            closed(
                {
                    "address": TEXT,
                    "protocol": TEXT,
                    "models": TEXTS,
                    "hosted_tools": TEXTS,
                    "limits": by_name(NUMBER),
                    "key": TEXT,
                }
            )
        ),
        "provider": maybe(closed({"name": maybe(TEXT), "host": maybe(TEXT), "mock": FLAG, "key": TEXT})),
        "upstream_proxy": maybe(closed({"url": TEXT, "key": TEXT, "tls": FLAG, "secret": maybe(TEXT)})),
        "resolver": maybe(closed({"address": TEXT, "key": TEXT})),
        "never": TEXTS,
        "listeners": several(closed({"role": ROLE, "name": TEXT, "address": TEXT})),
        "cables": several(closed({"from": TEXT, "to": TEXT})),
        "mounts": several(
            closed(
                {
                    "target": TEXT,
                    "kind": {"enum": ["repository", "state", "policy"]},
                    "rw": FLAG,
                    "source": TEXT,
                    "key": TEXT,
                }
            )
        ),
        "image": closed({"name": TEXT, "key": TEXT}),
        "environment": TEXTS,
        "capabilities": TEXTS,
        "nested_sandbox": FLAG,
        "limits": closed({"time": COUNT, "cgroup": by_name(TEXT), "ulimits": TEXTS}),
        "secrets": several(closed({"part": TEXT, "from": TEXT, "held_by": several(ROLE)})),
        "rules": several(closed({"role": ROLE, "text": TEXT})),
        "warnings": several({"type": ["string", "object"]}),
        "assumed": TEXTS,
    }
)
_RUN = {
    "ok": FLAG,
    "session": maybe(TEXT),
    "changed": FLAG,
    "phases": several(closed({"name": TEXT, "seconds": NUMBER})),
    "probes": several(PROBE),
    "evidence": maybe(TEXT),
}
_PROBLEMS = several({"type": "object"})
RUN = closed(
    {**_RUN, "playbook": TEXT, "warnings": several({"type": ["string", "object"]})},
    {"error": ERROR, "problems": _PROBLEMS, "close": {"type": "object"}, "exit_code": {"type": "integer"}},
    more=True,
)
RUN["if"] = {"properties": {"ok": {"const": False}}}
RUN["then"] = {"required": ["error"]}

#: Name of the document -> title, schema. A command's document has the command's name.
SCHEMAS: dict[str, tuple[str, Schema]] = {
    "failure": (
        "Whatever was refused before it ran",
        closed({**_RUN, "ok": {"const": False}, "error": ERROR}, {"problems": _PROBLEMS}),
    ),
    "playbook": ("A run of a playbook", RUN),
    "ls": ("`asf-play ls --json`", several(ROW)),
    "status": (
        "`asf-play status --json`",
        closed({**OK, "session": maybe(SESSION), "status": maybe(STATUS), "sessions": several(ROW)}),
    ),
    "logs": (
        "`asf-play logs --json`; with `-f` each line is one of `lines` or `decisions`",
        closed(
            {**OK, "session": SESSION, "log": TEXT, "left_out": COUNT},
            {"lines": several(LINE), "decisions": several(DECISION)},
        ),
    ),
    "events": (
        "`asf-play events --json`; with `-f` each line is one of `events`",
        closed({**OK, "session": SESSION, "left_out": COUNT, "events": several(EVENT)}),
    ),
    "cp": (
        "`asf-play cp --json`",
        closed(
            {
                **OK,
                "session": SESSION,
                "from": TEXT,
                "to": TEXT,
                "path": TEXT,
                **{key: COUNT for key in ("files", "folders", "links", "bytes", "left_out_count")},
                "left_out": TEXTS,
            }
        ),
    ),
    "new": (
        "`asf-play new … --json`",
        closed({"ok": FLAG, "agent": TEXT, "from": TEXT, "folder": TEXT, "files": TEXTS}),
    ),
    "repo": (
        "`asf-play repo … --json`",
        closed(
            {**OK},
            {
                "grants": several(GRANT),
                "warnings": several({"type": ["string", "object"]}),
                **{key: TEXT for key in ("agent", "path", "mode", "target", "file", "name")},
                "changed": FLAG,
            },
        ),
    ),
    "secret": (
        "`asf-play secret … --json`: no value of a secret is ever in it",
        closed(
            {"ok": FLAG},
            {
                "file": TEXT,
                "variable": TEXT,
                "source": {**maybe(TEXT), "description": "What config.yml names, which comes before the file."},
                "secrets": several(
                    closed(
                        {"file": maybe(TEXT)},
                        {
                            "variables": TEXTS,
                            "agents": TEXTS,
                            "problem": maybe(TEXT),
                            "agent": TEXT,
                            "variable": maybe(TEXT),
                            "state": {"enum": ["present", "absent", "expired", "doubtful", "unneeded"]},
                            "source": {**maybe(TEXT), "description": "A secrets file, or what config.yml names."},
                            "line": maybe(COUNT),
                            "detail": TEXT,
                        },
                    )
                ),
            },
        ),
    ),
    "prune": (
        "`asf-play prune --json`",
        closed({"ok": FLAG, "found": several({"type": "object"}), "removed": TEXTS, "kept": TEXTS}),
    ),
    "policy": ("`asf-play policy --json`", POLICY),
    "completion": ("`asf-play completion --json`", closed({**OK, "shell": TEXT, "script": TEXT})),
    "doctor": (
        "`asf-play doctor --json`",
        closed(
            {
                "ok": FLAG,
                "checks": several(closed({"id": TEXT, "state": TEXT, "found": {}, "why": {}, "remedy": {}}, more=True)),
            },
            more=True,
        ),
    ),
}


def documents() -> dict[str, str]:
    """Text of each schema by its path in the repository."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    routed = {"title": "routed.json: what the gateway of a routed session has counted", **ROUTED_FILE}
    return {
        "docs/schemas/evidence-routed.json": json.dumps({**head, **routed}, indent=1) + "\n",
        **{
            f"docs/schemas/cli-{name}.json": json.dumps({**head, "title": title, **schema}, indent=1) + "\n"
            for name, (title, schema) in SCHEMAS.items()
        },
    }
