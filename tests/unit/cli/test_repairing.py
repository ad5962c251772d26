# SPDX-License-Identifier: BSD-4-Clause
"""``doctor --fix``: root names an account, runs what needs root and nothing else, and tells each command."""

import argparse
import dataclasses
import json
import os
import pwd
import subprocess

import pytest

import asf_cli  # noqa: F401  gives the shared code its name
from asf_cli import repairing
from asf_cli.commands import doctor as command
from asf_cli.errors import CliError
from asf_lib.core import doctor, doctor_facts, doctor_repair
from asf_lib.engine import hostfacts


def test_only_root_acts_for_another_account():
    request = argparse.Namespace(fix=False, account="ann", json=False)
    with pytest.raises(CliError, match="only root"):
        command.run(request)


@pytest.mark.parametrize(
    ("named", "env", "message"),
    [
        (None, {}, "none is named"),
        ("no-such-account", {}, "no such account"),
        ("root", {}, "do not run as root"),
        (None, {"SUDO_USER": "root"}, "do not run as root"),
    ],
)
def test_whose_host_it_is_must_be_known(named, env, message):
    with pytest.raises(CliError, match=message):
        repairing.account(named, env)


def test_who_called_sudo_is_meant():
    me = pwd.getpwuid(os.getuid())
    if me.pw_uid:
        assert repairing.account(None, {"SUDO_USER": me.pw_name, "ASF_ACCOUNT": "other"}) == me


def test_every_command_is_told_and_a_failing_one_stops_none(tmp_path):
    mark, told = tmp_path / "mark", []
    repairs = [
        doctor_repair.Repair("a", ("sh", "-c", "echo out of order; exit 3")),
        doctor_repair.Repair("b", ("no-such-program",)),
        doctor_repair.Repair("c", ("touch", str(mark))),
        doctor_repair.Repair("d", ("touch", str(tmp_path / "never")), root=False),
    ]
    done = repairing.carry_out(repairs, told.append)
    assert [row["rc"] for row in done] == [3, 127, 0, None]
    assert mark.exists() and not (tmp_path / "never").exists()
    assert [line for line in told if "running" in line] == [
        "a: running `sh -c echo out of order; exit 3`",
        "b: running `no-such-program`",
        f"c: running `touch {mark}`",
    ]
    assert "a: failed (3): out of order" in told


def test_facts_survive_the_way_from_the_account_to_root():
    facts = hostfacts.collect()
    again = doctor_facts.of(json.loads(json.dumps(dataclasses.asdict(facts))))
    assert again == facts and doctor.verdicts(again) == doctor.verdicts(facts)


@pytest.mark.parametrize("data", [{}, [], {"programs": {}, "kernel": ["x"]}])
def test_what_is_no_facts_is_refused(data):
    with pytest.raises((KeyError, TypeError, ValueError)):
        doctor_facts.of(data)


def test_an_account_that_lies_gets_no_ids_of_others(monkeypatch):
    """Its own process tells the facts; the range that root hands out is root's own finding."""
    lie = {
        **dataclasses.asdict(hostfacts.collect()),
        "uid": 0,
        "user": "root",
        "subuids": 0,
        "subgids": 0,
        "subid_free": 0,
    }
    told = subprocess.CompletedProcess([], 0, json.dumps(lie), "")
    monkeypatch.setattr(repairing, "operator", lambda: None)
    monkeypatch.setattr(repairing.subprocess, "run", lambda *_args, **_more: told)
    whose = pwd.getpwuid(os.getuid())
    facts = repairing.look(whose, None)
    assert (facts.uid, facts.user) == (whose.pw_uid, whose.pw_name)
    commands = [repair.command for repair in doctor_repair.repairs(facts, doctor.verdicts(facts))]
    given = next(command[2] for command in commands if command[:2] == ("usermod", "--add-subuids"))
    assert given.partition("-")[0] == str(hostfacts.free_ids()) and hostfacts.free_ids() >= 100000


def test_an_account_that_gives_no_answer_holds_root_up_for_a_while_only(monkeypatch, tmp_path):
    silent = tmp_path / "operator"
    silent.write_text("#!/bin/sh\nexec sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(repairing, "operator", lambda: silent)
    monkeypatch.setattr(repairing, "_LOOK_DEADLINE", 0.2)
    with pytest.raises(CliError) as caught:
        repairing.look(pwd.getpwuid(os.getuid()), None)
    assert caught.value.fields["found"] == "no answer within 0.2 s"
