# SPDX-License-Identifier: BSD-2-Clause
"""Images of a session: which exist, and building those that do not.

``state`` costs one Podman call and some file reads, because every ``open`` asks. A build happens under a lock per
image and under a temporary tag; the final tag is given last, so an image that has its name is complete, mapped copy and
record included. A killed build leaves temporary tags, scratch folders and labelled containers: the next one removes
them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Iterable, Mapping, NamedTuple, Optional, Sequence
from urllib.parse import urlsplit

from ..core import images as core
from ..core.redact import Redactor
from . import build_base, build_go, build_image, build_record, procs
from .build_host import Host, Options, locked, write_json
from .build_run import end_group, end_steps
from .podman import Podman

__all__ = [
    "Host",
    "Options",
    "Outcome",
    "State",
    "digests",
    "ensure",
    "prune",
    "source_digests",
    "state",
    "tags",
    "workshop",
]

#: Not part of what is built, so editing them rebuilds nothing.
_IGNORED_FOLDERS = ("__pycache__", "testdata", ".git")
_IGNORED_FILES = ("_test.go", ".pyc", ".in", ".md")
_BUILDING = "building-"
#: Builds at once: one waits for the network while the other computes.
_AT_ONCE = 2


class State(NamedTuple):
    """Names of all images and binaries (``tags``), which of them exist, and what they are."""

    tags: dict[str, str]
    present: frozenset[str]
    specs: Mapping[str, core.Spec] = core.SPECS

    def missing(self, names: Iterable[str]) -> tuple[str, ...]:
        """What must be built to have these names, parents first; a parent counts only where its child is missing."""
        wanted: set[str] = set()
        for name in names:
            while name and name not in self.present:
                wanted.add(name)
                name = self.specs[name].parent
        return tuple(name for name in self.specs if name in wanted)


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
        folders[:] = sorted(name for name in folders if name not in _IGNORED_FOLDERS)
        for name in sorted(names):
            if name.endswith(_IGNORED_FILES):
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
    """Passwords in the URLs of the options: errors must not show them."""
    urls = (options.proxy, options.pip_index, options.npm_registry, *options.mirror.split())
    return [found for found in (urlsplit(url).password for url in urls) if found]


def tags(host: Host) -> dict[str, str]:
    """Names of all images and binaries for these sources, pins and options."""
    options = host.options
    return core.tags(host.pins, digests(host), base_image=options.base_image, mirror=options.mirror, specs=host.specs)


def digests(host: Host) -> dict[str, str]:
    """Digest (hex) of every source: the collection's folders, and what agents add."""
    return {**source_digests(host.options.repo), **{name: one.digest for name, one in host.packages.items()}}


def state(host: Host, known: Optional[Mapping[str, str]] = None) -> State:
    """Which images and binaries exist; one Podman call."""
    names = dict(known or tags(host))
    stored = set(_tagged(host, f"{core.PREFIX}*"))
    present = {name for name, tag in names.items() if tag in stored}
    specs = host.specs
    present |= {n for n, tag in names.items() if specs[n].kind == "binary" and host.binary(tag).is_file()}
    return State(names, frozenset(present), specs)


def _tagged(host: Host, reference: str) -> list[str]:
    rows = host.podman.json(["images", "--format=json", f"--filter=reference={reference}"])
    return [str(name) for row in rows for name in row.get("Names") or () if str(name).startswith(core.PREFIX)]


def ensure(host: Host, names: Sequence[str], *, dry: bool = False) -> Outcome:
    """Build what is missing of these names; ``dry`` only says so.

    Raises EngineError naming image, step, last lines and log when a build fails; whatever was finished before stays.
    """
    started = time.monotonic()
    found = state(host)
    todo = found.missing(names)
    actions, seconds = [f"{name} exists" for name in names if name in found.present], {}
    if dry:
        actions += [f"{name} would be built" for name in todo]
    elif todo:
        host.options.check()
        seconds = _build_all(host, todo, found.tags)
        actions += [_sentence(name, seconds[name]) for name in todo]
        actions += [note for name in todo if name in host.packages for note in host.packages[name].notes()]
    images = {name: _where(host, name, found.tags[name]) for name in names}
    return Outcome(bool(todo), images, actions, {**seconds, "total": round(time.monotonic() - started, 3)})


def _sentence(name: str, seconds: float) -> str:
    return f"{name} built in {seconds:.1f} s" if seconds else f"{name} was built by another run meanwhile"


def _where(host: Host, name: str, tag: str) -> str:
    return str(host.binary(tag)) if host.specs[name].kind == "binary" else tag


def _build_all(host: Host, todo: Sequence[str], names: dict[str, str]) -> dict[str, float]:
    """Build these, parents first, some at once. Returns seconds per name (0: another run built it).

    All builds have ended, by themselves or by force, before an error or an interruption leaves this function.
    """
    futures: dict[str, Future[float]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for name in todo:
                futures[name] = pool.submit(_after, host, name, names, futures.get(host.specs[name].parent))
            return {name: future.result() for name, future in futures.items()}
        except BaseException:
            for future in futures.values():
                future.cancel()
            for process in list(host.running):
                end_group(process)
            raise


def _after(host: Host, name: str, names: dict[str, str], parent: Optional[Future[float]]) -> float:
    """Build once the parent is there. A parent is submitted earlier, so waiting for it cannot starve it."""
    if parent is not None:
        parent.result()
    begun = time.monotonic()
    built = _build_locked(host, name, names)
    return round(time.monotonic() - begun, 2) if built else 0.0


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
    tag, spec = names[name], host.specs[name]
    log_path = host.log_path(name, tag)
    begun = time.monotonic()
    with open(log_path, "wb") as log:
        os.chmod(log_path, 0o600)
        if spec.kind == "binary":
            facts, image = build_go.build(host, name, spec.sources[0], tag, log), ""
        else:
            facts, image = _build_image(host, name, names, log)
    _record(host, name, names, {**facts, "image_id": image, "seconds": round(time.monotonic() - begun, 2)})
    if image:
        host.podman.run(["tag", image, tag])
        host.podman.run(["untag", image, _temporary(name, tag)], check=False)
    host.progress(name, f"done in {time.monotonic() - begun:.1f} s")


def _temporary(name: str, tag: str) -> str:
    return f"{core.repository(name)}:{_BUILDING}{core.digest_of(tag)}"


def _build_image(host: Host, name: str, names: dict[str, str], log: IO[bytes]) -> tuple[dict[str, Any], str]:
    """Facts for the record, and the image's id; the image has its temporary tag only."""
    temporary = _temporary(name, names[name])
    labels = {"asf.image": name, "asf.inputs": core.digest_of(names[name])}
    try:
        if host.specs[name].kind == "base":
            facts = build_base.build(host, temporary, labels, log)
        else:
            facts = build_image.build(host, name, names, temporary, labels, log)
        image = host.podman.run(["image", "inspect", "--format={{.Id}}", temporary]).stdout.strip()
        return {**facts, **build_record.examine(host, name, temporary)}, image
    except BaseException:
        host.podman.run(["rmi", "--force", temporary], timeout=120, check=False)
        raise


def _record(host: Host, name: str, names: dict[str, str], facts: dict[str, Any]) -> None:
    """Write what went into it, beside what it was made from."""
    spec, tag = host.specs[name], names[name]
    sources = digests(host)
    document = {
        "version": 1,
        "name": name,
        "tag": tag,
        "parent": names.get(spec.parent, ""),
        "sources": {source: sources[source] for source in spec.sources},
        "pins": {key: host.pins[key] for key in spec.pins},
        "wheels": {key: host.pins["wheels"][key] for key in spec.wheels},
        "base_image": host.options.base_image,
        "mirror": host.redactor.text(host.options.mirror),
        "podman": ".".join(map(str, host.podman.version())),
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **facts,
    }
    write_json(host.records / core.record_name(name, tag), document)


def _sweep(host: Host, name: str) -> None:
    """Remove what killed builds left (case L3).

    This image's labelled containers and temporary tags, scratch folders of the dead, and, when no other build of ASF
    runs, the working containers that ``podman build`` keeps outside of Podman's own list.
    """
    build_record.reclaim(host, name)
    for folder in (host.cache / "builds").glob("*.*.*"):
        if _dead(folder.name.rsplit(".", 2)[1]):
            end_steps(folder)
            shutil.rmtree(folder, ignore_errors=True)
    trees = build_base.scratch_root(host).glob(f"{build_base.SCRATCH}{os.getuid()}.*")
    build_base.remove_trees(host, [tree for tree in trees if _dead(tree.name.rsplit(".", 1)[1])])
    stale = [tag for tag in _tagged(host, core.repository(name)) if f":{_BUILDING}" in tag]
    if stale:
        host.podman.run(["rmi", "--force", *stale], timeout=120, check=False)
    with locked(host, "builds", wait=False) as alone:
        if alone:
            _sweep_working_containers(host)


def _dead(pid: str) -> bool:
    return pid.isdigit() and procs.identity(int(pid)) is None


def _sweep_working_containers(host: Host) -> None:
    rows = host.podman.json(["ps", "--all", "--external", "--format=json"])
    ours = [str(row["Id"]) for row in rows if _is_working(row)]
    if ours:
        host.podman.run(["rm", "--force", *ours], timeout=120, check=False)


def _is_working(row: Mapping[str, Any]) -> bool:
    """A working container of ``podman build`` on one of ASF's images; Podman lists it as external only."""
    names = [str(name) for name in row.get("Names") or ()]
    named = any("working-container" in name for name in names)
    return named and str(row.get("Image", "")).startswith(core.PREFIX) and not row.get("Pid")


def prune(host: Host) -> list[str]:
    """Remove ASF's images that these sources and pins do not name and that no container or image uses.

    Returns a sentence for each. What another version of ASF on this account uses goes too; it builds it again. Gates
    stay: a container that is not started yet may have one mounted, and they are small.
    """
    keep, done = set(tags(host).values()), []
    stored = [tag for tag in _tagged(host, f"{core.PREFIX}*") if tag not in keep and f":{_BUILDING}" not in tag]
    for tag in sorted(stored, key=lambda tag: tag.startswith(f"{core.PREFIX}base:")):  # what others stand on goes last
        if not host.podman.run(["rmi", tag], timeout=300, check=False).rc:
            done.append(f"removed {tag}")
    for program in sorted((host.cache / "bin").glob("caddy-*")):
        if program.name not in keep:
            program.unlink()
            done.append(f"removed {program.name}")
    return done
