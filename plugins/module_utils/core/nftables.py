# SPDX-License-Identifier: BSD-2-Clause
"""nftables rulesets as data (libnftables-json(5)): building them, comparing them with a listing, showing them.

Pure. All rules of ASF live in one table, ``inet asf``, in network namespaces that hold no other.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, Optional, Sequence, Tuple

Json = Dict[str, Any]

TABLE = {"family": "inet", "table": "asf"}
ACCEPT: Json = {"accept": None}
DROP: Json = {"drop": None}

# --- building --------------------------------------------------------------------------------------------------


def match(left: Json, right: Any, op: str = "==") -> Json:
    return {"match": {"op": op, "left": left, "right": right}}


def meta(key: str, value: Any, op: str = "==") -> Json:
    return match({"meta": {"key": key}}, value, op)


def ct(key: str, value: Any, op: str = "==") -> Json:
    return match({"ct": {"key": key}}, value, op)


def payload(protocol: str, name: str) -> Json:
    return {"payload": {"protocol": protocol, "field": name}}


def field(protocol: str, name: str, value: Any, op: str = "==") -> Json:
    return match(payload(protocol, name), value, op)


def any_of(values: Sequence[Any]) -> Any:
    """A set, or the bare value when there is one: the form in which the kernel's rules are listed again."""
    return values[0] if len(values) == 1 else {"set": list(values)}


def cidr(text: str) -> Any:
    address, _, length = text.partition("/")
    return {"prefix": {"addr": address, "len": int(length)}} if length and length != "32" else address


def rule(chain: str, *expr: Json) -> Json:
    return {"rule": {**TABLE, "chain": chain, "expr": list(expr)}}


def table() -> Json:
    return {"table": {"family": TABLE["family"], "name": TABLE["table"]}}


def base_chain(name: str, hook: str, prio: int = 0, kind: str = "filter", policy: str = "drop") -> Json:
    return {"chain": {**TABLE, "name": name, "type": kind, "hook": hook, "prio": prio, "policy": policy}}


def chain(name: str) -> Json:
    """A chain that others jump to."""
    return {"chain": {**TABLE, "name": name}}


def counter(name: str) -> Json:
    return {"counter": {**TABLE, "name": name}}


def log_set(name: str, key: Sequence[str], size: int, timeout: int) -> Json:
    """A set that packets write into: at most ``size`` elements, each forgotten after ``timeout`` seconds.

    nft adds the flag "dynamic" by itself for a set that rules write into; 1.0.6 knows no such word in JSON (measured).
    """
    return {"set": {**TABLE, "name": name, "type": list(key), "size": size, "flags": ["timeout"], "timeout": timeout}}


def note(name: str, *key: Json) -> Json:
    """Count the packet in its element of a log set. The first packet makes the element; a full set ends the rule."""
    return {"set": {"op": "add", "elem": {"concat": list(key)}, "set": "@" + name, "stmt": [{"counter": None}]}}


# --- comparing -------------------------------------------------------------------------------------------------


def _interval(item: Any) -> Tuple[int, int]:
    """An element of a set of IPv4 addresses as its first and last address. Raises ValueError for any other element."""
    if isinstance(item, dict) and set(item) == {"range"}:
        first, last = item["range"]
        return int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))
    if isinstance(item, dict) and set(item) == {"prefix"}:
        item = f"{item['prefix']['addr']}/{item['prefix']['len']}"
    if not isinstance(item, str):
        raise ValueError("not an address")
    network = ipaddress.IPv4Network(item)
    return int(network.network_address), int(network.broadcast_address)


def _canonical_set(items: Sequence[Any]) -> Any:
    """Sets in one order. Of addresses, the intervals that they cover: nft lists neighbours as one range (measured)."""
    try:
        found: List[List[int]] = []
        for first, last in sorted(_interval(item) for item in items):
            if found and first <= found[-1][1] + 1:
                found[-1][1] = max(last, found[-1][1])
            else:
                found.append([first, last])
        return {"addresses": ["-".join(str(ipaddress.IPv4Address(end)) for end in pair) for pair in found]}
    except ValueError:
        ordered = sorted((_canonical(v) for v in items), key=repr)
        return ordered[0] if len(ordered) == 1 else {"set": ordered}


def _named(value: Any) -> Any:
    """A bare address or network in the form that a set of it has: nft lists a set of neighbours as one prefix."""
    try:
        _interval(value)
    except ValueError:
        return _canonical(value)
    return _canonical_set([value])


def _canonical_match(body: Json) -> Json:
    left, right = _canonical(body["left"]), _named(body["right"])
    # nft 1.0.6 lists a flag mask as a list, 1.1 as an "or" of its names
    mask = left.get("&", [None, None])[1]
    names = mask.get("|") if isinstance(mask, dict) else mask
    if isinstance(names, list):
        left = {"&": [left["&"][0], sorted(names)]}
    if left == payload("icmp", "code") and right == "net-unreachable":  # what nft 1.0.6 calls 0, whatever the type is
        right = 0
    return {"match": {"op": body["op"], "left": left, "right": right}}


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"set"} and isinstance(value["set"], list):
            return _canonical_set(value["set"])
        if set(value) == {"match"}:
            return _canonical_match(value["match"])
        return {k: _canonical(v) for k, v in value.items() if k not in ("handle", "index", "comment")}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return value


def _without_contents(item: Json) -> Json:
    """Named counters without their values; log sets without elements and without "dynamic", which 1.0.6 lists not."""
    if "counter" in item:
        return {"counter": {k: v for k, v in item["counter"].items() if k not in ("packets", "bytes", "handle")}}
    found = item.get("set", {})
    if "timeout" in found.get("flags", []):
        flags = sorted(flag for flag in found["flags"] if flag != "dynamic")
        return {"set": {**{k: v for k, v in found.items() if k not in ("elem", "handle")}, "flags": flags}}
    return item


def canonical(objects: Sequence[Json]) -> List[Json]:
    """A ruleset without what the kernel adds (handles, metainfo, counts) and with sets in one order, to be compared."""
    kept = [_canonical(_without_contents(o)) for o in objects if "metainfo" not in o]
    tables = [o for o in kept if "table" in o]
    chains = sorted((o for o in kept if "chain" in o), key=lambda o: str(o["chain"]["name"]))
    rules = [o for o in kept if "rule" in o]
    order = {c["chain"]["name"]: i for i, c in enumerate(chains)}
    rules.sort(key=lambda o: order.get(o["rule"]["chain"], 99))  # stable: order inside a chain is kept
    others = sorted((o for o in kept if not {"table", "chain", "rule"} & set(o)), key=repr)
    return tables + chains + rules + others


# --- showing ---------------------------------------------------------------------------------------------------


def as_text(objects: Sequence[Json]) -> str:
    """The ruleset as lines for people (``--diff``, reports): one rule a line, in load order, below its chain."""
    lines = []
    for item in objects:
        if "chain" in item:
            body = item["chain"]
            kind = f"policy {body['policy']}" if "hook" in body else ""
            place = f" {body['hook']} {body['prio']}" if body.get("hook", body["name"]) != body["name"] else ""
            lines.append(f"chain {body['name']}{place} {kind}".rstrip())
            lines += ["  " + _rule_text(o["rule"]) for o in objects if o.get("rule", {}).get("chain") == body["name"]]
        elif "counter" in item:
            lines.append(f"counter {item['counter']['name']}")
        elif "set" in item:
            body = item["set"]
            lines.append(
                f"set {body['name']} {' . '.join(body['type'])} size {body['size']} timeout {body['timeout']}s"
            )
    return "\n".join(lines) + "\n"


def _rule_text(body: Json) -> str:
    return " ".join(_expr_text(e) for e in body["expr"])


def _expr_text(expr: Json) -> str:
    name, body = next(iter(expr.items()))
    if name == "match":
        op = "" if body["op"] in ("==", "in") else body["op"] + " "
        return f"{_left_text(body['left'])} {op}{_value_text(body['right'])}"
    if name == "reject":
        return "reject with " + " ".join(str(v) for v in body.values())
    return _statement_text(name, body) or name


def _statement_text(name: str, body: Any) -> Optional[str]:
    if name in ("goto", "jump"):
        return f"{name} {body['target']}"
    if name == "counter" and isinstance(body, str):
        return f"counter {body}"
    if name == "counter" and body:
        pairs = ", ".join(f"{key} : {value}" for key, value in body["map"]["data"]["set"])
        return f"counter {_left_text(body['map']['key'])} map {{ {pairs} }}"
    if name == "mangle":
        return f"{_left_text(body['key'])} set {body['value']}"
    if name == "ct count":
        return f"ct count {'over ' if body.get('inv') else ''}{body['val']}"
    if name == "set":
        return f"{body['op']} {body['set']} {{ {' . '.join(map(_left_text, body['elem']['concat']))} }}"
    return None


def _left_text(left: Json) -> str:
    if "&" in left:
        inner, mask = left["&"]
        return f"{_left_text(inner)} & {hex(mask) if isinstance(mask, int) else '|'.join(mask)}"
    if "ct" in left:
        return f"ct {left['ct']['key']}"
    return left.get("meta", {}).get("key") or "{protocol} {field}".format(**left["payload"])


def _value_text(value: Any) -> str:
    if isinstance(value, dict) and "set" in value:
        return "{ " + ", ".join(_value_text(v) for v in value["set"]) + " }"
    if isinstance(value, dict) and "prefix" in value:
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
