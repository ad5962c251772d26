# SPDX-License-Identifier: BSD-4-Clause
"""Which session a command means."""

import argparse

import pytest

from asf_cli import target
from asf_cli.errors import CliError

ROWS = [
    {"session": "claude.main", "agent": "claude"},
    {"session": "claude.two", "agent": "claude"},
    {"session": "codex.big", "agent": "codex"},
]


def request(word=None, *extra):
    return argparse.Namespace(target=word, extra=list(extra))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (request("claude"), "claude.main"),
        (request("claude.two"), "claude.two"),
        (request("codex"), "codex.big"),
        (request(None, "agent=claude", "session=two"), "claude.two"),
        (request(None, "session=big"), "codex.big"),
        (request("claude", "session=two"), "claude.two"),
    ],
)
def test_chosen(asked, expected):
    assert target.session(asked, ROWS) == expected


def test_the_only_one_needs_no_name():
    assert target.session(request(), ROWS[2:]) == "codex.big"


@pytest.mark.parametrize(
    ("asked", "rows", "told"),
    [
        (request(), ROWS, "claude.main, claude.two, codex.big"),
        (request(), [], "open.yml"),
        (request("claud"), ROWS, "did you mean claude.main?"),
        (request("claude.tow"), ROWS, "did you mean claude.two?"),
        (request("codex.main"), ROWS, "codex.main"),
        (request("claude", "agent=codex"), ROWS, "codex"),
        (request("../x"), ROWS, "is not a name"),
        (request("a.b.c"), ROWS, "b.c"),
        (request(""), ROWS, "agent"),
    ],
)
def test_not_chosen_and_why(asked, rows, told):
    with pytest.raises(CliError) as caught:
        target.session(asked, rows)
    assert told in str(caught.value.fields)
