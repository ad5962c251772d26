# SPDX-License-Identifier: BSD-2-Clause
"""Grants on the file system: facts about repositories, and what is decided with them.

Facts are read with ``openat`` and ``O_NOFOLLOW`` from the real path down; nothing is executed, and git is never run
(an agent may have written its configuration). The walk for sockets and devices is bounded; a tree
that it could not search to its end is refused.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import grants as core
from ..core.errors import GrantError, HostError, Problem
from ..core.escape import terminal
from ..core.grants import Context, Facts, Grant, Place
from . import containersconf, dirs, grantfile, home as homes, regular, trust
from .home import Home

MAX_ENTRIES = 2000000
MAX_SECONDS = 20.0
MAX_REPORTED = 20
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_KINDS = {stat.S_IFSOCK: "socket", stat.S_IFIFO: "FIFO", stat.S_IFBLK: "block device", stat.S_IFCHR: "character device"}


# --- facts -----------------------------------------------------------------------------------------------------


def place(path: str) -> Place:
    """A folder's real path, with device and inode of itself and every parent. Parts that do not exist are left out."""
    real = os.path.realpath(path)
    chain = []
    step = real
    while True:
        with contextlib.suppress(OSError):
            found = os.lstat(step)
            chain.append((found.st_dev, found.st_ino))
        if step == "/":
            break
        step = os.path.dirname(step)
    return Place(real, tuple(chain) if os.path.lexists(real) else ())


def facts(path: str, max_entries: int = MAX_ENTRIES, max_seconds: float = MAX_SECONDS) -> Facts:
    """What decides about granting one path. Never raises for what it finds: ``Facts.error`` says it."""
    try:
        real = os.path.realpath(path)
        fd = open_tree(real)
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        words = {"No such file or directory": "the path does not exist", "Not a directory": "the path is not a folder"}
        return Facts(Place(path), error=words.get(reason, f"the path cannot be read: {reason}"))
    try:
        found = os.fstat(fd)
        git, target = _git(fd, real)
        walk = _Walk(max_entries, max_seconds, found.st_dev)
        walk.run(fd)
        return Facts(
            place=place(real),
            uid=found.st_uid,
            git=git,
            git_target=target,
            alternates=_alternates(fd, real) if git == "dir" else (),
            specials=tuple(walk.specials),
            mounts=tuple(_mounts_inside(real)),
            complete=walk.complete,
            entries=walk.entries,
            unreadable=walk.unreadable,
        )
    finally:
        os.close(fd)


def open_tree(real: str, flags: int = _DIR_FLAGS) -> int:
    """Open a folder's real path step by step, so that a link put in its way meanwhile is not followed.

    ``flags`` are open(2)'s for every step, O_DIRECTORY and O_NOFOLLOW among them. Raises OSError.
    """
    fd = os.open("/", flags)
    for part in [part for part in real.split("/") if part]:
        try:
            below = os.open(part, flags, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def _small_file(dir_fd: int, name: str, limit: int = 4096) -> str | None:
    """The first bytes of a small regular file as text, or None."""
    try:
        data, _ = regular.read(name, limit, dir_fd)
    except (OSError, regular.NotRegularError):
        return None
    return data.decode("utf-8", "surrogateescape")


def _resolved(text: str, base: str) -> str:
    return os.path.realpath(os.path.join(base, text.strip("\n\r")))


def _git(fd: int, real: str) -> tuple[str, str | None]:
    """The kind of ``.git``, and the folder that it names when it is a file or has a ``commondir``."""
    try:
        found = os.stat(".git", dir_fd=fd, follow_symlinks=False)
    except OSError:
        return "absent", None
    if stat.S_ISLNK(found.st_mode):
        return "symlink", None
    if stat.S_ISREG(found.st_mode):
        text = _small_file(fd, ".git") or ""
        match = re.match(r"gitdir: ([^\n]+)", text)
        return ("file", _resolved(match.group(1), real)) if match else ("other", None)
    if not stat.S_ISDIR(found.st_mode):
        return "other", None
    git_fd = os.open(".git", _DIR_FLAGS, dir_fd=fd)
    try:
        common = _small_file(git_fd, "commondir")
    finally:
        os.close(git_fd)
    return "dir", _resolved(common, os.path.join(real, ".git")) if common else None


def _alternates(fd: int, real: str) -> tuple[str, ...]:
    """Object folders outside the tree, which the agent would not see."""
    steps = [".git", "objects", "info"]
    here = os.dup(fd)
    try:
        for step in steps:
            below = os.open(step, _DIR_FLAGS, dir_fd=here)
            os.close(here)
            here = below
        text = _small_file(here, "alternates", 65536) or ""
    except OSError:
        return ()
    finally:
        os.close(here)
    lines = [line for line in text.split("\n") if line and not line.startswith("#")][:MAX_REPORTED]
    named = [_resolved(line, os.path.join(real, ".git", "objects")) for line in lines]
    return tuple(path for path in named if path != real and not path.startswith(real + "/"))


def _mounts_inside(real: str) -> list[str]:
    """Mount points strictly below a path in this mount namespace, relative to it."""
    found = []
    with open("/proc/self/mountinfo", "rb") as stream:
        for line in stream:
            raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m.group(1), 8)]), line.split(b" ")[4])
            point = raw.decode("utf-8", "surrogateescape")
            if point.startswith(real.rstrip("/") + "/"):
                found.append(point[len(real.rstrip("/")) + 1 :])
    return found[:MAX_REPORTED]


class _Walk:
    """A bounded search for what is neither file, folder nor link. Stays on one device, follows nothing."""

    def __init__(self, max_entries: int, max_seconds: float, device: int) -> None:
        self.left = max_entries
        self.deadline = time.monotonic() + max_seconds
        self.device = device
        self.entries = 0
        self.stopped = False
        self.unreadable: str | None = None
        self.specials: list[tuple[str, str]] = []

    @property
    def complete(self) -> bool:
        """False once something was left unsearched."""
        return not self.stopped and self.unreadable is None

    def run(self, fd: int) -> None:
        """Search the tree below an open folder; ``fd`` stays open."""
        pending = [""]
        while pending and not self.stopped:
            path = pending.pop()
            self.stopped = time.monotonic() > self.deadline  # a deep chain has few entries and costs the most
            try:
                with self._opened(fd, path) as here:
                    self._scan(here, path, pending)
            except FileNotFoundError:  # gone meanwhile
                continue
            except OSError:
                self.unreadable = self.unreadable or path or "."

    @contextlib.contextmanager
    def _opened(self, fd: int, path: str) -> Iterator[int]:
        """The folder at a relative path, opened step by step so that no link is followed."""
        here = os.dup(fd)
        try:
            for part in path.split("/") if path else []:
                below = os.open(part, _DIR_FLAGS, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _scan(self, fd: int, path: str, pending: list[str]) -> None:
        if os.fstat(fd).st_dev != self.device:  # a mount: refused by itself
            return
        with os.scandir(fd) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries >= self.left or (self.entries % 256 == 0 and time.monotonic() > self.deadline):
                    self.stopped = True
                    return
                name = f"{path}/{entry.name}" if path else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(name)
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    self._special(entry, name)

    def _special(self, entry: os.DirEntry[str], name: str) -> None:
        with contextlib.suppress(OSError):
            kind = _KINDS.get(stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode))
            if kind is not None and len(self.specials) < MAX_REPORTED:
                self.specials.append((name, kind))


# --- the context -----------------------------------------------------------------------------------------------


def context(
    home: Home,
    grants: Sequence[Grant],
    storage: Sequence[str] = (),
    live: Sequence[tuple[str, str]] = (),
    max_entries: int = MAX_ENTRIES,
    max_seconds: float = MAX_SECONDS,
) -> Context:
    """What the grants are judged against. ``storage``: the engine's storage folders (``podman info``: graphroot,
    runroot). ``live``: session ID and path of each tree that another live session holds ``rw``.
    """
    return Context(
        uid=os.getuid(),
        facts=[facts(grant.path, max_entries, max_seconds) for grant in grants],
        homes=_homes(),
        protected=_places(_protected(home, storage)),
        relied_on=_places(_relied_on(home)),
        live=[(session, place(path)) for session, path in live],
    )


def _homes() -> list[Place]:
    """Home directories of people and of this account; service accounts share ``/``, ``/bin`` and the like."""
    paths = {entry.pw_dir for entry in pwd.getpwall() if entry.pw_uid == 0 or entry.pw_uid >= 1000}
    paths |= {os.path.expanduser("~"), pwd.getpwuid(os.getuid()).pw_dir, "/home"}
    ordinary = {path for path in paths if path not in ("", "/", "/nonexistent") and os.path.isdir(path)}
    return [place(path) for path in sorted(ordinary)]


def _protected(home: Home, storage: Sequence[str]) -> list[tuple[str, str]]:
    """The places that ASF trusts, each with a word for the refusal."""
    env = {"HOME": os.path.expanduser("~"), **os.environ}
    rows = [
        ("ASF's root", str(home.root)),
        ("ASF's secrets", str(home.secrets_dir)),
        ("ASF's agents", str(home.agents_dir)),
        ("Podman's configuration", str(containersconf.user_folder(env))),
        ("ASF's state", str(dirs.state_dir())),
        ("ASF's cache", str(dirs.cache_dir())),
    ]
    with contextlib.suppress(HostError):  # no run directory: no session can exist either
        rows.append(("ASF's run folder", str(dirs.run_dir())))
    if os.path.isabs(env.get("CONTAINERS_STORAGE_CONF", "")):
        rows.append(("the file of CONTAINERS_STORAGE_CONF", env["CONTAINERS_STORAGE_CONF"]))
    data = env.get("XDG_DATA_HOME", "") or os.path.expanduser("~/.local/share")
    rows.append(("the container storage", os.path.join(data, "containers")))
    rows += [("the container storage", path) for path in storage]
    rows += [
        ("the Python interpreter", path) for path in (sys.prefix, sys.base_prefix, os.path.dirname(sys.executable))
    ]
    rows += [("ASF's own program", str(Path(__file__).resolve().parents[1]))]
    if home.shipped is not None:
        rows.append(("the shipped agents", str(home.shipped)))
    return rows + sorted({row for source in homes.load_settings(home).sources.values() for row in source.hidden()})


def _relied_on(home: Home) -> list[tuple[str, str]]:
    """Places of programs and of the operator's public settings: harmless to read, not to write."""
    rows = [("a folder of PATH, where programs are looked up", path) for path in trust.search_path(os.environ)]
    given = os.environ.get("ANSIBLE_COLLECTIONS_PATH", "").split(":")
    rows += [("a folder of ANSIBLE_COLLECTIONS_PATH", path) for path in given if os.path.isabs(path)]
    settings = homes.load_settings(home)
    rows += sorted({row for source in settings.sources.values() for row in source.relied_on()})
    bundle = settings.ca_bundle
    return rows + ([("the ca_bundle of config.yml", bundle)] if bundle else [])


def _places(rows: Sequence[tuple[str, str]]) -> list[tuple[str, Place]]:
    """Real places with their words, and every link on the way to them: who can change a link chooses the place."""
    seen: dict[str, tuple[str, Place]] = {}
    for word, path in rows:
        for where in (place(path), *(Place(link) for link in _links(path))):
            seen.setdefault(where.path, (word, where))
    return list(seen.values())


def _links(path: str) -> list[str]:
    """The real locations of the symbolic links that a path leads through, at most 40 (as in the kernel)."""
    found: list[str] = []
    here, parts = "/", path.split("/")
    while parts and len(found) < 40:
        step = os.path.normpath(os.path.join(here, parts.pop(0)))
        if os.path.islink(step):
            found.append(step)
            target = os.readlink(step)
            here = "/" if target.startswith("/") else here
            parts = target.split("/") + parts
        else:
            here = step
    return found


def check(grants: Sequence[Grant], ctx: Context) -> list[Problem]:
    """Refuse what must not be mounted, and what is not built yet. Returns warnings. Raises GrantError with all."""
    problems = core.unbuilt(grants)
    warnings: list[Problem] = []
    try:
        warnings = core.check(grants, ctx)
    except GrantError as error:
        problems += error.problems
    if problems:
        raise GrantError(problems)
    return warnings


# --- what others call ------------------------------------------------------------------------------------------


def load(home: Home, name: str) -> list[Grant]:
    """The grants of an agent; none without a file. Raises GrantError, ManifestError (no such agent)."""
    return grantfile.load(homes.agent(home, name).grants_file)


def granted(
    home: Home, name: str, storage: Sequence[str] = (), live: Sequence[tuple[str, str]] = ()
) -> tuple[list[Grant], list[Problem]]:
    """The grants of an agent, judged for an open, and warnings. Arguments as for ``context``. Raises GrantError."""
    grants = load(home, name)
    return grants, check(grants, context(home, grants, storage, live))


def add(
    name: str, path: str, mode: str = "rw", home: Home | None = None, storage: Sequence[str] = ()
) -> dict[str, Any]:
    """Grant the repository at an absolute path; its real path is stored. Returns ``{path, mode, target, warnings}``.

    All grants of the agent are judged together, so that a name or an overlap is refused here and not at open.
    Raises GrantError, ManifestError (no such agent).
    """
    if mode not in ("rw", "ro", "clone"):
        raise GrantError([Problem("unknown mode", key="mode", found=terminal(mode, 40), allowed="rw, ro, clone")])
    wrong = core.unmountable(path) or ("" if os.path.isabs(path) else "the path must be absolute here")
    if wrong:
        raise GrantError([Problem(wrong, key="path", found=terminal(path, 200), remedy="rename the folder")])
    home = home or homes.resolve()
    wanted = Grant(os.path.realpath(path), mode)
    with grantfile.locked(homes.agent(home, name).grants_file) as file:
        grants = file.grants()
        known = [grant for grant in grants if grant.path == wanted.path]
        if known:  # the mode changes; what else the operator wrote stays
            wanted = replace(known[0], mode=mode, git=known[0].git if mode == "rw" else None)
            grants[grants.index(known[0])] = wanted
        else:
            grants.append(wanted)
        warnings = check(grants, context(home, grants, storage))
        file.write(grants)
    shown = terminal(wanted.path, 200)
    return {**_row(name, wanted), "warnings": [problem.text() for problem in warnings if problem.found == shown]}


def remove(name: str, path: str, home: Home | None = None) -> dict[str, Any]:
    """Take a grant back, by its path or its base name. Returns it as ``add`` does. Raises GrantError for none."""
    home = home or homes.resolve()
    with grantfile.locked(homes.agent(home, name).grants_file) as file:
        grants = file.grants()
        wanted = {path, os.path.normpath(path), os.path.realpath(path)} if os.path.isabs(path) else set()
        chosen = [grant for grant in grants if grant.path in wanted or (not wanted and grant.name == path)]
        if len(chosen) != 1:
            known = ", ".join(terminal(grant.path, 200) for grant in grants)
            message = "there is no such grant" if not chosen else "several grants have this name"
            problem = Problem(message, str(file.path), key="path", found=terminal(path, 200), allowed=known or "none")
            raise GrantError([problem])
        file.write([grant for grant in grants if grant is not chosen[0]])
    return {**_row(name, chosen[0]), "warnings": []}


def list_grants(name: str | None = None, home: Home | None = None) -> list[dict[str, Any]]:
    """Rows ``{agent, path, mode, target}`` of one agent or of all. Raises GrantError for a file that is wrong."""
    home = home or homes.resolve()
    names = homes.agents(home) if name is None else [name]
    return [_row(agent, grant) for agent in names for grant in load(home, agent)]


def _row(name: str, grant: Grant) -> dict[str, Any]:
    return {"agent": name, "path": grant.path, "mode": grant.mode, "target": grant.target}
