# SPDX-License-Identifier: BSD-2-Clause
"""Records of live sessions: ``STATE/live/ID.json``, written before each step, so that a kill leaves a trace (case L1).

A record holds: version, session, agent, name, mode, isolation, state, step, boot, controllers (identities), plan
(path), plan_digest, evidence (folder), run (folder), created and started (UTC; go was said), time_limit (seconds, 0:
none), containers ``{role: {id, name, pid, start}}`` as chosen at init. The record may be deleted at any time; then the
labels still tell what there is (case L2).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional

from ..core import escape, lifecycle
from ..core.errors import EngineError
from ..core.lifecycle import Container
from . import dirs, locks, procs
from .dirs import Env
from .evidencefs import Evidence, atomic, new_folder, sweep
from .inventory import Inventory
from .podman import Podman

Record = dict[str, Any]


def _path(session: str, env: Env) -> Path:
    return dirs.state_dir(env) / "live" / f"{dirs.session_id(session)}.json"


def run_folder(session: str, env: Env = None) -> Path:
    """Folder of the files that are mounted into the session's containers (not created here)."""
    return dirs.run_dir(env) / dirs.session_id(session)


@contextlib.contextmanager
def lock(session: str, env: Env = None, timeout: float = 120) -> Iterator[None]:
    """Hold the session's lock; seconds. Who waits for it is told on whom (``locks``).

    Held inside one module call only; who holds it may take it again (open clears a broken session first).
    Raises EngineError when somebody else holds it for too long.
    """
    name = dirs.session_id(session)
    with locks.hold(name, f"session {name}", env, timeout):
        yield


@contextlib.contextmanager
def grants_lock(env: Env = None, timeout: float = 120) -> Iterator[None]:
    """Hold the account's one lock on who has which tree: from the look at all sessions' plans to one's own record.

    The innermost lock: who holds it takes no session's. Raises EngineError as ``lock`` does.
    """
    with locks.hold("grants", "the grants of all sessions", env, timeout):
        yield


def read(session: str, env: Env = None) -> Optional[Record]:
    """The record; None when it is absent or damaged (then it counts as missing)."""
    try:
        record = json.loads(_path(session, env).read_bytes())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("session") == session else None


def has_record(session: str, env: Env = None) -> bool:
    """True when there is a record, even a damaged one."""
    return os.path.lexists(_path(session, env))


def write(record: Record, env: Env = None) -> Record:
    """Write the record as a whole and return it."""
    path = _path(record["session"], env)
    dirs.private(path.parent)
    atomic(path, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode("ascii"))
    return record


def now() -> str:
    """The time as records have it: UTC, seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def me() -> list[dict[str, Any]]:
    """Identities of the caller's controllers, for a record."""
    return [who.as_dict() for who in procs.controllers()]


def begin(
    session: str, *, mode: str, isolation: str, plan_digest: str, plan: Optional[str] = None, env: Env = None
) -> Record:
    """Record a session that is about to be opened, then make its evidence folder and an empty run folder.

    Raises EngineError when the session has a record already: close it first.
    """
    if read(session, env) is not None:
        raise EngineError(
            f"session {session} exists already", key="session", remedy="close it first", code="session-exists"
        )
    agent, _, name = dirs.session_id(session).partition(".")
    record: Record = {
        "version": 1,
        "session": session,
        "agent": agent,
        "name": name,
        "mode": mode,
        "isolation": isolation,
        "state": lifecycle.OPENING,
        "step": "plan",
        "boot": procs.boot_id(),
        "controllers": me(),
        "plan": plan,
        "plan_digest": plan_digest,
        "evidence": str(new_folder(session, env)),
        "run": str(run_folder(session, env)),
        "created": now(),
        "containers": {},
    }
    write(record, env)
    evidence_of(record, env=env)
    dirs.private(run_folder(session, env))
    return record


def _no_record(session: str, env: Env) -> EngineError:
    return EngineError(
        f"session {session} has no record",
        file=str(_path(session, env)),
        remedy="close it; its resources are found by label",
        code="no-record",
    )


def begin_step(session: str, step: str, env: Env = None, **fields: Any) -> Record:
    """Write down, before it is done, what is done next; ``fields`` are merged into the record.

    The caller's controllers become the record's: whoever acts is who must live. Raises EngineError without a record.
    """
    record = read(session, env)
    if record is None:
        raise _no_record(session, env)
    return write({**record, **fields, "step": step, "controllers": me()}, env)


def note(session: str, env: Env = None, **fields: Any) -> None:
    """Put something into the record of a session, whoever attends it; nothing without a record."""
    record = read(session, env)
    if record is not None:
        write({**record, **fields}, env)


def join(session: str, env: Env = None) -> Record:
    """Add the caller's controllers to the living ones of a live session: who attaches sees to its end.

    Raises EngineError without a record.
    """
    record = read(session, env)
    if record is None:
        raise _no_record(session, env)
    mine = procs.controllers()
    others = [who for who in controllers(record) if procs.alive(who) and who not in mine]
    return write({**record, "controllers": [who.as_dict() for who in (*mine, *others)]}, env)


def evidence_of(record: Record, redactor: Any = None, env: Env = None) -> Evidence:
    """The evidence folder that a record names; what its plan holds that looks like a secret is taken out."""
    from . import plandoc  # with the whole manifest behind it, which a list of sessions should not wait for

    return Evidence.of(record["session"], record.get("evidence"), redactor or plandoc.redactor(record.get("plan")), env)


def sweep_temporary(session: str, env: Env = None) -> None:
    """Remove what killed writers of the session's record, and of its volumes', left beside those. The caller holds
    the session's lock."""
    path = _path(session, env)
    sweep(path.parent, f"{path.name}-")
    sweep(dirs.state_dir(env) / "volumes", f"asf-state-{session}.")


def forget(session: str, env: Env = None) -> bool:
    """Remove the record; False when there was none."""
    sweep_temporary(session, env)
    try:
        os.unlink(_path(session, env))
    except FileNotFoundError:
        return False
    return True


def clear_run_folder(session: str, env: Env = None) -> bool:
    """Remove the session's run folder (never through a link); False when there was none."""
    path = run_folder(session, env)
    if not os.path.lexists(path):
        return False
    if path.is_symlink() or not path.is_dir():
        os.unlink(path)
    else:
        shutil.rmtree(path)
    return True


def recorded(env: Env = None) -> set[str]:
    """IDs that have a record (even a damaged one) or a run folder."""
    found: set[str] = set()
    for folder, suffix in ((dirs.state_dir(env) / "live", ".json"), (dirs.run_dir(env), "")):
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        # Records are files; a session's run folder is a folder.
        names = [one.name for one in entries if one.name.endswith(suffix) and one.is_dir() == (not suffix)]
        found |= {name for name in (one[: len(one) - len(suffix)] for one in names) if dirs.SESSION_ID.match(name)}
    return found


def controllers(record: Optional[Record]) -> list[procs.Identity]:
    """The processes that a record names."""
    known = record.get("controllers") if record else None
    parsed = [procs.Identity.from_dict(one) for one in known] if isinstance(known, list) else []
    return [who for who in parsed if who is not None]


def holder(record: Optional[Record]) -> Optional[int]:
    """Pid of the living process that works on the session, the outermost one (asf-play); None when all are dead."""
    living = [who.pid for who in controllers(record) if procs.alive(who)]
    return living[-1] if living else None


def _elsewhere(record: Optional[Record]) -> str:
    """In words, the other host that a record comes from (a state folder may be shared): it cannot be looked at."""
    hosts = {who.host for who in controllers(record)} - {"", os.uname().nodename}
    return f" on host {', '.join(escape.terminal(host, 80) for host in sorted(hosts))}" if hosts else ""


def _this_boot(record: Optional[Record]) -> bool:
    """False when the record is of another boot, or of another host."""
    return (record or {}).get("boot") in (None, procs.boot_id())


def chosen(record: Optional[Record]) -> dict[str, procs.Identity]:
    """First processes as chosen at init that still live, by the name of their container, whatever Podman knows."""
    known = (record or {}).get("containers")
    rows = [one for one in known.values() if isinstance(one, dict)] if isinstance(known, dict) else []
    boot = (record or {}).get("boot")
    found = {str(one.get("name")): procs.Identity.from_dict({**one, "boot": boot}) for one in rows}
    return {name: who for name, who in found.items() if who is not None and procs.alive(who)}


def describe(session: str, record: Optional[Record], containers: list[Container]) -> dict[str, Any]:
    """One row of ``asf-play ls``: session, agent, name, mode, isolation, state, why it is broken, how it ended.

    ``exit_code`` is the workload's, once it has ended; None before, and when nobody saw how it ended.
    """
    labels: Mapping[str, str] = next((one.labels for one in containers), {})
    known = record or {}
    agent, _, name = session.partition(".")
    state = lifecycle.state(record, containers, procs.any_alive(controllers(record)))
    reasons = lifecycle.problems(record, containers) if state in (lifecycle.BROKEN, lifecycle.ENDED) else []
    agent_exit = next((one.exit_code for one in containers if one.role == "agent"), None)
    if state == lifecycle.BROKEN and known.get("state") in (lifecycle.OPENING, lifecycle.CLOSING):
        reasons = [f"whoever was {known['state']} it{_elsewhere(record)} died in step {known.get('step', '?')}"]
    if state == lifecycle.BROKEN and not _this_boot(record):
        reasons.insert(0, f"the machine was started anew since it was opened{_elsewhere(record)}")
    return {
        "session": session,
        "agent": agent,
        "name": name,
        "mode": known.get("mode") or labels.get("asf.mode", "unknown"),
        "isolation": known.get("isolation") or labels.get("asf.isolation", "unknown"),
        "state": state,
        "reasons": reasons,
        "exit_code": agent_exit if state == lifecycle.ENDED else None,
    }


def sessions(podman: Podman, env: Env = None, inventory: Optional[Inventory] = None) -> list[dict[str, Any]]:
    """All sessions that still own something, records and labels together, sorted by ID."""
    found = inventory or Inventory(podman)
    owner = str(os.getuid())
    rows = []
    for session in sorted(recorded(env) | {one for one in found.sessions() if dirs.SESSION_ID.match(one)}):
        containers = [one for one in found.of(session).containers if one.session == session and one.owner == owner]
        rows.append(describe(session, read(session, env), containers))
    return rows
