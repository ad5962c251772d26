# SPDX-License-Identifier: BSD-2-Clause
"""What a plan is a function of, and what its parts have in common, decided once.

Pure, like all of ``plan*.py``: each file is one concern of the plan, and ``plan.py`` puts them together.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import roles, workload
from .adapters import Adapter
from .errors import PlanError
from .manifest import Manifest
from .topology import Topology, topology
from .upstream import Proxy

Json = Dict[str, Any]

NAME = re.compile(r"^[a-z0-9][a-z0-9_-]*$")


@dataclass(frozen=True)
class Host:
    """Facts about this host, as ``engine/hostfacts.py`` found them. Addresses and routes are IPv4/IPv6 texts."""

    uid: int
    gid: int
    podman: Tuple[int, int, int]
    uplink_helper: str
    resolver: str
    addresses: Sequence[str]
    routes: Sequence[str]
    controllers: Sequence[str]
    seccomp_default: Json
    #: Whether the user-mode network can carry ICMP echo: this account may open an ICMP socket (icmp(7)).
    icmp: bool = True


@dataclass(frozen=True)
class Repo:
    """One granted repository: its place on the host and in the workload. ``rw`` is False for ``mode: ro``.

    ``root`` is device and inode of the folder that was looked at: what is mounted must be that one (invariant 11).
    """

    name: str
    path: str
    rw: bool
    root: Optional[Tuple[int, int]] = None


@dataclass(frozen=True)
class Settings:
    """The operator's choices: ranges, limits (bytes, CPUs, processes) and where files lie."""

    run_dir: str
    gate: str
    gate_digest: str
    images: Mapping[str, str]
    broker_files: Mapping[str, str]
    ca_bundle: Optional[str]
    ca_digest: str
    limits: Mapping[str, Any]
    cable_range: str = "198.18.0.0/24"
    uplink_range: str = "198.18.1.0/24"
    gate_deadline: int = 120
    adapter: Adapter = field(default_factory=Adapter)
    upstream: Optional[Proxy] = None
    upstream_ca: Tuple[str, str] = ("", "")  # file of authorities for TLS to the proxy, and its SHA-256


@dataclass(frozen=True)
class Request:
    """What one open asked for."""

    session: str = "main"
    command: Optional[Sequence[str]] = None
    tty: Optional[bool] = None
    mock: bool = False
    terminal: Mapping[str, str] = field(default_factory=dict)
    agent_key: bool = False  # without a broker, the provider's key was found and goes to the agent


@dataclass
class Draft:
    """What the parts of the plan have in common, decided once."""

    manifest: Manifest
    repos: Sequence[Repo]
    host: Host
    settings: Settings
    request: Request
    topology: Topology
    brokered: bool = False
    interactive: bool = False
    terminal: Optional[Dict[str, str]] = None
    warnings: List[str] = field(default_factory=list)

    @property
    def agent_key(self) -> Optional[str]:
        """The variable of a provider's key that the agent itself holds, or None."""
        llm = self.manifest.llm
        return llm.api_key_env if llm is not None and llm.key_to_agent and self.request.agent_key else None

    @property
    def tty(self) -> bool:
        return self.terminal is not None

    @property
    def id(self) -> str:
        return f"{self.manifest.name}.{self.request.session}"

    def name(self, part: str) -> str:
        return f"asf-{self.id}-{part}"

    def run(self, path: str) -> str:
        return f"{self.settings.run_dir}/{self.id}/{path}"

    @property
    def uplink_base(self) -> str:
        """The first three numbers of the uplink's /24."""
        return self.settings.uplink_range.rsplit(".", 1)[0]

    @property
    def mode(self) -> str:
        """``network.mode``."""
        return self.manifest.network.mode

    @property
    def net_raw(self) -> bool:
        """Whether the workload holds NET_RAW, the one capability that can be granted."""
        return "net_raw" in self.manifest.capabilities

    @property
    def own_addresses(self) -> List[str]:
        """The host's own IPv4 addresses. IPv6 ones change by themselves (RFC 8981), and no path leads there."""
        return sorted(a for a in self.host.addresses if ":" not in a)

    @property
    def roles(self) -> Tuple[str, ...]:
        """Roles of the session's containers, in the order in which they are made."""
        return self.manifest.roles


def canonical(document: Any) -> str:
    """Canonical JSON: sorted keys, no blanks, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(document: Any) -> str:
    """SHA-256 of the canonical form, in hex."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()


def draft_of(manifest: Manifest, repos: Sequence[Repo], host: Host, settings: Settings, request: Request) -> Draft:
    """What is decided before any part is computed. Raises PlanError."""
    if not NAME.match(request.session):
        raise PlanError(
            "not a session name",
            key="session",
            found=request.session[:80],
            remedy="use lower-case letters, digits, - and _, beginning with a letter or digit",
        )
    longest = 28 if manifest.network.mode == roles.ROUTED else 29
    draft = Draft(manifest, repos, host, settings, request, topology(settings.cable_range, longest))
    draft.brokered = manifest.llm is not None and manifest.llm.broker
    draft.interactive = manifest.mode == "interactive" and request.command is None
    if draft.interactive or (request.command and request.tty):
        draft.terminal = workload.terminal(request.terminal)
    if any(r.rw for r in repos):
        draft.warnings.append("repositories granted rw are mounted with their own .git (git: open)")
    if draft.agent_key:
        draft.warnings.append(
            f"llm.broker is off, so the key {draft.agent_key} goes to the agent itself: it can read it, keep it and "
            "send it to any host that it reaches; ASF neither counts nor bounds what is done with it, nor rotates it "
            "(where the client shall log in instead, name no secrets.files and no llm.api_key_env)"
        )
    if draft.net_raw:
        draft.warnings.append("capabilities: the workload holds NET_RAW and may send any IPv4 packet to its cable")
    if manifest.nested_sandbox:
        draft.warnings.append("nested_sandbox: the workload may create user namespaces")
    return draft
