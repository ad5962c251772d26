# SPDX-License-Identifier: BSD-2-Clause
"""From a plan to initialized, then started containers. Observe, decide, act; a second run changes nothing.

Order (measured): all secrets at once, all creates at once, one init, one inspect; wiring is ``wiring.py``. A
container that exists is never recreated for drift: what is partly there is an error whose remedy is close and open.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets as random
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.errors import EngineError
from ..core.policy import BROKER_PORT
from . import hidden, logbirth, logs, netns, observe, procs, state, usernet
from .plandoc import PlanDocument
from .podman import Podman

Json = Dict[str, Any]
KeyReader = Callable[[Json], str]

TOKEN_BYTES = 32
INIT_RETRIES = 1
#: A program that has ended so often while it should come up will not.
MAX_ENDS = 3


# --- what is there ---------------------------------------------------------------------------------------------


def present(podman: Podman, doc: PlanDocument) -> Dict[str, Json]:
    """Containers of the plan that exist, by role, as ``podman ps`` lists them."""
    names = {name: role for role, name in doc.names().items()}
    rows = podman.json(["ps", "--all", "--filter", f"label=asf.session={doc.session}", "--format", "json"])
    return {names[row["Names"][0]]: row for row in rows if row["Names"][0] in names}


def _settled(doc: PlanDocument, found: Mapping[str, Json]) -> bool:
    """True when all containers of this very plan exist; raises when only some do, or they are another plan's."""
    if not found:
        return False
    missing = [role for role in doc.names() if role not in found]
    foreign = [role for role, row in found.items() if (row.get("Labels") or {}).get("asf.plan") != doc.origin]
    if missing or foreign:
        words = [f"{', '.join(missing)} missing"] if missing else []
        words += [f"{', '.join(foreign)} made from another plan"] if foreign else []
        raise EngineError(
            f"session {doc.session} is only partly there: {'; '.join(words)}",
            remedy="close it (close.yml) and open it again",
            code="partial-session",
        )
    return True


# --- files and secrets -----------------------------------------------------------------------------------


def write_files(doc: PlanDocument) -> None:
    """Render the plan's files below its run folder: 0644 in a 0700 folder, because Caddy and broker are other uids."""
    root = doc.plan["run_dir"]
    for entry in doc.plan["files"]:
        path = os.path.join(root, entry["path"])
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        os.chmod(os.path.dirname(path), 0o700 if os.path.dirname(path) == root else 0o755)
        if "copy" in entry:
            _copy(entry, path)
        else:
            # The digest of the plan cannot stand in the plan; the gate is given it here, to repeat it in its report.
            extra = {"plan_digest": doc.digest} if entry["path"] == "gate.json" else {}
            text = entry["text"] if "text" in entry else json_text(entry["json"], extra)
            with open(path, "w", encoding="utf-8") as handle:
                handle.write(text)
        os.chmod(path, 0o644)


def _copy(entry: Json, path: str) -> None:
    """Copy a file that the plan names by path and digest. Raises EngineError when it changed since."""
    with open(entry["copy"], "rb") as handle:
        data = handle.read()
    if hashlib.sha256(data).hexdigest() != entry["sha256"]:
        raise EngineError("the file changed after the plan was made", file=entry["copy"], remedy="open again")
    with open(path, "wb") as handle:
        handle.write(data)


def json_text(document: Any, extra: Json) -> str:
    """A file of the plan as it is written."""
    return json.dumps({**document, **extra} if extra else document, sort_keys=True)


def _secret_value(entry: Json, read_key: KeyReader) -> str:
    if entry["source"] == "random":
        prefix = "sk-" if entry["part"] == "master" else "asf-"
        return prefix + random.token_hex(TOKEN_BYTES)
    return read_key(entry)


def secret_call(doc: PlanDocument, entry: Json, value: str) -> Tuple[List[str], bytes]:
    """Words for ``podman`` that make one of the plan's secrets, and what they read."""
    labels = [f"--label=asf.session={doc.session}", f"--label=asf.owner={doc.plan['owner']['uid']}"]
    return ["secret", "create", *labels, entry["name"], "-"], value.encode()


def _secret_calls(doc: PlanDocument, read_key: KeyReader) -> List[Any]:
    return [secret_call(doc, entry, _secret_value(entry, read_key)) for entry in doc.plan["secrets"]]


# --- create and init -------------------------------------------------------------------------------------------


def create_args(container: Json, digest: str) -> List[str]:
    """Words for ``podman`` that make one of the plan's containers."""
    args = list(container["args"])
    return [args[0], f"--label=asf.plan={digest}", *args[1:]]


def create(podman: Podman, doc: PlanDocument, read_key: KeyReader, check_mode: bool = False) -> Json:
    """Everything of the plan that must exist before the wires: files, secrets, containers, one init.

    State volumes exist by then; they outlive sessions and are made by the role.
    Returns ``{changed, actions, containers}``; ``containers`` maps roles to ``{id, name, pid, start, net}``.
    """
    if _settled(doc, present(podman, doc)):
        record = state.read(doc.session) or {}
        return {
            "changed": False,
            "actions": ["all containers exist already"],
            "containers": record.get("containers", {}),
        }
    if check_mode:
        return {"changed": True, "actions": [f"would create {n}" for n in doc.names().values()], "containers": {}}
    state.begin_step(doc.session, "create")
    write_files(doc)
    if doc.plan["secrets"]:
        hidden.apart(lambda: len(podman.parallel(_secret_calls(doc, read_key))))
    podman.parallel([create_args(c, doc.origin) for c in doc.plan["containers"]], timeout=180)
    podman.run(["init", *doc.names().values()], timeout=60)
    chosen = _chosen(podman, doc)
    state.begin_step(doc.session, "created", containers=chosen)
    return {
        "changed": True,
        "actions": [f"created and initialized {n}" for n in doc.names().values()],
        "containers": chosen,
    }


def first_process(role: str, name: str, got: Json) -> Json:
    """The identity of a container's first process, as the record has it. Raises EngineError of a dead one."""
    start = procs.start_time(got["pid"])
    if start is None:
        raise EngineError(f"the {role} container died right after init", remedy="see its last words in podman logs")
    net = os.readlink(f"/proc/{got['pid']}/ns/net")
    return {"id": got["id"], "name": name, "pid": got["pid"], "start": start, "net": net}


def _chosen(podman: Podman, doc: PlanDocument) -> Dict[str, Json]:
    """Identity of each first process: what later probes compare with, because 4.3 may swap it silently."""
    out = {}
    uplinks = {one["role"]: one for one in doc.plan["wiring"]["uplinks"]}
    for role, got in observe.inspect(podman, doc.names()).items():
        out[role] = first_process(role, doc.names()[role], got)
        if role in uplinks:
            out[role]["uplink"] = uplinks[role]["interface"]
            usernet.bound(role, got["pid"], got["namespace"], uplinks[role]["memory"])
    # The services' logs tell by their first line whether it is lost; a workload's output does not.
    if path := logs.path_of(out["agent"]["pid"], out["agent"]["id"]):
        out["agent"]["log_born"] = logbirth.of(path)
    return out


# --- start -----------------------------------------------------------------------------------------------------


def _running(podman: Podman, name: str) -> Json:
    rows = podman.json(["inspect", "--type", "container", name])
    found: Json = rows[0]["State"]
    return found


def start(podman: Podman, doc: PlanDocument, role: str, check_mode: bool = False) -> Json:
    """Start one initialized container; ``{changed, actions}``."""
    name = doc.names()[role]
    if check_mode and not present(podman, doc):
        return {"changed": True, "actions": [f"would start {name}"]}
    status = _running(podman, name)["Status"].lower()
    if status == "running":
        return {"changed": False, "actions": [f"{name} runs already"]}
    if status != "initialized":
        raise EngineError(
            f"{name} is {status}, not initialized", remedy="close the session and open it again", code="not-initialized"
        )
    if check_mode:
        return {"changed": True, "actions": [f"would start {name}"]}
    podman.run(["start", name])
    return {"changed": True, "actions": [f"started {name}"]}


def last_words(podman: Podman, name: str, lines: int = 5) -> str:
    """The end of a container's log, for an error message; bounded."""
    got = podman.run(["logs", "--tail", str(lines), name], check=False)
    return (got.stdout + got.stderr).strip()[-1500:]


def _silent(role: str, message: str, words: str) -> EngineError:
    """The error for a service that does not come up, with its last words."""
    said = [line for line in words.splitlines() if '"asf":"supervisor"' not in line] or words.splitlines()
    return EngineError(
        message,
        stderr=words,
        found=said[-1][:500] if said else None,
        code=f"{role}-not-started",
        remedy=f"`found` is the end of the {role}'s log; the evidence folder has the rest",
    )


def _hopeless(pid: int, seen: Set[int]) -> bool:
    """True when waiting is vain: the supervisor is gone, or its program has ended ``MAX_ENDS`` times.

    ``seen`` collects the supervisor's children between calls; pids are not reused that quickly.
    """
    seen.update(procs.children(pid))
    return len(seen) > MAX_ENDS or procs.start_time(pid) is None


def _listening(addresses: Sequence[str], pid: int, end: float) -> List[str]:
    """Runs in Caddy's network namespace: which of the addresses are not listened on when time is up."""
    missing = list(addresses)
    seen: Set[int] = set()
    while True:
        with open("/proc/net/tcp", encoding="ascii") as handle:
            found = observe.listening(handle.read())
        missing = [a for a in addresses if a not in found]
        if not missing or time.monotonic() > end or _hopeless(pid, seen):
            return missing
        time.sleep(0.005)


def wait_listening(podman: Podman, doc: PlanDocument, chosen: Mapping[str, Json], timeout: float = 10.0) -> None:
    """Wait until Caddy listens where the plan says. Raises EngineError with Caddy's last words."""
    addresses = [entry["address"] for entry in doc.plan["listeners"]]
    pid, end = int(chosen["caddy"]["pid"]), time.monotonic() + timeout
    missing = netns.in_net(pid, lambda: _listening(addresses, pid, end), timeout + 5)
    if missing:
        raise _silent(
            "caddy", f"Caddy does not listen on {', '.join(missing)}", last_words(podman, doc.names()["caddy"])
        )


def _answers(host: str, port: int, end: float, pid: int) -> bool:
    import http.client

    seen: Set[int] = set()
    while time.monotonic() < end and not _hopeless(pid, seen):
        connection = http.client.HTTPConnection(host, port, timeout=2)
        try:
            connection.request("GET", "/health/liveliness")
            if connection.getresponse().status == 200:
                return True
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.02)
    return False


def wait_broker(podman: Podman, doc: PlanDocument, chosen: Mapping[str, Json], timeout: float = 180.0) -> None:
    """Wait until LiteLLM answers on its own cable. Raises EngineError with the broker's last words."""
    host = next(c["near"]["ip"] for c in doc.plan["wiring"]["cables"] if c["near"]["role"] == "broker")
    pid, end = int(chosen["broker"]["pid"]), time.monotonic() + timeout
    if not netns.in_net(pid, lambda: _answers(host, BROKER_PORT, end, pid), timeout + 5):
        words = last_words(podman, doc.names()["broker"])
        raise _silent("broker", f"the broker did not come up (it may take {timeout:g} s)", words)


def chosen(doc: PlanDocument) -> Dict[str, Json]:
    """The containers as chosen at init, from the record. Raises EngineError without one."""
    record: Optional[Json] = state.read(doc.session)
    found = record.get("containers") if record else None
    if not isinstance(found, dict) or not found:
        raise EngineError(
            f"session {doc.session} has no record of its containers",
            remedy="close it and open it again",
            code="no-record",
        )
    return found
