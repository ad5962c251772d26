# SPDX-License-Identifier: BSD-2-Clause
"""What Podman holds of ASF's, found by label (case L2: the state folder may be gone).

Whether a container's first process lives is read from ``/proc``: ``podman ps`` says "Up" for a dead container once its
conmon was killed (measured on 4.3 and 5.4).
"""

from __future__ import annotations

import json
import os
from typing import Any, Mapping, NamedTuple

from ..core.errors import EngineError
from ..core.lifecycle import (
    LABEL_OWNER,
    LABEL_ROLE,
    LABEL_SESSION,
    LABEL_VOLUME,
    OVER,
    Container,
    Survey,
    Volume,
    secret_session,
)
from ..core.roles import STOP
from . import procs
from .podman import Call, Podman

_CONTAINERS: Call = ["ps", "--all", "--format", "json"]
_VOLUMES: Call = ["volume", "ls", "--filter", f"label={LABEL_SESSION}", "--format", "json"]
# Podman 4.3 to 4.6 cannot filter secrets by label, and take "json" for a template: names only.
_SECRETS: Call = ["secret", "ls", "--noheading", "--format", "{{.Name}}"]


#: Plain fields, because 4.3 offers no JSON functions for all of them; the path, which may hold blanks, is last.
DETAILS_FORMAT = (
    "{{.Id}} {{.State.ExitCode}} {{.State.OOMKilled}} {{.State.FinishedAt.Unix}} "
    "{{.HostConfig.LogConfig.Type}} {{.HostConfig.LogConfig.Path}}"
)


def _names(session: str) -> list[str]:
    return [f"asf-{session}-{role}" for role in STOP]


def _rows(text: str) -> list[Mapping[str, Any]]:
    try:
        rows = json.loads(text) if text.strip() else []
    except ValueError as error:
        raise EngineError("Podman's list is not JSON", found=text[:80], code="bad-answer") from error
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _labels(row: Mapping[str, Any]) -> dict[str, str]:
    labels = row.get("Labels")
    return {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}


def container(row: Mapping[str, Any]) -> Container:
    """One row of ``podman ps --format json``, with life measured."""
    labels = _labels(row)
    names = row.get("Names") or [""]
    known = row.get("Pid")
    pid: int = known if isinstance(known, int) else 0
    start = procs.start_time(pid) if pid else None
    status = str(row.get("State", "")).lower()
    code, at = row.get("ExitCode"), row.get("ExitedAt")
    # The zero of Go's time: Podman 5 lists so what ran before a reboot or a wedge, with exit code 0.
    seen = not (status in OVER and isinstance(at, int) and at < 0)
    return Container(
        id=str(row.get("Id", "")),
        name=str(names[0]),
        role=labels.get(LABEL_ROLE, ""),
        session=labels.get(LABEL_SESSION, ""),
        owner=labels.get(LABEL_OWNER, ""),
        status=status,
        pid=pid,
        alive=start is not None,
        start=start,
        links=procs.links(pid) if start is not None else None,
        monitored=start is None or procs.monitored(pid, str(row.get("Id", ""))),
        # -1: the container's conmon was killed before it could see the end (Podman 5.4)
        exit_code=code if isinstance(code, int) and code >= 0 and status in OVER and seen else None,
        labels=labels,
        seen=seen,
    )


def _volume(row: Mapping[str, Any]) -> Volume:
    labels = _labels(row)
    return Volume(
        name=str(row.get("Name", "")),
        session=labels.get(LABEL_SESSION, ""),
        owner=labels.get(LABEL_OWNER, ""),
        kind=labels.get(LABEL_VOLUME, ""),
    )


class Detail(NamedTuple):
    """What only inspect tells of a container; ``log`` is the path of its ``k8s-file``, or empty.

    ``finished`` is in seconds since the epoch, negative while it has not ended.
    """

    exit_code: int
    oom_killed: bool
    finished: int
    log: str


class Inventory:
    """Everything that carries ASF's labels or names, read by a few calls at once.

    A list may fail because something vanishes while Podman reads it (4.3); it is read once more. ``session``: that
    session's containers are inspected in the same breath (``details``). Raises EngineError.
    """

    def __init__(self, podman: Podman, session: str = "") -> None:
        calls: list[Call] = [_CONTAINERS, _VOLUMES, _SECRETS]
        inspect: list[Call] = (
            [["container", "inspect", "--format", DETAILS_FORMAT, *_names(session)]] if session else []
        )
        results = podman.parallel([*calls, *inspect], check=False)
        # Names that do not exist make it fail, after it has printed the others.
        self.details = details(results[3].stdout) if inspect else {}
        answers = [
            result.stdout if result.rc == 0 else podman.run(list(call)).stdout  # type: ignore[arg-type]
            for call, result in zip(calls, results)
        ]
        self.containers = [
            found for found in map(container, _rows(answers[0])) if found.session or found.name.startswith("asf-")
        ]
        self.volumes = [_volume(row) for row in _rows(answers[1])]
        self.secrets = [name for name in answers[2].split() if secret_session(name) is not None]

    def sessions(self) -> set[str]:
        """IDs of all of the caller's sessions that own something."""
        owner = str(os.getuid())
        named = {parts[0] for parts in map(secret_session, self.secrets) if parts is not None}
        owned = [(one.session, one.owner) for one in self.containers]
        owned += [(one.session, one.owner) for one in self.volumes if one.kind != "state"]
        return named | {session for session, who in owned if session and who == owner}

    def of(self, session: str, run_folder: bool = False, record: bool = False) -> Survey:
        """What may belong to one session: its labels, and containers that only carry its names."""
        names = _names(session)
        return Survey(
            containers=tuple(
                found
                for found in self.containers
                if found.session == session or (found.name in names and not found.session)
            ),
            volumes=tuple(volume for volume in self.volumes if volume.session == session),
            secrets=tuple(name for name in self.secrets if (secret_session(name) or ("", ""))[0] == session),
            run_folder=run_folder,
            record=record,
        )


def binds(podman: Podman, one: Container) -> list[Mapping[str, Any]]:
    """The mounts of a living container as inspect tells them; none when it has ended meanwhile. Raises EngineError."""
    args = ["container", "inspect", "--format", "{{json .Mounts}}", one.id]
    result = podman.run(args, check=False)
    if result.rc and procs.start_time(one.pid) != one.start:
        return []
    if result.rc:
        raise podman.error(args, result)
    return _rows(result.stdout)


def details(text: str) -> dict[str, Detail]:
    """What ``container inspect --format DETAILS_FORMAT`` printed, by container ID."""
    found: dict[str, Detail] = {}
    for row in text.splitlines():
        words = row.split(" ", 5)
        if len(words) == 6 and all(word.lstrip("-").isdigit() for word in (words[1], words[3])):
            path = words[5] if words[4] == "k8s-file" else ""
            found[words[0]] = Detail(int(words[1]), words[2] == "true", int(words[3]), path)
    return found
