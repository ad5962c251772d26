# SPDX-License-Identifier: BSD-2-Clause
"""The containers of a plan: specifications, mounts, limits, secrets, state volumes."""

from __future__ import annotations

from typing import Callable, Dict, List, Tuple

from . import containers, plan_files, plan_network as network, policy, roles, upstream, workload
from .containers import ENFORCER_UID, Limits, Mount, Spec, tmpfs
from .plan_draft import Draft, Json, digest

#: The part of the plan's secrets that the agent itself holds.
KEY_PART = "key"


def _limits(draft: Draft, role: str) -> Limits:
    values = dict(draft.settings.limits[role])
    if role == "agent":
        values.update(draft.manifest.limits.given())
    return Limits(int(values["memory"]), float(values["cpus"]), int(values["pids"]), int(values.get("log", 16 << 20)))


# RLIMIT_NPROC counts over every container of the operator: the kernel compares the sum in the parent user namespace
# with the limit at the child's creation (kernel/ucount.c; seen as "can't start new thread" in a neighbour). So it is a
# brake on fork bombs far above what sessions need, and only the workload gets it.
FORK_BRAKE = 8192


def _fallback(draft: Draft, limits: Limits) -> List[str]:
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


def enforced(draft: Draft, spec: Spec) -> Json:
    """What verification reads back: the control group's files where the host has the controller, and the ulimits."""
    able, limits = draft.host.controllers, spec.limits
    groups = {"memory.max": str(limits.memory)} if "memory" in able else {}
    groups.update({"pids.max": str(limits.pids)} if "pids" in able else {})
    groups.update({"cpu.max": f"{int(limits.cpus * 100000)} 100000"} if "cpu" in able else {})
    return {"cgroup": groups, "ulimits": [*containers.ULIMITS, *spec.ulimits]}


def _files_mount(draft: Draft, part: str, target: str) -> Mount:
    return Mount("bind", target, False, source=draft.run(part))


def _gate_mount(draft: Draft) -> Mount:
    return Mount("bind", "/asf/gate", False, source=draft.settings.gate)


def _ca_mounts(draft: Draft) -> List[Mount]:
    return [_files_mount(draft, "ca.pem", workload.CA_FILE)] if draft.settings.ca_bundle else []


def _caddy(draft: Draft) -> Spec:
    limits, cable = _limits(draft, "caddy"), draft.topology.agent.far.interface
    out = roles.CADDY in network.uplinks(draft)
    secrets = [(draft.name("token"), "asf-token"), (draft.name("master"), "asf-master")] if draft.brokered else []
    if (proxy := network.chain(draft)) and proxy.secret:
        secrets.append((draft.name(upstream.PART), "asf-upstream"))
    return Spec(
        "caddy",
        draft.name("caddy"),
        draft.settings.images["caddy"],
        containers.uplink(draft.host.uplink_helper, draft.settings.uplink_range) if out else "none",
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
        [("HOME", "/tmp"), ("GOMEMLIMIT", str(limits.memory * 3 // 4))],  # it collects before the kernel kills
        (),
        _caddy_options(draft, out),
    )


def _caddy_options(draft: Draft, out: bool) -> List[str]:
    """L1t's port is bound without a privilege: in this namespace alone, ports from there on are ordinary ones. Also
    where no name is for it yet: a later revision of the plan may have one."""
    ports = [f"--sysctl=net.ipv4.ip_unprivileged_port_start={policy.L1T_PORT}"] if draft.mode == roles.PROXY else []
    return [*([f"--dns={draft.host.resolver}"] if out else []), *ports]


def _broker(draft: Draft) -> Spec:
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


def _gateway(draft: Draft) -> Spec:
    """Nothing but the gate, which holds the namespace: no file of the plan, no secret, nothing writable."""
    return Spec(
        "gateway",
        draft.name("gateway"),
        draft.settings.images["gateway"],
        containers.uplink(draft.host.uplink_helper, draft.settings.uplink_range),
        (ENFORCER_UID, ENFORCER_UID),
        "nomap",
        "gateway",
        ["/asf/gate"],
        ["hold", "gateway"],
        draft.run("seccomp-enforcer.json"),
        _limits(draft, "gateway"),
        [tmpfs("/dev/shm", 1 << 20), _gate_mount(draft)],
        extra=["--sysctl=net.ipv4.ip_forward=1"],
    )


def _agent_mounts(draft: Draft) -> List[Mount]:
    limits = draft.settings.limits["agent"]
    disk = int(draft.manifest.limits.given().get("disk", limits["disk"]))
    out = [
        tmpfs("/tmp", int(limits["tmp"])),
        tmpfs("/dev/shm", int(limits["shm"])),
        tmpfs(workload.HOME, disk),
        _gate_mount(draft),
        _files_mount(draft, "gate.json", "/asf/gate.json"),
        *_ca_mounts(draft),
        *(_files_mount(draft, plan_files.adapter_path(row), row.target) for row in plan_files.of_adapter(draft)),
    ]
    out += [Mount("volume", v["target"], True, source=v["name"]) for v in volumes(draft)]
    out += [Mount("bind", f"{workload.WORKSPACE}/{r.name}", r.rw, source=r.path) for r in draft.repos]
    return out


def _agent_secrets(draft: Draft) -> List[Tuple[str, str]]:
    """The token that opens its session's front; without one, the provider's key where the operator gives it."""
    if draft.brokered:
        return [(draft.name("token"), "asf-token")]
    return [(draft.name(KEY_PART), "asf-key")] if draft.agent_key else []


def _agent(draft: Draft) -> Spec:
    limits = _limits(draft, "agent")
    uid = workload.UID
    hosts = [f"--add-host={name}:{ip}" for ip, name in network.hosts(draft)]
    tty = ["--tty", "--interactive"] if draft.tty else []
    raw = ["--cap-add=NET_RAW"] if draft.net_raw else []
    pings = any(t["protocol"] == "icmp_echo" for t in network.tuples(draft))
    ping = [f"--sysctl=net.ipv4.ping_group_range={uid} {uid}"] if pings else []
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
        _agent_mounts(draft),
        _agent_secrets(draft),
        [("HOME", workload.HOME)],
        _fallback(draft, limits),
        [*hosts, *raw, *ping, *tty],
        "none" if draft.interactive else "k8s-file",
    )


def volumes(draft: Draft) -> List[Json]:
    """State volumes: the default session uses the agent's own, another session gets its own."""
    m, session = draft.manifest, draft.request.session
    reached: Json = {"names": [d.as_dict() for d in network.destinations(draft)]}
    wide = digest({**reached, "tuples": network.tuples(draft)} if network.tuples(draft) else reached)
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


def secrets(draft: Draft) -> List[Json]:
    """Secrets to be made: two are random per session, the provider's key is read where the operator keeps it."""
    llm = draft.manifest.llm
    out: List[Json] = []
    if (proxy := network.chain(draft)) and proxy.secret:
        row = {"name": draft.name(upstream.PART), "part": upstream.PART, "source": "file", "variable": proxy.secret}
        out.append(row)
    if draft.agent_key:
        name = draft.name(KEY_PART)
        out.append({"name": name, "part": KEY_PART, "source": "file", "variable": draft.agent_key})
    if not draft.brokered or llm is None:
        return out
    out += [{"name": draft.name(part), "part": part, "source": "random"} for part in ("token", "master")]
    if llm.key_required:
        out.append({"name": draft.name("provider"), "part": "provider", "source": "file", "variable": llm.api_key_env})
    return out


_SPECS: Dict[str, Callable[[Draft], Spec]] = {
    roles.CADDY: _caddy,
    roles.BROKER: _broker,
    roles.GATEWAY: _gateway,
    roles.AGENT: _agent,
}


def specs(draft: Draft) -> List[Spec]:
    """The session's containers, in the order in which they are made."""
    return [_SPECS[role](draft) for role in draft.roles]


def container_row(spec: Spec, labels: Json) -> Json:
    """One row of the plan's ``containers``."""
    return {
        "role": spec.role,
        "name": spec.name,
        "image": spec.image,
        "network": spec.network,
        "args": containers.create_args(spec, labels),
    }
