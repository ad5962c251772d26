# SPDX-License-Identifier: BSD-2-Clause
"""Give a live session's broker another provider key: a second broker takes the first one's place on the cable.

The second one boots beside the first, on a cable whose other end is parked in its own network namespace. Then the old
cable is unplugged and the parked end moved into Caddy's namespace, under the planned name and addresses; in between the
front tells clients to wait. What is done can be done again: whoever was killed in the middle is finished by the next.
"""

from __future__ import annotations

import contextlib
import ipaddress
import time
from typing import Any, Dict, Optional

from ..core import decisions
from ..core.errors import EngineError
from ..core.policy import BROKER_PORT
from ..core.roles import BROKER, CADDY
from . import bringup, hidden, keys, logs, netns, observe, plandoc, procs, state, wiring
from .plandoc import PlanDocument
from .podman import Podman

Json = Dict[str, Any]

#: Seconds that requests in flight get before the old broker's cable is unplugged.
PATIENCE = 30.0
_OLD = "-old"
_ESTABLISHED = "01"


def rotate(podman: Podman, session: str, home: Optional[str], collection: str, patience: float = PATIENCE) -> Json:
    """Returns ``{changed, actions, cut}``; ``cut`` is how many connections were still open. Raises EngineError.

    ``home`` and ``collection`` say where keys are looked for (``keys.reader``).
    """
    doc = _brokered(session)
    with state.lock(session):
        name = doc.names()[BROKER]
        read = keys.reader(home, collection, doc.plan)
        hidden.apart(lambda: len(read(_provider(doc))))  # before anything is changed: is there one?
        _aside(podman, doc, name)
        try:
            _new_secret(podman, doc, read)
            row = _second(podman, doc, name)
            bringup.wait_broker(podman, doc, {BROKER: row})
        except BaseException:
            _back(podman, doc, name)
            raise
        cut = _drained(doc, patience)
        _keep(podman, doc, cut)
        wiring.replug(row["pid"], int(bringup.chosen(doc)[CADDY]["pid"]), _cable(doc))
        podman.run(["rm", "--force", "--ignore", "--time", "2", name + _OLD])
        state.note(doc.session, containers={**bringup.chosen(doc), BROKER: row})
    return {"changed": True, "actions": [f"the broker of {session} has the key of now"], "cut": cut}


def _brokered(session: str) -> PlanDocument:
    """The live session's plan. Raises EngineError for one that has no provider key to rotate."""
    record = state.read(session)
    if record is None or record.get("state") != "live" or not record.get("plan"):
        raise EngineError(
            f"session {session} is not open",
            key="session",
            code="not-open",
            remedy="asf-play ls lists what is open; a session that is opened later reads the key by itself",
        )
    doc = plandoc.read(record["plan"])
    if not any(entry["part"] == "provider" for entry in doc.plan["secrets"]):
        raise EngineError(
            f"session {session} holds no provider key",
            key="llm",
            code="no-key",
            remedy="nothing is to be rotated: it has no broker, an embedded model, or a provider without a key; a key "
            "that the agent itself holds is replaced by close and open",
        )
    return doc


def _provider(doc: PlanDocument) -> Json:
    found: Json = next(one for one in doc.plan["secrets"] if one["part"] == "provider")
    return found


def _aside(podman: Podman, doc: PlanDocument, name: str) -> None:
    """The working broker makes room for the planned name; what an interrupted rotation left there goes."""
    there = podman.run(["inspect", "--type", "container", "--format", "{{.Id}}", name], check=False).stdout.strip()
    if there and there == (bringup.chosen(doc).get(BROKER) or {}).get("id"):
        podman.run(["rm", "--force", "--ignore", "--time", "2", name + _OLD])
        podman.run(["rename", name, name + _OLD])
    elif there:
        podman.run(["rm", "--force", "--ignore", "--time", "2", name])


def _back(podman: Podman, doc: PlanDocument, name: str) -> None:
    """The second broker did not come up: the first one works on under its own name."""
    podman.run(["rm", "--force", "--ignore", "--time", "2", name], check=False)
    podman.run(["rename", name + _OLD, name], check=False)


def _new_secret(podman: Podman, doc: PlanDocument, read: bringup.KeyReader) -> None:
    """In place of the old one, which running containers do not need: the engine has copied it into them."""
    entry = _provider(doc)

    def make() -> int:
        words, data = bringup.secret_call(doc, entry, read(entry))
        podman.run(["secret", "rm", entry["name"]], check=False)
        return podman.run(words, input=data).rc

    hidden.apart(make)


def _second(podman: Podman, doc: PlanDocument, name: str) -> Json:
    """The second broker, running; its first process as the record has it."""
    container = next(c for c in doc.plan["containers"] if c["role"] == BROKER)
    podman.run(bringup.create_args(container, doc.origin), timeout=180)
    podman.run(["init", name], timeout=60)
    row = bringup.first_process(BROKER, name, observe.inspect(podman, {BROKER: name})[BROKER])
    wiring.park(row["pid"], _cable(doc))
    podman.run(["start", name], timeout=60)
    return row


def _cable(doc: PlanDocument) -> Json:
    found: Json = next(c for c in doc.plan["wiring"]["cables"] if c["near"]["role"] == BROKER)
    return found


def _drained(doc: PlanDocument, patience: float) -> int:
    """Wait for a moment without a request at the old broker; how many there still were when time was up."""
    old = bringup.chosen(doc).get(BROKER) or {}
    if procs.start_time(int(old.get("pid", 0))) != old.get("start"):
        return 0
    ip, end = ipaddress.IPv4Address(_cable(doc)["near"]["ip"]), time.monotonic() + patience
    address = f"{int.from_bytes(ip.packed, 'little'):08X}:{BROKER_PORT:04X}"  # as proc_pid_net(5) writes it
    running: int = netns.in_net(int(old["pid"]), lambda: _busy(address, end), patience + 5)
    return running


def _busy(address: str, end: float) -> int:
    """Runs in the broker's network namespace: connections of the front; it keeps one that is idle for two seconds."""
    while True:
        with open("/proc/net/tcp", encoding="ascii") as handle:
            rows = [line.split() for line in handle.read().splitlines()[1:]]
        found = sum(row[3] == _ESTABLISHED and row[1] == address for row in rows)
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.05)


def _keep(podman: Podman, doc: PlanDocument, cut: int) -> None:
    """What the old broker said of its requests, and what was cut, into the evidence: its log goes with it."""
    record = state.read(doc.session) or {}
    old = bringup.chosen(doc).get(BROKER) or {}
    path = logs.path_of(int(old.get("pid", 0)), str(old.get("id"))) if old else None
    parsed = decisions.Parsed()
    with contextlib.suppress(EngineError):  # it is gone: an earlier rotation, which was interrupted, has kept its words
        parsed = decisions.parse(logs.lines(podman, str(old.get("id")), path or ""))
    evidence = state.evidence_of(record)
    told: Json = {"at": state.now(), "what": "provider key rotated", "connections_cut": cut}
    told["usage"] = decisions.usage([], parsed.usage)["models"]
    evidence.write_lines("rotations.jsonl", [*evidence.read_lines("rotations.jsonl"), told])
