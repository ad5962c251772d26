# SPDX-License-Identifier: BSD-2-Clause
"""The gate's part of a plan: what the inside probes ask, and what the workload is started with."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

from . import plan_network as network, policy, roles, routed, workload
from .decisions import DENIED_NAME
from .errors import PlanError
from .plan_draft import Draft, Json

NO_CAPS = "0" * 16
#: CAP_NET_RAW alone, as /proc/PID/status writes a set (linux/capability.h: bit 13).
NET_RAW = f"{1 << 13:016x}"
#: Ports of Caddy's end of the agent's cable that never answer, whatever listens elsewhere in that namespace.
CLOSED = (22, 53, 80, 2019, policy.L3_PORT)


def _unreached(draft: Draft) -> List[str]:
    """Addresses that no route leads to: outside, the other cables, what stands for the host behind an uplink."""
    t, base, own = draft.topology, draft.uplink_base, [a for a in draft.host.addresses if ":" not in a]
    out = [
        "198.51.100.1:443",
        f"{t.broker.far.ip}:{policy.L3_PORT}",
        f"{t.broker.near.ip}:{policy.BROKER_PORT}",
        f"{base}.2:443",
        f"{base}.3:53",
        "169.254.169.254:80",
        "169.254.1.2:443",
        *([f"{draft.host.resolver}:53"] if draft.host.resolver else []),
        *(f"{a}:443" for a in own),
    ]
    if roles.CADDY not in draft.roles:
        out += [f"{t.agent.far.ip}:{port}" for port in (53, policy.L1T_PORT, policy.L1_PORT, policy.L2_PORT)]
    if draft.mode == roles.ROUTED:
        out = routed.beyond(draft.manifest, out)
    return list(dict.fromkeys(out))


def _probes(draft: Draft, mounts: Sequence[Json], config: Optional[Json]) -> Json:
    """Empty lists and nulls where the mode has none: no L1 means no allow and no deny, no Caddy no cable at all."""
    caddy, reach = draft.topology.agent.far.ip, network.served(draft)
    l1 = f"{caddy}:{policy.L1_PORT}" if draft.mode == roles.PROXY else None
    verify = draft.manifest.verify_target()
    names = network.transparent(draft)
    absent = ([] if l1 else [policy.L1_PORT]) + ([] if names else [policy.L1T_PORT])
    closed = [*CLOSED, *absent] if reach else []
    return {
        "unreach": _unreached(draft),
        "reach": reach,
        "closed": [f"{caddy}:{port}" for port in closed],
        "dns": [f"{caddy}:53"] if reach else [],
        "allow": {"proxy": l1, "target": verify} if l1 and verify else None,
        "front": {"addr": f"{caddy}:{policy.L2_PORT}", "path": policy.CONTROL_PATH} if draft.brokered else None,
        "deny": {"proxy": l1, "target": f"{DENIED_NAME}:443"} if l1 else None,
        "policy": policy.policy_id(config) if config else "",
        "tls": _tls(f"{caddy}:{policy.L1T_PORT}", verify, names) if names else None,
        "routed": routed.probes(draft.manifest, draft.topology.gateway) if draft.mode == roles.ROUTED else None,
        "mounts": [{"target": m["target"], "type": "", "rw": m["rw"]} for m in mounts if m["role"] == roles.AGENT],
        "gone": ["/run/podman/podman.sock", "/var/run/docker.sock", f"/run/user/{draft.host.uid}/podman/podman.sock"],
    }


def _tls(address: str, verify: Optional[str], names: Sequence[str]) -> Json:
    """What is asked of L1t: the control's name, where it is one for it, and one that nobody can declare."""
    control = (verify or "").rpartition(":")[0]
    return {"addr": address, "allow": control if control in names else "", "deny": DENIED_NAME}


def _secret(draft: Draft, env: Json, tokens: List[str]) -> Tuple[str, List[str]]:
    """The one secret that the workload has in variables: the session's token, or without a broker the provider's key.

    Raises PlanError for a variable that means something else here.
    """
    if draft.brokered:
        return policy.TOKEN_FILE, tokens
    if not draft.agent_key:
        return "", []
    if draft.agent_key in env:
        message = "the key's variable is one that the workload's environment has already"
        remedy = "name the variable from which the client reads its key"
        raise PlanError(message, key="llm.api_key_env", found=draft.agent_key, remedy=remedy)
    more = [name for name in draft.settings.adapter.key_env if name not in env and name != draft.agent_key]
    return policy.KEY_FILE, [draft.agent_key, *more]


def gate_plan(draft: Draft, mounts: Sequence[Json], config: Optional[Json]) -> Json:
    """The document ``gate.json`` without the plan's digest; ``config`` is Caddy's configuration, where there is one."""
    m = draft.manifest
    env, tokens = workload.environment(
        draft.settings.adapter,
        m.llm.models if m.llm else (),
        network.protocol(draft),
        draft.topology if draft.mode == roles.PROXY else None,
        bool(draft.settings.ca_bundle),
        draft.terminal or {},
        dict(m.env),
    )
    token_file, tokens = _secret(draft, env, tokens)
    return {
        "version": 1,
        "session": draft.id,
        "socket": "asf-gate",
        "mode": draft.mode,
        "deadline_s": draft.settings.gate_deadline,
        "uid": workload.UID,
        "gid": workload.UID,
        "caps": NET_RAW if draft.net_raw else NO_CAPS,
        "nested_sandbox": m.nested_sandbox,
        "net_raw": draft.net_raw,
        "env": env,
        "token_file": token_file,
        "token_env": tokens,
        "argv": workload.argv(m.command, draft.request.command),
        "cwd": workload.folder([r.name for r in draft.repos]),
        "time_s": m.limits.time or draft.settings.limits["agent"].get("time", 0),
        "probes": _probes(draft, mounts, config),
    }
