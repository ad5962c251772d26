# SPDX-License-Identifier: BSD-2-Clause
"""Evidence folders: ``STATE/evidence/ID/RUN/``, 0700, files 0600, written atomically (invariant 9).

What is written is redacted first, then bounded, then chained. One writer at a time: callers hold the session's lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

from ..core import evidence
from ..core.errors import EngineError
from ..core.redact import Redactor
from . import dirs, evidencecheck, evidenceindex

#: Beginning of the name of a file that is being written.
_NEW = ".new-"
#: Name of a run's folder.
RUN = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}\Z")


def atomic(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole; a reader sees the old or the new one. Raises EngineError when the disk refuses."""
    try:
        handle, name = tempfile.mkstemp(prefix=f"{_NEW}{path.name}-", dir=str(path.parent))
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise EngineError(
            f"cannot write: {error.strerror}",
            file=str(path),
            remedy="free some space or repair the folder",
            code="write",
        ) from error


def sweep(folder: Path, beginning: str = "") -> None:
    """Remove what a killed writer of files whose names begin so left half-written. Their writers hold a lock."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.startswith(f"{_NEW}{beginning}"):
                os.unlink(entry.path)


def new_run() -> str:
    """Name of a new run: UTC time, and four random digits for two within one second."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(2)}"


def new_folder(session: str, env: Optional[Mapping[str, str]] = None) -> Path:
    """Where a new run of a session will lie; nothing is made, so that a record can name it first."""
    return dirs.state_dir(env) / "evidence" / dirs.session_id(session) / new_run()


class Evidence:
    """One run's folder. ``redactor`` takes known secrets out of everything that is written."""

    def __init__(self, folder: Path, redactor: Optional[Redactor] = None) -> None:
        self.folder = dirs.private(folder)
        self._redactor = redactor or Redactor()
        self._pending: Optional[list[dict[str, Any]]] = None

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Several writes, one new chain at the end: files first, so that a kill leaves at most files without entry."""
        self._pending = self.entries()
        try:
            yield
        finally:
            entries, self._pending = self._pending, None
            self._save(entries)

    @classmethod
    def create(
        cls, session: str, redactor: Optional[Redactor] = None, env: Optional[Mapping[str, str]] = None
    ) -> Evidence:
        """A new run of a session."""
        return cls(new_folder(session, env), redactor)

    @classmethod
    def of(
        cls,
        session: str,
        folder: Optional[str],
        redactor: Optional[Redactor] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> Evidence:
        """The run that a record names; a new one when the record does not say, or names a place that is not ours."""
        home = dirs.state_dir(env) / "evidence" / dirs.session_id(session)
        if folder and Path(folder).parent == home and RUN.match(Path(folder).name):
            return cls(Path(folder), redactor)
        return cls.create(session, redactor, env)

    def write(self, name: str, obj: Any) -> str:
        """Write a JSON document; returns its SHA-256."""
        limit = evidence.MAX_PLAN_TEXT if name == "plan.json" else evidence.MAX_TEXT
        return self._add(name, evidence.bounded_document(self._redactor.tree(obj), limit))

    def write_lines(self, name: str, records: Sequence[Any], dropped: int = 0) -> str:
        """Write records, one per line; returns the SHA-256. ``dropped`` counts those that were left out before."""
        return self._add(name, evidence.bounded_lines(self._redactor.tree(list(records)), dropped))

    def write_derived(self, name: str, content: bytes) -> str:
        """Write a file that was made from others of this folder, so that nothing is left to redact."""
        return self._add(name, content)

    def read(self, name: str) -> Any:
        """A document as data; None when it is absent or damaged."""
        try:
            return json.loads((self.folder / name).read_bytes())
        except (OSError, ValueError):
            return None

    def read_lines(self, name: str) -> list[dict[str, Any]]:
        """Records of a ``.jsonl`` file; damaged lines are left out."""
        return lines(self.folder / name)

    def entries(self) -> list[dict[str, Any]]:
        """The chain so far."""
        chain = self.read(evidence.CHAIN)
        found = chain.get("entries") if isinstance(chain, dict) else None
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    def head(self) -> str:
        """Head of the chain."""
        return evidence.head(self.entries())

    def check(self) -> list[str]:
        """What is wrong with the folder now: changed, missing, added files, a broken chain; empty when nothing is."""
        return evidencecheck.check(str(self.folder)).problems

    def adopt(self) -> list[str]:
        """Enter what a killed command wrote and could not enter any more; returns the names. Half files go."""
        sweep(self.folder)
        entries = self.entries()
        known = {str(entry.get("file")): entry.get("sha256") for entry in entries}
        adopted = []
        for name in evidence.FILES:
            try:
                sha256 = evidence.digest((self.folder / name).read_bytes())
            except OSError:
                continue
            if known.get(name) != sha256:
                entries = evidence.extended(entries, name, sha256)
                adopted.append(name)
        if adopted:
            self._save(entries)
        return adopted

    def _add(self, name: str, content: bytes) -> str:
        if name not in evidence.FILES:
            raise EngineError("not a file of the evidence", file=name, code="bug")
        sha256 = evidence.digest(content)
        atomic(self.folder / name, content)
        if self._pending is not None:
            self._pending = evidence.extended(self._pending, name, sha256)
        else:
            self._save(evidence.extended(self.entries(), name, sha256))
        return sha256

    def _save(self, entries: list[dict[str, Any]]) -> None:
        run = {"version": 1, "session": self.folder.parent.name, "run": self.folder.name, "entries": entries}
        atomic(self.folder / evidence.CHAIN, evidence.document(run))


def lines(path: Path) -> list[dict[str, Any]]:
    """Records of a ``.jsonl`` file; damaged lines are left out, and an absent file has none."""
    try:
        rows = path.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for row in rows:
        try:
            record = json.loads(row)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def folder_of(session: str, folder: Optional[str], env: Optional[Mapping[str, str]] = None) -> Optional[Path]:
    """The run's folder that a record names, when it is one of the session's; makes nothing."""
    home = dirs.state_dir(env) / "evidence" / dirs.session_id(session)
    known = folder is not None and Path(folder).parent == home and RUN.match(Path(folder).name)
    return Path(str(folder)) if known else None


def runs(session: str, env: Optional[Mapping[str, str]] = None) -> list[Path]:
    """The folders of a session's runs, oldest first; makes nothing."""
    home = dirs.state_dir(env) / "evidence" / dirs.session_id(session)
    try:
        return [home / name for name in sorted(os.listdir(home)) if RUN.match(name)]
    except OSError:
        return []


def peek(session: str, folder: Optional[str], name: str, env: Optional[Mapping[str, str]] = None) -> Any:
    """A document of the run that a record names, as data; None when there is none. Makes nothing."""
    found = folder_of(session, folder, env)
    try:
        return json.loads((found / name).read_bytes()) if found else None
    except (OSError, ValueError):
        return None


def seal(found: Evidence, env: Optional[Mapping[str, str]] = None) -> str:
    """Append the chain's head to the index (once per head) and return it."""
    head, run = found.head(), found.folder
    entry = {"session": run.parent.name, "run": run.name, "head": head, "files": len(found.entries())}
    evidenceindex.append(entry, env)
    return head


def seal_unchained(session: str, but: Optional[str], env: Optional[Mapping[str, str]] = None) -> list[str]:
    """Finish what a session that went while the disk was full could not; returns the names of those runs.

    Such a run has files and no chain at all, and the index never heard of it; ``but`` is the folder of the run that
    goes on. An empty folder is removed. What cannot be written now is left for the next time. The caller holds the
    session's lock.
    """
    base, sealed = dirs.state_dir(env) / "evidence" / dirs.session_id(session), []
    with contextlib.suppress(OSError, EngineError):
        for run in sorted(entry for entry in os.listdir(base) if RUN.match(entry)):
            folder = base / run
            ours = folder.is_dir() and not folder.is_symlink() and str(folder) != but
            if not ours or os.path.lexists(folder / evidence.CHAIN) or evidenceindex.read(env).head(session, run):
                continue
            found = Evidence(folder)
            if found.adopt():
                seal(found, env)
                sealed.append(run)
            else:
                folder.rmdir()
    return sealed
