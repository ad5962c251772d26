# SPDX-License-Identifier: BSD-2-Clause
"""The network part of a plan: ranges, destinations, listeners, rules, wires."""

from __future__ import annotations

from typing import List, Optional, Tuple

from . import containers, gateway, policy, roles, routed, upstream
from .errors import HostError, PlanError
from .plan_draft import Draft, Json
from .topology import Cable, overlaps, uplink_range

#: Data that the process of an uplink may hold, in bytes: twice what slirp4netns needs for all flows that the gateway's
#: rules let be (docs/routed.md). It is the host's memory, in no control group of the session.
UPLINK_MEMORY = 512 << 20

# --- ranges ----------------------------------------------------------------------------------------------------


def check(draft: Draft) -> None:
    """Refuse ranges that meet each other, the host's own, or a declared one, and a host that has no way out where one
    is needed. Raises PlanError and HostError."""
    s = draft.settings
    _check_way_out(draft)
    uplink_range(s.uplink_range)
    if overlaps(s.cable_range, [s.uplink_range]):
        raise PlanError(
            "the cables' range and the uplink's range overlap",
            key="asf_session_uplink_range",
            found=s.uplink_range,
            remedy=f"choose one outside {s.cable_range}",
        )
    _check_host(draft)
    _check_proxy(draft)
    if draft.mode == roles.ROUTED:
        ranges = [(s.cable_range, "asf_session_cable_range"), (s.uplink_range, "asf_session_uplink_range")]
        routed.check(draft.manifest, ranges, draft.host.addresses, draft.host.icmp)
    declared = [(d.key, c) for d in destinations(draft) + provider(draft) for c in d.private]
    for key, cidr in declared:
        if overlaps(s.cable_range, [cidr]):
            raise PlanError(
                "a declared range covers the cables' own",
                key=key,
                found=cidr,
                remedy=f"narrow it so that it does not meet {s.cable_range}",
            )


def _check_way_out(draft: Draft) -> None:
    leaving = uplinks(draft)
    if roles.CADDY in leaving and not draft.host.resolver:
        raise HostError(
            "no resolver that Caddy could ask: the host's own are on loopback or IPv6",
            file="/etc/resolv.conf",
            key="resolver",
            remedy="set `resolver` in config.yml to an IPv4 address that is reachable from this host",
        )
    if leaving and not draft.host.uplink_helper:
        raise HostError(
            "neither slirp4netns nor pasta is there", remedy="install one of them; `asf-play doctor` says which"
        )


def _check_proxy(draft: Draft) -> None:
    """What is said of the operator's proxy, and refused. Raises PlanError."""
    there, proxy = draft.settings.upstream, chain(draft)
    if there is not None and there.key == upstream.MANIFEST_KEY and roles.CADDY not in draft.roles:
        raise PlanError(
            "a proxy is named, and nothing of this session could use it",
            key=there.key,
            found=there.url,
            remedy=f"remove the key: in {draft.mode} mode only a broker's traffic goes through it",
        )
    if proxy is None:
        return
    s = draft.settings
    upstream.check(proxy, s.cable_range, s.uplink_range, draft.host.addresses)
    draft.warnings.append(proxy.notice())
    for one in destinations(draft) + provider(draft):
        if one.private:
            key = "llm.private" if one.key.startswith("llm.") else f"{one.key}.private"
            draft.warnings.append(f"{key} has no effect: the proxy {proxy.url} resolves {one.name}")


def chain(draft: Draft) -> Optional[upstream.Proxy]:
    """The operator's proxy, where Caddy has a way out; else None."""
    return draft.settings.upstream if roles.CADDY in uplinks(draft) else None


def _check_host(draft: Draft) -> None:
    s, h = draft.settings, draft.host
    used = [*h.addresses, *h.routes, *([h.resolver] if h.resolver else [])]
    for key, value in (("asf_session_cable_range", s.cable_range), ("asf_session_uplink_range", s.uplink_range)):
        hits = overlaps(value, used)
        if hits:
            raise PlanError(
                f"the host uses addresses of the range {value} itself",
                key=key,
                found=", ".join(hits),
                remedy="set it in the inventory to a /24 of a special-purpose range that this host does not use",
            )


# --- who is reached --------------------------------------------------------------------------------------------


def destinations(draft: Draft) -> List[policy.Destination]:
    """L1's whole list; empty in a mode without L1."""
    if draft.mode != roles.PROXY:
        return []
    return [policy.Destination(d.name, d.ports, d.tls, d.private, d.key) for d in draft.manifest.effective_domains()]


def transparent(draft: Draft) -> List[str]:
    """Declared names that clients without a proxy reach as well, through L1t."""
    return [d.name for d in destinations(draft) if d.transparent]


def provider(draft: Draft) -> List[policy.Destination]:
    """L3's whole list: the provider's host; nothing with the embedded model."""
    llm = draft.manifest.llm
    if not draft.brokered or llm is None or llm.mock is not None:
        return []
    host, port = llm.upstream_host, llm.upstream_port
    return [
        policy.Destination(
            host, [port], "required", llm.private, "llm.base_url" if llm.base_url else "llm.direct_domain"
        )
    ]


def tuples(draft: Draft) -> List[Json]:
    """The declared IPv4 tuples: ``{cidr, protocol, ports, key}``; ``ports`` is a list or ``"any"``."""
    return routed.tuples(draft.manifest)


def uplinks(draft: Draft) -> List[str]:
    """Roles that have a private way out. Without L1, Caddy has one for the provider alone, and none without one."""
    there = {roles.CADDY: draft.mode == roles.PROXY or bool(provider(draft)), roles.GATEWAY: True}
    return [role for role in draft.roles if there.get(role)]


def aliases(draft: Draft) -> List[Json]:
    """Addresses behind Caddy's uplink that stand for the host; each must be rejected there (N8)."""
    if roles.CADDY not in uplinks(draft):
        return []
    base = draft.uplink_base
    own = [a for a in draft.host.addresses if ":" not in a]
    targets = [(f"{base}.2", 443), (f"{base}.3", 53), (f"{base}.3", 443), ("169.254.1.2", 443), ("169.254.1.1", 53)]
    targets += [(a, port) for a in own for port in (443, 22)]
    if (draft.host.resolver, 53) in targets:
        targets.remove((draft.host.resolver, 53))
    return [{"address": a, "port": p} for a, p in targets]


def denied(draft: Draft) -> List[str]:
    """What no name may resolve to, whatever a manifest allows: the cables, the uplink's aliases, the host itself."""
    # IPv6 is off in Caddy's namespace, and the host's change by themselves (RFC 8981): they would change the plan.
    own = [f"{a}/32" for a in sorted(draft.host.addresses) if ":" not in a]
    return [draft.settings.cable_range, draft.settings.uplink_range, *own]


def protocol(draft: Draft) -> Optional[str]:
    """The front's protocol; None without a broker."""
    return draft.manifest.llm.protocol if draft.brokered and draft.manifest.llm else None


def front(draft: Draft) -> Optional[policy.Front]:
    """What the inference front lets through; None without a broker."""
    llm = draft.manifest.llm
    if not draft.brokered or llm is None or llm.protocol is None:
        return None
    return policy.Front(
        llm.protocol, llm.models, llm.hosted_tools, dict(llm.limits), "" if llm.mock is not None else llm.provider or ""
    )


# --- listeners, rules, wires -----------------------------------------------------------------------------------


def listeners(draft: Draft) -> List[Json]:
    """Where Caddy listens: ``{role, name, address}``; what is on the agent's cable opens its port there."""
    t, out = draft.topology, []
    if draft.mode == roles.PROXY:
        out.append(("L1", f"{t.agent.far.ip}:{policy.L1_PORT}"))
    if transparent(draft):
        out.append(("L1t", f"{t.agent.far.ip}:{policy.L1T_PORT}"))
    if draft.brokered:
        out += [("L2", f"{t.agent.far.ip}:{policy.L2_PORT}"), ("L3", f"{t.broker.far.ip}:{policy.L3_PORT}")]
    return [{"role": roles.CADDY, "name": name, "address": address} for name, address in out]


def hosts(draft: Draft) -> List[Tuple[str, str]]:
    """Names that the agent's ``/etc/hosts`` gets: pairs of address and name."""
    return policy.hosts(draft.topology, draft.brokered, destinations(draft))


def served(draft: Draft) -> List[str]:
    """``address:port`` of the listeners at Caddy's end of the agent's cable."""
    ip = draft.topology.agent.far.ip
    return [one["address"] for one in listeners(draft) if one["address"].rpartition(":")[0] == ip]


def _barred(draft: Draft) -> List[str]:
    own = [a for a in draft.host.addresses if ":" not in a]
    return [draft.settings.uplink_range, "169.254.0.0/16", *sorted(own)]


def _nft(draft: Draft) -> List[Json]:
    rules = {roles.CADDY: _caddy_rules, roles.GATEWAY: _gateway_rules}
    return [{"role": role, "rules": rules[role](draft)} for role in draft.roles if role in rules]


def _gateway_rules(draft: Draft) -> List[Json]:
    own = [draft.settings.cable_range, draft.settings.uplink_range, *(f"{a}/32" for a in draft.own_addresses)]
    t, uplink_ip = draft.topology, f"{draft.uplink_base}.{containers.UPLINK_HOST}"
    return gateway.rules(t.gateway, t.uplink_if, uplink_ip, own, tuples(draft), verify(draft))


def _caddy_rules(draft: Draft) -> List[Json]:
    out = None
    if roles.CADDY in uplinks(draft):
        ports = [p for d in destinations(draft) + provider(draft) for p in d.ports]
        proxy = chain(draft)
        to = None
        if proxy is not None:  # then nothing else leaves, whatever was declared
            ports, to = [proxy.port], proxy.host if proxy.literal else None
        out = policy.Uplink(draft.host.resolver, _barred(draft), ports, to)
    front = [int(address.rpartition(":")[2]) for address in served(draft)]
    return policy.nft(draft.topology, front, draft.brokered, out)


def cables(draft: Draft) -> List[Cable]:
    """The cables that exist: each joins two containers of the session."""
    t = draft.topology
    return [c for c in (t.agent, t.broker, t.gateway) if {c.near.role, c.far.role} <= set(draft.roles)]


def _static_routes(draft: Draft) -> List[Json]:
    """The agent's way to what is declared, through the gateway; nothing else has a route, and there is no default."""
    cable = draft.topology.gateway
    if roles.GATEWAY not in draft.roles:
        return []
    to = routed.routes(draft.manifest)
    return [{"role": roles.AGENT, "interface": cable.near.interface, "via": cable.far.ip, "to": to}]


def verify(draft: Draft) -> Optional[Json]:
    """``network.verify``: one port that is allowed and one that is not, of one host; None in other modes."""
    return routed.control(draft.manifest) if draft.mode == roles.ROUTED else None


def wiring(draft: Draft) -> Json:
    """Everything that is put into namespaces from outside; ``forward`` are roles whose ``ip_forward`` is 1."""
    return {
        "cables": [c.as_dict() for c in cables(draft)],
        "nft": _nft(draft),
        "uplinks": [
            {"role": role, "interface": draft.topology.uplink_if, "memory": UPLINK_MEMORY} for role in uplinks(draft)
        ],
        "routes": _static_routes(draft),
        "forward": [role for role in draft.roles if role == roles.GATEWAY],
    }


def network(draft: Draft) -> Json:
    """What is declared, and what of the host it rests on."""
    proxy = chain(draft)
    return {
        "mode": draft.mode,
        "resolver": draft.host.resolver,
        "aliases": aliases(draft),
        "uplink": {"helper": draft.host.uplink_helper, "range": draft.settings.uplink_range},
        "hosts": [list(h) for h in hosts(draft)],
        "domains": [x.as_dict() for x in destinations(draft)],
        "tuples": tuples(draft),
        "upstream_proxy": proxy.as_dict() if proxy else None,
        "verify": verify(draft),
    }
