# SPDX-License-Identifier: BSD-4-Clause
"""The effective policy (``core/effective.py``) in words: a line a thing, with the manifest key that says so. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .render import Style, safe

#: Text and the key that made it so.
Line = tuple[str, str]

_MODES = {
    "proxy": "names through the proxy in Caddy; nothing else",
    "isolated": "no name and no address; the model's front alone, where there is one",
    "routed": "IPv4 tuples through the gateway, raw; nothing else",
}


def lines(found: Mapping[str, Any], style: Style, rules: bool) -> list[str]:
    """The whole text."""
    out = [
        style.paint(
            f"{safe(found['session'], 130)}: network.mode {found['mode']}, isolation {found['isolation']}", "bold"
        ),
        f"  {_MODES[found['mode']]}",
    ]
    for title, rows in (
        ("the agent reaches", _reach(found, "agent")),
        ("the model", _model(found)),
        ("the broker reaches", _reach(found, "broker") if found["front"] else []),
        ("names and addresses", _names(found)),
        ("files", _files(found)),
        ("the workload", _workload(found)),
    ):
        out += _section(title, rows, style)
    if rules:
        for one in found["rules"]:
            out += ["", style.paint(f"nftables of {safe(one['role'], 20)}", "bold")]
            out += [f"  {safe(line, 300)}" for line in one["text"].splitlines()]
    out += _section("assumed, because this host lacks it", [(safe(text, 600), "") for text in found["assumed"]], style)
    return out + _section("warnings", [(_warning(text), "") for text in found["warnings"]], style)


def _section(title: str, rows: Sequence[Line], style: Style) -> list[str]:
    if not rows:
        return []
    width = min(64, max(len(text) for text, _ in rows))
    body = [
        f"  {text:<{width}}  {style.paint(safe(key, 120), 'dim')}".rstrip() if key else f"  {text}"
        for text, key in rows
    ]
    return ["", style.paint(title, "bold"), *body]


def _warning(text: Any) -> str:
    return safe(text.get("message", text) if isinstance(text, Mapping) else text, 600)


# --- the network ---------------------------------------------------------------------------------------------------


def _ports(ports: Any) -> str:
    if ports is None:
        return ""
    return " any port" if ports == "any" else " port " + ", ".join(str(port) for port in ports)


def _destination(one: Mapping[str, Any]) -> str:
    public = one["via"] == "gateway" and one["to"] == "internet"
    to = "internet (all public addresses)" if public else safe(one["to"], 260)
    text = f"{to} {safe(one['protocol'], 12)}{_ports(one['ports'])}"
    if one["tls"]:
        text += ", server name checked" if one["tls"] == "required" else ", bytes not looked at"
    if one["transparent"]:
        text += ", also without a proxy on port 443"
    if one["private"]:
        text += f", may resolve to {', '.join(safe(cidr, 20) for cidr in one['private'])}"
    return f"{text} (by {safe(one['via'], 10)})"


def _reach(found: Mapping[str, Any], who: str) -> list[Line]:
    rows = [(_destination(one), one["key"]) for one in found["destinations"] if one["who"] == who]
    if who == "agent":
        rows += [(f"not {safe(one['name'], 260)}: {one['why']}", one["key"]) for one in found["dropped"]]
        if found["front"]:
            rows.append((f"the front at {found['front']['address']}", "llm.broker"))
    return rows or [("nothing", "network.mode" if who == "agent" else "llm.mock")]


def _model(found: Mapping[str, Any]) -> list[Line]:
    front, provider = found["front"], found["provider"]
    if front is None:
        if found["mode"] == "isolated":
            return [("none: there is no front, and no network to log in by", "llm")]
        return [("no broker: the client logs in itself, or has no model", "llm.broker")]
    who = (
        "the embedded model"
        if provider["mock"]
        else f"provider {safe(provider['name'], 60)} at {safe(provider['host'], 260)}"
    )
    models = ", ".join(safe(name, 80) for name in front["models"]) or "every model that the key can reach"
    tools = ", ".join(safe(tool, 60) for tool in front["hosted_tools"]) or "none"
    rows = [
        (f"{who}, spoken to as {safe(front['protocol'], 20)}", provider["key"]),
        (f"models: {models}", "llm.models"),
        (f"provider-side tools that may pass: {tools}", "llm.hosted_tools"),
    ]
    return rows + [
        (f"{safe(name, 40)}: {safe(value, 40)}", f"llm.limits.{name}") for name, value in front["limits"].items()
    ]


def _names(found: Mapping[str, Any]) -> list[Line]:
    rows: list[Line] = []
    proxy, resolver = found["upstream_proxy"], found["resolver"]
    if proxy:
        how = "TLS to it" if proxy["tls"] else "in clear to it"
        login = f", login from {safe(proxy['secret'], 80)}" if proxy["secret"] else ""
        rows.append((f"every tunnel goes through {safe(proxy['url'], 300)} ({how}{login})", proxy["key"]))
        rows.append(("that proxy resolves the names and checks the addresses, not ASF", proxy["key"]))
    if resolver:
        whose = "the proxy's own name" if proxy else "allowed names"
        rows.append(
            (f"Caddy asks {safe(resolver['address'], 60)} for {whose}; the agent has no resolver", resolver["key"])
        )
    else:
        rows.append(("the agent has no resolver", "network.mode"))
    if found["mode"] == "routed":
        rows.append(("never routed: this host's own addresses, and special-purpose ranges that no rule names", ""))
    if found["never"]:
        rows.append((f"never dialled: {', '.join(safe(cidr, 40) for cidr in found['never'])}", ""))
    if found["control"]:
        blocked = f", and port {found['control']['blocked']} must not be" if found["control"]["blocked"] else ""
        rows.append(
            (f"verified: {safe(found['control']['to'], 270)} must be allowed{blocked}", found["control"]["key"])
        )
    return rows


# --- the rest ------------------------------------------------------------------------------------------------------


def _files(found: Mapping[str, Any]) -> list[Line]:
    rows = [
        (f"{safe(one['target'], 300)} {'rw' if one['rw'] else 'ro'} from {safe(one['source'], 300)}", one["key"])
        for one in found["mounts"]
    ]
    return rows or [("nothing of the host; a home that ends with the session", "filesystem.state, repos")]


def _workload(found: Mapping[str, Any]) -> list[Line]:
    limits, seconds = found["limits"], found["limits"]["time"]
    rows = [
        (f"image: {safe(found['image']['name'], 200)}", found["image"]["key"]),
        (f"capabilities: {', '.join(safe(one, 20) for one in found['capabilities']) or 'none'}", "capabilities"),
        (f"environment: {', '.join(safe(name, 60) for name in found['environment'])}", "env"),
        (f"time: {seconds} s" if seconds else "time: no limit", "limits.time"),
    ]
    if found["nested_sandbox"]:
        rows.append(("may create user namespaces", "nested_sandbox"))
    rows += [(f"{safe(name, 40)} {safe(value, 60)}", "limits") for name, value in limits["cgroup"].items()]
    rows += [(f"ulimit {safe(one, 60)}", "limits") for one in limits["ulimits"]]
    return rows + [(_secret(one), "") for one in found["secrets"]]


def _secret(one: Mapping[str, Any]) -> str:
    holders = ", ".join(one["held_by"]) or "nobody"
    return f"secret {safe(one['part'], 20)} ({safe(one['from'], 80)}) is held by {holders}"
