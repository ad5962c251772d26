# SPDX-License-Identifier: BSD-2-Clause
"""A live session's next plan (invariant 7): revision n+1, chained to n, in which only policy differs. Pure.

What was built stays as it is: containers, mounts, secrets, volumes, limits, the names in the agent's ``/etc/hosts``. A
name that a revision adds is reached through the proxy; clients without one find it after the session is opened anew.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

from .errors import PlanError
from .plan import differences, digest

Json = Dict[str, Any]

#: Keys of the manifest that a live session may change, with everything below them.
KEYS = (
    "description",
    "network.allow_domains",
    "network.verify_domain",
    "llm.models",
    "llm.hosted_tools",
    "llm.limits",
)
#: Files that are rendered again.
FILES = ("caddy/caddy.json", "gate.json")
#: Parts of a plan that follow from those keys, or are looked at one by one.
_FOLLOW = (
    "revision",
    "previous",
    "origin",
    "manifest",
    "llm",
    "listeners",
    "network",
    "wiring",
    "files",
    "gate",
    "warnings",
)


def origin(plan: Json, plan_digest: str) -> str:
    """Digest of revision 0, which the resources carry as their label (invariant 6)."""
    return str(plan.get("origin") or plan_digest)


def _without_names(containers: List[Json]) -> List[Json]:
    return [{**c, "args": [word for word in c["args"] if not word.startswith("--add-host=")]} for c in containers]


def carried(old: Json, new: Json) -> Json:
    """The plan that is asked for now, with what was built for the old one wherever that is the same."""
    chain: Json = {key: old[key] for key in ("previous", "origin") if key in old}
    out: Json = {**new, "revision": old["revision"], **chain}
    if _without_names(new["containers"]) == _without_names(old["containers"]):
        out["containers"] = old["containers"]
        out["network"] = {**new["network"], "hosts": old["network"]["hosts"]}
    if [(v["name"], v["target"]) for v in new["volumes"]] == [(v["name"], v["target"]) for v in old["volumes"]]:
        out["volumes"] = old["volumes"]  # their labels tell of the policy that they were made under
    return out


def same(old: Json, new: Json) -> bool:
    """Whether what is asked for now is what the session was opened, or last revised, with."""
    return digest(carried(old, new)) == digest(old)


def revised(old: Json, new: Json, session: str) -> Json:
    """Revision n+1. Raises PlanError naming what differs beyond policy."""
    candidate = carried(old, new)
    keys = [key for key in _inputs(old, candidate) if not _may_differ(key)] or _beyond(old, candidate)
    if keys:
        raise PlanError(
            f"session {session} is open with another plan; what differs: {', '.join(keys[:12])}",
            key=keys[0],
            remedy="close it and open it again to use what the manifest, the grants or the host say now; "
            f"a live session takes changes of {', '.join(KEYS[1:])} alone",
            code="edited",
        )
    before = digest(old)
    return {**candidate, "revision": old["revision"] + 1, "previous": before, "origin": origin(old, before)}


def _inputs(old: Json, new: Json) -> List[str]:
    """Keys of manifest, grants and command that differ."""
    keys = differences(old["manifest"], new["manifest"])
    return keys + [p for part in ("repos", "command") for p in differences(old.get(part), new.get(part), part)]


def _may_differ(key: str) -> bool:
    return any(key == one or key.startswith(one + ".") for one in KEYS)


def _beyond(old: Json, new: Json) -> List[str]:
    """Parts of the plan that differ and are no policy."""
    found = [part for part in sorted({*old, *new}) if part not in _FOLLOW and old.get(part) != new.get(part)]
    texts = [{f["path"]: f for f in plan["files"]} for plan in (old, new)]
    found += [
        path
        for path in sorted({*texts[0], *texts[1]})
        if path not in FILES and texts[0].get(path) != texts[1].get(path)
    ]
    kept = [{k: v for k, v in plan["gate"].items() if k != "probes"} for plan in (old, new)]
    return found + differences(kept[0], kept[1], "gate") + _rules(old, new)


def _rules(old: Json, new: Json) -> List[str]:
    """A gateway's rules hold its counters, so they are never loaded anew; other wires are plugged once."""
    wires = [{k: v for k, v in plan["wiring"].items() if k != "nft"} for plan in (old, new)]
    gateways = [[item for item in plan["wiring"]["nft"] if item["role"] == "gateway"] for plan in (old, new)]
    return differences(wires[0], wires[1], "wiring") + (["network.allow"] if gateways[0] != gateways[1] else [])


def policy_text(plan: Json) -> str:
    """What a revision may change, a line each, for ``--diff``."""
    names = [json.dumps(one, sort_keys=True) for one in plan["network"]["domains"]]
    llm = plan.get("llm") or {}
    rows = [(key, llm.get(key)) for key in ("models", "hosted_tools", "limits")] if llm else []
    lines = [f"name {name}" for name in names] + [
        f"llm.{key} {json.dumps(value, sort_keys=True)}" for key, value in rows
    ]
    return "".join(line + "\n" for line in lines)
