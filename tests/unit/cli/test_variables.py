# SPDX-License-Identifier: BSD-4-Clause
"""Values of -e: parsed as ansible-playbook does, refused where Ansible would run them (invariant 10)."""

import json

import pytest

from asf_cli import variables
from asf_cli.errors import CliError

CANARY = "{{ lookup('pipe', 'touch /tmp/canary') }}"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["agent=claude"], {"agent": "claude"}),
        (["agent=claude session=two"], {"agent": "claude", "session": "two"}),
        (["agent=claude", "agent=other"], {"agent": "other"}),
        (["text='two words'"], {"text": "two words"}),
        (['text="a=b"'], {"text": "a=b"}),
        (["empty="], {"empty": ""}),
        (['{"llm_mock": true, "list": [1, {"a": null}]}'], {"llm_mock": True, "list": [1, {"a": None}]}),
        (["a=1", '{"a": 2}'], {"a": 2}),
        (["brace={x}"], {"brace": "{x}"}),
        ([], {}),
    ],
)
def test_parsed(words, expected):
    assert variables.parse(words) == expected


@pytest.mark.parametrize(
    "words",
    [
        [f'x="{CANARY}"'],
        ["x={{1}}"],
        ["x={%raw%}"],
        ["x={#c#}"],
        ["{{x}}=1"],
        ["{{ x }}"],
        [json.dumps({"x": CANARY})],
        [json.dumps({"x": {"y": [1, ["a", CANARY]]}})],
        [json.dumps({"x": {CANARY: 1}})],
        [json.dumps({CANARY: 1})],
        # the escape is decoded before the check
        ['{"x": "\\u007b\\u007b 1 }}"}'],
        ["agent={{x}}"],
    ],
)
def test_jinja_refused(words):
    with pytest.raises(CliError):
        variables.parse(words)


@pytest.mark.parametrize("marker", ["{{", "{%", "{#"])
def test_jinja_refused_in_files(tmp_path, marker):
    for name, text in (("v.json", json.dumps({"a": {"b": marker}})), ("v.yml", f"a:\n  b: ['{marker}']\n")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(CliError) as caught:
            variables.parse([f"@{path}"])
        assert caught.value.fields["key"].startswith("a.b")
        assert marker in caught.value.fields["message"]


def test_files(tmp_path):
    (tmp_path / "v.yml").write_text("agent: claude\nnested: {list: [1, two]}\n")
    (tmp_path / "v.json").write_text('{"session": "two"}')
    found = variables.parse([f"@{tmp_path}/v.yml", f"@{tmp_path}/v.json"])
    assert found == {"agent": "claude", "nested": {"list": [1, "two"]}, "session": "two"}


@pytest.mark.parametrize(
    "text",
    [
        "- a\n",
        "a: !vault |\n  x\n",
        "a: 2020-01-01\n",
        "1: x\n",
        "a: {1: x}\n",
        "a: [\n",
        "",
        "\xff",
        "{not json",
        "a-b: 1\n",
    ],
)
def test_files_refused(tmp_path, text):
    path = tmp_path / "v.yml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(CliError):
        variables.parse([f"@{path}"])


def test_file_is_a_regular_small_one(tmp_path):
    (tmp_path / "big").write_text("a: " + "x" * (1 << 20))
    for name in ("missing", "big", "."):
        with pytest.raises(CliError) as caught:
            variables.parse([f"@{tmp_path / name}"])
        assert caught.value.fields["file"].startswith(str(tmp_path))


@pytest.mark.parametrize("word", ["agent", "a b=1", "1a=2", "a-b=1", "=x", "a='open", "@", '{"a": }', "[1]"])
def test_wrong_words(word):
    with pytest.raises(CliError):
        variables.parse([word])


@pytest.mark.parametrize("name", ["A", "a.b", "../x", "", "-a", "a" * 64, "a b", "a\n", "ä", "a/b"])
@pytest.mark.parametrize("key", ["agent", "session"])
def test_identity_refused(key, name):
    with pytest.raises(CliError) as caught:
        variables.parse([json.dumps({key: name})])
    assert caught.value.fields["key"] == key


@pytest.mark.parametrize("value", [1, None, ["a"], True])
def test_identity_is_text(value):
    with pytest.raises(CliError):
        variables.parse([json.dumps({"agent": value})])


@pytest.mark.parametrize("name", variables.RESERVED)
def test_own_variables_refused(name):
    with pytest.raises(CliError):
        variables.parse([f"{name}=1"])


def test_decoded_keys_refused():
    """Ansible's decoder turns these keys into vault texts and trusted or unsafe strings."""
    with pytest.raises(CliError):
        variables.parse([json.dumps({"a": {"__ansible_vault": "x"}})])


def test_depth_is_bounded():
    deep = "1"
    for _ in range(30):
        deep = f'{{"a": {deep}}}'
    with pytest.raises(CliError):
        variables.parse([deep])
