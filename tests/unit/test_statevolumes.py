# SPDX-License-Identifier: BSD-4-Clause
"""State volumes: whose they are, what clearing them takes, and that a wider open is told (filesystem.state)."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Any

import pytest

import asf_cli  # noqa: F401  gives the shared code its name
from asf_cli import resetting
from asf_cli.errors import CliError
from asf_cli.parser import parse
from asf_cli.play import _check
from asf_lib.core import statevolumes as core
from asf_lib.engine import statevolumes


def labelled(name: str, **labels: str) -> dict[str, Any]:
    given = {"asf.volume": "state", "asf.owner": "1000", "asf.agent": "ann", "asf.name": "main", **labels}
    return {"Name": name, "Labels": {key.replace("_", "."): value for key, value in given.items()}}


def test_only_the_agents_own_volumes_by_label() -> None:
    rows = [
        labelled("asf-state-ann.two.keep", asf_name="two"),
        labelled("asf-state-ann.main.keep"),
        labelled("asf-state-bob.main.keep", asf_agent="bob"),
        labelled("asf-state-ann.main.other", asf_owner="1001"),
        labelled("asf-state-ann.main.log", asf_volume="log"),
        {"Name": "asf-state-ann.main.fake", "Labels": None},  # a name alone is no proof
    ]
    found = core.owned(rows, 1000, "ann")
    assert [(one.name, one.session, one.key) for one in found] == [
        ("asf-state-ann.main.keep", "main", "keep"),
        ("asf-state-ann.two.keep", "two", "keep"),
    ]
    assert [one.session for one in core.owned(rows, 1000, "ann", "two")] == ["two"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "size unknown"),
        (0, "0 B"),
        (2048, "2 KiB"),
        (5 << 20, "5 MiB"),
        (3 << 30, "3.0 GiB"),
        (1 << 42, "4096.0 GiB"),
    ],
)
def test_sizes_as_people_read_them(count: int | None, text: str) -> None:
    assert core.size(count) == text


def plan(*names: str) -> dict[str, Any]:
    domains = [{"name": name, "ports": [443, 8443] if name == "two.test" else [443]} for name in names]
    volumes = [{"name": "asf-state-ann.main.keep", "key": "keep"}]
    session, manifest = {"mode": "proxy"}, {"network": {"allow_domains": domains}}
    return {"session": session, "network": {}, "manifest": manifest, "volumes": volumes}


def test_wider_egress_than_the_last_use_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert statevolumes.widened(plan("one.test")) == [], "nothing is known of a new volume"
    statevolumes.remember(plan("one.test"))
    assert statevolumes.widened(plan("one.test")) == statevolumes.widened(plan()) == []
    [warning] = statevolumes.widened(plan("one.test", "two.test"))
    assert warning["key"] == "filesystem.state"
    assert "two.test:443, two.test:8443 could not be reached" in warning["message"]
    statevolumes.remember(plan("one.test", "two.test"))
    assert statevolumes.widened(plan("one.test", "two.test")) == []


def test_many_new_names_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    statevolumes.remember(plan())
    [warning] = statevolumes.widened(plan(*(f"n{number}.test" for number in range(9))))
    assert "and 4 more" in warning["message"]


@pytest.mark.parametrize("text", ["", "[]", '{"reach": 5}', "{"])
def test_a_damaged_record_is_an_unknown_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    statevolumes.remember(plan())
    statevolumes._record("asf-state-ann.main.keep").write_text(text)
    assert statevolumes.widened(plan("one.test")) == []


# --- asking ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def request(*more: str) -> argparse.Namespace:
    return parse(["reset.yml", "-e", "agent=ann", *more])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A terminal whose user answers what the test says, and one volume."""

    def answer(text: str) -> Terminal:
        shown = Terminal()
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        monkeypatch.setattr(sys, "stderr", shown)
        volume = core.StateVolume("asf-state-ann.main.keep", "ann", "main", "keep", 2048)
        monkeypatch.setattr(statevolumes, "find", lambda *_: [volume])
        monkeypatch.setattr("asf_lib.engine.podman.Podman", lambda: None)
        return shown

    return answer


@pytest.mark.parametrize(
    ("text", "goes_on"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_only_yes_is_a_yes(terminal: Any, text: str, goes_on: bool) -> None:
    shown, asked = terminal(text), request()
    assert resetting.confirmed(asked) is goes_on
    assert ("asf_reset_confirm" in asked.variables) is goes_on
    assert "asf-state-ann.main.keep (keep of ann.main, 2 KiB)" in shown.getvalue()
    assert ("nothing was removed" in shown.getvalue()) is not goes_on


@pytest.mark.parametrize(("words", "confirms"), [(["--yes"], True), (["--check"], False), (["--json"], False)])
def test_nobody_is_asked_where_the_line_says_it(terminal: Any, words: list[str], confirms: bool) -> None:
    shown, asked = terminal("n\n"), request(*words)
    assert resetting.confirmed(asked)
    assert asked.variables.get("asf_reset_confirm", False) is confirms and shown.getvalue() == ""


def test_yes_belongs_to_reset() -> None:
    with pytest.raises(CliError, match=r"--yes belongs to reset\.yml"):
        _check(parse(["close.yml", "-e", "agent=ann", "--yes"]), "close.yml")
    with pytest.raises(CliError, match="needs an agent"):
        _check(parse(["reset.yml"]), "reset.yml")


def _routed(*rules: tuple[str, str, object]) -> list[str]:
    tuples = [{"cidr": cidr, "protocol": protocol, "ports": ports} for cidr, protocol, ports in rules]
    return core.reach({"session": {"mode": "routed"}, "network": {"tuples": tuples}, "manifest": {"network": {}}})


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        (("10.0.0.0/8", "tcp", "any"), ("10.1.0.0/16", "tcp", [22]), []),
        (("10.1.0.0/16", "tcp", [22, 80]), ("10.1.0.0/16", "tcp", [80]), []),
        (("10.1.0.0/16", "tcp", [22]), ("10.1.0.0/16", "tcp", "any"), ["10.1.0.0/16 tcp any"]),
        (("10.1.0.0/16", "tcp", [22]), ("10.0.0.0/8", "tcp", [22]), ["10.0.0.0/8 tcp 22"]),
        (("10.1.0.0/16", "tcp", [22]), ("10.1.0.0/16", "udp", [22]), ["10.1.0.0/16 udp 22"]),
        (("10.1.0.0/16", "icmp_echo", None), ("10.1.2.0/24", "icmp_echo", None), []),
        (("0.0.0.0/0", "tcp", "any"), ("8.8.8.0/24", "tcp", [443]), []),
        (("0.0.0.0/0", "tcp", "any"), ("10.0.0.0/8", "tcp", [443]), ["10.0.0.0/8 tcp 443"]),
    ],
)
def test_a_routed_rule_that_an_earlier_one_holds_is_not_wider(before: Any, now: Any, new: list[str]) -> None:
    """`internet` (0.0.0.0/0 in the plan) does not hold a special-purpose range."""
    assert core.wider(_routed(before), _routed(now)) == new


def test_another_mode_is_wider_by_what_it_reaches() -> None:
    named = {"network": {"allow_domains": [{"name": "one.test", "ports": [443]}]}}
    proxy = core.reach({"session": {"mode": "proxy"}, "network": {}, "manifest": named})
    isolated = core.reach({"session": {"mode": "isolated"}, "network": {}, "manifest": {"network": {}}})
    routed = _routed(("10.0.0.0/8", "tcp", [22]))
    assert isolated == [] and core.wider(isolated, proxy) == proxy == ["one.test:443"]
    assert core.wider(proxy, routed) == routed and core.wider(routed, proxy) == proxy and core.wider(routed, []) == []
