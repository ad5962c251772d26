# SPDX-License-Identifier: BSD-2-Clause
"""Policy as data: what Caddy, LiteLLM and nftables are given, rendered from decided facts alone.

Every function is pure: same arguments, same document. Caddy and nftables both read JSON, and JSON is YAML, so
nothing here formats text. Shapes: Caddy's JSON configuration, libnftables-json(5), LiteLLM's proxy configuration.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .topology import Topology

Json = Dict[str, Any]

L1_PORT, L2_PORT, L3_PORT, BROKER_PORT = 3128, 4000, 3129, 4000
TOKEN_FILE, MASTER_FILE = "/run/secrets/asf-token", "/run/secrets/asf-master"
CONTROL_PATH = "/asf/control"


class Destination:
    """One declared name: what may be asked for, on which ports, and the manifest key that says so."""

    def __init__(self, name: str, ports: Sequence[int], tls: str, private: Sequence[str], key: str) -> None:
        self.name, self.ports, self.tls, self.private, self.key = name, list(ports), tls, list(private), key

    def as_dict(self) -> Json:
        return {"name": self.name, "ports": self.ports, "tls": self.tls, "private": self.private, "key": self.key}


# --- Caddy -----------------------------------------------------------------------------------------------------


def _server(session: str, listener: str, address: str, handler: Json, max_conns: int) -> Json:
    """One listener. Caddy refuses some requests by itself, through the error routes: those look and log like ours."""
    refuse = {"handler": "asf_refuse", "session": session, "listener": listener}
    if "protocol" in handler:
        refuse["protocol"] = handler["protocol"]
    return {
        "listen": [address],
        "protocols": ["h1"],
        "automatic_https": {"disable": True},
        "max_header_bytes": 16384,
        "read_header_timeout": "5s",
        "listener_wrappers": [
            {"wrapper": "asf_guard", "session": session, "listener": listener, "max_conns": max_conns}
        ],
        "routes": [{"handle": [handler]}],
        "errors": {"routes": [{"handle": [refuse]}]},
    }


def _connect(
    session: str, listener: str, destinations: Sequence[Destination], deny: Sequence[str], resolver: str
) -> Json:
    return {
        "handler": "asf_connect",
        "session": session,
        "listener": listener,
        "policy": [d.as_dict() for d in destinations],
        "deny_cidrs": list(deny),
        "resolver": resolver,
        "max_tunnels": 64,
        "idle_timeout": "5m",
        "dial_timeout": "10s",
        "dns_timeout": "5s",
        "hello_timeout": "10s",
    }


def _inference(session: str, protocol: str, upstream: str) -> Json:
    return {
        "handler": "asf_inference",
        "session": session,
        "protocol": protocol,
        "token_file": TOKEN_FILE,
        "key_file": MASTER_FILE,
        "max_body": 33554432,
        "control_path": CONTROL_PATH,
        "upstream": upstream,
    }


def caddy(
    session: str,
    topology: Topology,
    destinations: Sequence[Destination],
    provider: Sequence[Destination],
    protocol: Optional[str],
    deny: Sequence[str],
    resolver: str,
) -> Json:
    """Caddy's whole configuration: L1, and with a broker (``protocol`` is set) L2 and L3.

    ``deny`` are CIDRs that no name may resolve to, whatever the manifest allows: the cables' range and the host's
    own addresses. Without the admin endpoint and autosave, the file is the only way in.
    """
    front, exit_ = topology.agent.far, topology.broker.far
    l1 = _connect(session, "L1", destinations, deny, resolver)
    servers = {"l1": _server(session, "L1", f"{front.ip}:{L1_PORT}", l1, 256)}
    if protocol is not None:
        l2 = _inference(session, protocol, f"{topology.broker.near.ip}:{BROKER_PORT}")
        l3 = _connect(session, "L3", provider, deny, resolver)
        servers["l2"] = _server(session, "L2", f"{front.ip}:{L2_PORT}", l2, 256)
        servers["l3"] = _server(session, "L3", f"{exit_.ip}:{L3_PORT}", l3, 256)
    return {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {
            "logs": {
                "default": {"writer": {"output": "stdout"}, "encoder": {"format": "json"}, "level": "INFO"},
            }
        },
        "apps": {"http": {"grace_period": "1s", "servers": servers}},
    }


# --- LiteLLM ---------------------------------------------------------------------------------------------------


def litellm(
    provider: Optional[str], models: Sequence[str], base_url: Optional[str], mock: bool, keyed: bool = True
) -> Json:
    """LiteLLM's proxy configuration. Keys stand in it as ``os.environ/…`` references, never as values.

    ``disable_model_info_refresh`` stops a request with the real key at boot and every 300 s; ``num_retries`` is 0
    because the agent's client retries by itself and a provider's refusal should reach it at once.
    """
    if mock:
        routes = [{"model_name": "*", "litellm_params": {"model": "asfmock/embedded", "api_key": "none"}}]
    else:
        routes = [_route(name, provider or "", base_url, keyed) for name in (models or ["*"])]
    settings: Json = {"telemetry": False, "drop_params": True, "num_retries": 0, "request_timeout": 600}
    if mock:
        settings["custom_provider_map"] = [{"provider": "asfmock", "custom_handler": "asf_mock.model"}]
    return {
        "model_list": routes,
        "general_settings": {
            "master_key": "os.environ/LITELLM_MASTER_KEY",
            "disable_model_info_refresh": True,
            "disable_spend_logs": True,
        },
        "litellm_settings": settings,
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }


def _route(name: str, provider: str, base_url: Optional[str], keyed: bool) -> Json:
    params: Json = {"model": f"{provider}/{name}", "api_key": "os.environ/ASF_PROVIDER_KEY" if keyed else "none"}
    if base_url:
        params["api_base"] = base_url
    return {"model_name": name, "litellm_params": params}


# --- nftables --------------------------------------------------------------------------------------------------

_TABLE = {"family": "inet", "table": "asf"}


def _match(left: Json, right: Any, op: str = "==") -> Json:
    return {"match": {"op": op, "left": left, "right": right}}


def _meta(key: str, value: Any) -> Json:
    return _match({"meta": {"key": key}}, value)


def _field(protocol: str, field: str, value: Any) -> Json:
    return _match({"payload": {"protocol": protocol, "field": field}}, value)


def _any_of(values: Sequence[Any]) -> Any:
    """A set, or the bare value when there is one: the form in which the kernel's rules are listed again."""
    return values[0] if len(values) == 1 else {"set": list(values)}


def _cidr(text: str) -> Any:
    address, _, length = text.partition("/")
    return {"prefix": {"addr": address, "len": int(length)}} if length and length != "32" else address


def _rule(chain: str, *expr: Json) -> Json:
    return {"rule": {**_TABLE, "chain": chain, "expr": list(expr)}}


_ACCEPT: Json = {"accept": None}
_RESET: Json = {"reject": {"type": "tcp reset"}}
# EHOSTUNREACH for the caller at once: told apart from a closed port (ECONNREFUSED), and nothing waits for a timer.
_PROHIBITED: Json = {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
_ESTABLISHED = _match({"ct": {"key": "state"}}, ["established", "related"], "in")


def _from_cable(cable_if: str, source: str, own: str, ports: Sequence[int]) -> List[Json]:
    head = [_meta("iifname", cable_if), _field("ip", "saddr", source), _field("ip", "daddr", own)]
    return [
        _rule("input", *head, _field("tcp", "dport", _any_of(sorted(ports))), _ACCEPT),
        _rule("input", *head, _meta("l4proto", "tcp"), _RESET),  # a denial must be quick, silence means a fault
    ]


def nft(topology: Topology, brokered: bool, resolver: str, barred: Sequence[str], tcp_out: Sequence[int]) -> List[Json]:
    """Rules of Caddy's network namespace, as a list of table, chain and rule objects in load order.

    ``barred`` are CIDRs behind the uplink that are the host's own or the user-mode network's aliases; ``tcp_out``
    the declared ports. Linux accepts packets for any local address on any link (weak host model), so each cable is
    limited to its own address as well as its source; NOARP and /32 peers do the rest.
    """
    agent, broker = topology.agent, topology.broker
    out: List[Json] = [{"table": {"family": "inet", "name": "asf"}}]
    for hook in ("input", "forward", "output"):
        out.append({"chain": {**_TABLE, "name": hook, "type": "filter", "hook": hook, "prio": 0, "policy": "drop"}})
    out += [_rule("input", _meta("iifname", "lo"), _ACCEPT), _rule("input", _ESTABLISHED, _ACCEPT)]
    front_ports = [L1_PORT, L2_PORT] if brokered else [L1_PORT]
    out += _from_cable(agent.far.interface, agent.near.ip, agent.far.ip, front_ports)
    if brokered:
        out += _from_cable(broker.far.interface, broker.near.ip, broker.far.ip, [L3_PORT])
    out += [_rule("output", _meta("oifname", "lo"), _ACCEPT), _rule("output", _ESTABLISHED, _ACCEPT)]
    if brokered:
        cable, there = _meta("oifname", broker.far.interface), _field("ip", "daddr", broker.near.ip)
        out.append(_rule("output", cable, there, _field("tcp", "dport", BROKER_PORT), _ACCEPT))
    return out + _uplink(_meta("oifname", topology.uplink_if), resolver, barred, tcp_out)


def _uplink(up: Json, resolver: str, barred: Sequence[str], tcp_out: Sequence[int]) -> List[Json]:
    """What may leave by the uplink: the resolver, then nothing of the host's own, then the declared ports."""
    dns = [_field("ip", "daddr", resolver), _meta("l4proto", _any_of(["tcp", "udp"])), _field("th", "dport", 53)]
    out = [_rule("output", up, *dns, _ACCEPT)]
    out.append(_rule("output", up, _field("ip", "daddr", _any_of([_cidr(c) for c in barred])), _PROHIBITED))
    if tcp_out:
        out.append(_rule("output", up, _field("tcp", "dport", _any_of(sorted(set(tcp_out)))), _ACCEPT))
    out.append(_rule("output", up, _PROHIBITED))
    return out


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


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"set"} and isinstance(value["set"], list):
            return _canonical_set(value["set"])
        return {k: _canonical(v) for k, v in value.items() if k not in ("handle", "index", "comment")}
    if isinstance(value, list):
        return [_canonical(v) for v in value]
    return value


def canonical_nft(objects: Sequence[Json]) -> List[Json]:
    """A ruleset without what the kernel adds (handles, metainfo) and with sets in one order, to be compared."""
    kept = [_canonical(o) for o in objects if "metainfo" not in o]
    tables = [o for o in kept if "table" in o]
    chains = sorted((o for o in kept if "chain" in o), key=lambda o: str(o["chain"]["name"]))
    rules = [o for o in kept if "rule" in o]
    order = {c["chain"]["name"]: i for i, c in enumerate(chains)}
    rules.sort(key=lambda o: order.get(o["rule"]["chain"], 99))  # stable: order inside a chain is kept
    others = [o for o in kept if not {"table", "chain", "rule"} & set(o)]
    return tables + chains + rules + others


def hosts(topology: Topology, brokered: bool) -> List[Tuple[str, str]]:
    """Entries of the agent's ``/etc/hosts``: pairs of address and name."""
    return [(topology.agent.far.ip, "front")] if brokered else []


def as_text(objects: Sequence[Json]) -> str:
    """The ruleset as lines for people (``--diff``, reports): one rule a line, in load order."""
    lines = []
    for item in objects:
        if "chain" in item:
            lines.append(f"chain {item['chain']['name']} policy {item['chain']['policy']}")
        elif "rule" in item:
            lines.append("  " + " ".join(_expr_text(e) for e in item["rule"]["expr"]))
    return "\n".join(lines) + "\n"


def _expr_text(expr: Json) -> str:
    if "match" in expr:
        match = expr["match"]
        left = match["left"]
        word = left.get("meta", left.get("ct", {})).get("key") or "{protocol} {field}".format(**left.get("payload", {}))
        return f"{word} {_value_text(match['right'])}"
    if "reject" in expr:
        return "reject with " + " ".join(str(v) for v in expr["reject"].values())
    return next(iter(expr))


def _value_text(value: Any) -> str:
    if isinstance(value, dict) and "set" in value:
        return "{ " + ", ".join(_value_text(v) for v in value["set"]) + " }"
    if isinstance(value, dict) and "prefix" in value:
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
