# SPDX-License-Identifier: BSD-2-Clause
"""Grants: which repositories an agent is given, and what is refused (invariant 11, cases F1, F2, F5, F6).

Pure. ``engine/grantfs.py`` collects the facts without following a link or running git, and writes the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import GrantError, Problem
from .escape import terminal
from .marked import NULL, Node
from .schema import ByKind, Checked, Choice, Format, Key, ListOf, Section, Text, check as check_tree

WORKSPACE = "/workspace/repos"


def _diagnose_path(text: str) -> str | None:
    if not text.startswith("/"):
        return "the path must be absolute; `~` and relative paths are not resolved here"
    if any(part in ("", ".", "..") for part in text[1:].split("/")) and text != "/":
        return "the path must be written without `.`, `..`, doubled or trailing slashes"
    return None


PATH = Format("repository", r"^/[^\x00-\x1f\x7f]*$", "an absolute path", _diagnose_path)
SOCKET = Format("socket", r"^/[^\x00-\x1f\x7f]*$", "an absolute path", _diagnose_path)

_GRANT = Section(
    {
        "path": Key(Text(PATH, max_length=4095), "The repository's folder.", required=True),
        "mode": Key(Choice(("rw", "ro", "clone")), "`rw`, `ro` or `clone`.", default="rw"),
        "git": Key(
            Choice(("guarded", "open")),
            "`guarded`: the repository's own `.git` is not given to the agent. `open`: it is.",
            default_words="`guarded` for `rw`; until it exists, `open`",
        ),
        "ssh_agent": Key(
            Text(SOCKET, max_length=4095), "Socket of an SSH agent that holds one destination-constrained key."
        ),
    }
)
GRANTS = Section(
    {"repos": Key(ListOf(ByKind((Text(PATH, max_length=4095), _GRANT)), max_items=100), "The grants.", default=())}
)


@dataclass(frozen=True)
class Grant:
    """One grant. ``git`` is None where the file does not say. ``file``, ``line`` and ``key`` are where it stands."""

    path: str
    mode: str = "rw"
    git: str | None = None
    ssh_agent: str | None = None
    file: str | None = field(default=None, compare=False)
    line: int | None = field(default=None, compare=False)
    key: str | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The base name, under which it is mounted."""
        return self.path.rpartition("/")[2]

    @property
    def target(self) -> str:
        """The place in the workload."""
        return f"{WORKSPACE}/{self.name}"

    @property
    def rw(self) -> bool:
        """Whether the workload may write the original."""
        return self.mode == "rw"


@dataclass(frozen=True)
class Place:
    """A folder: its real path, and device and inode of itself and of every parent up to the root."""

    path: str
    chain: tuple[tuple[int, int], ...] = ()

    def overlaps(self, other: Place) -> bool:
        """Whether one contains or is the other, by path or through another mount of the same folder."""
        if _within(self.path, other.path) or _within(other.path, self.path):
            return True
        return bool((self.chain and self.chain[0] in other.chain) or (other.chain and other.chain[0] in self.chain))

    def contains(self, other: Place) -> bool:
        """Whether ``other`` is this folder or lies in it."""
        return _within(other.path, self.path) or bool(self.chain and self.chain[0] in other.chain)


@dataclass(frozen=True)
class Facts:
    """What the file system says about one grant. ``error`` is set where it could not be looked at at all.

    ``place.path`` is the real path. ``git``: ``dir``, ``absent``, ``symlink``, ``file`` or ``other``; ``git_target``
    is the folder that a ``.git`` file, or a ``commondir`` in it, names (resolved). ``alternates`` are object folders
    outside the tree. ``specials``: relative path and kind of sockets, FIFOs and device nodes. ``complete`` is False
    where the search for them was not done to its end: a folder could not be read (``unreadable``, relative), or the
    bound was met after ``entries`` entries.
    """

    place: Place
    error: str | None = None
    uid: int = -1
    git: str = "absent"
    git_target: str | None = None
    alternates: tuple[str, ...] = ()
    specials: tuple[tuple[str, str], ...] = ()
    mounts: tuple[str, ...] = ()
    complete: bool = True
    entries: int = 0
    unreadable: str | None = None


@dataclass(frozen=True)
class Context:
    """What grants are judged against. ``protected``: a word for each place, and the place; ``relied_on`` the same for
    places that only a ``rw`` grant may not touch (they hold nothing that an agent may not read).

    ``live`` are the trees that live sessions hold ``rw``: session ID and place (without the session that is opened).
    """

    uid: int
    facts: Sequence[Facts]
    homes: Sequence[Place] = ()
    protected: Sequence[tuple[str, Place]] = ()
    relied_on: Sequence[tuple[str, Place]] = ()
    live: Sequence[tuple[str, Place]] = ()


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# --- the file --------------------------------------------------------------------------------------------------


def validate(tree: Node | None, file: str) -> list[Grant]:
    """The grants in a marked tree; an empty file has none. Raises GrantError with every problem of the file."""
    if tree is None or tree.kind == NULL:
        return []
    checked = check_tree(GRANTS, tree, file)
    grants = [_grant(entry, index, checked) for index, entry in enumerate(_entries(checked))]
    for grant in grants:
        if grant.git is not None and grant.mode != "rw":
            checked.at(f"{grant.key}.git", f"the key has no meaning with mode {grant.mode}", remedy="remove it")
    if checked.problems:
        raise GrantError(checked.problems)
    return grants


def _entries(checked: Checked) -> list[object]:
    return list(checked.data["repos"]) if checked.data is not None else []


def _grant(entry: object, index: int, checked: Checked) -> Grant:
    key = f"repos[{index}]"
    line = checked.marks.get(key, (None, None))[0]
    if isinstance(entry, dict):
        return Grant(
            entry.get("path", ""), entry["mode"], entry.get("git"), entry.get("ssh_agent"), checked.file, line, key
        )
    return Grant(str(entry), file=checked.file, line=line, key=key)


def unbuilt(grants: Sequence[Grant]) -> list[Problem]:
    """Valid grants whose enforcement this version does not have: refused by name, never ignored."""
    out = []
    for grant in grants:
        wanted = [
            ("mode", grant.mode, grant.mode == "clone", "grant the repository ro, or rw"),
            ("git", grant.git, grant.git == "guarded", "write git: open, and trust no file of its .git afterwards"),
            ("ssh_agent", grant.ssh_agent, grant.ssh_agent is not None, "remove the key"),
        ]
        for word, value, there, remedy in wanted:
            if there:
                message = f"this version of ASF cannot enforce {word}: {value} yet"
                out.append(_problem(grant, message, remedy, word, "not-built"))
    return out


# --- mounting --------------------------------------------------------------------------------------------------


def unmountable(path: str) -> str | None:
    """Why a path cannot be mounted exactly, or None (F1).

    Measured with Podman 4.3: ``--mount`` with CSV-quoted fields carries every other character exactly (blanks,
    colons, commas, quotes, backslashes, leading dashes, braces). A name that is not UTF-8 is changed on its way
    through the OCI configuration. Control characters are refused because nobody can see them in a listing.
    """
    if any(0xDC80 <= ord(char) <= 0xDCFF for char in path):
        return "the path is not UTF-8, and container engines would change it"
    if re.search("[\x00-\x1f\x7f-\x9f]", path):
        return "the path contains a control character, such as a newline"
    return None


# --- decisions -------------------------------------------------------------------------------------------------


def check(grants: Sequence[Grant], context: Context) -> list[Problem]:
    """Refuse what must not be mounted. Returns warnings. Raises GrantError with every refusal.

    Raises ValueError where a grant has no facts: what was not looked at is not mounted.
    """
    if len(grants) != len(context.facts):
        raise ValueError("facts and grants do not match")
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for grant, facts in zip(grants, context.facts):
        problems += _path_refusals(grant, facts)
        if facts.error is None:
            problems += _place_refusals(grant, facts, context)
            problems += _tree_refusals(grant, facts, context)
            warnings += _warnings(grant, facts)
    problems += _pair_refusals(grants, context.facts)
    if problems:
        raise GrantError(problems)
    return warnings


def _problem(grant: Grant, message: str, remedy: str, key: str = "path", code: str | None = None) -> Problem:
    where = f"{grant.key}.{key}" if grant.key else key
    return Problem(message, grant.file, grant.line, None, where, terminal(grant.path, 200), None, remedy, code)


def _path_refusals(grant: Grant, facts: Facts) -> list[Problem]:
    wrong = unmountable(grant.path)
    if wrong is not None:
        return [_problem(grant, wrong, "rename the folder")]
    if not grant.name:
        return [_problem(grant, "the file system's root cannot be granted", "grant one repository")]
    if facts.error is not None:
        return [_problem(grant, facts.error, "grant a folder that exists and that you own")]
    if facts.place.path != grant.path:
        message = f"the path's real location is {terminal(facts.place.path, 200)}"
        remedy = "if that is what you want, remove the grant and add that path: a grant never follows a link (F2)"
        return [_problem(grant, message, remedy)]
    return []


def _place_refusals(grant: Grant, facts: Facts, context: Context) -> list[Problem]:
    out = []
    for home in context.homes:
        if facts.place.contains(home):
            what = "a home directory" if home.path == facts.place.path else f"the home directory {home.path}"
            out.append(_problem(grant, f"the folder is or contains {what}", "grant one repository in it"))
            break
    for word, place in [*context.protected, *(context.relied_on if grant.rw else ())]:
        if facts.place.overlaps(place):
            message = f"the folder contains or lies in {word} ({terminal(place.path, 200)})"
            out.append(_problem(grant, message, "the agent could change what ASF trusts: choose another folder"))
    return out + _held(grant, facts.place, context.live)


def _held(grant: Grant, place: Place, live: Sequence[tuple[str, Place]]) -> list[Problem]:
    out = []
    for session, other in live:
        if place.overlaps(other):
            message = f"session {session} already has {terminal(other.path, 200)} rw"
            out.append(
                _problem(grant, message, f"close session {session} first; two sessions share a tree only with mode ro")
            )
    return out


def check_live(grants: Sequence[tuple[Grant, Place]], live: Sequence[tuple[str, Place]]) -> None:
    """Refuse, once more and alone, what a live session holds ``rw``. Raises GrantError with every refusal."""
    problems = [problem for grant, place in grants for problem in _held(grant, place, live)]
    if problems:
        raise GrantError(problems)


def _tree_refusals(grant: Grant, facts: Facts, context: Context) -> list[Problem]:
    out = []
    if grant.rw and facts.uid != context.uid:
        message = f"the folder belongs to uid {facts.uid}, so the agent could not write it as you (uid {context.uid})"
        out.append(_problem(grant, message, "grant it ro, or a copy of your own"))
    if facts.git == "symlink":
        out.append(_problem(grant, "its .git is a symbolic link", "replace the link by the folder itself"))
    if facts.git == "other":
        out.append(_problem(grant, "its .git is neither a folder nor a file", "repair the repository"))
    if facts.git_target is not None and not _within(facts.git_target, facts.place.path):
        out.append(_git_outside(grant, facts.git_target))
    for path, kind in facts.specials[:5]:
        message = f"the tree contains a {kind}: {terminal(path, 200)}"
        remedy = "remove it (a socket or device reaches past the sandbox)"
        out.append(_problem(grant, message, remedy))
    if not facts.complete:
        out.append(_unsearched(grant, facts))
    for path in facts.mounts[:5]:
        message = f"something is mounted inside the tree: {terminal(path, 200)}"
        remedy = "unmount it, or grant it by itself (read-only would not hold for it)"
        out.append(_problem(grant, message, remedy))
    return out


def _unsearched(grant: Grant, facts: Facts) -> Problem:
    """What was not looked at could hold a socket: an earlier session may have padded the tree for that."""
    if facts.unreadable is not None:
        message = f"a folder in it cannot be searched for sockets and devices: {terminal(facts.unreadable, 200)}"
        return _problem(grant, message, "make it readable for yourself (chmod u+rx), or remove it")
    message = f"the tree is too large to be searched for sockets and devices (ended after {facts.entries} entries)"
    remedy = "grant a smaller folder, or move generated files out of it; repeat if the machine was just busy"
    return _problem(grant, message, remedy)


def _git_outside(grant: Grant, target: str) -> Problem:
    """A linked worktree or a submodule: git would not work in the sandbox (F5)."""
    shown = terminal(target, 200)
    worktree = re.match(r"(.+?)(?:/\.git)?/worktrees/[^/]+\Z", target)
    module = re.match(r"(.+?)/\.git/modules/", target)
    if worktree:
        main = terminal(worktree.group(1), 200)
        message = f"this is a linked worktree: its git folder lies outside ({shown})"
        remedy = f"grant the main repository {main}, or a clone of it: git clone {main} FOLDER"
    elif module:
        outer = terminal(module.group(1), 200)
        message = f"this is a submodule: its git folder lies outside ({shown})"
        remedy = f"grant the repository that holds it, {outer}"
    else:
        message = f"its git folder lies outside ({shown})"
        remedy = "grant a clone: git clone THIS FOLDER"
    return _problem(grant, message, remedy, code="git-outside")


def _both_seen(one: Facts, other: Facts) -> bool:
    return one.error is None and other.error is None


def _pair_refusals(grants: Sequence[Grant], facts: Sequence[Facts]) -> list[Problem]:
    out = []
    for index, grant in enumerate(grants):
        for other, there in zip(grants[:index], facts[:index]):
            if grant.name == other.name and grant.name:
                message = f"the same base name as {terminal(other.path, 200)}: both would be {grant.target}"
                out.append(_problem(grant, message, "rename one of the folders"))
            elif (
                (grant.rw or other.rw) and _both_seen(facts[index], there) and facts[index].place.overlaps(there.place)
            ):
                message = f"it overlaps with {terminal(other.path, 200)}, and one of them is rw"
                out.append(_problem(grant, message, "grant the outer folder alone"))
    return out


def _warnings(grant: Grant, facts: Facts) -> list[Problem]:
    out = []
    for path in facts.alternates:
        message = f"git takes objects from {terminal(path, 200)}, which the agent does not see"
        out.append(_problem(grant, message, "git repack -a -d, then remove .git/objects/info/alternates"))
    return out
