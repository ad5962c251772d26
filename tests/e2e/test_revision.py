# SPDX-License-Identifier: BSD-4-Clause
"""A live session gets another policy: plan revision n+1, on real Podman, in the closed network (P15)."""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import crash_lab, front, probe_tools, schemas
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman
from support.waiting import wait_for

from asf_lib.engine import procs

pytestmark = [pytest.mark.podman, pytest.mark.slow]

L1 = ["198.18.0.1", 3128]
_SERVICE = {"mode": "service", "command": ["sleep", "900"]}


def entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "private": ["198.51.100.0/24"], **more}


DOCS, GIT = entry("docs.example.com"), entry("git.example.com")


def manifest(*domains: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"adapter": "generic", "runtime": _SERVICE, "network": {"allow_domains": list(domains)}, **more}


def status(opened: Session) -> dict[str, Any]:
    found: dict[str, Any] = asf_play("status", *opened.selector(), "--json", home=opened.home).json["status"]
    return found


def asked(opened: Session, name: str) -> int:
    """CONNECT's status."""
    return int(opened.probe("connect", proxy=L1, target=f"{name}:443", timeout=15)["status"])


@pytest.fixture(scope="module")
def opened(module_home: Home, module_session: SessionFactory) -> Session:
    """A brokered session with the embedded model and one declared name."""
    llm = {"protocol": "openai", "mock": "hello", "models": ["one"]}
    module_home.agent("rv", manifest(DOCS, llm=llm, filesystem={"state": [{"key": "k", "target": "/home/node/.k"}]}))
    return module_session.open("rv")


def again(opened: Session, *more: str, **changed: Any) -> Any:
    """Edit the manifest, and open again."""
    llm = {"protocol": "openai", "mock": "hello", "models": ["one"], **changed.pop("llm", {})}
    state = {"state": [{"key": "k", "target": "/home/node/.k"}]}
    opened.home.agent("rv", manifest(*changed.pop("domains", [DOCS]), llm=llm, filesystem=state, **changed))
    return opened.play("open.yml", *more, "--detach")


@pytest.fixture
def held(opened: Session) -> Iterator[subprocess.Popen[bytes]]:
    """A tunnel of the agent to docs.example.com, in which a stream runs."""
    argv = ["asf-play", "exec", *opened.selector(), "--", "python3", "-", "hold_tunnel"]
    argv += [json.dumps({"proxy": L1, "target": "docs.example.com:443", "seconds": 120})]
    with (
        Path(probe_tools.__file__).open("rb") as source,
        subprocess.Popen(
            argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=opened.home.env
        ) as run,
    ):
        try:
            assert run.stderr is not None and run.stderr.readline() == b"receiving\n"
            yield run
        finally:
            run.kill()


def test_P15_a_name_is_added_and_taken_away_while_the_agent_lives(
    opened: Session, held: subprocess.Popen[bytes], world: World
) -> None:
    ids = {role: (opened.container(role), opened.pid(role)) for role in ("agent", "caddy", "broker")}
    assert asked(opened, "git.example.com") == 403
    shown = again(opened, "--check", domains=[DOCS, GIT])
    assert shown.rc == 0 and shown.json["changed"] and asked(opened, "git.example.com") == 403, shown
    added = again(opened, domains=[DOCS, GIT])
    assert added.rc == 0 and added.json["changed"] and added.json["probes"], added
    assert {one["verdict"] for one in added.json["probes"]} <= {"pass", "warn"}
    for told in (shown, added):
        assert any("filesystem.state" in str(one) for one in told.json["warnings"]), "egress of a state volume grows"
    assert asked(opened, "git.example.com") == asked(opened, "docs.example.com") == 200
    assert held.poll() is None, "a tunnel that stays allowed goes on"
    same = again(opened, domains=[DOCS, GIT])
    assert same.rc == 0 and same.json["changed"] is False, same

    mark = world.mark()
    assert again(opened, domains=[GIT]).rc == 0
    out, _ = held.communicate(timeout=60)
    assert json.loads(out)["end"] in ("closed", "reset") and world.events("closed", mark, timeout=60), "cut"
    assert (asked(opened, "docs.example.com"), asked(opened, "git.example.com")) == (403, 200)
    cut = wait_for(lambda: [one for one in opened.decisions() if one["reason"] == "closed"], 60, "the line of the cut")
    assert cut[0]["detail"] == "cut: the session's new policy does not allow it", cut
    assert {role: (opened.container(role), opened.pid(role)) for role in ids} == ids, "nothing was made anew"
    assert status(opened)["revision"] == 2 and opened.play("verify.yml").rc == 0


def test_the_fronts_policy_and_its_limits_change_and_the_count_goes_on(opened: Session) -> None:
    assert again(opened).rc == 0
    (one, other) = front.ask(opened, front.chat(model="one"), front.chat(model="two"))
    assert (one.status, other.status, other.reason) == (200, 404, "denied-model")
    assert again(opened, llm={"models": ["two"], "limits": {"tokens_per_session": 1}}).rc == 0
    (one, other) = front.ask(opened, front.chat(model="one"), front.chat(model="two"))
    assert (one.status, other.status, other.reason) == (404, 429, "limit-tokens"), "what was used is used"


def test_a_caddy_with_another_policy_than_the_plans_is_noticed(opened: Session) -> None:
    """Mutation: Caddy is given the list of an earlier revision behind ASF's back."""
    assert again(opened).rc == 0
    run = Path(json.loads((opened.home.state / "asf" / "live" / f"{opened.id}.json").read_bytes())["run"])
    file = run / "caddy" / "caddy.json"
    earlier = file.read_text()
    assert again(opened, domains=[GIT]).rc == 0
    current = file.read_text()
    for text, bad in ((earlier, ["policy-current"]), (current, [])):
        file.write_text(text)
        podman("kill", "--signal", "HUP", opened.container("caddy"))
        wait_for(lambda: asked(opened, "docs.example.com") == (200 if bad else 403), 60, "the other list")  # noqa: B023
        found = opened.play("verify.yml").json
        assert [one["id"] for one in found["probes"] if one["verdict"] == "fail"] == bad, found


def test_anything_else_is_refused_and_nothing_changes(opened: Session) -> None:
    before = status(opened)["revision"]
    refused = again(opened, domains=[GIT], env={"A": "b"})
    error = refused.json["error"]
    assert refused.rc != 0 and error["code"] == "edited" and error["key"] == "env.A", error
    assert "network.allow_domains" in error["remedy"] and status(opened)["revision"] == before


def test_evidence_has_every_revision(opened: Session) -> None:
    last = status(opened)["revision"]
    assert last >= 4 and f"(revision {last})" in asf_play("status", opened.id, home=opened.home).out
    assert schemas.evidence_problems(opened.evidence) == []
    lines = [json.loads(line) for line in (opened.evidence / "revisions.jsonl").read_text().splitlines()]
    assert [one["revision"] for one in lines] == list(range(last + 1))
    for one, following in itertools.pairwise(lines):
        assert following["plan"]["previous"] == one["digest"] and following["plan"]["origin"] == lines[0]["digest"]
    newest = json.loads((opened.evidence / "plan.json").read_text())
    assert newest["digest"] == lines[-1]["digest"] and newest["plan"]["revision"] == last
    assert asf_play("evidence", "verify", home=opened.home).rc == 0


def test_a_policy_that_does_not_hold_cuts_the_way_out(home: Home, session: SessionFactory, world: World) -> None:
    """The new list's control may not be reached (its address is not declared): nothing is proved, so nothing leaves."""
    home.agent("rv-cut", manifest(DOCS))
    live = session.open("rv-cut")
    home.agent("rv-cut", manifest({"name": "docs.example.com"}))
    failed = live.play("open.yml", "--detach")
    assert failed.rc != 0 and failed.json["error"]["code"] == "verify", failed
    assert "its way out was cut" in failed.json["error"]["remedy"]
    assert procs.start_time(live.pid("agent")) is not None, "the agent lives on"
    assert asked(live, "docs.example.com") == 0 and status(live)["state"] == "broken"


def test_an_open_that_was_killed_in_the_middle_is_done_again(home: Home, world: World, tmp_path: Path) -> None:
    """Killed before Caddy hears of it: `verify` sees the difference, the next `open` does the rest."""
    lab = crash_lab.Lab(home, SessionFactory.new_name(), tmp_path / "runs")
    assert lab.play("open.yml", crash_lab.PLAIN).rc == 0
    try:
        home.agent(crash_lab.PLAIN, {**crash_lab.AGENTS[crash_lab.PLAIN], "network": {"allow_domains": [DOCS, GIT]}})
        point = "task podman.Podman._call: podman kill HUP starts"
        _, _, hit = lab.chaos("open.yml", crash_lab.PLAIN, at=point, nth=1, action="kill", argument="all")
        assert hit, "the point is gone"
        seen = lab.play("verify.yml", crash_lab.PLAIN).json
        assert [one["id"] for one in seen["probes"] if one["verdict"] == "fail"] == ["policy-current"], seen
        assert "open it again to finish" in seen["error"]["remedy"]
        again_ = lab.play("open.yml", crash_lab.PLAIN)
        assert again_.rc == 0 and again_.json["changed"], again_
        assert lab.play("verify.yml", crash_lab.PLAIN).rc == 0
    finally:
        lab.live = crash_lab.PLAIN
        lab.close()
        lab.forget_volumes()
