# SPDX-License-Identifier: BSD-4-Clause
"""What a request for a playbook is refused for before anything runs."""

import pytest

from asf_cli import parser, play
from asf_cli.errors import CliError


@pytest.mark.parametrize("name, meant", [("agnt", "agent"), ("llm_mok", "llm_mock"), ("sesion", "session")])
def test_a_variable_that_is_nearly_a_known_one_is_refused(name, meant):
    request = parser.parse(["open.yml", "-e", "agent=a", "-e", f"{name}=x"])
    with pytest.raises(CliError) as caught:
        play._check(request, "open.yml")
    assert (caught.value.fields["found"], caught.value.fields["remedy"]) == (name, f"did you mean {meant}?")


@pytest.mark.parametrize("word", ["llm_mock=true", "asf_agent=x", "other=1", "ansible_verbosity=1"])
def test_other_variables_pass(word):
    play._check(parser.parse(["open.yml", "-e", "agent=a", "-e", word]), "open.yml")


def test_a_playbook_of_your_own_takes_any_variable():
    play._check(parser.parse(["./own.yml", "-e", "agnt=x"]), "")
