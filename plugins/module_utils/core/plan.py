# SPDX-License-Identifier: BSD-2-Clause
"""The plan: everything that one session will consist of, computed before the first resource exists (invariant 7).

Pure: the same manifest, grants, session name, options and host facts give the same plan, byte for byte. The document is
JSON; its digest is the SHA-256 of its canonical form. Every later step, and teardown, reads nothing else.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import containers, policy, seccomp, workload
from .containers import ENFORCER_UID, Limits, Mount, Spec, tmpfs
from .errors import PlanError
from .manifest import Manifest
from .topology import Topology, overlaps, topology, uplink_range

Json = Dict[str, Any]

VERSION = 1
GATE_PORTS_CLOSED = (22, 53, 80, 2019)
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


@dataclass(frozen=True)
class Request:
    """What one open asked for."""

    session: str = "main"
    command: Optional[Sequence[str]] = None
    tty: Optional[bool] = None
    mock: bool = False
    terminal: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Draft:
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
    def tty(self) -> bool:
        return self.terminal is not None

    @property
    def id(self) -> str:
        return f"{self.manifest.name}.{self.request.session}"

    def name(self, part: str) -> str:
        return f"asf-{self.id}-{part}"

    def run(self, path: str) -> str:
        return f"{self.settings.run_dir}/{self.id}/{path}"


# --- digests ---------------------------------------------------------------------------------------------------


def canonical(document: Any) -> str:
    """Canonical JSON: sorted keys, no blanks, ASCII."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def digest(document: Any) -> str:
    """SHA-256 of the canonical form, in hex."""
    return hashlib.sha256(canonical(document).encode()).hexdigest()


# --- network ---------------------------------------------------------------------------------------------------


def _check_ranges(draft: _Draft) -> None:
    s, h = draft.settings, draft.host
    uplink_range(s.uplink_range)
    if overlaps(s.cable_range, [s.uplink_range]):
        raise PlanError(
            "the cables' range and the uplink's range overlap",
            key="asf_network_uplink_range",
            found=s.uplink_range,
            remedy=f"choose one outside {s.cable_range}",
        )
    for key, value in (("asf_network_cable_range", s.cable_range), ("asf_network_uplink_range", s.uplink_range)):
        hits = overlaps(value, [*h.addresses, *h.routes, h.resolver])
        if hits:
            raise PlanError(
                f"the host uses addresses of the range {value} itself",
                key=key,
                found=", ".join(hits),
                remedy="set it in the inventory to a /24 of a special-purpose range that this host does not use",
            )
    declared = [(d.key, c) for d in _destinations(draft) + _provider(draft) for c in d.private]
    for key, cidr in declared:
        if overlaps(s.cable_range, [cidr]):
            raise PlanError(
                "a declared range covers the cables' own",
                key=key,
                found=cidr,
                remedy=f"narrow it so that it does not meet {s.cable_range}",
            )


def _destinations(draft: _Draft) -> List[policy.Destination]:
    return [policy.Destination(d.name, d.ports, d.tls, d.private, d.key) for d in draft.manifest.effective_domains()]


def _provider(draft: _Draft) -> List[policy.Destination]:
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


def _aliases(draft: _Draft) -> List[Json]:
    """Addresses behind Caddy's uplink that stand for the host; each must be rejected there (N8)."""
    base = draft.settings.uplink_range.rsplit(".", 1)[0]
    own = [a for a in draft.host.addresses if ":" not in a]
    targets = [(f"{base}.2", 443), (f"{base}.3", 53), (f"{base}.3", 443), ("169.254.1.2", 443), ("169.254.1.1", 53)]
    targets += [(a, port) for a in own for port in (443, 22)]
    if (draft.host.resolver, 53) in targets:
        targets.remove((draft.host.resolver, 53))
    return [{"address": a, "port": p} for a, p in targets]


def _barred(draft: _Draft) -> List[str]:
    own = [a for a in draft.host.addresses if ":" not in a]
    return [draft.settings.uplink_range, "169.254.0.0/16", *sorted(own)]


def _denied(draft: _Draft) -> List[str]:
    """What no name may resolve to, whatever a manifest allows: the cables, the uplink's aliases, the host itself."""
    # IPv6 is off in Caddy's namespace, and the host's change by themselves (RFC 8981): they would change the plan.
    own = [f"{a}/32" for a in sorted(draft.host.addresses) if ":" not in a]
    return [draft.settings.cable_range, draft.settings.uplink_range, *own]


def _protocol(draft: _Draft) -> Optional[str]:
    return draft.manifest.llm.protocol if draft.brokered and draft.manifest.llm else None


def _nft(draft: _Draft) -> List[Json]:
    ports = [p for d in _destinations(draft) + _provider(draft) for p in d.ports]
    rules = policy.nft(draft.topology, draft.brokered, draft.host.resolver, _barred(draft), ports)
    return [{"role": "caddy", "rules": rules}]


def _listeners(draft: _Draft) -> List[Json]:
    t = draft.topology
    out = [("L1", f"{t.agent.far.ip}:{policy.L1_PORT}")]
    if draft.brokered:
        out += [("L2", f"{t.agent.far.ip}:{policy.L2_PORT}"), ("L3", f"{t.broker.far.ip}:{policy.L3_PORT}")]
    return [{"role": "caddy", "name": name, "address": address} for name, address in out]


# --- containers ------------------------------------------------------------------------------------------------


def _limits(draft: _Draft, role: str) -> Limits:
    values = dict(draft.settings.limits[role])
    if role == "agent":
        values.update(draft.manifest.limits.given())
    return Limits(int(values["memory"]), float(values["cpus"]), int(values["pids"]), int(values.get("log", 16 << 20)))


# RLIMIT_NPROC counts over every container of the operator: the kernel compares the sum in the parent user namespace
# with the limit at the child's creation (kernel/ucount.c; seen as "can't start new thread" in a neighbour). So it is a
# brake on fork bombs far above what sessions need, and only the workload gets it.
FORK_BRAKE = 8192


def _fallback(draft: _Draft, limits: Limits) -> List[str]:
    """Ulimits of the workload where the host has no cgroup controller for a limit; said in ``warnings``."""
    missing = [
        name
        for name, controller in (("memory", "memory"), ("pids", "pids"), ("cpus", "cpu"))
        if controller not in draft.host.controllers
    ]
    instead = {
        "memory": f"each process may have {limits.memory >> 20} MiB of data",
        "pids": f"processes of all containers together are held below {FORK_BRAKE}",
        "cpus": "CPU time is not limited",
    }
    for name in missing:
        draft.warnings.append(f"limits.{name} cannot be enforced on this host (no cgroup controller): {instead[name]}")
    ulimits = {"memory": f"data={limits.memory}:{limits.memory}", "pids": f"nproc={FORK_BRAKE}:{FORK_BRAKE}"}
    return [ulimits[name] for name in missing if name in ulimits]


def _enforced(draft: _Draft, spec: Spec) -> Json:
    """What verification reads back: the control group's files where the host has the controller, and the ulimits."""
    able, limits = draft.host.controllers, spec.limits
    groups = {"memory.max": str(limits.memory)} if "memory" in able else {}
    groups.update({"pids.max": str(limits.pids)} if "pids" in able else {})
    groups.update({"cpu.max": f"{int(limits.cpus * 100000)} 100000"} if "cpu" in able else {})
    return {"cgroup": groups, "ulimits": [*containers.ULIMITS, *spec.ulimits]}


def _files_mount(draft: _Draft, part: str, target: str) -> Mount:
    return Mount("bind", target, False, source=draft.run(part))


def _gate_mount(draft: _Draft) -> Mount:
    return Mount("bind", "/asf/gate", False, source=draft.settings.gate)


def _ca_mounts(draft: _Draft) -> List[Mount]:
    return [_files_mount(draft, "ca.pem", workload.CA_FILE)] if draft.settings.ca_bundle else []


def _caddy(draft: _Draft) -> Spec:
    limits, cable = _limits(draft, "caddy"), draft.topology.agent.far.interface
    secrets = [(draft.name("token"), "asf-token"), (draft.name("master"), "asf-master")] if draft.brokered else []
    return Spec(
        "caddy",
        draft.name("caddy"),
        draft.settings.images["caddy"],
        containers.uplink(draft.host.uplink_helper, draft.settings.uplink_range),
        (ENFORCER_UID, ENFORCER_UID),
        "nomap",
        "caddy",
        ["/asf/gate"],
        ["supervise", "caddy", "--while", cable, "--", "/caddy", "run", "/asf/caddy/caddy.json"],
        draft.run("seccomp-enforcer.json"),
        limits,
        [
            tmpfs("/tmp", 16 << 20),
            tmpfs("/dev/shm", 1 << 20),
            _gate_mount(draft),
            _files_mount(draft, "caddy", "/asf/caddy"),
        ],
        secrets,
        [("HOME", "/tmp")],
        (),
        [f"--dns={draft.host.resolver}"],
    )


def _broker(draft: _Draft) -> Spec:
    limits, cable = _limits(draft, "broker"), draft.topology.broker
    assert draft.manifest.llm is not None
    secrets = [(draft.name("master"), "asf-master")]
    if draft.manifest.llm.key_required:
        secrets.append((draft.name("provider"), "asf-provider"))
    proxy = f"http://{cable.far.ip}:{policy.L3_PORT}"
    env = [
        ("HOME", "/tmp"),
        ("ASF_BIND", f"{cable.near.ip}:{policy.BROKER_PORT}"),
        ("HTTPS_PROXY", proxy),
        ("https_proxy", proxy),
        ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("CONFIG_FILE_PATH", "/asf/broker/litellm.yaml"),
    ]
    if draft.settings.ca_bundle:
        env += [("SSL_CERT_FILE", workload.CA_FILE), ("REQUESTS_CA_BUNDLE", workload.CA_FILE)]
    return Spec(
        "broker",
        draft.name("broker"),
        draft.settings.images["litellm"],
        "none",
        (ENFORCER_UID, ENFORCER_UID),
        "nomap",
        "broker",
        ["/asf/gate"],
        ["supervise", "broker", "--while", cable.near.interface, "--", "python3", "/asf/broker/launch.py"],
        draft.run("seccomp-enforcer.json"),
        limits,
        [
            tmpfs("/tmp", 64 << 20),
            tmpfs("/dev/shm", 16 << 20),
            _gate_mount(draft),
            *_ca_mounts(draft),
            _files_mount(draft, "broker", "/asf/broker"),
        ],
        secrets,
        env,
    )


def _agent_mounts(draft: _Draft, volumes: Sequence[Json]) -> List[Mount]:
    limits = draft.settings.limits["agent"]
    disk = int(draft.manifest.limits.given().get("disk", limits["disk"]))
    out = [
        tmpfs("/tmp", int(limits["tmp"])),
        tmpfs("/dev/shm", int(limits["shm"])),
        tmpfs(workload.HOME, disk),
        _gate_mount(draft),
        _files_mount(draft, "gate.json", "/asf/gate.json"),
        *_ca_mounts(draft),
    ]
    out += [Mount("volume", v["target"], True, source=v["name"]) for v in volumes]
    out += [Mount("bind", f"{workload.WORKSPACE}/{r.name}", r.rw, source=r.path) for r in draft.repos]
    return out


def _agent(draft: _Draft, volumes: Sequence[Json]) -> Spec:
    limits = _limits(draft, "agent")
    uid = workload.UID
    hosts = [f"--add-host={name}:{ip}" for ip, name in policy.hosts(draft.topology, draft.brokered)]
    tty = ["--tty", "--interactive"] if draft.tty else []
    return Spec(
        "agent",
        draft.name("agent"),
        draft.settings.images["agent"],
        "none",
        (uid, uid),
        f"keep-id:uid={uid},gid={uid}",
        draft.manifest.name,
        ["/asf/gate"],
        ["run"],
        draft.run("seccomp-agent.json"),
        limits,
        _agent_mounts(draft, volumes),
        [(draft.name("token"), "asf-token")] if draft.brokered else [],
        [("HOME", workload.HOME)],
        _fallback(draft, limits),
        [*hosts, *tty],
        "none" if draft.interactive else "k8s-file",
    )


def _volumes(draft: _Draft) -> List[Json]:
    """State volumes: the default session uses the agent's own, another session gets its own."""
    m, session = draft.manifest, draft.request.session
    wide = digest({"names": [d.as_dict() for d in _destinations(draft)]})
    return [
        {
            "name": f"asf-state-{m.name}.{session}.{s.key}",
            "key": s.key,
            "target": s.target,
            "labels": {
                "asf.volume": "state",
                "asf.agent": m.name,
                "asf.name": session,
                "asf.policy": wide,
                "asf.owner": str(draft.host.uid),
            },
        }
        for s in m.state
    ]


# --- the gate --------------------------------------------------------------------------------------------------


def _gate_probes(draft: _Draft, mounts: Sequence[Json]) -> Json:
    t, own = draft.topology, [a for a in draft.host.addresses if ":" not in a]
    base = draft.settings.uplink_range.rsplit(".", 1)[0]
    l1 = f"{t.agent.far.ip}:{policy.L1_PORT}"
    reach = [e["address"] for e in _listeners(draft) if e["name"] in ("L1", "L2")]
    closed = [f"{t.agent.far.ip}:{p}" for p in (*GATE_PORTS_CLOSED, policy.L3_PORT)]
    outside = [
        "198.51.100.1:443",
        f"{t.broker.far.ip}:{policy.L3_PORT}",
        f"{t.broker.near.ip}:{policy.BROKER_PORT}",
        f"{base}.2:443",
        f"{base}.3:53",
        "169.254.169.254:80",
        "169.254.1.2:443",
        f"{draft.host.resolver}:53",
    ]
    verify = draft.manifest.verify_target()
    return {
        "unreach": list(dict.fromkeys(outside + [f"{a}:443" for a in own])),
        "reach": reach,
        "closed": closed,
        "dns": [f"{t.agent.far.ip}:53"],
        "allow": {"proxy": l1, "target": verify} if verify else None,
        "front": {"addr": f"{t.agent.far.ip}:{policy.L2_PORT}", "path": policy.CONTROL_PATH}
        if draft.brokered
        else None,
        "deny": {"proxy": l1, "target": "asf-denied.invalid:443"},
        "mounts": [{"target": m["target"], "type": "", "rw": m["rw"]} for m in mounts if m["role"] == "agent"],
        "gone": ["/run/podman/podman.sock", "/var/run/docker.sock", f"/run/user/{draft.host.uid}/podman/podman.sock"],
    }


def _gate(draft: _Draft, mounts: Sequence[Json]) -> Json:
    m = draft.manifest
    env, tokens = workload.environment(
        m.adapter, _protocol(draft), draft.topology, bool(draft.settings.ca_bundle), draft.terminal or {}, dict(m.env)
    )
    return {
        "version": 1,
        "session": draft.id,
        "socket": "asf-gate",
        "deadline_s": draft.settings.gate_deadline,
        "uid": workload.UID,
        "gid": workload.UID,
        "caps": "0" * 16,
        "nested_sandbox": m.nested_sandbox,
        "net_raw": False,
        "env": env,
        "token_file": policy.TOKEN_FILE if draft.brokered else "",
        "token_env": tokens,
        "argv": workload.argv(m.command, draft.request.command),
        "cwd": workload.folder([r.name for r in draft.repos]),
        "time_s": m.limits.time or draft.settings.limits["agent"].get("time", 0),
        "probes": _gate_probes(draft, mounts),
    }


# --- files -----------------------------------------------------------------------------------------------------


def _files(draft: _Draft, gate: Json) -> List[Json]:
    """Files below the session's run folder, mounted read-only: ``path`` and one of ``json``, ``text``, ``copy``."""
    m = draft.manifest
    profile = draft.host.seccomp_default
    out: List[Json] = [
        {"path": "seccomp-enforcer.json", "json": seccomp.profile(profile)},
        {"path": "seccomp-agent.json", "json": seccomp.profile(profile, nested_sandbox=m.nested_sandbox)},
        {"path": "gate.json", "json": gate},
        {
            "path": "caddy/caddy.json",
            "json": policy.caddy(
                draft.id,
                draft.topology,
                _destinations(draft),
                _provider(draft),
                _protocol(draft),
                _denied(draft),
                draft.host.resolver,
            ),
        },
    ]
    if draft.settings.ca_bundle:
        out.append({"path": "ca.pem", "copy": draft.settings.ca_bundle, "sha256": draft.settings.ca_digest})
    if draft.brokered and m.llm is not None:
        mock = m.llm.mock is not None
        config = policy.litellm(m.llm.provider, m.llm.models, m.llm.base_url, mock, m.llm.key_required)
        out.append({"path": "broker/litellm.yaml", "json": config})
        out += [{"path": f"broker/{name}", "text": text} for name, text in sorted(draft.settings.broker_files.items())]
        if mock:
            out.append({"path": "broker/mock.json", "json": m.llm.mock_turns()})
    return out


def _secrets(draft: _Draft) -> List[Json]:
    """Secrets to be made: two are random per session, the provider's key is read from the operator's file."""
    llm = draft.manifest.llm
    if not draft.brokered or llm is None:
        return []
    out: List[Json] = [{"name": draft.name(part), "part": part, "source": "random"} for part in ("token", "master")]
    if llm.key_required:
        out.append({"name": draft.name("provider"), "part": "provider", "source": "file", "variable": llm.api_key_env})
    return out


# --- the whole -------------------------------------------------------------------------------------------------


def _draft(manifest: Manifest, repos: Sequence[Repo], host: Host, settings: Settings, request: Request) -> _Draft:
    if not NAME.match(request.session):
        raise PlanError(
            "not a session name",
            key="session",
            found=request.session[:80],
            remedy="use lower-case letters, digits, - and _, beginning with a letter or digit",
        )
    draft = _Draft(manifest, repos, host, settings, request, topology(settings.cable_range))
    draft.brokered = manifest.llm is not None and manifest.llm.broker
    draft.interactive = manifest.mode == "interactive" and request.command is None
    if draft.interactive or (request.command and request.tty):
        draft.terminal = workload.terminal(request.terminal)
    if any(r.rw for r in repos):
        draft.warnings.append("repositories granted rw are mounted with their own .git (git: open)")
    if manifest.nested_sandbox:
        draft.warnings.append("nested_sandbox: the workload may create user namespaces")
    _check_ranges(draft)
    return draft


def _container_row(spec: Spec, labels: Json) -> Json:
    return {
        "role": spec.role,
        "name": spec.name,
        "image": spec.image,
        "network": spec.network,
        "args": containers.create_args(spec, labels),
    }


def _repo(repo: Repo) -> Json:
    row = {"name": repo.name, "path": repo.path, "rw": repo.rw, "target": f"{workload.WORKSPACE}/{repo.name}"}
    return {**row, "root": list(repo.root)} if repo.root else row


def _network(d: _Draft) -> Json:
    return {
        "mode": "proxy",
        "resolver": d.host.resolver,
        "aliases": _aliases(d),
        "uplink": {"helper": d.host.uplink_helper, "range": d.settings.uplink_range},
        "hosts": [list(h) for h in policy.hosts(d.topology, d.brokered)],
        "domains": [x.as_dict() for x in _destinations(d)],
    }


def _wiring(d: _Draft) -> Json:
    cables = [d.topology.agent, *([d.topology.broker] if d.brokered else [])]
    uplink = {"role": "caddy", "interface": d.topology.uplink_if}
    return {"cables": [c.as_dict() for c in cables], "nft": _nft(d), "uplink": uplink}


def _head(d: _Draft) -> Json:
    agent, name = d.manifest.name, d.request.session
    return {
        "version": VERSION,
        "revision": 0,
        "session": {"id": d.id, "agent": agent, "name": name, "mode": "proxy", "isolation": "container"},
        "owner": {"uid": d.host.uid, "gid": d.host.gid},
        "run_dir": d.run("").rstrip("/"),
        "gate_binary": d.settings.gate_digest,
        "manifest": _plain(d.manifest),
        "repos": [_repo(r) for r in d.repos],
        "command": list(d.request.command) if d.request.command is not None else None,
    }


def _workload(d: _Draft, gate: Json) -> Json:
    words = {"argv": gate["argv"], "cwd": gate["cwd"]}
    return {"uid": workload.UID, "interactive": d.interactive, "tty": d.tty, "terminal": d.terminal, **words}


def build(manifest: Manifest, repos: Sequence[Repo], host: Host, settings: Settings, request: Request) -> Json:
    """The plan of a proxy-mode session. Raises PlanError before anything exists."""
    d = _draft(manifest, repos, host, settings, request)
    volumes = _volumes(d)
    specs = [_caddy(d), *([_broker(d)] if d.brokered else []), _agent(d, volumes)]
    labels = {"asf.session": d.id, "asf.owner": str(host.uid), "asf.mode": "proxy", "asf.isolation": "container"}
    mounts = [row for spec in specs for row in containers.mount_rows(spec)]
    gate = _gate(d, mounts)
    return {
        **_head(d),
        "workload": _workload(d, gate),
        "llm": _llm(d),
        "listeners": _listeners(d),
        "network": _network(d),
        "wiring": _wiring(d),
        "containers": [_container_row(s, {**labels, "asf.role": s.role}) for s in specs],
        "mounts": mounts,
        "secrets": _secrets(d),
        "volumes": volumes,
        "files": _files(d, gate),
        "gate": gate,
        "limits": {s.role: _enforced(d, s) for s in specs},
        "warnings": d.warnings,
    }


def _plain(manifest: Manifest) -> Json:
    """The manifest as data, to say later which keys of it were edited."""
    out: Json = json.loads(
        json.dumps({k: v for k, v in asdict(manifest).items() if k not in ("marks", "warnings", "file")})
    )
    return out


def _llm(draft: _Draft) -> Optional[Json]:
    llm = draft.manifest.llm
    if not draft.brokered or llm is None:
        return None
    return {
        "protocol": llm.protocol,
        "provider": None if llm.mock is not None else llm.provider,
        "mock": llm.mock is not None,
        "models": list(llm.models),
    }


def edited(old: Json, new: Json) -> List[str]:
    """What of a live session's inputs was edited since: manifest keys, else the parts of the plan that differ."""
    keys = differences(old["manifest"], new["manifest"])
    keys += [p for part in ("repos", "command") for p in differences(old.get(part), new.get(part), part)]
    return keys or differences(old, new)


def differences(old: Any, new: Any, path: str = "") -> List[str]:
    """Dotted paths at which two documents differ; lists are compared as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [p for k in keys for p in differences(old.get(k), new.get(k), f"{path}.{k}" if path else str(k))]
    return [] if old == new else [path]
