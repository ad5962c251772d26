# SPDX-License-Identifier: BSD-4-Clause
"""Open a session by the product's own engine calls, really break something on the way, and see what verification says.

A mutation changes what a probe guards: the containers' arguments and files (`edit_plan`, after the plan was computed,
so that what is planned and what is made differ), or what exists (`after_create`, `after_wire`, `after_start`, `live`).
It never touches a probe.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from asf_lib.core.errors import AsfError
from asf_lib.engine import bringup, images, plandoc, planning, state, teardown, verification, wiring
from asf_lib.engine.plandoc import PlanDocument
from asf_lib.engine.podman import Podman
from support.product import Home, SessionFactory

Plan = dict[str, Any]
Result = dict[str, Any]
Edit = Callable[[Plan], None]
Break = Callable[[dict[str, int]], None]  # gets the containers' first pids by role

_ROOT = Path(__file__).resolve().parents[2]
_CANARY = "canary-provider-key-of-a-mutated-session"


@dataclass
class Run:
    """What came of it. `error` is what the product raised, None when the session was verified."""

    doc: PlanDocument
    podman: Podman
    pids: dict[str, int] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)
    error: AsfError | None = None
    nonce: str = ""

    def verdict(self, probe: str) -> str:
        """The probe's verdict, "none" when it was not judged at all."""
        return next((r["verdict"] for r in self.results if r["id"] == probe), "none")

    def evidence(self, probe: str) -> str:
        """What the probe saw."""
        return next((str(r["evidence"]) for r in self.results if r["id"] == probe), "")

    def bad(self) -> dict[str, str]:
        """Probes that stop the session: id -> fail or inconclusive."""
        return {r["id"]: r["verdict"] for r in self.results if r["verdict"] in ("fail", "inconclusive")}

    def container(self, role: str) -> str:
        """Name of the role's container."""
        return self.doc.names()[role]

    def verify(self) -> None:
        """Verify again (a live session: a fresh process probes); sets `results` and `error`."""
        self.error, self.results = None, []
        try:
            report = verification.verify(self.podman, self.doc)
            self.results, self.nonce = report["probes"], report["nonce"]
        except AsfError as error:
            self.error, self.results = error, list(getattr(error, "results", []))

    def go(self) -> None:
        """Let the workload start. Raises GateError."""
        verification.go(self.doc, self.nonce)

    def __str__(self) -> str:
        lines = [f"{r['id']}: {r['verdict']}: {r['evidence'][:400]}" for r in self.results if r["verdict"] != "pass"]
        return "\n".join([f"error: {self.error!r}", *lines])


# --- editing a plan ---------------------------------------------------------------------------------------------------


def arguments(plan: Plan, role: str) -> list[str]:
    """The words of the role's `podman create`, to be changed in place."""
    return next(c["args"] for c in plan["containers"] if c["role"] == role)


def without(plan: Plan, role: str, *options: str) -> None:
    """Take options away; each must be there."""
    args = arguments(plan, role)
    for option in options:
        args.remove(option)


def instead(plan: Plan, role: str, beginning: str, *replacement: str) -> None:
    """Replace the one option that begins so."""
    args = arguments(plan, role)
    (place,) = [index for index, word in enumerate(args) if word.startswith(beginning)]
    args[place : place + 1] = replacement


def added(plan: Plan, role: str, *options: str) -> None:
    """Give options that the plan does not have."""
    arguments(plan, role)[1:1] = options


def rendered(plan: Plan, path: str) -> Any:
    """The JSON of one of the plan's files, to be changed in place."""
    return next(f["json"] for f in plan["files"] if f["path"] == path)


# --- the session ------------------------------------------------------------------------------------------------------


def _defaults(name: str) -> Any:
    return yaml.safe_load((_ROOT / "inventory/group_vars/all" / name).read_text())


def inputs(home: Home, agent: str, session: str, **more: Any) -> planning.Inputs:
    """What `open.yml` would ask for."""
    limits, pins = _defaults("limits.yml")["asf_limits"], _defaults("pins.yml")["asf_image_pins"]
    given = {"home": str(home.path), "limits": limits, "pins": pins, **more}
    return planning.Inputs(agent=agent, collection=str(_ROOT), session=session, **given)


def _build(asked: planning.Inputs, names: Sequence[str], home: Home) -> None:
    bundle = yaml.safe_load((home.path / "config.yml").read_text() or "{}").get("ca_bundle") or ""
    images.ensure(images.workshop(images.Options.of(_ROOT, {"ca_bundle": bundle}), asked.pins), names)


def _recorded(plan: Plan) -> PlanDocument:
    session = plan["session"]
    state.begin(
        session["id"], mode=session["mode"], isolation=session["isolation"], plan_digest=planning.plans.digest(plan)
    )
    doc = plandoc.write(os.path.join(plan["run_dir"], "plan.json"), plan)
    state.begin_step(session["id"], "plan", plan=doc.path)
    return doc


def _bring_up(run: Run, after_create: Break | None, after_wire: Break | None, after_start: Break | None) -> None:
    podman, doc = run.podman, run.doc
    for volume in doc.plan["volumes"]:
        labels = [f"--label={key}={value}" for key, value in volume["labels"].items()]
        podman.run(["volume", "create", *labels, volume["name"]])
    bringup.create(podman, doc, lambda entry: _CANARY)
    chosen = bringup.chosen(doc)
    run.pids = {role: int(entry["pid"]) for role, entry in chosen.items()}
    if after_create:
        after_create(run.pids)
    wiring.wire(run.pids, doc.plan["wiring"])
    if after_wire:
        after_wire(run.pids)
    for role in ("gateway", "broker"):
        if role in run.pids:
            bringup.start(podman, doc, role)
    if "caddy" in run.pids:
        bringup.start(podman, doc, "caddy")
        bringup.wait_listening(podman, doc, chosen)
    if after_start:
        after_start(run.pids)


def _inside_as_well(run: Run) -> None:
    """The product stops at the first side that fails; a test of an inside probe wants to see both."""
    if any(r["vantage"] == "inside" for r in run.results) or not run.results:
        return
    with contextlib.suppress(AsfError):
        _, later = verification._first_report(run.podman, run.doc, bringup.chosen(run.doc))
        run.results = verification._merge(run.results, later)


@contextlib.contextmanager
def mutated(
    home: Home,
    agent: str,
    *,
    edit_plan: Edit | None = None,
    after_create: Break | None = None,
    after_wire: Break | None = None,
    after_start: Break | None = None,
    live: Break | None = None,
    env: Mapping[str, str] | None = None,
    **asked: Any,
) -> Iterator[Run]:
    """A session that was broken on its way; torn down at the end. `asked` are further fields of planning.Inputs.

    The session waits at its gate, verified or not. With `live` it is told to go, broken, and verified again.
    Errors of any step after planning are in `Run.error`; `Run.results` has the verdicts of both sides.
    """
    with mock.patch.dict(os.environ, {**home.env, **(env or {})}):
        podman, request = Podman(), inputs(home, agent, SessionFactory.new_name(), **asked)
        plan, names, _ = planning.compute(podman, request)
        _build(request, names, home)
        if edit_plan:
            edit_plan(plan)
        run = Run(_recorded(plan), podman)
        try:
            _through(run, after_create, after_wire, after_start, live)
            yield run
        finally:
            teardown.teardown(podman, run.doc.session)
            for volume in plan["volumes"]:
                podman.run(["volume", "rm", "-f", volume["name"]], check=False)


def _through(
    run: Run, after_create: Break | None, after_wire: Break | None, after_start: Break | None, live: Break | None
) -> None:
    try:
        _bring_up(run, after_create, after_wire, after_start)
    except AsfError as error:
        run.error = error
        return
    run.verify()
    if live is None:
        _inside_as_well(run)
        return
    assert run.error is None, f"not verified before it was broken: {run}"
    run.go()
    live(run.pids)
    run.verify()
