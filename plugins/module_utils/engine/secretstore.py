# SPDX-License-Identifier: BSD-2-Clause
"""The operator's secrets folder: what is in it, by name, and setting one value. No value is ever returned."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from ..core import providers, secretfile
from ..core.errors import AsfError, Problem, SecretError
from ..core.formats import FILE_NAME
from ..core.manifest import Llm
from ..core.schema import misformed
from . import home as homes, locks
from .home import Home

Json = dict[str, Any]


def file_name(word: str) -> str:
    """``claude`` and ``claude.env`` both name ``claude.env``. Raises SecretError."""
    name = word if word.endswith(".env") else f"{word}.env"
    wrong = misformed(FILE_NAME, name)
    if wrong is not None:
        raise SecretError([Problem(wrong, key="FILE", allowed=FILE_NAME.words, remedy="name a file, without a folder")])
    return name


def put(home: Home, name: str, variable: str, value: str) -> Path:
    """Set one variable of one file, which is made when missing. Raises SecretError, and EngineError for a lock.

    The new file is written beside the old one with mode 0600, synced, and renamed over it.
    """
    folder = home.secrets_dir
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        message = f"the secrets folder cannot be used: {error.strerror}"
        raise SecretError([Problem(message, str(folder), remedy="make it a folder of your own")]) from None
    try:
        locks.acquire(handle, str(folder), "the secrets folder", 60)
        data = homes.read_secret(str(path), "FILE", "the command line", variable) if os.path.lexists(path) else b""
        _replace(path, secretfile.with_value(data, str(path), variable, value))
        os.fsync(handle)
    finally:
        os.close(handle)
    return path


def _replace(path: Path, data: bytes) -> None:
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)  # 0600 from the first moment
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        message = f"the secrets file cannot be written: {error.strerror}"
        raise SecretError([Problem(message, str(path), remedy="free some space or repair the folder")]) from None


def listing(home: Home) -> list[Json]:
    """``{file, variables, agents, problem}`` of each file that is there or that a manifest names; for each variable of
    which config.yml names a source, ``source`` too. Raises ManifestError.
    """
    users = _users(home)
    try:
        there = {path.name for path in home.secrets_dir.glob("*.env")}
    except OSError:
        there = set()
    rows = [_described(home, name, sorted(users.get(name, ()))) for name in sorted(there | set(users))]
    return rows + _sourced(home)


def _sourced(home: Home) -> list[Json]:
    """A row for each source of config.yml, and the agents whose manifests ask for its variable."""
    file, rows = str(home.settings_file), []
    sources = homes.load_settings(home).sources
    asked = _asked(home) if sources else {}
    for name, source in sorted(sources.items()):
        agents = sorted(asked.get(name, ()))
        row = {"file": file, "variables": [name], "agents": agents, "problem": None, "source": source.words()}
        rows.append(row)
    return rows


def source_of(home: Home, variable: str) -> str | None:
    """What config.yml names as the variable's source, in words. Raises ManifestError."""
    source = homes.load_settings(home).sources.get(variable)
    return source.words() if source else None


def _described(home: Home, name: str, agents: list[str]) -> Json:
    path = str(home.secrets_dir / name)
    try:
        entries = secretfile.parse(homes.read_secret(path, "FILE", "the secrets folder", "KEY"), path)
    except SecretError as error:
        return {"file": path, "variables": [], "agents": agents, "problem": error.problems[0].text()}
    return {"file": path, "variables": [entry.name for entry in entries], "agents": agents, "problem": None}


def _asked(home: Home) -> dict[str, set[str]]:
    """Variable -> agents whose manifest asks for the key in it."""
    found: dict[str, set[str]] = {}
    for agent in homes.agents(home):
        with contextlib.suppress(AsfError):
            llm = homes.load_manifest(home, agent).llm
            if llm is not None and llm.api_key_env and (llm.key_required or llm.key_to_agent):
                found.setdefault(llm.api_key_env, set()).add(agent)
    return found


def _users(home: Home) -> dict[str, set[str]]:
    """File name -> agents whose manifest names it. A manifest that cannot be read is its own command's to report."""
    found: dict[str, set[str]] = {}
    for agent in homes.agents(home):
        with contextlib.suppress(AsfError):
            for name in homes.load_manifest(home, agent).secrets_files:
                found.setdefault(name, set()).add(agent)
    return found


def checked(home: Home, agent: str) -> Json:
    """``{agent, variable, state, source, file, line, detail}``; state: ``present``, ``absent`` (or unusable),
    ``expired``, ``doubtful``, ``unneeded``. Raises ManifestError.
    """
    manifest = homes.load_manifest(home, agent)
    llm = manifest.llm
    variable = llm.api_key_env if llm else None
    source = source_of(home, variable or "")
    row: Json = {"agent": agent, "variable": variable, "source": source, "file": None, "line": None}
    if llm is None or not (llm.key_required or llm.key_to_agent):
        return {**row, "source": None, "state": "unneeded", "detail": "the manifest asks for no provider key"}
    try:
        key = homes.provider_key(home, manifest) if llm.key_required else homes.agent_key(home, manifest)
    except SecretError as error:
        first = error.problems[0]
        return {**row, "state": "absent", "file": first.file, "line": first.line, "detail": first.text()}
    if key is None:
        return {**row, "state": "unneeded", "detail": "llm.broker is off, and no key is given: the client logs in"}
    state, detail = _judged(llm, key.value)
    told = [detail] if detail else []
    told += ["llm.broker is off: the agent itself gets it"] if llm.key_to_agent else []
    row["source"] = row["source"] or os.path.basename(key.file)
    return {**row, "state": state, "file": key.file, "line": key.line or None, "detail": "; ".join(told)}


def _judged(llm: Llm, value: str) -> tuple[str, str]:
    """State and detail of a key that is there, without any of it."""
    moment = providers.ends(value)
    if moment is not None and moment < time.time():
        return "expired", f"it ended {_day(moment)}, by its own word"
    official = llm.direct_domain in (None, providers.DOMAINS.get(llm.provider or "")) and llm.base_url is None
    wrong = providers.doubt(llm.provider or "", value) if official else None
    if moment is not None:
        return "doubtful", f"{wrong or 'it is a token'}: it ends {_day(moment)}"
    return ("doubtful", wrong) if wrong else ("present", "")


def _day(moment: float) -> str:
    try:
        return time.strftime("on %Y-%m-%d at %H:%M UTC", time.gmtime(moment))
    except (OverflowError, ValueError, OSError):
        return "at a moment beyond all calendars"
