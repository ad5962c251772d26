# SPDX-License-Identifier: BSD-2-Clause
"""The files of a plan: what is rendered below the session's run folder and mounted read-only."""

from __future__ import annotations

from typing import List, Optional

from . import plan_network as network, policy, roles, seccomp, upstream, workload
from .adapters import PolicyFile, filled
from .plan_draft import Draft, Json


def caddy(draft: Draft) -> Optional[Json]:
    """Caddy's whole configuration; None where there is no Caddy."""
    if roles.CADDY not in draft.roles:
        return None
    return policy.caddy(
        draft.id,
        draft.topology,
        network.destinations(draft) if draft.mode == roles.PROXY else None,
        network.provider(draft),
        network.front(draft),
        network.denied(draft),
        draft.host.resolver,
        proxy.chain() if (proxy := network.chain(draft)) else None,
    )


def of_adapter(draft: Draft) -> List[PolicyFile]:
    """The adapter's files that this session has."""
    return [row for row in draft.settings.adapter.files if row.wanted(draft.brokered)]


def adapter_path(row: PolicyFile) -> str:
    """Where it lies below the run folder: targets differ, so these do."""
    return "adapter/" + row.target[len("/etc/") :].replace("/", "_")


def _adapter_files(draft: Draft) -> List[Json]:
    adapter, llm = draft.settings.adapter, draft.manifest.llm
    values = workload.placeholders(adapter, llm.models if llm else (), draft.brokered)
    return [
        {"path": adapter_path(row), "text": filled(row.text, values, adapter.file, f"files: {row.source}")}
        for row in of_adapter(draft)
    ]


def files(draft: Draft, gate: Json, config: Optional[Json]) -> List[Json]:
    """Files below the session's run folder, mounted read-only: ``path`` and one of ``json``, ``text``, ``copy``.

    ``config`` is Caddy's.
    """
    m = draft.manifest
    profile = draft.host.seccomp_default
    out: List[Json] = [
        {"path": "seccomp-enforcer.json", "json": seccomp.profile(profile)},
        {
            "path": "seccomp-agent.json",
            "json": seccomp.profile(profile, nested_sandbox=m.nested_sandbox, net_raw=draft.net_raw),
        },
        {"path": "gate.json", "json": gate},
    ]
    if config is not None:
        out.append({"path": "caddy/caddy.json", "json": config})
    if (proxy := network.chain(draft)) and proxy.scheme == "https":
        path, sha256 = draft.settings.upstream_ca
        out.append({"path": upstream.CA_PATH, "copy": path, "sha256": sha256})
    if draft.settings.ca_bundle:
        out.append({"path": "ca.pem", "copy": draft.settings.ca_bundle, "sha256": draft.settings.ca_digest})
    out += _adapter_files(draft)
    if draft.brokered and m.llm is not None:
        mock = m.llm.mock is not None
        config = policy.litellm(m.llm.provider, m.llm.base_url, mock, m.llm.key_required)
        out.append({"path": "broker/litellm.yaml", "json": config})
        out += [{"path": f"broker/{name}", "text": text} for name, text in sorted(draft.settings.broker_files.items())]
        if mock:
            out.append({"path": "broker/mock.json", "json": m.llm.mock_turns()})
    return out
