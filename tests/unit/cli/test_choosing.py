# SPDX-License-Identifier: BSD-4-Clause
"""Near misses of every kind of word, and which session a playbook is about when none is named."""

from __future__ import annotations

import argparse
import json

import pytest

from asf_cli import choosing, parser
from asf_cli.errors import CliError


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["stauts", "claude"], "status"),
        (["exce", "claude", "--", "ls"], "exec"),
        (["opne.yml", "-e", "agent=claude"], "open.yml"),
        (["open.yml", "--detahc"], "--detach"),
        (["logs", "--folow"], "--follow"),
        (["repo", "ad", "claude", "/x"], "add"),
        (["repo", "add", "claude", "/x", "--mdoe", "ro"], "--mode"),
        (["repo", "add", "claude", "/x", "--mode", "r"], "rw"),
        (["repo", "add", "claude", "/x", "--mode", "zzz"], ""),
        (["logs", "claude", "cady"], "caddy"),
    ],
)
def test_did_you_mean(run, words, meant):
    code, out, err = run(*words)
    assert (code, out) == (64, "") and (f"did you mean {meant}?" in err if meant else "did you mean" not in err), err
    document = json.loads(run(*words[:1], "--json", *words[1:])[1])
    assert document["ok"] is False and document["error"]["code"] == "usage"


@pytest.mark.parametrize("word", ["\x1b[2J", "a\nb", "x" * 5000, "{{ lookup('pipe', 'id') }}", "-", ""])
def test_hostile_words(run, word):
    code, out, err = run(word)
    assert code == 64 and out == "" and "\x1b" not in err and len(err) < 4000


def test_an_agent_is_needed_and_named(run):
    code, _, err = run("open.yml")
    assert code == 64 and "the agents are" in err and "claude" in err


# --- which session ----------------------------------------------------------------------------------------------------


@pytest.fixture
def exist(monkeypatch):
    """The sessions that exist."""

    def these(*names: str):
        rows = [{"session": name, "agent": name.partition(".")[0]} for name in names]
        monkeypatch.setattr(choosing, "_rows", lambda: rows)
        monkeypatch.setattr(choosing, "_recorded", lambda given: False)

    return these


def settled(shipped: str, **variables: str):
    request = argparse.Namespace(variables=variables, json=False)
    code = choosing.settle(request, shipped)
    return request.variables if code is None else code


def test_the_only_session(exist, capsys):
    exist("claude.second")
    for playbook in choosing.ABOUT_ONE:
        assert settled(playbook) == {"agent": "claude", "session": "second"}
        assert "session claude.second: the only one that exists" in capsys.readouterr().err
    assert settled("verify.yml", agent="claude") == {"agent": "claude", "session": "second"}
    assert "the only one of agent claude" in capsys.readouterr().err
    assert settled("close.yml", session="second")["agent"] == "claude"


def test_close_with_an_agent_means_main_however_often_it_is_run(exist, capsys):
    exist("claude.second")
    assert settled("close.yml", agent="claude") == {"agent": "claude"}
    assert capsys.readouterr().err == ""


def test_several(exist):
    exist("claude.main", "other.main")
    assert settled("status.yml") == {}  # lists them
    for playbook in ("verify.yml", "close.yml"):
        with pytest.raises(CliError, match="several"):
            settled(playbook)
    assert settled("verify.yml", agent="claude") == {"agent": "claude", "session": "main"}


def test_none(exist, capsys):
    exist()
    assert settled("status.yml") == {} and settled("open.yml") == {}
    assert settled("close.yml") == 0 and "nothing to close" in capsys.readouterr().out
    with pytest.raises(CliError, match="there is no session"):
        settled("verify.yml")


def test_a_wrong_name(exist):
    exist("claude.main")
    with pytest.raises(CliError) as caught:
        settled("verify.yml", agent="cluade")
    assert "did you mean claude.main?" in caught.value.fields["remedy"]
    assert "did you mean claude.main?" in choosing.hint("cluade.main")[0] and choosing.hint("other.main") == []


def test_options_of_verbs_below_are_known():
    with pytest.raises(CliError) as caught:
        parser.parse(["repo", "list", "--jsno"])
    assert "--json" in caught.value.fields["remedy"]
