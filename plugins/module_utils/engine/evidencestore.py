# SPDX-License-Identifier: BSD-2-Clause
"""All evidence of the account: list, verify, export, prune. Nothing here follows a link, and only ASF's own folders,
by name and by content, are ever removed."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Iterator, List, Mapping, NamedTuple, Optional

from ..core import evidence, report
from ..core.errors import AsfError, EngineError
from ..core.retention import Kept, Retention, surplus
from . import dirs, evidenceindex, home as homes, state
from .evidencecheck import Checked, check
from .evidencefs import RUN
from .evidenceindex import Index

Env = Optional[Mapping[str, str]]
Json = dict[str, Any]
LIVE, CLOSED, UNSEALED, REMOVED, MISSING = "live", "closed", "unsealed", "removed", "missing"


class Place(NamedTuple):
    """A run's folder in the store."""

    session: str
    run: str
    folder: Path


def store(env: Env = None) -> Path:
    """The folder of all evidence."""
    return dirs.state_dir(env) / "evidence"


def places(env: Env = None) -> List[Place]:
    """Every run that has a folder, oldest first. Links, and names that ASF does not give, are left out."""
    found = [
        Place(session.name, run.name, Path(run.path))
        for session in _folders(store(env))
        if dirs.SESSION_ID.match(session.name)
        for run in _folders(Path(session.path))
        if RUN.match(run.name)
    ]
    return sorted(found, key=lambda one: (one.run, one.session))


def _folders(folder: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return iter(())
    return (entry for entry in entries if entry.is_dir(follow_symlinks=False))


def is_live(place: Place, env: Env = None) -> bool:
    """Whether the run is that of a session that still owns something. A record that cannot be read keeps all runs."""
    if not state.has_record(place.session, env):
        return False
    record = state.read(place.session, env)
    return record is None or record.get("evidence") in (None, str(place.folder))


def listing(env: Env = None) -> List[Json]:
    """A row per run, oldest first, with those that are gone: ``session, run, opened, state, head, bytes, folder``."""
    index, found = evidenceindex.read(env), places(env)
    rows = [_row(one, index, env) for one in found]
    known = {(one.session, one.run) for one in found}
    gone = {(e["session"], e["run"]): e for e in index.entries if (e["session"], e["run"]) not in known}
    rows += [
        {
            "session": session,
            "run": run,
            "opened": report.opened(run),
            "state": REMOVED if index.removed(session, run) else MISSING,
            "head": entry["head"],
            "bytes": 0,
            "folder": None,
        }
        for (session, run), entry in gone.items()
    ]
    return sorted(rows, key=lambda row: (row["run"], row["session"]))


def _row(place: Place, index: Index, env: Env) -> Json:
    head = index.head(place.session, place.run)
    word = LIVE if is_live(place, env) else CLOSED if head else UNSEALED
    return {
        "session": place.session,
        "run": place.run,
        "opened": report.opened(place.run),
        "state": word,
        "head": head,
        "bytes": _size(place.folder),
        "folder": str(place.folder),
    }


def _size(folder: Path) -> int:
    try:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
    except OSError:
        return 0


# --- verify --------------------------------------------------------------------------------------------------------


def verify(place: Place, index: Index, env: Env = None) -> Json:
    """One run of the store against its chain and the index: ``session, run, folder, head, state, ok, problems``."""
    found = check(str(place.folder))
    head = index.head(place.session, place.run)
    live = is_live(place, env)
    if found.chain and (found.chain.get("session"), found.chain.get("run")) != (place.session, place.run):
        found.problems.append(
            f"{evidence.CHAIN} is of another run: {found.chain.get('session')} {found.chain.get('run')}"
        )
    if head is not None and not live and head != found.head:
        found.problems.append(f"the chain ends in {found.head[:16]}…, the index says {head[:16]}…")
    if head is None and found.closed and not live:
        found.problems.append("it was closed, and its head is not in the index: the index was cut or changed")
    word = LIVE if live else CLOSED if head else UNSEALED
    return {**_verdict(found), "session": place.session, "run": place.run, "state": word}


def verify_copy(folder: str, index: Index, head: Optional[str] = None) -> Json:
    """A folder anywhere: its own chain, and its head against the one that is known, or that the index has."""
    found = check(folder)
    session, run = str(found.chain.get("session")), str(found.chain.get("run"))
    wanted = head or index.head(session, run)
    if wanted is not None and wanted != found.head:
        source = "the head that was given" if head else "the index"
        found.problems.append(f"the chain ends in {found.head[:16]}…, {source} says {wanted[:16]}…")
    return {**_verdict(found), "session": session, "run": run, "state": CLOSED if wanted else UNSEALED}


def _verdict(found: Checked) -> Json:
    return {"folder": found.folder, "head": found.head, "ok": not found.problems, "problems": found.problems}


def verify_index(index: Index, env: Env = None) -> List[str]:
    """What is wrong with the index: its own chain, and runs whose folder is gone without a word."""
    there = {(one.session, one.run) for one in places(env)}
    gone = {(e["session"], e["run"]) for e in index.entries} - there
    lost = sorted(one for one in gone if not index.removed(*one))
    return [*index.problems, *(f"the folder of {session} {run} is missing" for session, run in lost)]


# --- export --------------------------------------------------------------------------------------------------------


def export(source: str, target: str) -> Json:
    """Copy a run's files to a new folder (0700), for handing on. Returns the verdict on what was copied.

    Raises EngineError when the target exists, cannot be made, or the source is no evidence folder.
    """
    found = check(source)
    if evidence.CHAIN not in found.files:
        raise EngineError("not an evidence folder", file=source, found=found.problems[0], code="not-evidence")
    try:
        os.mkdir(target, 0o700)
        handle = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for name in [name for name in (*evidence.FILES, evidence.CHAIN) if name in found.files]:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, 0o600, dir_fd=handle), "wb") as stream:
                    stream.write(found.files[name])
        finally:
            os.close(handle)
    except OSError as error:
        remedy = "name a folder that does not exist yet, in one that does"
        raise EngineError(f"cannot export: {error.strerror}", file=target, remedy=remedy, code="export") from None
    session, run = str(found.chain.get("session")), str(found.chain.get("run"))
    return {**_verdict(found), "session": session, "run": run, "folder": target}


# --- prune ---------------------------------------------------------------------------------------------------------


def prune(limits: Retention, env: Env = None, check_only: bool = False) -> Json:
    """Remove what is too old or too much: ``removed[] {session, run, why, bytes}``, ``kept[]`` (sentences), ``bytes``.

    The index keeps the head of what was removed. Raises EngineError when the index cannot be read or written.
    """
    found = [Kept(one.session, one.run, _size(one.folder), is_live(one, env)) for one in places(env)]
    removed: List[Json] = []
    kept: List[str] = []
    for one, why in surplus(found, limits, time.time()):
        place = Place(one.session, one.run, store(env) / one.session / one.run)
        problem = _foreign(place.folder)
        if not problem and not check_only:
            problem = _remove(place, why, env)
        if problem:
            kept.append(f"{one.session} {one.run} kept: {problem}")
        else:
            removed.append({"session": one.session, "run": one.run, "why": why, "bytes": one.size})
    return {"removed": removed, "kept": kept, "bytes": sum(row["bytes"] for row in removed)}


def prune_at_close(env: Env = None) -> List[str]:
    """Prune as the operator's settings say. Returns sentences; a wrong setting must not make a close fail."""
    try:
        done = prune(homes.load_settings(homes.resolve()).evidence, env)
    except (AsfError, OSError) as error:
        return [f"old evidence not pruned: {getattr(error, 'message', error)}"]
    said = [f"removed evidence of {row['session']} {row['run']} ({row['why']})" for row in done["removed"]]
    return said + [f"evidence of {text}" for text in done["kept"]]


def _foreign(folder: Path) -> Optional[str]:
    """Why a folder is not, or not only, evidence; None when it is."""
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    ours = {*evidence.FILES, evidence.CHAIN}
    for entry in entries:
        named = entry.name in ours or entry.name.startswith(".new-")
        if not named or not entry.is_file(follow_symlinks=False):
            return f"{entry.name!r} in it is not ASF's"
    return None


def _remove(place: Place, why: str, env: Env) -> Optional[str]:
    """Remove one run under its session's lock, the note in the index first. Returns why it was not done."""
    try:
        with state.lock(place.session, env, timeout=0):
            if is_live(place, env):
                return "its session is open"
            found = check(str(place.folder))
            note = {"session": place.session, "run": place.run, "head": found.head, "files": len(found.entries)}
            evidenceindex.append({**note, "removed": why}, env)
            handle = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for name in os.listdir(handle):
                    os.unlink(name, dir_fd=handle)
            finally:
                os.close(handle)
            os.rmdir(place.folder)
    except (AsfError, OSError) as error:
        return str(getattr(error, "message", error))
    with contextlib.suppress(OSError):
        os.rmdir(place.folder.parent)  # when this was the session's last run
    return None
