# SPDX-License-Identifier: BSD-2-Clause
"""Give a live session another policy (invariant 7): its files, Caddy's rules and Caddy itself, without a new container.

The record says ``revising`` from before the first change until the new revision is verified: ``applying`` means that
nobody knows how far it came, and the next ``open`` does all of it again; ``applied`` that only the proof is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from ..core import revision
from ..core.errors import EngineError
from ..core.roles import AGENT, CADDY
from . import bringup, logs, plandoc, procs, state, statevolumes, wiring
from .evidencefs import atomic
from .plandoc import PlanDocument
from .podman import Podman

Json = Dict[str, Any]

APPLYING, APPLIED = "applying", "applied"
#: Seconds for Caddy to take a policy up, or to refuse it.
PATIENCE = 15.0


def apply(podman: Podman, old: PlanDocument, plan: Json) -> PlanDocument:
    """Make the plan the session's. Raises EngineError; a policy that Caddy refuses leaves the old one in place."""
    record = state.read(old.session) or {}
    statevolumes.remember(plan)  # before the workload can send there what it keeps
    _keep(record, old)  # the plan's file holds the next revision from here on, also after a crash
    state.note(old.session, revising=APPLYING)
    doc = plandoc.write(old.path, plan)
    refused = _put(podman, doc)
    if refused:
        raise _back(podman, old, doc, record.get("revising"), refused)
    _keep(record, doc)
    state.note(old.session, revising=APPLIED, plan_digest=doc.digest)
    return doc


def _back(podman: Podman, old: PlanDocument, doc: PlanDocument, pending: Optional[str], refused: str) -> EngineError:
    """Put the earlier plan back in force; what to say. A revision that is done again has none to go back to."""
    if old.digest == doc.digest:
        return EngineError(
            "Caddy refused the policy again; it still decides by an earlier one",
            found=refused,
            remedy="change the manifest and open it again, or close it",
            code="policy-refused",
        )
    _put(podman, plandoc.write(old.path, old.plan))
    state.note(old.session, revising=pending)
    return EngineError("Caddy refused the new policy; the old one stays", found=refused, code="policy-refused")


def _put(podman: Podman, doc: PlanDocument) -> str:
    """Files, rules, Caddy; what Caddy said when it refused."""
    chosen = bringup.chosen(doc)
    text = _files(doc)
    wiring.reload({role: int(one["pid"]) for role, one in chosen.items()}, doc.plan["wiring"])
    return _reloaded(podman, doc, chosen[CADDY], text) if CADDY in chosen else ""


def _files(doc: PlanDocument) -> str:
    """Write what a revision renders again; Caddy's configuration. The gate's file is a mount of its own and keeps its
    inode; Caddy's folder is mounted, so its file is replaced whole."""
    root, caddy = doc.plan["run_dir"], ""
    for entry in doc.plan["files"]:
        path = os.path.join(root, entry["path"])
        if entry["path"] == "gate.json":
            with open(path, "r+", encoding="utf-8") as handle:
                handle.write(bringup.json_text(entry["json"], {"plan_digest": doc.digest}))
                handle.truncate()
        elif entry["path"] in revision.FILES:
            caddy = bringup.json_text(entry["json"], {})
            atomic(Path(path), caddy.encode(), 0o644)
    return caddy


def _reloaded(podman: Podman, doc: PlanDocument, caddy: Mapping[str, Any], text: str) -> str:
    """Tell Caddy, and wait for its word. One that is just being started again reads the file by itself, and says
    nothing: verification asks it by which policy it decides."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = logs.path_of(int(caddy["pid"]), str(caddy["id"]))
    before = _words(path, digest)
    podman.run(["kill", "--signal", "HUP", doc.names()[CADDY]])
    end = time.monotonic() + PATIENCE
    while path and time.monotonic() < end:
        said = _words(path, digest)
        if said[0] > before[0]:
            return ""
        if said[1] > before[1]:
            return _error(podman, str(caddy["id"]), path, digest)
        time.sleep(0.05)
    return ""


def _words(path: Optional[str], digest: str) -> List[int]:
    """How often Caddy has said, of this very file, that it runs it, and that it does not."""
    lines = [
        re.compile(b'"msg":"%s[^\n]*"sha256":"%s"' % (what, digest.encode()))
        for what in (b"reloaded", b"reload refused")
    ]
    found = logs.summed({"caddy": path}, lambda content: [len(line.findall(content)) for line in lines]) if path else {}
    return found.get("caddy", [0, 0])


def _error(podman: Podman, container: str, path: str, digest: str) -> str:
    for line in reversed(logs.lines(podman, container, path)):
        if digest in line and "reload refused" in line:
            return str(json.loads(line).get("error", ""))[:500]
    return "see Caddy's log"


def _keep(record: Mapping[str, Any], doc: PlanDocument) -> None:
    """Every revision in the evidence, one line each, and the newest as ``plan.json``. Can be repeated."""
    evidence = state.evidence_of(dict(record))
    lines = evidence.read_lines("revisions.jsonl")
    if doc.digest not in [line.get("digest") for line in lines]:
        evidence.write_lines("revisions.jsonl", [*lines, _line(doc)])
    evidence.write("plan.json", plandoc.for_evidence(doc))


def _line(doc: PlanDocument) -> Json:
    told = plandoc.for_evidence(doc)
    return {"revision": doc.plan["revision"], "at": state.now(), **told}


def conclude(session: str, ok: bool, podman: Podman, doc: PlanDocument) -> str:
    """After the new revision was verified: it stands, or the session's way out is cut. What was done, for an error."""
    record = state.read(session) or {}
    pending = record.get("revising")
    if ok and pending:
        _keep(record, doc)
        state.note(session, revising=None, plan_digest=doc.digest)
    if ok or not pending:
        return ""
    if pending == APPLYING:
        return "a change of its policy was interrupted: open it again to finish that"
    left = _cut(podman, doc)
    if left:
        return (
            f"its new policy is not in force as planned, and {', '.join(left)} could not be stopped: close it at once"
        )
    return "its new policy is not in force as planned, so its way out was cut: close it"


def _cut(podman: Podman, doc: PlanDocument) -> List[str]:
    """End every container but the agent's; the roles that live on all the same."""
    others = {role: one for role, one in bringup.chosen(doc).items() if role != AGENT}
    if not others:
        return []
    with contextlib.suppress(EngineError):  # whether they ended is read from the kernel
        podman.run(["kill", *(doc.names()[role] for role in others)], check=False)
    end = time.monotonic() + PATIENCE
    while (left := [role for role, one in others.items() if _lives(one)]) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _lives(one: Mapping[str, Any]) -> bool:
    return procs.start_time(int(one["pid"])) == int(one["start"])
