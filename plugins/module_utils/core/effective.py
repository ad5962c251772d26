# SPDX-License-Identifier: BSD-2-Clause
"""The effective policy of a session, read off its plan: what ``asf-play policy`` says. Pure.

Nothing here decides anything: each line names what the plan holds and the key of the manifest that made it so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import nftables, roles
from .formats import INTERNET
from .grants import WORKSPACE
from .images import PACKAGES
from .providers import DOMAINS

Json = dict[str, Any]


def effective(plan: Mapping[str, Any], warnings: Sequence[Any], assumed: Sequence[str]) -> Json:
    """The policy as one document; ``assumed`` are facts of the host that were not found and stand in the plan."""
    manifest, network, session = plan["manifest"], plan["network"], plan["session"]
    return {
        "ok": True,
        "session": session["id"],
        "agent": session["agent"],
        "mode": session["mode"],
        "isolation": session["isolation"],
        "destinations": _destinations(plan),
        "dropped": _dropped(plan),
        "control": _control(manifest, plan),
        "front": _front(plan),
        "provider": _provider(plan),
        "upstream_proxy": network["upstream_proxy"],
        "resolver": _resolver(plan),
        "never": _never(plan),
        "listeners": [dict(row) for row in plan["listeners"]],
        "cables": [_cable(cable) for cable in plan["wiring"]["cables"]],
        "mounts": _mounts(plan),
        "image": _image(plan),
        "environment": sorted(plan["gate"]["env"]),
        "capabilities": list(manifest["capabilities"]),
        "nested_sandbox": manifest["nested_sandbox"],
        "limits": _limits(plan),
        "secrets": [_secret(row, plan) for row in plan["secrets"]],
        "rules": [{"role": one["role"], "text": nftables.as_text(one["rules"])} for one in plan["wiring"]["nft"]],
        "warnings": list(warnings),
        "assumed": list(assumed),
    }


# --- the network ---------------------------------------------------------------------------------------------------


def _destinations(plan: Mapping[str, Any]) -> list[Json]:
    """What agent and broker may reach beyond the session; ``via`` is who enforces it, ``transparent`` says that
    clients without a proxy reach it as well (L1t)."""
    network, out = plan["network"], []
    named = {name for _, name in network["hosts"]}
    for one in network["domains"]:
        row = {"who": roles.AGENT, "via": "L1", "to": one["name"], "protocol": "tcp", "ports": list(one["ports"])}
        rest = {"private": list(one["private"]), "key": one["key"], "transparent": one["name"] in named}
        out.append({**row, "tls": one["tls"], **rest})
    for one in network["tuples"]:
        # the plan's tuple of all of IPv4 stands for the public addresses alone: it is told as the manifest wrote it
        to = INTERNET if one["cidr"] == "0.0.0.0/0" else one["cidr"]
        row = {"who": roles.AGENT, "via": "gateway", "to": to, "protocol": one["protocol"]}
        ports = None if one["protocol"] == "icmp_echo" else one["ports"]
        out.append({**row, "ports": ports, "tls": None, "private": [], "key": one["key"], "transparent": False})
    for one in _l3(plan):
        row = {"who": roles.BROKER, "via": "L3", "to": one["name"], "protocol": "tcp", "ports": list(one["ports"])}
        rest = {"private": list(one["private"]), "key": one["key"], "transparent": False}
        out.append({**row, "tls": one["tls"], **rest})
    return out


def _l3(plan: Mapping[str, Any]) -> list[Json]:
    """L3's list, out of Caddy's own configuration: what it is given is what it enforces."""
    for entry in plan["files"]:
        if entry["path"] == "caddy/caddy.json":
            server = entry["json"]["apps"]["http"]["servers"].get("l3")
            return list(server["routes"][0]["handle"][0]["policy"]) if server else []
    return []


def _dropped(plan: Mapping[str, Any]) -> list[Json]:
    """Names that the manifest declares and that do not hold while the agent is brokered."""
    held = {one["name"] for one in plan["network"]["domains"]}
    declared = plan["manifest"]["network"]["allow_domains"]
    why = "the provider's host is the broker's alone while llm.broker is true"
    return [{"name": one["name"], "key": one["key"], "why": why} for one in declared if one["name"] not in held]


def _control(manifest: Mapping[str, Any], plan: Mapping[str, Any]) -> Json | None:
    """What verification must find allowed."""
    probes, verify = plan["gate"]["probes"], plan["network"]["verify"]
    if verify:
        return {
            "to": f"{verify['address']}:{verify['port']}",
            "blocked": verify["blocked_port"],
            "key": "network.verify",
        }
    if probes.get("allow"):
        named = manifest["network"]["verify_domain"] is not None
        key = "network.verify_domain" if named else "network.allow_domains[0]"
        return {"to": probes["allow"]["target"], "blocked": None, "key": key}
    if probes.get("front"):
        return {"to": "the front", "blocked": None, "key": "llm.broker"}
    return None


def _front(plan: Mapping[str, Any]) -> Json | None:
    llm = plan["llm"]
    if llm is None:
        return None
    address = next(row["address"] for row in plan["listeners"] if row["name"] == "L2")
    tools, limits = plan["manifest"]["llm"]["hosted_tools"], plan["manifest"]["llm"]["limits"]
    return {
        "address": address,
        "protocol": llm["protocol"],
        "models": list(llm["models"]),
        "hosted_tools": list(tools),
        "limits": dict(limits),
        "key": "llm",
    }


def _provider(plan: Mapping[str, Any]) -> Json | None:
    llm, declared = plan["llm"], plan["manifest"]["llm"]
    if llm is None:
        return None
    usual = declared["direct_domain"] in (None, DOMAINS.get(declared["provider"] or ""))
    base = "llm.base_url" if declared["base_url"] else "llm.provider" if usual else "llm.direct_domain"
    host = None if llm["mock"] else declared["upstream_host"]
    return {"name": llm["provider"], "host": host, "mock": llm["mock"], "key": "llm.mock" if llm["mock"] else base}


def _resolver(plan: Mapping[str, Any]) -> Json | None:
    """Who answers Caddy's questions; nobody answers the agent's."""
    if not any(row["role"] == roles.CADDY for row in plan["wiring"]["uplinks"]):
        return None
    return {"address": plan["network"]["resolver"], "key": "resolver (config.yml)"}


def _never(plan: Mapping[str, Any]) -> list[str]:
    """CIDRs that no declared name may resolve to, whatever the manifest says."""
    for entry in plan["files"]:
        if entry["path"] == "caddy/caddy.json":
            for server in entry["json"]["apps"]["http"]["servers"].values():
                if found := server["routes"][0]["handle"][0].get("deny_cidrs"):
                    return list(found)
    return []


def _cable(cable: Mapping[str, Any]) -> Json:
    near, far = cable["near"], cable["far"]
    return {"from": f"{near['role']} {near['ip']}", "to": f"{far['role']} {far['ip']}"}


# --- files and limits ----------------------------------------------------------------------------------------------


def _mounts(plan: Mapping[str, Any]) -> list[Json]:
    """What of the host, or of earlier sessions, the workload sees, and the operator's files for its client."""
    keys = {f"{WORKSPACE}/{repo['name']}": f"repos[{index}]" for index, repo in enumerate(plan["repos"])}
    state = {one["target"]: index for index, one in enumerate(plan["manifest"]["state"])}
    out = []
    for repo in plan["repos"]:
        target = repo["target"]
        out.append(
            {"target": target, "kind": "repository", "rw": repo["rw"], "source": repo["path"], "key": keys[target]}
        )
    for one in plan["volumes"]:
        key = f"filesystem.state[{state[one['target']]}]"
        out.append({"target": one["target"], "kind": "state", "rw": True, "source": one["name"], "key": key})
    for entry in plan["files"]:
        folder, _, rest = entry["path"].partition("/")
        if folder == "adapter":
            target, source = "/etc/" + rest.replace("_", "/", 1), "the operator's policy for this client"
            out.append({"target": target, "kind": "policy", "rw": False, "source": source, "key": "adapter"})
    return out


def _image(plan: Mapping[str, Any]) -> Json:
    """The agent's image, and the key that it follows from."""
    name = next(row["image"] for row in plan["containers"] if row["role"] == roles.AGENT)
    return {"name": name, "key": "packages" if f"/{PACKAGES}-" in name else "adapter"}


def _limits(plan: Mapping[str, Any]) -> Json:
    """The workload's limits as the plan gives them; ``time`` in seconds, 0: none."""
    enforced = plan["limits"]["agent"]
    return {"time": plan["gate"]["time_s"], "cgroup": dict(enforced["cgroup"]), "ulimits": list(enforced["ulimits"])}


def _secret(row: Mapping[str, Any], plan: Mapping[str, Any]) -> Json:
    """A secret by its part, and the roles that have it mounted."""
    holders = [c["role"] for c in plan["containers"] if any(str(row["name"]) in str(word) for word in c["args"])]
    return {"part": row["part"], "from": row.get("variable") or "random, for this session", "held_by": holders}
