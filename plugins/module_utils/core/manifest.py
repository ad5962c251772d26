# SPDX-License-Identifier: BSD-2-Clause
"""The manifest ``agents/NAME/runtime.yml``: what an agent is granted, validated and with every default applied.

``manifest_schema.py`` declares the keys, ``manifest_rules.py`` what must hold between them. Pure: the tree comes from
``engine/yamlload.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from . import roles
from .errors import ManifestError, Problem
from .formats import duration_seconds, size_bytes
from .manifest_rules import dropped_domains, provider_host, run_rules
from .manifest_schema import MANIFEST
from .marked import Node
from .providers import PROTOCOLS, key_variable
from .redact import looks_secret
from .schema import Checked, check

#: What the embedded model says when the manifest scripts nothing.
MOCK_TEXT = "This is ASF's embedded model: the front, the broker and the policy work. No provider was asked."


@dataclass(frozen=True)
class Runtime:
    """``runtime``: ``mode`` is ``interactive`` or ``service``; ``command`` is empty for a shell."""

    mode: str = "interactive"
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateVolume:
    """One entry of ``filesystem.state``."""

    key: str
    target: str


@dataclass(frozen=True)
class Limits:
    """``limits``: bytes, processors, processes, bytes and seconds; None where the operator's default holds."""

    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: int | None = None
    time: int | None = None

    def given(self) -> dict[str, Any]:
        """The limits that the manifest sets, by key."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class Domain:
    """One declared host. ``key`` is where it is declared, such as ``network.allow_domains[0]``."""

    name: str
    ports: tuple[int, ...]
    tls: str
    private: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class Tuple4:
    """One entry of ``network.allow``; ``ports`` is None for ``any`` and for ICMP."""

    cidr: str
    protocol: str
    ports: tuple[int, ...] | None
    key: str


@dataclass(frozen=True)
class NetworkVerify:
    """``network.verify``."""

    address: str
    protocol: str
    port: int
    blocked_port: int


@dataclass(frozen=True)
class Network:
    """``network``; ``allow_domains`` is as declared, ``Manifest.effective_domains`` is what holds."""

    mode: str
    allow_domains: tuple[Domain, ...]
    verify_domain: str | None
    allow: tuple[Tuple4, ...]
    verify: NetworkVerify | None
    upstream_proxy: Mapping[str, str] | None


@dataclass(frozen=True)
class Llm:
    """``llm``. While brokered, ``protocol`` is set, and ``upstream_host`` too unless the model is embedded ("").

    ``mock`` holds the turns (``{"text": …}`` or ``{"tool": …, "input": …}``) or None. ``key_required`` is False for
    the embedded model and for a ``base_url`` with which no key is named. ``key_to_agent``: without the broker, a key
    that the manifest names (``secrets.files`` or ``llm.api_key_env``) goes to the agent itself, where there is one.
    """

    broker: bool
    protocol: str | None
    provider: str | None
    api_key_env: str | None
    direct_domain: str | None
    models: tuple[str, ...]
    base_url: str | None
    private: tuple[str, ...]
    mock: tuple[Mapping[str, Any], ...] | None
    hosted_tools: tuple[str, ...]
    limits: Mapping[str, Any]
    upstream_host: str
    upstream_port: int
    key_required: bool
    key_to_agent: bool = False

    def mock_turns(self) -> list[dict[str, Any]]:
        """The turns of the embedded model as plain data; empty without one."""
        return [dict(turn) for turn in self.mock or ()]


@dataclass(frozen=True)
class Manifest:
    """A valid manifest with every default of the reference applied."""

    file: str
    name: str
    description: str
    adapter: str
    isolation: str
    microvm_engine: str
    runtime: Runtime
    nested_sandbox: bool
    limits: Limits
    state: tuple[StateVolume, ...]
    llm: Llm | None
    network: Network
    secrets_files: tuple[str, ...]
    env: Mapping[str, str]
    capabilities: tuple[str, ...]
    packages: Mapping[str, Any] | None
    #: Line and column of every key path that the file holds.
    marks: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)
    #: What is valid, has no effect, and is therefore said.
    warnings: tuple[Problem, ...] = field(default=(), compare=False)

    @property
    def mode(self) -> str:
        """``runtime.mode``."""
        return self.runtime.mode

    @property
    def command(self) -> tuple[str, ...]:
        """``runtime.command``."""
        return self.runtime.command

    @property
    def brokered(self) -> bool:
        """Whether the session has a broker and a front."""
        return self.llm is not None and self.llm.broker

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the session's containers, in the order in which they are made."""
        return roles.of(self.network.mode, self.brokered)

    def effective_domains(self) -> tuple[Domain, ...]:
        """What the agent may reach through L1: the declared list without the provider's host while brokered."""
        dropped = self._dropped()
        return tuple(domain for domain in self.network.allow_domains if domain.name not in dropped)

    def _dropped(self) -> frozenset[str]:
        if self.llm is None or not self.llm.broker:
            return frozenset()
        return frozenset(host for host in (self.llm.direct_domain, self.llm.upstream_host) if host)

    def verify_target(self) -> str | None:
        """``HOST:PORT`` of the positive control through L1, or None where the front is the control."""
        domains = self.effective_domains()
        wanted = self.network.verify_domain
        if wanted is None and self.brokered:
            return None
        chosen = [domain for domain in domains if wanted in (None, domain.name)]
        return f"{chosen[0].name}:{chosen[0].ports[0]}" if chosen else None

    def line(self, key: str) -> int | None:
        """The line at which a key path stands, or None where it is a default."""
        return self.marks[key][0] if key in self.marks else None


def validate(tree: Node | None, file: str, folder: str | None = None) -> Manifest:
    """The manifest in a marked tree. Raises ManifestError with every problem of the file, in the order of its lines.

    ``folder`` is the name of the folder that holds the file; ``name`` must equal it.
    """
    checked = check(MANIFEST, tree, file)
    if checked.data is not None:
        run_rules(checked)
        name = checked.data.get("name")
        if folder is not None and name not in (None, folder):
            checked.at(
                "name", "the name differs from the folder's", found=name, allowed=folder, remedy="rename one of them"
            )
    if checked.problems:
        raise ManifestError(sorted(checked.problems, key=lambda problem: (problem.line or 0, problem.column or 0)))
    return _build(checked)


# --- building --------------------------------------------------------------------------------------------------


def _build(checked: Checked) -> Manifest:
    data = checked.data
    manifest = Manifest(
        file=checked.file,
        name=data["name"],
        description=data["description"],
        adapter=data["adapter"],
        isolation=data["isolation"],
        microvm_engine=(data.get("microvm") or {}).get("engine", "auto"),
        runtime=Runtime(data["runtime"]["mode"], tuple(data["runtime"].get("command", ()))),
        nested_sandbox=data["nested_sandbox"],
        limits=limits(data.get("limits", {})),
        state=tuple(StateVolume(**entry) for entry in data["filesystem"]["state"]),
        llm=_llm(data),
        network=_network(data["network"]),
        secrets_files=tuple(data["secrets"]["files"]),
        env=dict(data.get("env", {})),
        capabilities=tuple(data["capabilities"]),
        packages=data.get("packages"),
        marks=dict(checked.marks),
    )
    return replace(manifest, warnings=tuple(_warnings(manifest)))


def limits(data: Mapping[str, Any]) -> Limits:
    """Limits in base units from the validated mapping; ``config.yml`` uses it too."""
    return Limits(
        memory=size_bytes(data["memory"]) if "memory" in data else None,
        cpus=float(data["cpus"]) if "cpus" in data else None,
        pids=data.get("pids"),
        disk=size_bytes(data["disk"]) if "disk" in data else None,
        time=duration_seconds(data["time"]) if "time" in data else None,
    )


def _domain(entry: Any, index: int) -> Domain:
    key = f"network.allow_domains[{index}]"
    if isinstance(entry, str):
        return Domain(entry, (443,), "required", (), key)
    return Domain(entry["name"], tuple(entry["ports"]), entry["tls"], tuple(entry["private"]), key)


def _network(data: Mapping[str, Any]) -> Network:
    verify = data.get("verify")
    rows = enumerate(data["allow"])
    return Network(
        mode=data["mode"],
        allow_domains=tuple(_domain(entry, index) for index, entry in enumerate(data["allow_domains"])),
        verify_domain=data.get("verify_domain"),
        allow=tuple(Tuple4(row["cidr"], row["protocol"], _ports(row), f"network.allow[{i}]") for i, row in rows),
        verify=NetworkVerify(**verify) if verify else None,
        upstream_proxy=data.get("upstream_proxy"),
    )


def _ports(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    ports = row.get("ports", "any")
    return None if ports == "any" else tuple(ports)


def _mock(value: Any) -> tuple[Mapping[str, Any], ...] | None:
    if value is None:
        return None
    return ({"text": value},) if isinstance(value, str) else tuple(value)


def _llm(data: Mapping[str, Any]) -> Llm | None:
    llm = data.get("llm")
    if llm is None:
        return None
    mock, base_url, provider = _mock(llm.get("mock")), llm.get("base_url"), llm.get("provider")
    named = bool(data["secrets"]["files"]) or "api_key_env" in llm
    variable = llm.get("api_key_env") or (key_variable(provider) if provider else None)
    return Llm(
        broker=llm["broker"],
        protocol=llm.get("protocol") or PROTOCOLS.get(data["adapter"]),
        provider=provider,
        api_key_env=variable,
        direct_domain=llm.get("direct_domain") or provider_host(llm, with_base_url=False),
        models=tuple(llm.get("models", ())),
        base_url=base_url,
        private=tuple(llm["private"]),
        mock=mock,
        hosted_tools=tuple(llm["hosted_tools"]),
        limits=dict(llm.get("limits", {})),
        upstream_host="" if mock is not None else provider_host(llm) or "",
        upstream_port=(urlsplit(base_url).port if base_url else None) or 443,
        key_required=bool(llm["broker"]) and mock is None and (base_url is None or named),
        key_to_agent=not llm["broker"] and named and variable is not None and variable not in data.get("env", {}),
    )


def _key_to_agent(manifest: Manifest) -> bool:
    return manifest.llm is not None and manifest.llm.key_to_agent


def _warnings(manifest: Manifest) -> list[Problem]:
    """What the manifest says and nothing enforces or needs: said at open, never an error."""
    out = []

    def warn(key: str, message: str, remedy: str) -> None:
        line, column = manifest.marks.get(key, (None, None))
        out.append(Problem(message, manifest.file, line, column, key, remedy=remedy))

    proxied = bool((manifest.network.upstream_proxy or {}).get("secret"))
    if not manifest.brokered and manifest.secrets_files and not proxied and not _key_to_agent(manifest):
        message = "no secrets file is read: there is no broker, and no variable of the agent's is named"
        warn("secrets.files", message, "remove the key, set llm.broker to true, or name llm.provider")
    for name in manifest.env:
        if looks_secret(name):
            warn(
                f"env.{name}",
                "looks like a secret, and the workload can read it",
                "leave out what the workload need not know; the provider's key belongs into secrets.files",
            )
    if manifest.llm is not None and not manifest.llm.broker and manifest.llm.models:
        warn("llm.models", "not enforced without the broker", "remove the key, or set llm.broker to true")
    return out


# --- overrides and what is not built ----------------------------------------------------------------------------


def apply_overrides(manifest: Manifest, isolation: str | None = None, llm_mock: bool | None = None) -> Manifest:
    """The manifest with the only keys that an extravar may override. Raises ManifestError for a wrong value.

    ``llm_mock=True`` forces front and broker on, with the embedded model behind them: no secret is needed and L3's
    list is empty. ``llm_mock=False`` changes nothing.
    """
    if isolation is not None:
        if isolation not in ("container", "microvm"):
            problem = Problem(
                "unknown value of the extravar", key="isolation", found=isolation[:80], allowed="container, microvm"
            )
            raise ManifestError([problem])
        manifest = replace(manifest, isolation=isolation)
    return _with_mock(manifest) if llm_mock else manifest


def _with_mock(manifest: Manifest) -> Manifest:
    llm = manifest.llm
    protocol = (llm.protocol if llm else None) or PROTOCOLS.get(manifest.adapter, "openai")
    turns = llm.mock if llm and llm.mock is not None else ({"text": MOCK_TEXT},)
    mocked = Llm(
        broker=True,
        protocol=protocol,
        provider=llm.provider if llm else None,
        api_key_env=llm.api_key_env if llm else None,
        direct_domain=llm.direct_domain if llm else None,
        models=llm.models if llm else (),
        base_url=None,
        private=(),
        mock=turns,
        hosted_tools=llm.hosted_tools if llm else (),
        limits=llm.limits if llm else {},
        upstream_host="",
        upstream_port=443,
        key_required=False,
    )
    network = manifest.network
    dropped = dropped_domains(llm.direct_domain, llm.upstream_host) if llm else frozenset()
    if network.verify_domain in dropped:  # it was a control without the broker; now the front is the control
        network = replace(network, verify_domain=None)
    changed = replace(manifest, llm=mocked, network=network)
    return replace(changed, warnings=tuple(_warnings(changed)))


_UNBUILT = {
    "microvm": "isolation in a microVM",
}


def unbuilt(manifest: Manifest) -> list[Problem]:
    """Valid keys whose enforcement this version does not have: refused by name at plan time, never ignored."""
    found: dict[str, tuple[str, str]] = {}
    if manifest.isolation != "container":
        found["isolation"] = (manifest.isolation, "isolation in a microVM")
    present = {"microvm": "microvm" in manifest.marks}
    for key, there in present.items():
        if there:
            found[key] = ("", _UNBUILT[key])
    return [_unbuilt_problem(manifest, key, value, what) for key, (value, what) in found.items()]


def _unbuilt_problem(manifest: Manifest, key: str, value: str, what: str) -> Problem:
    line, column = manifest.marks.get(key, (None, None))
    message = f"this version of ASF cannot enforce {what} yet"
    remedy = "remove the key; nothing was created, because a policy that is not enforced is never ignored"
    return Problem(message, manifest.file, line, column, key, value or None, None, remedy, "not-built")
