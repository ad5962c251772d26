# SPDX-License-Identifier: BSD-2-Clause
"""Find and remove what no build, container, clone or process of this account needs. Foreign images are never looked at.

Caches that only make the next build faster (packages, Go's) stay, as do gates: a container that is not started yet may
have one mounted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..core import images as core
from ..core.errors import EngineError, HostError
from ..core.pruning import KINDS, Item, needed, old_downloads, old_images
from . import images, procs, rundirs
from .build_host import Host, locked

#: requirement file -> what set-up's folders for it are called (tools/host/cache.py)
_ENVIRONMENTS = {"dev.txt": "venv-", "collections.txt": "collections-"}


def find(hosts: Sequence[Host], kinds: Collection[str] = KINDS) -> list[Item]:
    """What can go, in the order in which it should; ``hosts`` are the workshops of all collections that this account
    builds from, the caller's own first. Raises EngineError when Podman does not answer."""
    host, keep = hosts[0], frozenset().union(*map(_needed, hosts))
    finders: dict[str, Callable[[], list[Item]]] = {
        "images": lambda: _images(host, keep),
        "binaries": lambda: _binaries(host, keep),
        "downloads": lambda: _downloads(hosts),
        "builds": lambda: _builds(host, keep),
        "environments": lambda: _environments(host.cache),
        "runs": lambda: _runs(host),
    }
    return [item for kind in KINDS if kind in kinds for item in finders[kind]()]


def clones(cache: Path) -> list[Path]:
    """Checkouts that set-up made ready for this account and that still exist."""
    return sorted(repo for repo in map(_repo, cache.glob("collections-clone-*")) if repo.is_dir())


def remove(host: Host, items: Collection[Item]) -> tuple[list[Item], list[str]]:
    """Remove them; returns those that went, and a sentence for each that did not.

    Raises EngineError when a build runs: what it makes has no name yet.
    """
    with locked(host, "builds", wait=False) as alone:
        if not alone:
            raise EngineError("a build runs", code="busy", remedy="wait until it has ended, then prune")
        gone, kept = [], []
        for item in items:
            problem = _remove(host, item)
            if problem:
                kept.append(f"{item.name} was not removed: {problem}")
            else:
                gone.append(item)
        return gone, kept


def _remove(host: Host, item: Item) -> str:
    """Remove one thing; returns why that failed, else ''."""
    if item.kind == "images":
        done = host.podman.run(["rmi", item.name], timeout=300, check=False)
        return "" if done.rc == 0 else (done.stderr.strip().splitlines() or ["podman says nothing"])[-1]
    try:
        path = Path(item.name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


# --- images and what builds leave ----------------------------------------------------------------------------------


def _needed(host: Host) -> frozenset[str]:
    return needed(images.tags(host), images.digests(host), host.pins, _records(host), host.specs)


def _records(host: Host) -> Iterator[dict[str, Any]]:
    for path in sorted(host.records.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(record, dict) and record.get("name") in host.specs and record.get("tag"):
                yield record


def _images(host: Host, keep: Collection[str]) -> list[Item]:
    rows = host.podman.json(["images", "--filter", "label=asf.image", "--format", "json"])
    return old_images(rows, keep)


def _binaries(host: Host, keep: Collection[str]) -> list[Item]:
    programs = sorted((host.cache / "bin").glob("caddy-*"))
    return [_file("binaries", path, "no current image is made from it") for path in programs if path.name not in keep]


def _downloads(hosts: Sequence[Host]) -> list[Item]:
    folder = hosts[0].cache / "downloads"
    names = [path.name for path in folder.glob("*.whl")]
    old = set(names).intersection(*(old_downloads(names, host.pins) for host in hosts))
    return [_file("downloads", folder / name, "not pinned any more") for name in sorted(old)]


def _builds(host: Host, keep: Collection[str]) -> list[Item]:
    """Scratch folders of builds whose process is gone, and logs of builds that nothing came from."""
    dead = [path for path in (host.cache / "builds").glob("*.*.*") if _dead(path.name.rsplit(".", 2)[1])]
    known = {core.digest_of(tag) for tag in keep}
    logs = [path for path in (host.cache / "logs").glob("*.log") if core.digest_of(path.stem) not in known]
    found = [_file("builds", path, "its build is dead") for path in sorted(dead)]
    return found + [_file("builds", path, "the log of an old build") for path in sorted(logs)]


def _dead(pid: str) -> bool:
    return pid.isdigit() and procs.identity(int(pid)) is None


# --- environments of checkouts, run folders ------------------------------------------------------------------------


def _environments(cache: Path) -> list[Item]:
    """Python environments and collections of set-up that no clone asks for; nothing where no clone is known."""
    own, live = sorted(path for path in cache.glob("collections-clone-*") if path.is_dir()), clones(cache)
    found = [_file("environments", path, "its clone is gone") for path in own if _repo(path) not in live]
    keep = {prefix + digest for repo in live for prefix, digest in _digests(repo)}
    for prefix in _ENVIRONMENTS.values() if live else ():
        for path in sorted(cache.glob(prefix + "*")):
            if path not in own and path.name not in keep:
                found.append(_file("environments", path, "no clone asks for it"))
    return found


def _repo(path: Path) -> Path:
    return path / "ansible_collections/asf/sandbox"


def _digests(repo: Path) -> Iterator[tuple[str, str]]:
    """As tools/host/cache.py names them."""
    for name, prefix in _ENVIRONMENTS.items():
        with contextlib.suppress(OSError):
            yield prefix, hashlib.sha256((repo / "requirements" / name).read_bytes()).hexdigest()[:12]


def _runs(host: Host) -> list[Item]:
    try:
        found = rundirs.dead(rundirs.base(host.env))
    except HostError:
        return []
    return [_file("runs", path, "its process is gone") for path in found]


# --- sizes -----------------------------------------------------------------------------------------------------------


def _file(kind: str, path: Path, why: str) -> Item:
    return Item(kind, str(path), _size(path), why)


def _size(path: Path) -> int | None:
    """Bytes on disk of a file or a tree, without following links; None when it cannot be read."""
    try:
        total = os.lstat(path).st_blocks * 512
        for base, folders, names in os.walk(path):
            total += sum(os.lstat(os.path.join(base, name)).st_blocks * 512 for name in (*folders, *names))
    except OSError:
        return None
    return total
