# SPDX-License-Identifier: BSD-2-Clause
"""What must hold between the keys of a manifest, beyond the form of each one.

Every rule sees data from which wrong parts are missing, and adds problems; none stops the others.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import product
from typing import Any
from urllib.parse import urlsplit

from . import formats as form
from .providers import DOMAINS, PROTOCOLS, key_variable
from .schema import Checked

Data = Mapping[str, Any]


def run_rules(out: Checked) -> None:
    """Apply every rule to a checked manifest."""
    data = out.data
    _state_targets(out, data["filesystem"].get("state", ()))
    _domains(out, data)
    _llm(out, data)
    _env(out, data)
    _routed(out, data["network"])
    _proxy(out, data)
    _packages(out, data.get("packages") or {})


def provider_host(llm: Data, with_base_url: bool = True) -> str | None:
    """The host behind the broker: of ``base_url``, else ``direct_domain``, else what the provider is known for."""
    if with_base_url and llm.get("base_url"):
        return urlsplit(llm["base_url"]).hostname
    return llm.get("direct_domain") or DOMAINS.get(llm.get("provider") or "")


def dropped_domains(*hosts: str | None) -> frozenset[str]:
    """The names that brokering takes from the agent's list."""
    return frozenset(host for host in hosts if host)


def _brokered(data: Data) -> bool:
    return bool("llm" in data and data["llm"].get("broker"))


# --- files -----------------------------------------------------------------------------------------------------


def _state_targets(out: Checked, state: Any) -> None:
    keys: dict[str, int] = {}
    targets: list[tuple[str, int]] = []
    for index, entry in enumerate(state):
        path = f"filesystem.state[{index}]"
        key, target = entry.get("key"), entry.get("target")
        if key in keys:
            out.at(f"{path}.key", f"the same key as filesystem.state[{keys[key]}]", found=key, remedy="choose another")
        elif key is not None:
            keys[key] = index
        for other, number in targets if target else ():
            if target == other or target.startswith(other + "/") or other.startswith(target + "/"):
                relation = "equal to" if target == other else "inside" if target.startswith(other + "/") else "above"
                message = f"the target is {relation} that of filesystem.state[{number}]"
                out.at(f"{path}.target", message, found=target, remedy=f"choose a place apart from {other}")
                break
        if target:
            targets.append((target, index))


def _packages(out: Checked, packages: Data) -> None:
    if packages.get("npm_scripts") and "npm" not in packages and not out.wrong("packages.npm"):
        remedy = "name the package-lock.json in packages.npm, or remove the key"
        out.at("packages.npm_scripts", "no npm packages are named", remedy=remedy)


# --- network ---------------------------------------------------------------------------------------------------


def _name(entry: Any) -> str | None:
    return entry if isinstance(entry, str) else entry.get("name")


def _domains(out: Checked, data: Data) -> None:
    network = data["network"]
    first: dict[str, int] = {}
    for index, entry in enumerate(network["allow_domains"]):
        name = _name(entry)
        if name in first and not (isinstance(entry, str) and network["allow_domains"][first[name]] == entry):
            message = f"the host is declared twice (also network.allow_domains[{first[name]}])"
            out.at(f"network.allow_domains[{index}]", message, found=name, remedy="keep one entry with all its ports")
        elif name is not None:
            first.setdefault(name, index)
    if network.get("mode", "proxy") == "proxy":
        _control(out, data, set(first))


def _control(out: Checked, data: Data, names: set[str]) -> None:
    """A denial counts only beside an allow control (invariant 3): proxy mode needs something that is allowed."""
    network, llm = data["network"], data.get("llm", {})
    brokered = _brokered(data)
    dropped = dropped_domains(provider_host(llm, False), provider_host(llm)) if brokered else frozenset()
    wanted = network.get("verify_domain")
    if wanted is not None and wanted not in names and not out.wrong("network.allow_domains"):
        near = get_close_matches(wanted, sorted(names), 1, 0.6)
        remedy = f"did you mean {near[0]}?" if near else "add it to network.allow_domains, or name another"
        out.at("network.verify_domain", "the name is not in network.allow_domains", found=wanted, remedy=remedy)
    elif wanted is not None and wanted in dropped:
        message = "the provider's host is dropped from the agent's list while brokered, so it cannot be the control"
        out.at("network.verify_domain", message, found=wanted, remedy="remove the key: the front is the control")
    # A list whose entries were all wrong is not empty: its own problems were reported.
    given = any(mark.startswith("network.allow_domains[") for mark in out.marks)
    if not given and not brokered and not out.wrong("llm") and not out.wrong("network"):
        out.at(
            "network.allow_domains",
            "nothing is allowed, so there is no positive control that could show the policy works",
            remedy="declare a host, add a brokered llm section, or set network.mode to isolated",
        )


def _routed(out: Checked, network: Data) -> None:
    if network.get("mode") != "routed":
        return
    if "network.allow" in out.marks and not any(mark.startswith("network.allow[") for mark in out.marks):
        out.at("network.allow", "nothing is allowed", remedy="declare a destination")
    _overlaps(out, network["allow"])
    verify = network.get("verify") or {}
    if {"address", "port", "blocked_port"} <= set(verify):
        _verify_tuple(out, network["allow"], verify)


def _whole(row: Data) -> bool:
    """Whether the parts of a rule that say which packets it allows were all right."""
    return {"cidr", "protocol"} <= set(row) and (row["protocol"] == "icmp_echo" or "ports" in row)


def _meet(one: Data, other: Data) -> bool:
    """Whether two rules have a packet in common."""
    if one["protocol"] != other["protocol"]:
        return False
    pairs = product(form.destinations(one["cidr"]), form.destinations(other["cidr"]))
    if not any(mine.overlaps(yours) for mine, yours in pairs):
        return False
    ports = [one.get("ports"), other.get("ports")]
    return one["protocol"] == "icmp_echo" or "any" in ports or bool(set(ports[0] or ()) & set(ports[1] or ()))


def _overlaps(out: Checked, rows: Sequence[Data]) -> None:
    """Two rules that allow the same packet: which of their counters it belongs to would depend on their order."""
    if len(rows) != sum(re.fullmatch(r"network\.allow\[\d+\]", mark) is not None for mark in out.marks):
        return  # one is listed twice, which was said; the others have moved
    whole = [(index, row) for index, row in enumerate(rows) if _whole(row)]
    for place, (index, row) in enumerate(whole):
        hit = next((number for number, other in whole[:place] if _meet(row, other)), None)
        if hit is not None:
            message = f"the entry overlaps network.allow[{hit}] ({rows[hit]['cidr']}, {row['protocol']})"
            remedy = "join the two, or give each its own addresses or ports"
            out.at(f"network.allow[{index}]", message, found=row["cidr"], remedy=remedy)


def _verify_tuple(out: Checked, rows: Sequence[Data], verify: Data) -> None:
    """Both controls: one port that the rules allow, another of the same host that they do not."""
    address, port, blocked = ipaddress.IPv4Address(verify["address"]), verify["port"], verify["blocked_port"]
    tcp = [row for row in rows if _whole(row) and row["protocol"] == "tcp"]
    covering = [row["ports"] for row in tcp if any(address in net for net in form.destinations(row["cidr"]))]
    another = "name a port that is open on the host and not allowed"
    if port == blocked:
        message = "the blocked port is the allowed one"
        out.at("network.verify.blocked_port", message, found=str(blocked), remedy=another)
        return
    if not any(ports == "any" or port in ports for ports in covering):
        message = "no entry of network.allow covers the control"
        out.at("network.verify.port", message, found=f"{address}:{port}", remedy="allow it")
    if any(ports == "any" or blocked in ports for ports in covering):
        message, found = "network.allow covers it", f"{address}:{blocked}"
        remedy = "list the ports: with `any` no port is left to be blocked" if "any" in covering else another
        out.at("network.verify.blocked_port", message, found=found, remedy=remedy)


def _proxy(out: Checked, data: Data) -> None:
    """The proxy's credentials are read from the secrets files, never from the URL."""
    secret = (data["network"].get("upstream_proxy") or {}).get("secret")
    if secret and not data["secrets"]["files"] and not out.wrong("secrets"):
        remedy = f"name a secrets file that sets {secret}=user:password, or remove network.upstream_proxy.secret"
        out.at("network.upstream_proxy.secret", "no secrets file is named", found=secret, remedy=remedy)


# --- llm -------------------------------------------------------------------------------------------------------


def _llm(out: Checked, data: Data) -> None:
    if not _brokered(data) or out.wrong("llm.broker"):
        return
    llm, adapter = data["llm"], data.get("adapter")
    spoken = PROTOCOLS.get(adapter or "")
    protocol = llm.get("protocol")
    if protocol is None and spoken is None and "llm.protocol" not in out.marks and not out.wrong("adapter"):
        remedy = "say what the agent speaks: anthropic or openai"
        out.at("llm.protocol", f"the key is missing: adapter {adapter} has no protocol of its own", remedy=remedy)
    if protocol and spoken and protocol != spoken:
        message = f"adapter {adapter} speaks {spoken}"
        out.at("llm.protocol", message, found=protocol, allowed=spoken, remedy="remove the key, or change the adapter")
    if "llm.mock" not in out.marks:
        _provider(out, llm)


def _provider(out: Checked, llm: Data) -> None:
    provider = llm.get("provider")
    if provider is None:
        if "llm.provider" not in out.marks:
            remedy = "name LiteLLM's provider, script llm.mock, or set llm.broker to false"
            out.at("llm.provider", "the key is missing: the broker needs a provider", remedy=remedy)
        return
    if provider_host(llm) is None and "llm.direct_domain" not in out.marks and "llm.base_url" not in out.marks:
        near = get_close_matches(provider, sorted(DOMAINS), 1, 0.7)
        remedy = (f"did you mean {near[0]}? else " if near else "") + "name the provider's host"
        message = f"the key is missing: the host of provider {provider} is not known"
        out.at("llm.direct_domain", message, found=None, remedy=remedy)


def _env(out: Checked, data: Data) -> None:
    """The agent holds nothing reusable (invariant 4): the provider's key does not go into its environment."""
    if not _brokered(data):
        return
    llm = data["llm"]
    variable = llm.get("api_key_env") or (key_variable(llm["provider"]) if llm.get("provider") else None)
    if variable and variable in data.get("env", {}):
        message = "the provider's key would be in the workload's environment"
        out.at(f"env.{variable}", message, remedy="put it into a secrets file; the broker alone reads it")
