# SPDX-License-Identifier: BSD-2-Clause
"""Gather everything that a plan is a function of, compute it, and say what stands in its way before anything exists."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core import images as image_names, lifecycle, manifest as manifests, plan as plans, revision, upstream
from ..core.adapters import Adapter
from ..core.errors import AsfError, EngineError, HostError, ManifestError, PlanError
from ..core.grants import WORKSPACE, Grant, check_live
from ..core.manifest import Manifest
from ..core.packages import Packages
from ..core.plan_containers import KEY_PART
from ..core.secretfile import Selection
from ..core.settings import Settings
from . import (
    assuming,
    dirs,
    grantfs,
    hidden,
    home as homes,
    hostfacts,
    images,
    inventory,
    plandoc,
    rehearsal,
    revising,
    state,
    statevolumes,
    teardown,
    upstreamca,
)
from .evidencefs import Evidence
from .home import Home
from .plandoc import PlanDocument
from .podman import Podman

Json = Dict[str, Any]

BROKER_FILES = "roles/litellm_broker/files"
MAX_COMMAND = 1 << 17


@dataclass(frozen=True)
class Inputs:
    """What one open asks for; ``collection`` is the root of the collection that the code runs from."""

    agent: str
    collection: str
    session: str = "main"
    home: Optional[str] = None
    isolation: Optional[str] = None
    llm_mock: bool = False
    command_file: Optional[str] = None
    tty: bool = False
    terminal: Mapping[str, str] = field(default_factory=dict)
    cable_range: str = "198.18.0.0/24"
    uplink_range: str = "198.18.1.0/24"
    limits: Mapping[str, Any] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    image_options: Mapping[str, Any] = field(default_factory=dict)
    gate_deadline: int = 120


@dataclass
class Result:
    """The plan and what the caller needs beside it."""

    doc: PlanDocument
    live: bool
    changed: bool
    images: List[str]
    volumes_missing: List[Json]
    warnings: List[Any]  # texts, or {message, key}
    actions: List[str]
    evidence: Optional[str]
    notes: List[str] = field(default_factory=list)
    before: str = ""  # the policy of a live session before it was revised


def home_of(inputs_home: Optional[str], collection: str) -> Home:
    """ASF's root, told where the program lies: a module runs from an archive and cannot find it beside itself."""
    root = Path(os.path.realpath(collection))
    checkout = root if (root / "pyproject.toml").is_file() and (root / "asf_cli").is_dir() else None
    shipped = root / "agents"
    return homes.resolve(inputs_home, own_checkout=checkout, shipped=shipped if shipped.is_dir() else None)


# --- what the operator wrote -----------------------------------------------------------------------------------


def _manifest(home: Home, inputs: Inputs) -> Manifest:
    manifest = homes.load_manifest(home, inputs.agent)
    manifest = manifests.apply_overrides(manifest, inputs.isolation, inputs.llm_mock)
    problems = manifests.unbuilt(manifest)
    if problems:
        raise ManifestError(problems, code="not-built")
    return manifest


def live_trees(but: str) -> List[Tuple[str, str]]:
    """``(session, path)`` of every tree that another recorded session holds ``rw``.

    Raises EngineError where a recorded session's plan cannot be read: what it holds is then not known.
    """
    found = []
    with state.grants_lock():
        for session in sorted(state.recorded() - {but}):
            plan = _known_plan(session)
            found += [(session, repo["path"]) for repo in plan["repos"] if repo["rw"]] if plan else []
    return found


def _known_plan(session: str) -> Optional[Json]:
    """A session's plan, from its run folder or (after a reboot) its evidence; None for a run folder without a record.

    Without a record the run folder alone shows nothing that lives: the labels of containers do (``unrecorded_trees``).
    """
    record = state.read(session) or {}
    places = [record.get("plan"), str(state.run_folder(session) / "plan.json")]
    if record.get("evidence"):
        places.append(os.path.join(str(record["evidence"]), "plan.json"))
    for path in places:
        try:
            doc = plandoc.read(str(path))
        except EngineError:
            continue
        if doc.session == session:
            return doc.plan
    if not state.has_record(session):
        return None
    raise EngineError(
        f"the plan of session {session} cannot be read, so the trees that it may write are not known",
        key="session",
        found=session,
        remedy=f"close session {session} first",
        code="plan-file",
    )


def unrecorded_trees(podman: Podman, found: inventory.Inventory, but: str) -> List[Tuple[str, str]]:
    """``(session, path)`` of the trees that living containers without a record hold ``rw`` (L2), by their labels."""
    mine = str(os.getuid())
    return [
        (one.session, str(mount.get("Source")))
        for one in found.containers
        if one.alive and one.owner == mine and one.session not in ("", but) and not _recorded_session(one.session)
        for mount in inventory.binds(podman, one)
        if mount.get("RW") and str(mount.get("Destination", "")).startswith(f"{WORKSPACE}/")
    ]


def _recorded_session(session: str) -> bool:
    return bool(dirs.SESSION_ID.match(session)) and state.has_record(session)


def _check_live(podman: Podman, found: inventory.Inventory, plan: Json) -> None:
    """Refuse what another session holds by now. Called under ``grants_lock``, so that two opens cannot both pass."""
    repos = [Grant(repo["path"], "rw" if repo["rw"] else "ro") for repo in plan["repos"]]
    if not repos:
        return
    session = plan["session"]["id"]
    trees = live_trees(session) + unrecorded_trees(podman, found, session)
    places = [(name, grantfs.place(path)) for name, path in trees]
    check_live([(grant, grantfs.place(grant.path)) for grant in repos], places)


def _grants(home: Home, inputs: Inputs, storage: Sequence[str]) -> Tuple[List[plans.Repo], List[str]]:
    grants = grantfs.load(home, inputs.agent)
    trees = live_trees(f"{inputs.agent}.{inputs.session}") if grants else []
    context = grantfs.context(home, grants, storage, trees)
    problems = grantfs.check(grants, context)
    roots = [facts.place.chain[0] for facts in context.facts]
    repos = [plans.Repo(g.name, g.path, g.rw, root) for g, root in zip(grants, roots)]
    return repos, [p.text() for p in problems]


def _command(path: Optional[str]) -> Optional[List[str]]:
    """Words after ``--``, out of the JSON file that the command line wrote. Raises PlanError."""
    if not path:
        return None
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as handle:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PlanError("not a regular file", file=path, key="asf_command_file")
        data = handle.read(MAX_COMMAND + 1)
    try:
        words = json.loads(data)["command"]
    except (ValueError, KeyError, TypeError):
        words = None
    if not isinstance(words, list) or not words or not all(isinstance(w, str) and "\0" not in w for w in words):
        raise PlanError(
            "the command is not a list of words", file=path, key="command", remedy='write {"command": ["word", …]}'
        )
    return words


def _terminal(inputs: Inputs) -> Mapping[str, str]:
    """A live session keeps what its workload was told of a terminal: coming back from another one edits no plan."""
    record = state.read(f"{inputs.agent}.{inputs.session}") or {}
    if record.get("state") == "live" and record.get("plan"):
        with contextlib.suppress(EngineError):
            return plandoc.read(str(record["plan"])).plan["workload"].get("terminal") or {}
    return inputs.terminal


# --- facts -----------------------------------------------------------------------------------------------------


def _storage(podman: Optional[Podman]) -> List[str]:
    if podman is None:
        return []
    store = podman.run(["info", "--format", "{{.Store.GraphRoot}}\n{{.Store.RunRoot}}"]).stdout
    return [line for line in store.splitlines() if line]


def _host(podman: Optional[Podman], resolver: Optional[str], assumed: Optional[List[str]]) -> plans.Host:
    facts = hostfacts.for_plan(podman.version() if podman else assuming.VERSION, resolver)
    return plans.Host(**(facts if assumed is None else assuming.host(facts, assumed)))


def _ca_digest(path: Optional[str]) -> str:
    """SHA-256 of the operator's CA bundle. Raises HostError when it cannot be read."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError as exc:
        raise HostError(
            f"the CA bundle cannot be read: {exc.strerror}",
            file=path,
            key="ca_bundle",
            remedy="name a PEM file that this account can read in config.yml, or remove the key",
        ) from None


def _broker_files(collection: Path) -> Dict[str, str]:
    folder = collection / BROKER_FILES
    return {name: (folder / name).read_text(encoding="utf-8") for name in ("launch.py", "asf_mock.py")}


def _limits(inputs: Inputs, settings: Settings) -> Json:
    limits = {role: dict(values) for role, values in inputs.limits.items()}
    limits["agent"].update(settings.limits.given())
    return limits


# --- the plan --------------------------------------------------------------------------------------------------


def _image_names(manifest: Manifest, packages: Optional[Packages]) -> List[str]:
    own = packages.name if packages else ""
    return list(image_names.names_for(manifest.adapter, manifest.roles, own))


def compute(
    podman: Optional[Podman], inputs: Inputs, assumed: Optional[List[str]] = None
) -> Tuple[Json, List[str], List[str]]:
    """The plan, the names of its images, and warnings. Creates nothing. Raises every typed error of its inputs.

    A preview gives a list ``assumed``, and perhaps no Podman: what the host lacks, and secrets that are not there, are
    told in it instead of raised.
    """
    if podman is None and assumed is not None:
        assumed.append("Podman is not installed: version 4.3 is assumed, and no check of its storage was made")
    home, collection = home_of(inputs.home, inputs.collection), Path(os.path.realpath(inputs.collection))
    manifest, settings = _manifest(home, inputs), homes.load_settings(home)
    proxy = _proxy(manifest, settings)
    with ThreadPoolExecutor(3) as pool:
        host_job = pool.submit(_host, podman, settings.resolver, assumed)
        storage_job = pool.submit(_storage, podman)
        options = images.Options.of(collection, {**inputs.image_options, "ca_bundle": settings.ca_bundle or ""})
        packages = homes.load_packages(home, manifest)
        workshop = images.workshop(options, inputs.pins, packages={packages.name: packages} if packages else {})
        tags = images.tags(workshop)
        host, storage = host_job.result(), storage_job.result()
    repos, warnings = _grants(home, inputs, storage)
    # After the grants: a key's command (config.yml) runs only where no grant lets the agent write it.
    key, own_key, credentials = _secrets(home, manifest, proxy, assumed)
    named = _image_names(manifest, packages)
    adapter = homes.load_adapter(collection, manifest.adapter)
    chosen = _settings(inputs, settings, adapter, workshop, tags, named, proxy)
    request = plans.Request(
        inputs.session,
        _command(inputs.command_file),
        inputs.tty,
        inputs.llm_mock,
        _terminal(inputs),
        own_key is not None,
    )
    plan = plans.build(manifest, repos, host, chosen, request)
    warnings += [p.text() for p in manifest.warnings] + list(plan["warnings"])
    warnings += _unused(key or own_key, credentials, proxy)
    return plan, named, warnings


def _secrets(
    home: Home, manifest: Manifest, proxy: Optional[upstream.Proxy], assumed: Optional[List[str]]
) -> Tuple[Optional[Selection], Optional[Selection], Optional[Selection]]:
    """The provider's key for the broker, that for the agent, the operator's login at a proxy: what there is, unseen."""
    llm = manifest.llm
    rows: List[Tuple[bool, Callable[[], Optional[Selection]]]] = [
        (llm is not None and llm.key_required, lambda: homes.provider_key(home, manifest)),
        (llm is not None and llm.key_to_agent, lambda: homes.agent_key(home, manifest)),
        (proxy is not None and bool(proxy.secret), lambda: homes.proxy_credentials(home, manifest, proxy)),
    ]
    key, own, credentials = (
        assuming.secret(lambda read=read: _without_value(read), assumed) if wanted else None  # type: ignore[misc]
        for wanted, read in rows
    )
    return key, own, credentials


def _without_value(read: Callable[[], Optional[Selection]]) -> Optional[Selection]:
    """What ``read`` finds, without the value, which this process never has. Raises what ``read`` raises."""

    def found() -> Optional[Json]:
        chosen = read()
        return None if chosen is None else {"file": chosen.file, "line": chosen.line, "others": list(chosen.others)}

    said = hidden.apart(found)
    others = tuple((str(file), str(name)) for file, name in said["others"]) if said else ()
    return Selection("", said["file"], said["line"], others) if said else None


def _settings(
    inputs: Inputs,
    settings: Settings,
    adapter: Adapter,
    workshop: images.Host,
    tags: Mapping[str, str],
    named: Sequence[str],
    proxy: Optional[upstream.Proxy],
) -> plans.Settings:
    """The operator's choices, as the plan takes them. Raises typed errors of the files that they name."""
    return plans.Settings(
        run_dir=str(dirs.run_dir()),
        gate=str(workshop.binary(tags["gate"])),
        gate_digest=tags["gate"],
        adapter=adapter,
        images={"agent": tags[image_names.agent_image(named)], **{n: tags[n] for n in ("caddy", "gateway", "litellm")}},
        broker_files=_broker_files(workshop.options.repo),
        ca_bundle=settings.ca_bundle,
        ca_digest=_ca_digest(settings.ca_bundle),
        limits=_limits(inputs, settings),
        cable_range=inputs.cable_range,
        uplink_range=inputs.uplink_range,
        gate_deadline=inputs.gate_deadline,
        upstream=proxy,
        upstream_ca=upstreamca.found(proxy, settings.ca_bundle),
    )


def _proxy(manifest: Manifest, settings: Settings) -> Optional[upstream.Proxy]:
    return upstream.chosen(manifest.network.upstream_proxy, manifest.secrets_files, settings.upstream_proxy)


def _unused(key: Optional[Selection], credentials: Optional[Selection], proxy: Optional[upstream.Proxy]) -> List[str]:
    """What stands in the secrets files that were read, and goes nowhere."""
    used = {proxy.secret} if proxy and credentials else set()
    read = [*(key.others if key else ()), *(credentials.others if credentials and not key else ())]
    return [f"{file}: {name} is not used" for file, name in read if name not in used]


def _live(podman: Podman, plan: Json, record: Json, check_mode: bool) -> Tuple[PlanDocument, List[str], str, List[Any]]:
    """The live session's plan, revised where its policy was edited; what was done, its policy before, and warnings.

    Raises PlanError naming the keys that differ beyond policy.
    """
    old = plandoc.read(record["plan"])
    before = revision.policy_text(old.plan)
    if revision.same(old.plan, plan):
        if check_mode or not record.get("revising"):
            return old, [], before, []
        wanted = old.plan  # a revision that was interrupted is done again
    else:
        wanted = revision.revised(old.plan, plan, old.session)
    wider: List[Any] = statevolumes.widened(wanted)
    if check_mode:
        return plandoc.write_checked(wanted), [f"would change the policy of {old.session}"], before, wider
    doc = revising.apply(podman, old, wanted)
    done = f"changed the policy of {old.session} (revision {doc.plan['revision']}, {doc.digest[:12]})"
    return doc, [done], before, wider


def _missing_volumes(podman: Podman, plan: Json) -> List[Json]:
    if not plan["volumes"]:
        return []
    have = set(podman.run(["volume", "ls", "--quiet", "--filter", "label=asf.volume=state"]).stdout.split())
    return [volume for volume in plan["volumes"] if volume["name"] not in have]


def _row(podman: Podman, session: str, found: inventory.Inventory) -> Json:
    """The session as ``asf-play ls`` says it; empty when nothing of it exists."""
    rows = state.sessions(podman, inventory=found)
    return next((row for row in rows if row["session"] == session), {})


def _cleared(podman: Podman, row: Json) -> str:
    """Close what is left of an earlier session of the same name; the sentence that says so.

    A broken session is never mended: its cables cannot be plugged again, and nobody knows what happened meanwhile.
    """
    report = teardown.teardown(podman, row["session"])
    why = "; ".join(row["reasons"])
    if row["state"] == lifecycle.ENDED:
        code = row["exit_code"]
        why = "its workload had ended" + ("" if code is None else f" with code {code}")
    return f"closed what was left of {row['session']} ({row['state']}: {why}); its evidence: {report.evidence}"


def plan_session(podman: Podman, inputs: Inputs, check_mode: bool = False) -> Result:
    """Compute the plan and record the session as opening; a live one is found again, a crashed one is cleared first."""
    plan, named, warnings = compute(podman, inputs)
    session = plan["session"]["id"]
    with state.lock(session):
        found = inventory.Inventory(podman)
        row = _row(podman, session, found)
        view = row.get("state")
        record = state.read(session) or {}
        if view == "live" and record.get("plan"):
            doc, done, before, wider = _live(podman, plan, record, check_mode)
            actions = [f"{session} is open", *done]
            return Result(
                doc, True, bool(done), named, [], [*warnings, *wider], actions, record.get("evidence"), before=before
            )
        if view in ("opening", "closing"):
            raise EngineError(
                f"session {session} is {view} by process {state.holder(record)}",
                key="session",
                code="busy",
                remedy="wait for it, or end that process and open again",
            )
        rehearsal.gateway(plan)
        missing = _missing_volumes(podman, plan)
        if check_mode:
            _check_live(podman, found, plan)
            doc = plandoc.write_checked(plan)
            return Result(doc, False, True, named, missing, warnings, [f"would open {session}"], None)
        notes = [] if view is None else [_cleared(podman, row)]
        with state.grants_lock():
            _check_live(podman, found, plan)
            return _recorded(plan, named, missing, warnings, notes)


def _recorded(plan: Json, named: List[str], missing: List[Json], warnings: List[Any], notes: List[str]) -> Result:
    session, found = plan["session"], plans.digest(plan)
    warnings = [*warnings, *statevolumes.widened(plan)]
    record = state.begin(session["id"], mode=session["mode"], isolation=session["isolation"], plan_digest=found)
    try:
        doc = plandoc.write(os.path.join(plan["run_dir"], "plan.json"), plan)
        record = state.begin_step(session["id"], "plan", plan=doc.path)
        evidence: Evidence = state.evidence_of(record)
        evidence.write("plan.json", plandoc.for_evidence(doc))
    except (AsfError, OSError):
        state.clear_run_folder(session["id"])
        state.forget(session["id"])
        raise
    actions = [*notes, f"planned {session['id']} ({doc.digest[:12]})"]
    return Result(doc, False, True, named, missing, warnings, actions, record["evidence"], notes)


def secret_value(inputs_home: Optional[str], collection: str, plan: Json, entry: Json) -> str:
    """The value of one of the plan's secrets that stand in a file. Raises SecretError and PlanError."""
    home = home_of(inputs_home, collection)
    manifest = homes.load_manifest(home, plan["session"]["agent"])
    if entry["part"] == KEY_PART:
        selection = homes.agent_key(home, manifest)
    elif entry["part"] == upstream.PART:
        selection = homes.proxy_credentials(home, manifest, _proxy(manifest, homes.load_settings(home)))
    else:
        selection = homes.provider_key(home, manifest)
    if selection is None:
        raise PlanError(
            f"the plan has a secret {entry['variable']}, the files name none", remedy="close and open the session"
        )
    return selection.value
