# SPDX-License-Identifier: BSD-4-Clause
"""A key out of a program: its answer is bounded, and no error holds any of it (S1, S2, S4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asf_lib.core.errors import ManifestError, SecretError
from asf_lib.engine import grantfs, home as homes, procs, secretcommand
from asf_lib.engine.home import Home

CANARY = "sk-CANARY-0123456789"
SHELL = "/bin/sh"


def _value(script: str) -> str:
    return secretcommand.value([SHELL, "-c", script], "config.yml", "secrets.K.command")


def _refused(script: str) -> str:
    with pytest.raises(SecretError) as caught:
        _value(script)
    text = str(caught.value.as_dict())
    assert "CANARY" not in text and "secrets.K.command" in text
    return text


@pytest.mark.parametrize("end", ["", r"\n", r"\r\n"])
def test_s2_the_newline_is_not_part_of_it(end: str) -> None:
    assert _value(f"printf '{CANARY}{end}'") == CANARY


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"echo {CANARY}; exit 3", "ended with 3"),
        (f"echo {CANARY} >&2", "printed nothing"),
        (f"echo {CANARY}; echo {CANARY}", "more than one line"),
        (f"while :; do echo {CANARY}; done", "more than 16384 bytes"),
        (r"printf '\377CANARY'", "not UTF-8"),
    ],
)
def test_answers_that_are_no_key(script: str, words: str) -> None:
    assert words in _refused(script)


def test_a_program_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(secretcommand, "DEADLINE", 1)
    pid = tmp_path / "pid"
    assert "did not end" in _refused(f"echo $$ > {pid}; exec sleep 600")
    assert procs.identity(int(pid.read_text())) is None


def test_nothing_of_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    assert _value("echo ${AWS_SECRET_ACCESS_KEY:-none} | tr -d ' '") == "none"


def test_a_program_in_a_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    program = tmp_path / "open" / "key"
    program.write_text(f"#!/bin/sh\necho {CANARY}\n")
    program.chmod(0o755)
    os.chmod(tmp_path / "open", 0o777)
    with pytest.raises(SecretError, match="another account may write"):
        secretcommand.value([str(program)], "config.yml", "secrets.K.command")
    with pytest.raises(SecretError, match="missing"):
        secretcommand.value([str(tmp_path / "none" / "key")], "config.yml", "secrets.K.command")


def test_s1_the_setting_comes_before_the_files(tmp_path: Path) -> None:
    home = Home(tmp_path, "ASF_HOME")
    folder = home.agents_dir / "a"
    folder.mkdir(parents=True)
    text = "name: a\nadapter: claude\nllm: {broker: true, provider: anthropic}\n"
    (folder / "runtime.yml").write_text(text)
    _settings(home, f"secrets: {{ANTHROPIC_API_KEY: {{command: [{SHELL}, -c, 'echo {CANARY}']}}}}\n")
    chosen = homes.provider_key(home, homes.load_manifest(home, "a"))
    assert chosen is not None and (chosen.value, chosen.file) == (CANARY, str(home.settings_file))


def _settings(home: Home, text: str) -> None:
    home.settings_file.write_text(text)


def test_a_program_is_named_in_full(tmp_path: Path) -> None:
    home = Home(tmp_path, "ASF_HOME")
    _settings(home, "secrets: {K: {command: [pass, show]}}\n")
    with pytest.raises(ManifestError) as caught:
        homes.load_settings(home)
    assert caught.value.problems[0].key == "secrets.K.command[0]"


def test_no_grant_may_hold_the_program(tmp_path: Path) -> None:
    home = Home(tmp_path, "ASF_HOME")
    _settings(home, "secrets: {K: {command: [/opt/tools/key, /opt/more/script]}}\n")
    assert {"/opt/tools/key", "/opt/more/script"} <= {path for _, path in grantfs._relied_on(home)}
