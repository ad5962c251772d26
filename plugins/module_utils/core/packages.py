# SPDX-License-Identifier: BSD-2-Clause
"""``packages`` of a manifest: what an agent's own image adds to its client's (pure).

The files beside the manifest are checked before any build: everything is pinned, and nothing in them chooses where
packages come from. That is the operator's matter (``asf_image_options``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from .errors import ManifestError, Problem
from .images import KEEP_ID, PACKAGES, SPECS, Spec, canonical

#: Names of the inputs in the build's /mnt.
APT, PIP, NPM, NPM_LOCK, NPM_SCRIPTS = "apt.txt", "requirements.txt", "package.json", "package-lock.json", "scripts.txt"

# PEP 508's name, extras, an exact version (PEP 440, no wildcard), perhaps a marker; pip's options begin with `` -``.
_PINNED = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9._, -]*\])?"
    r"\s*==\s*[A-Za-z0-9][A-Za-z0-9.!+_-]*\s*(?:;(?!.*\s-).*)?\Z"
)
_HASH = re.compile(r"\s--hash=(\S+)")
_GOOD_HASH = re.compile(r"sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})\Z")
_MANY = 20


@dataclass(frozen=True)
class Packages:
    """What one agent's image adds: ``inputs`` are the build's files by name, ``unrun`` npm packages whose install
    scripts are left out."""

    agent: str
    adapter: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    unrun: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The image's name."""
        return f"{PACKAGES}-{self.agent}"

    @property
    def digest(self) -> str:
        """sha256 (hex) over the inputs."""
        return hashlib.sha256(canonical(dict(self.inputs))).hexdigest()

    def spec(self) -> Spec:
        """The image, as something to build: it stands on the client's, and must pass the client's own check."""
        wheels = tuple(wheel for wheel, file in (("pip", PIP), ("node", NPM_LOCK)) if file in self.inputs)
        parent = f"agent-{self.adapter}"
        check = SPECS[parent].check
        return Spec(self.name, "image", (PACKAGES, self.name), parent, wheels, mapping=KEEP_ID, check=check)

    def notes(self) -> list[str]:
        """What a reader of the build should know."""
        if not self.unrun:
            return []
        return [
            f"{self.name}: install scripts of npm packages were not run: {', '.join(self.unrun)} "
            "(packages.npm_scripts names those that shall)"
        ]


def image_of(adapter: str, packages: Optional[Packages]) -> str:
    """Name of an agent's image."""
    return packages.name if packages else f"agent-{adapter}"


# --- files beside the manifest ----------------------------------------------------------------------------------


def of(agent: str, adapter: str, declared: Mapping[str, Any], texts: Mapping[str, str], folder: str) -> Packages:
    """What a manifest's ``packages`` and the texts of its files (by file name, from ``folder``) come to.

    Raises ManifestError with every problem of all files.
    """
    problems: list[Problem] = []
    inputs: dict[str, str] = {}
    unrun: tuple[str, ...] = ()
    if declared["apt"]:
        inputs[APT] = "".join(f"{name}\n" for name in declared["apt"])
    if declared.get("pip"):
        text = texts[declared["pip"]]
        # Without its comments: one that names an encoding would make pip read other lines than were checked here.
        inputs[PIP] = "".join(f"{line}\n" for _, line in _logical(text))
        problems += requirement_problems(text, f"{folder}/{declared['pip']}")
    if declared.get("npm"):
        inputs[NPM], inputs[NPM_LOCK] = texts[NPM], texts[declared["npm"]]
        locked, found = lock_entries(inputs[NPM_LOCK], f"{folder}/{declared['npm']}")
        unrun, more = _scripts(declared["npm_scripts"], locked)
        problems += found + more
        if declared["npm_scripts"]:
            inputs[NPM_SCRIPTS] = "".join(f"{name}\n" for name in declared["npm_scripts"])
    if problems:
        raise ManifestError(problems)
    return Packages(agent, adapter, inputs, unrun)


def files_of(declared: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """``(file name, key that names it)`` of what must lie beside the manifest."""
    named = [(declared[key], f"packages.{key}") for key in ("pip", "npm") if declared.get(key)]
    return (*named, (NPM, "packages.npm")) if declared.get("npm") else tuple(named)


def requirement_problems(text: str, file: str) -> list[Problem]:
    """What is wrong with a requirements file: every line is one exact version, and all have hashes or none has."""
    rows = list(_logical(text))
    hashed = any(_HASH.search(line) for _, line in rows)
    problems = [problem for number, line in rows if (problem := _wrong_line(number, line, hashed, file))]
    if not rows:
        problems.append(Problem("the file names no package", file, key="packages.pip", remedy="remove the key"))
    return problems[:_MANY]


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blanks, those that end in a backslash joined, with the number of the first."""
    begun, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        line = re.sub(r"(?:^|\s)#.*", "", line).rstrip()
        begun = begun if held else number
        if line.endswith("\\"):
            held += line[:-1] + " "
        elif (held + line).strip():
            yield begun, (held + line).strip()
            held = ""
        else:
            held = ""
    if held.strip():
        yield begun, held.strip()


def _wrong_line(number: int, line: str, hashed: bool, file: str) -> Optional[Problem]:
    def wrong(message: str, remedy: str) -> Problem:
        return Problem(message, file, number, key="packages.pip", found=line[:120], remedy=remedy)

    if line.startswith("-"):
        return wrong(
            "an option is not allowed here",
            "list packages alone; where they come from is said in asf_image_options (pip_index), for every build",
        )
    hashes = _HASH.findall(line)
    if not _PINNED.match(_HASH.sub("", line).strip()):
        return wrong(
            "not a package with one exact version",
            "write NAME==VERSION, with all that it needs (pip freeze), better with hashes (pip-compile "
            "--generate-hashes)",
        )
    if hashed and not hashes:
        return wrong("no hash, and other lines have one", "add --hash=sha256:… here too, or to no line")
    if not all(_GOOD_HASH.match(value) for value in hashes):
        return wrong("not a hash that pip takes", "write --hash=sha256: and 64 hexadecimal digits")
    return None


def lock_entries(text: str, file: str) -> tuple[dict[str, Mapping[str, Any]], list[Problem]]:
    """Packages of a package-lock.json by their path, and what is wrong with it."""

    def wrong(message: str, remedy: str, found: Optional[str] = None) -> Problem:
        return Problem(message, file, key="packages.npm", found=found, remedy=remedy)

    again = "make it with npm install --package-lock-only"
    try:
        document = json.loads(text)
    except ValueError as error:
        return {}, [wrong(f"not JSON: {error}", again)]
    entries = document.get("packages") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        return {}, [wrong("no lock file of version 2 or 3", again)]
    locked = {path: entry for path, entry in entries.items() if path}
    problems = []
    for path, entry in locked.items():
        if entry.get("link"):
            problems.append(wrong("a link to a folder cannot be installed", "name a published version", path[:120]))
        elif not entry.get("inBundle") and not isinstance(entry.get("integrity"), str):
            problems.append(wrong("a package without integrity (a git or file address?)", again, path[:120]))
    if not locked:
        problems.append(wrong("the lock names no package", "remove the key"))
    return locked, problems[:_MANY]


def _scripts(wanted: Sequence[str], locked: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], list[Problem]]:
    """Names of packages whose install scripts stay out, and those of ``wanted`` that have none."""
    having = sorted(
        {path.rpartition("node_modules/")[2] for path, row in locked.items() if row.get("hasInstallScript")}
    )
    problems = [
        Problem(
            "no package of the lock with this name has an install script",
            key=f"packages.npm_scripts[{index}]",
            found=name,
            allowed=", ".join(having) or None,
            remedy="remove it",
        )
        for index, name in enumerate(wanted)
        if locked and name not in having
    ]
    return tuple(name for name in having if name not in wanted), problems
