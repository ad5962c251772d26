# SPDX-License-Identifier: BSD-4-Clause
"""Schemas of what the commands print; the other tests hold every document against them (support/documents.py)."""

from __future__ import annotations

import copy

import pytest
from support import documents, schemas

from asf_cli import commands, document, errors, parser

#: Documents that are no single one: a line each, with a schema of its own.
STREAMS = {"watch"}
#: Commands whose standard output is somebody else's.
FOREIGN = {"exec", "shell"}


def published() -> set[str]:
    return {path.stem for path in schemas.FOLDER.glob("*.json")}


def test_every_command_with_json_has_a_schema():
    for name in set(commands.COMMANDS) - STREAMS - FOREIGN:
        takes = "--json" in parser.command(name)._option_string_actions
        below = [one for one in parser._verbs(parser.command(name)).values() if "--json" in one._option_string_actions]
        assert takes or below, f"{name} has no --json"
        verbs = parser._verbs(parser.command(name)) if name == "evidence" else []
        for wanted in [f"{name}-{verb}" for verb in verbs] or [f"cli-{name}"]:
            assert wanted in published(), f"no schema {wanted}: add it to tools/cli_schemas.py"


def test_every_schema_is_one():
    for name in published():
        assert schemas.load(name)["title"]


def test_failures_are_as_published(run):
    """All sorts of requests that are refused."""
    for words in (
        ["ls", "--nope"],
        ["open.yml"],
        ["status", "a.b.c"],
        ["logs", "x", "y", "z"],
        ["repo", "add", "x", "rel"],
    ):
        code, out, err = run(*words, "--json")
        assert code != 0 and out.startswith("{") and err == ""


FAILURE = document.failure(errors.CliError("message").fields)
ROW = {
    **{key: "x" for key in ("agent", "name", "mode", "isolation")},
    **{key: None for key in ("exit_code", "created", "age_s", "requests", "denied", "tokens", "cost_usd")},
    "session": "claude.main",
    "state": "live",
    "reasons": [],
}


def test_a_schema_refuses_what_is_not_as_published():
    assert documents.wrong(["ls"], [ROW]) == [] and documents.wrong(["cp"], FAILURE) == []
    for key in ROW:
        assert documents.wrong(["ls"], [{name: value for name, value in ROW.items() if name != key}])
    assert documents.wrong(["ls"], [{**ROW, "more": 1}]) and documents.wrong(["ls"], [{**ROW, "state": "odd"}])
    assert documents.wrong(["ls"], {}) and documents.wrong(["nothing"], {})
    broken = copy.deepcopy(FAILURE)
    del broken["error"]["message"]
    assert documents.wrong(["cp"], broken)


@pytest.mark.parametrize("name", sorted(set(commands.COMMANDS)))
def test_help_has_examples_and_exit_codes(run, name):
    code, out, err = run(name, "--help", env={"COLUMNS": "80"})
    assert (code, err) == (0, "") and f"asf-play {name}" in out.partition("examples:")[2]
    assert "exit codes" in out
