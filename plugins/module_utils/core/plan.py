# SPDX-License-Identifier: BSD-2-Clause
"""The plan: everything that one session will consist of, computed before the first resource exists (invariant 7).

Pure: the same manifest, grants, session name, options and host facts give the same plan, byte for byte. The document is
JSON; its digest is the SHA-256 of its canonical form. Every later step, and teardown, reads nothing else.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Dict, List, Optional, Sequence

from . import containers, plan_network, workload
from .manifest import Manifest
from .plan_containers import container_row, enforced, secrets, specs, volumes
from .plan_draft import Draft, Host, Repo, Request, Settings, canonical, digest, draft_of
from .plan_files import caddy, files
from .plan_gate import gate_plan

Json = Dict[str, Any]

VERSION = 2
__all__ = ["VERSION", "Host", "Repo", "Request", "Settings", "build", "canonical", "differences", "digest"]


def _repo(repo: Repo) -> Json:
    row = {"name": repo.name, "path": repo.path, "rw": repo.rw, "target": f"{workload.WORKSPACE}/{repo.name}"}
    return {**row, "root": list(repo.root)} if repo.root else row


def _head(d: Draft) -> Json:
    agent, name = d.manifest.name, d.request.session
    return {
        "version": VERSION,
        "revision": 0,
        "session": {"id": d.id, "agent": agent, "name": name, "mode": d.mode, "isolation": "container"},
        "owner": {"uid": d.host.uid, "gid": d.host.gid},
        "run_dir": d.run("").rstrip("/"),
        "gate_binary": d.settings.gate_digest,
        "manifest": _plain(d.manifest),
        "repos": [_repo(r) for r in d.repos],
        "command": list(d.request.command) if d.request.command is not None else None,
    }


def _workload(d: Draft, gate: Json) -> Json:
    words = {"argv": gate["argv"], "cwd": gate["cwd"]}
    return {"uid": workload.UID, "interactive": d.interactive, "tty": d.tty, "terminal": d.terminal, **words}


def build(manifest: Manifest, repos: Sequence[Repo], host: Host, settings: Settings, request: Request) -> Json:
    """The plan of a session of any network mode. Raises PlanError before anything exists."""
    d = draft_of(manifest, repos, host, settings, request)
    plan_network.check(d)
    made = specs(d)
    labels = {"asf.session": d.id, "asf.owner": str(host.uid), "asf.mode": d.mode, "asf.isolation": "container"}
    mounts = [row for spec in made for row in containers.mount_rows(spec)]
    config = caddy(d)
    gate = gate_plan(d, mounts, config)
    return {
        **_head(d),
        "workload": _workload(d, gate),
        "llm": _llm(d),
        "listeners": plan_network.listeners(d),
        "network": plan_network.network(d),
        "wiring": plan_network.wiring(d),
        "containers": [container_row(s, {**labels, "asf.role": s.role}) for s in made],
        "mounts": mounts,
        "secrets": secrets(d),
        "volumes": volumes(d),
        "files": files(d, gate, config),
        "gate": gate,
        "limits": {s.role: enforced(d, s) for s in made},
        "warnings": d.warnings,
    }


def _plain(manifest: Manifest) -> Json:
    """The manifest as data, to say later which keys of it were edited."""
    out: Json = json.loads(
        json.dumps({k: v for k, v in asdict(manifest).items() if k not in ("marks", "warnings", "file")})
    )
    return out


def _llm(draft: Draft) -> Optional[Json]:
    llm = draft.manifest.llm
    if not draft.brokered or llm is None:
        return None
    return {
        "protocol": llm.protocol,
        "provider": None if llm.mock is not None else llm.provider,
        "mock": llm.mock is not None,
        "models": list(llm.models),
        "hosted_tools": list(llm.hosted_tools),
        "limits": dict(llm.limits),
    }


def differences(old: Any, new: Any, path: str = "") -> List[str]:
    """Dotted paths at which two documents differ; lists are compared as a whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [p for k in keys for p in differences(old.get(k), new.get(k), f"{path}.{k}" if path else str(k))]
    return [] if old == new else [path]
