# SPDX-License-Identifier: BSD-2-Clause
"""Images of a session: which exist, and building those that do not.

``state`` costs one Podman call and some file reads, because every ``open`` asks. A build happens under a lock per image and
under a temporary tag; the final tag is given last, so an image that has its name is complete, mapped copy and record
included. A killed build leaves temporary tags, a scratch folder and labelled containers, which the next one removes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence
from urllib.parse import urlsplit

from ..core import images as core
from ..core.redact import Redactor
from . import build_base, build_go, build_image, build_record, procs
from .build_host import Host, Options, locked, write_json
from .podman import Podman

__all__ = ["Host", "Options", "Outcome", "State", "ensure", "source_digests", "state", "workshop"]

#: Not part of what is built, so editing them rebuilds nothing.
_IGNORED = ("__pycache__", "testdata", ".git")
_BUILDING = "building-"


class State(NamedTuple):
    """Names of all images and binaries (``tags``), and which of them exist."""

    tags: dict[str, str]
    present: frozenset[str]

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """What must be built to have these names, parents first; a parent counts only where its child is missing."""
        wanted: set[str] = set()
        for name in core.order(names) and names:
            while name and name not in self.present and name not in wanted:
                wanted.add(name)
                name = core.SPECS[name].parent
        return tuple(name for name in core.SPECS if name in wanted)


class Outcome(NamedTuple):
    """``images`` maps every wanted name to its tag (a binary's name to its path); ``actions`` are sentences."""

    changed: bool
    images: dict[str, str]
    actions: list[str]
    seconds: dict[str, float]


def source_digests(repo: Path) -> dict[str, str]:
    """Digest (hex) of every folder that images are made from: relative names, executable bits, bytes."""
    return {name: _tree_digest(Path(repo) / folder) for name, folder in core.SOURCES.items()}


def _tree_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _IGNORED)
        for name in sorted(names):
            if name.endswith(("_test.go", ".pyc", ".in")):
                continue
            path = Path(base, name)
            executable = b"x" if os.access(path, os.X_OK) else b"-"
            digest.update(os.fsencode(path.relative_to(folder)) + b"\0" + executable)
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def workshop(options: Options, pins: Mapping[str, Any], **more: Any) -> Host:
    """A ``Host`` for the calling account. Raises PlanError for wrong pins, HostError without a run directory."""
    redactor = Redactor(_credentials(options))
    return Host(options=options, podman=Podman(redactor), pins=core.checked(pins), redactor=redactor, **more)


def _credentials(options: Options) -> list[str]:
    """Passwords in the URLs of the options: logs must not hold them."""
    urls = (options.proxy, options.pip_index, options.npm_registry, *options.mirror.split())
    return [found for found in (urlsplit(url).password for url in urls) if found]


def tags(host: Host) -> dict[str, str]:
    """Names of all images and binaries for these sources, pins and options."""
    return core.tags(
        host.pins, source_digests(host.options.repo), base_image=host.options.base_image, mirror=host.options.mirror
    )


def state(host: Host, known: Optional[Mapping[str, str]] = None) -> State:
    """Which images and binaries exist; one Podman call."""
    names = dict(known or tags(host))
    rows = host.podman.json(["images", "--format=json", f"--filter=reference={core.PREFIX}*"])
    stored = {name for row in rows for name in row.get("Names") or ()}
    present = {name for name, tag in names.items() if tag in stored}
    present |= {n for n, tag in names.items() if core.SPECS[n].kind == "binary" and host.binary(tag).is_file()}
    return State(names, frozenset(present))


def ensure(host: Host, names: Sequence[str], *, dry: bool = False) -> Outcome:
    """Build what is missing of these names; ``dry`` only says so.

    Raises EngineError naming image, step, last lines and log when a build fails; whatever was finished before stays.
    """
    started = time.monotonic()
    found = state(host)
    todo = found.missing(names)
    if todo:
        host.options.check()
    actions, seconds = [f"{name} exists" for name in names if name in found.present], {}
    for name in todo:
        if dry:
            actions.append(f"{name} would be built")
            continue
        begun = time.monotonic()
        built = _build_locked(host, name, found.tags)
        seconds[name] = round(time.monotonic() - begun, 2)
        actions.append(f"{name} built in {seconds[name]:.1f} s" if built else f"{name} was built by another run meanwhile")
    images = {name: _where(host, name, found.tags[name]) for name in names}
    seconds["total"] = round(time.monotonic() - started, 3)
    return Outcome(bool(todo), images, actions, seconds)


def _where(host: Host, name: str, tag: str) -> str:
    return str(host.binary(tag)) if core.SPECS[name].kind == "binary" else tag


def _build_locked(host: Host, name: str, names: dict[str, str]) -> bool:
    """Build one thing unless another process did while this one waited. Returns True when it was built here."""
    with locked(host, f"image-{name}"):
        if name in state(host, names).present:
            return False
        _sweep(host, name)
        with locked(host, "builds", shared=True):
            _build(host, name, names)
    return True


def _build(host: Host, name: str, names: dict[str, str]) -> None:
    tag, spec = names[name], core.SPECS[name]
    log_path = host.log_path(name, tag)
    begun = time.monotonic()
    with open(log_path, "wb") as log:
        os.chmod(log_path, 0o600)
        if spec.kind == "binary":
            facts = build_go.build(host, name, spec.sources[0], tag, log)
            contents: dict[str, Any] = {}
            image = ""
        else:
            facts, contents, image = _build_image(host, name, names, log)
    _record(host, name, names, {**facts, **contents, "image_id": image, "seconds": round(time.monotonic() - begun, 2)})
    if image:
        host.podman.run(["tag", image, tag])
        host.podman.run(["untag", image, _temporary(name, tag)], check=False)
    host.progress(name, f"done in {time.monotonic() - begun:.1f} s")


def _temporary(name: str, tag: str) -> str:
    return f"{core.PREFIX}{name}:{_BUILDING}{core.digest_of(tag)}"


def _build_image(host: Host, name: str, names: dict[str, str], log: Any) -> tuple[dict[str, Any], dict[str, Any], str]:
    temporary = _temporary(name, names[name])
    labels = {"asf.image": name, "asf.inputs": core.digest_of(names[name])}
    try:
        if core.SPECS[name].kind == "base":
            facts = build_base.build(host, temporary, labels, log)
        else:
            facts = build_image.build(host, name, names, temporary, labels, log)
        image = host.podman.run(["image", "inspect", "--format={{.Id}}", temporary]).stdout.strip()
        return facts, build_record.examine(host, name, temporary), image
    except BaseException:
        host.podman.run(["rmi", "--force", temporary], timeout=120, check=False)
        raise


def _record(host: Host, name: str, names: dict[str, str], facts: dict[str, Any]) -> None:
    """Write what went into it, beside what it was made from."""
    spec, tag = core.SPECS[name], names[name]
    sources = source_digests(host.options.repo)
    document = {
        "version": 1,
        "name": name,
        "tag": tag,
        "parent": names.get(spec.parent, ""),
        "sources": {source: sources[source] for source in spec.sources},
        "pins": {key: host.pins[key] for key in spec.pins},
        "wheels": {key: host.pins["wheels"][key] for key in spec.wheels},
        "base_image": host.options.base_image,
        "mirror": host.options.mirror,
        "podman": ".".join(map(str, host.podman.version())),
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **facts,
    }
    write_json(host.records / core.record_name(name, tag), document)


def _sweep(host: Host, name: str) -> None:
    """Remove what killed builds left: this image's labelled containers and temporary tags, scratch folders of the dead,
    and, when no other build of ASF runs, the working containers that ``podman build`` keeps outside Podman's list."""
    build_record.reclaim(host, name)
    for folder in (host.cache / "builds").glob(f"*.*.*"):
        parts = folder.name.rsplit(".", 2)
        if parts[1].isdigit() and procs.identity(int(parts[1])) is None:
            shutil.rmtree(folder, ignore_errors=True)
    trees = build_base.scratch_root(host).glob(f"{build_base.SCRATCH}{os.getuid()}.*")
    build_base.remove_tree(host, [path for path in trees if procs.identity(int(path.name.rsplit(".", 1)[1])) is None])
    rows = host.podman.json(["images", "--format=json", f"--filter=reference={core.PREFIX}{name}:{_BUILDING}*"])
    stale = sorted({tag for row in rows for tag in row.get("Names") or () if f":{_BUILDING}" in tag})
    if stale:
        host.podman.run(["rmi", "--force", *stale], timeout=120, check=False)
    with locked(host, "builds", wait=False) as alone:
        if alone:
            _sweep_working_containers(host)


def _sweep_working_containers(host: Host) -> None:
    rows = host.podman.json(["ps", "--all", "--external", "--format=json"])
    ours = [str(row["Id"]) for row in rows if _is_working(row)]
    if ours:
        host.podman.run(["rm", "--force", *ours], timeout=120, check=False)


def _is_working(row: Mapping[str, Any]) -> bool:
    """A container of ``podman build`` on one of ASF's images: Podman itself shows it as ``storage`` only."""
    names = row.get("Names") or [""]
    return (
        str(row.get("State", "")).lower() in ("storage", "unknown", "")
        and str(row.get("Image", "")).startswith(core.PREFIX)
        and str(names[0]).split("-working-container")[0] != str(names[0])
    )
