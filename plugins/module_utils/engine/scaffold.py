# SPDX-License-Identifier: BSD-2-Clause
"""A new agent's folder, made from another's: all of it or nothing, and only when what came out is valid."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..core import adapters
from ..core.errors import ManifestError, Problem
from ..core.formats import NAME
from ..core.schema import misformed
from . import home as homes, regular
from .home import GRANTS_FILE, MANIFEST_FILE, Home

#: What belongs to the other agent alone: its client's description and recipe, its grants.
_LEFT = frozenset({adapters.FILE, "image", "files", GRANTS_FILE})
_LIMIT = 16 * 1024 * 1024
_ENTRIES = 500
_NAME_LINE = re.compile(r"(?m)^name:.*$")

#: Ends a manifest that adds no packages yet: what a newcomer looks for first.
PACKAGES_HINT = """
# What the image of this agent adds; asf-play build.yml makes it. The files lie beside this one (docs/agents.md).
# packages:
#   apt: [ripgrep]
#   pip: requirements.txt
#   npm: package-lock.json
"""


@dataclass(frozen=True)
class Scaffold:
    """The new agent's folder and what lies in it, by relative path."""

    name: str
    source: str
    folder: Path
    files: tuple[str, ...]


def make(home: Home, name: str, source: str) -> Scaffold:
    """Make ``agents/NAME`` in the root out of the agent ``source``.

    Raises ManifestError when the name is taken or wrong, when the source cannot be copied, or when the copy would not
    be valid; OSError when the root cannot be written. Nothing is left then.
    """
    wrong = misformed(NAME, name)
    if wrong is not None:
        raise ManifestError([Problem(wrong, key="NAME", found=name[:80], allowed=NAME.words)])
    folder, origin = home.agents_dir / name, homes.agent(home, source)
    if os.path.lexists(folder / MANIFEST_FILE) or os.path.islink(folder):
        remedy = "choose another name, or remove the folder"
        raise ManifestError([Problem("there is an agent of this name already", str(folder), key="NAME", remedy=remedy)])
    home.agents_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stage = Path(tempfile.mkdtemp(prefix=".new-", dir=home.agents_dir))
    try:
        files = _copy(origin.folder, stage)
        _rename_agent(stage / MANIFEST_FILE, name)
        manifest = homes.validated(str(stage / MANIFEST_FILE), name)
        homes.load_packages(home, manifest)
        _place(stage, folder)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Scaffold(name, source, folder, files)


def _copy(origin: Path, stage: Path) -> tuple[str, ...]:
    """Copy the files of an agent's folder; returns their relative paths. Links and special files are refused."""
    found: list[str] = []
    for base, folders, names in os.walk(origin):
        top = Path(base) == origin
        folders[:] = sorted(word for word in folders if word != "__pycache__" and not (top and word in _LEFT))
        for word in (*folders, *sorted(names)):
            path = Path(base, word)
            if top and word in _LEFT:
                continue
            relative = path.relative_to(origin)
            if path.is_symlink() or not (path.is_dir() or path.is_file()) or len(found) > _ENTRIES:
                raise _refused(path, "neither a file nor a folder, or one of too many")
            if path.is_dir():
                (stage / relative).mkdir(mode=0o700)
                continue
            data, status = regular.read(str(path), _LIMIT)
            if len(data) > _LIMIT:
                raise _refused(path, f"larger than {_LIMIT >> 20} MiB")
            (stage / relative).write_bytes(data)
            (stage / relative).chmod(0o700 if status.st_mode & 0o100 else 0o600)
            found.append(str(relative))
    return tuple(found)


def _refused(path: Path, message: str) -> ManifestError:
    remedy = "copy the folder without it, by hand"
    return ManifestError([Problem(f"cannot be copied: {message}", str(path), remedy=remedy)])


def _rename_agent(path: Path, name: str) -> None:
    """Write the new name into a manifest, comments kept. One that has no line of its own for it is refused later."""
    text = _NAME_LINE.sub(f"name: {name}", path.read_text(encoding="utf-8"), count=1)
    if not re.search(r"(?m)^packages:", text):
        text = text.rstrip("\n") + "\n" + PACKAGES_HINT
    path.write_text(text, encoding="utf-8")


def _place(stage: Path, folder: Path) -> None:
    """Give the finished folder its name; beside grants that are there already, its manifest last."""
    if not folder.exists():
        os.rename(stage, folder)
        return
    entries = sorted(os.listdir(stage), key=lambda word: word == MANIFEST_FILE)
    taken = [word for word in entries if os.path.lexists(folder / word)]
    if taken:
        remedy = "remove it, or choose another name"
        raise ManifestError([Problem("something is in its place already", str(folder / taken[0]), remedy=remedy)])
    for word in entries:
        os.rename(stage / word, folder / word)
