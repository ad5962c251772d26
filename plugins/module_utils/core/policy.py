# SPDX-License-Identifier: BSD-2-Clause
"""Policy as data: what Caddy, LiteLLM and nftables are given, rendered from decided facts alone.

Every function is pure: same arguments, same document. Caddy and nftables both read JSON, and JSON is YAML, so
nothing here formats text. Shapes: Caddy's JSON configuration, libnftables-json(5), LiteLLM's proxy configuration.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .nftables import ACCEPT, DROP, any_of, base_chain, cidr, field, match, meta, rule, table
from .topology import Cable, Topology

Json = Dict[str, Any]

L1_PORT, L2_PORT, L3_PORT, BROKER_PORT = 3128, 4000, 3129, 4000
L1T_PORT = 443  # the port that a client without a proxy asks for
TOKEN_FILE, MASTER_FILE = "/run/secrets/asf-token", "/run/secrets/asf-master"
#: Without a broker: a provider's key that the agent itself holds.
KEY_FILE = "/run/secrets/asf-key"
CONTROL_PATH = "/asf/control"
#: What a session has used. It lies on Caddy's tmpfs, so it outlives the program, which PID 1 starts again.
STATE_FILE = "/tmp/asf-front.json"


class Destination:
    """One declared name: what may be asked for, on which ports, and the manifest key that says so."""

    def __init__(self, name: str, ports: Sequence[int], tls: str, private: Sequence[str], key: str) -> None:
        self.name, self.ports, self.tls, self.private, self.key = name, list(ports), tls, list(private), key

    def as_dict(self) -> Json:
        return {"name": self.name, "ports": self.ports, "tls": self.tls, "private": self.private, "key": self.key}

    @property
    def transparent(self) -> bool:
        """Whether clients without a proxy are served as well: by the server name alone, on the one port."""
        return self.tls == "required" and L1T_PORT in self.ports


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
    session: str,
    listener: str,
    destinations: Sequence[Destination],
    deny: Sequence[str],
    resolver: str,
    chain: Optional[Json],
) -> Json:
    chained = {"chain": chain} if chain else {}
    return {
        **chained,
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


class Front:
    """What the inference front lets through: protocol, models (none: every model), provider-side tools, limits."""

    def __init__(
        self,
        protocol: str,
        models: Sequence[str] = (),
        hosted: Sequence[str] = (),
        limits: Optional[Json] = None,
        provider: str = "",
    ) -> None:
        self.provider = provider
        self.protocol, self.models, self.hosted, self.limits = protocol, list(models), list(hosted), dict(limits or {})


def _inference(session: str, front: Front, upstream: str) -> Json:
    bound = {key: front.limits[key] for key in ("request_bytes",) if key in front.limits}
    counted = {key: value for key, value in front.limits.items() if key not in bound}
    return {
        "handler": "asf_inference",
        "session": session,
        "protocol": front.protocol,
        "provider": front.provider,
        "models": front.models,
        "hosted_tools": front.hosted,
        **bound,
        "limits": counted,
        "state_file": STATE_FILE,
        "token_file": TOKEN_FILE,
        "key_file": MASTER_FILE,
        "max_body": 33554432,
        "control_path": CONTROL_PATH,
        "upstream": upstream,
    }


def caddy(
    session: str,
    topology: Topology,
    destinations: Optional[Sequence[Destination]],
    provider: Sequence[Destination],
    inference: Optional[Front],
    deny: Sequence[str],
    resolver: str,
    chain: Optional[Json] = None,
) -> Json:
    """Caddy's whole configuration: L1 unless ``destinations`` is None, and with a broker (``inference``) L2 and L3.

    L1t decides by L1's own handler, so it names that server and has no list; it is there where a name is for it.
    ``deny`` are CIDRs that no name may resolve to, whatever the manifest allows: the cables' range and the host's
    own addresses. ``chain`` is the operator's proxy, for L1 and L3 alike. Without the admin endpoint and autosave, the
    file is the only way in. Whoever refuses names the whole policy by its id.
    """
    front, exit_ = topology.agent.far, topology.broker.far
    servers: Json = {}
    telling: List[Json] = []
    apps: Json = {"http": {"grace_period": "1s", "servers": servers}}
    if destinations is not None:
        l1 = _connect(session, "L1", destinations, deny, resolver, chain)
        servers["l1"] = _server(session, "L1", f"{front.ip}:{L1_PORT}", l1, 256)
        telling.append(l1)
        if any(d.transparent for d in destinations):
            listen = f"{front.ip}:{L1T_PORT}"
            apps["asf_transparent"] = {"listen": listen, "listener": "L1t", "server": "l1", "max_conns": 256}
    if inference is not None:
        l2 = _inference(session, inference, f"{topology.broker.near.ip}:{BROKER_PORT}")
        l3 = _connect(session, "L3", provider, deny, resolver, chain)
        telling.append(l2)
        servers["l2"] = _server(session, "L2", f"{front.ip}:{L2_PORT}", l2, 256)
        servers["l3"] = _server(session, "L3", f"{exit_.ip}:{L3_PORT}", l3, 256)
    default = {"writer": {"output": "stdout"}, "encoder": {"format": "json"}, "level": "INFO"}
    out = {
        "admin": {"disabled": True, "config": {"persist": False}},
        "logging": {"logs": {"default": default}},
        "apps": apps,
    }
    ident = hashlib.sha256(json.dumps(out, sort_keys=True).encode()).hexdigest()[:16]
    for handler in telling:
        handler["policy_id"] = ident
    return out


def policy_id(config: Json) -> str:
    """The id that Caddy tells with what it refuses; empty where nobody refuses anything."""
    servers = config["apps"]["http"]["servers"]
    return next((servers[name]["routes"][0]["handle"][0]["policy_id"] for name in ("l1", "l2") if name in servers), "")


# --- LiteLLM ---------------------------------------------------------------------------------------------------


def litellm(provider: Optional[str], base_url: Optional[str], mock: bool, keyed: bool = True) -> Json:
    """LiteLLM's proxy configuration. Keys stand in it as ``os.environ/…`` references, never as values.

    ``disable_model_info_refresh`` stops a request with the real key at boot and every 300 s; ``num_retries`` is 0
    because the agent's client retries by itself and a provider's refusal should reach it at once.
    """
    if mock:
        routes = [{"model_name": "*", "litellm_params": {"model": "asfmock/embedded", "api_key": "none"}}]
    else:
        routes = [_route("*", provider or "", base_url, keyed)]  # the front judges models, also after a revision
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

_RESET: Json = {"reject": {"type": "tcp reset"}}
# EHOSTUNREACH for the caller at once: told apart from a closed port (ECONNREFUSED), and nothing waits for a timer.
_PROHIBITED: Json = {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
_ESTABLISHED = match({"ct": {"key": "state"}}, ["established", "related"], "in")


def _foreign(cable: Cable) -> List[Json]:
    """Drop what comes by a cable and is not between its two addresses, whatever connection it claims to belong to.

    A workload with NET_RAW chooses its packets' source: without this an answer in the resolver's or the broker's name
    would count as established, for connection tracking does not ask which link a packet came by.
    """
    here = meta("iifname", cable.far.interface)
    return [
        rule("input", here, field("ip", "saddr", cable.near.ip, "!="), DROP),
        rule("input", here, field("ip", "daddr", cable.far.ip, "!="), DROP),
    ]


def _from_cable(cable: Cable, ports: Sequence[int]) -> List[Json]:
    head = [meta("iifname", cable.far.interface), field("ip", "saddr", cable.near.ip)]
    head.append(field("ip", "daddr", cable.far.ip))
    return [
        rule("input", *head, field("tcp", "dport", any_of(sorted(ports))), ACCEPT),
        rule("input", *head, meta("l4proto", "tcp"), _RESET),  # a denial must be quick, silence means a fault
    ]


class Uplink(NamedTuple):
    """What may leave Caddy by its uplink. ``barred`` are CIDRs there that are the host's own or the user-mode network's
    aliases; ``ports`` the declared TCP ports, or that of the operator's proxy, whose address ``to`` is when known."""

    resolver: str
    barred: Sequence[str]
    ports: Sequence[int]
    to: Optional[str] = None


def nft(topology: Topology, front_ports: Sequence[int], brokered: bool, uplink: Optional[Uplink]) -> List[Json]:
    """Rules of Caddy's network namespace, as a list of table, chain and rule objects in load order.

    ``front_ports`` are those of its end of the agent's cable; ``uplink`` is None where it has no way out. Linux
    accepts packets for any local address on any link (weak host model), so each cable is limited to its own address
    as well as its source; NOARP and /32 peers do the rest.
    """
    agent, broker = topology.agent, topology.broker
    out: List[Json] = [table()]
    for hook in ("input", "forward", "output"):
        out.append(base_chain(hook, hook))
    plugged = [(agent, front_ports), *([(broker, [L3_PORT])] if brokered else [])]
    out += [one for cable, _ in plugged for one in _foreign(cable)]
    out += [rule("input", meta("iifname", "lo"), ACCEPT), rule("input", _ESTABLISHED, ACCEPT)]
    out += [one for cable, ports in plugged for one in _from_cable(cable, ports)]
    out += [rule("output", meta("oifname", "lo"), ACCEPT), rule("output", _ESTABLISHED, ACCEPT)]
    if brokered:
        cable, there = meta("oifname", broker.far.interface), field("ip", "daddr", broker.near.ip)
        out.append(rule("output", cable, there, field("tcp", "dport", BROKER_PORT), ACCEPT))
    return out + (_uplink(meta("oifname", topology.uplink_if), *uplink) if uplink else [])


def _uplink(up: Json, resolver: str, barred: Sequence[str], tcp_out: Sequence[int], to: Optional[str]) -> List[Json]:
    """What may leave by the uplink: the resolver, then nothing of the host's own, then the declared ports."""
    dns = [field("ip", "daddr", resolver), meta("l4proto", any_of(["tcp", "udp"])), field("th", "dport", 53)]
    out = [rule("output", up, *dns, ACCEPT)]
    out.append(rule("output", up, field("ip", "daddr", any_of([cidr(c) for c in barred])), _PROHIBITED))
    if tcp_out:
        there = [field("ip", "daddr", to)] if to else []
        out.append(rule("output", up, *there, field("tcp", "dport", any_of(sorted(set(tcp_out)))), ACCEPT))
    out.append(rule("output", up, _PROHIBITED))
    return out


def hosts(topology: Topology, brokered: bool, destinations: Sequence[Destination]) -> List[Tuple[str, str]]:
    """Entries of the agent's ``/etc/hosts``: pairs of address and name. Declared names lead to L1t."""
    names = (["front"] if brokered else []) + [d.name for d in destinations if d.transparent]
    return [(topology.agent.far.ip, name) for name in dict.fromkeys(names)]
