# SPDX-License-Identifier: BSD-4-Clause
"""The command line as data."""

import pytest

from asf_cli import parser
from asf_cli.errors import CliError


def test_playbook_with_everything():
    words = (
        "open.yml -e agent=claude -e session=two --check --diff -vv --tags a -t b,c --skip-tags d --limit h -i ./inv"
    )
    found = parser.parse([*words.split(), "-f", "3", "--json", "--detach", "--", "claude", "-p", "--json", "{{ x }}"])
    assert (found.verb, found.playbook) == ("playbook", "open.yml")
    assert found.variables == {"agent": "claude", "session": "two"}
    assert found.command == ["claude", "-p", "--json", "{{ x }}"]
    assert (found.check, found.diff, found.verbosity, found.json, found.detach) == (True, True, 2, True, True)
    assert (found.tags, found.skip_tags, found.limit, found.inventory, found.forks) == (
        ["a", "b,c"],
        ["d"],
        "h",
        "./inv",
        3,
    )


def test_options_may_come_first():
    found = parser.parse(["-e", "agent=claude", "--check", "status.yml"])
    assert (found.playbook, found.check, found.command) == ("status.yml", True, None)


def test_a_command_named_like_a_verb_is_a_command():
    assert parser.parse(["open.yml", "-e", "agent=a", "--", "exec", "ls"]).command == ["exec", "ls"]


def test_exec():
    found = parser.parse(["exec", "-e", "agent=a", "-t", "--", "sh", "-c", "exit 3"])
    assert (found.verb, found.tty, found.command, found.extra) == ("exec", True, ["sh", "-c", "exit 3"], ["agent=a"])
    assert parser.parse(["exec", "a.two", "--", "ls"]).target == "a.two"


def test_repo():
    found = parser.parse(["repo", "add", "claude", "/a b", "--mode", "ro"])
    assert (found.verb, found.action, found.agent, found.path, found.mode) == ("repo", "add", "claude", "/a b", "ro")
    assert parser.parse(["repo", "add", "--", "claude", "-odd-"]).path == "-odd-"
    assert parser.parse(["repo", "remove", "claude", "api"]).repository == "api"
    assert parser.parse(["repo", "list"]).agent is None
    assert parser.parse(["repo", "list", "claude", "--json"]).json


@pytest.mark.parametrize(
    "words, remedy",
    [
        ([], "asf-play open.yml -e agent=NAME"),
        (["exec", "claude", "ls"], "the command stands after --: asf-play exec AGENT -- CMD…"),
        (["open.yml", "claude"], "an agent is named by -e agent=NAME"),
    ],
)
def test_a_word_too_many_or_none_at_all_is_answered_with_what_to_do(words, remedy):
    with pytest.raises(CliError) as caught:
        parser.parse(words)
    assert remedy in caught.value.fields["remedy"]


@pytest.mark.parametrize("verb", ["ls", "doctor"])
def test_plain(verb):
    assert parser.parse([verb, "--json"]).json


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["open.yml", "close.yml"],
        ["open.yml", "--jsno"],
        ["open.yml", "--det"],
        ["open.yml", "-e"],
        ["open.yml", "-e", "agent=a", "--"],
        ["open.yml", "-e", "agent=a", "--", ""],
        ["exec", "-e", "agent=a", "--"],
        ["ls", "x"],
        ["repo"],
        ["repo", "add", "claude"],
        ["repo", "add", "claude", "/x", "--mode", "rx"],
        ["repo", "chmod"],
        ["open.yml", "-f", "many"],
    ],
)
def test_wrong_use_says_how(words):
    with pytest.raises(CliError) as caught:
        parser.parse(words)
    assert caught.value.fields["code"] == "usage"
    assert caught.value.fields["remedy"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-vvv"], True),
        (["-v", "-vv"], True),
        (["-vvvv"], True),
        (["-vv"], False),
        (["x", "--", "-vvv"], False),
        (["-x"], False),
    ],
)
def test_traceback_wanted(words, expected):
    assert parser.wants_traceback(words) is expected


def test_json_after_the_command_is_the_commands():
    assert not parser.wants_json(["open.yml", "--", "ls", "--json"])
    assert parser.wants_json(["frob", "--json"])


def test_help_has_examples_and_exit_codes(capsys):
    with pytest.raises(SystemExit):
        parser.parse(["--help"])
    text = capsys.readouterr().out
    assert "asf-play open.yml -e agent=claude" in text
    assert "221 verification failed" in text
