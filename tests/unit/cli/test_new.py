# SPDX-License-Identifier: BSD-4-Clause
"""`asf-play new`: what it prints and refuses."""

from __future__ import annotations

import json

from support.documents import wrong

from asf_cli.__main__ import main


def new(capsys, *words):
    code = main(["new", *words])
    return code, *capsys.readouterr()


def test_a_folder_and_the_next_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASF_HOME", str(tmp_path))
    code, out, err = new(capsys, "mine")
    assert (code, err) == (0, "") and (tmp_path / "agents/mine/runtime.yml").is_file()
    assert str(tmp_path / "agents/mine/runtime.yml") in out and "asf-play build.yml -e agent=mine" in out


def test_the_document(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASF_HOME", str(tmp_path))
    code, out, _ = new(capsys, "mine", "--from", "claude", "--json")
    found = json.loads(out)
    assert code == 0 and wrong(["new"], found) == [] and (found["agent"], found["from"]) == ("mine", "claude")
    assert "runtime.yml" in found["files"]


def test_a_second_time_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ASF_HOME", str(tmp_path))
    new(capsys, "mine")
    code, out, err = new(capsys, "mine")
    assert code == 220 and out == "" and "already" in err


def test_a_root_that_cannot_be_written_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "root").mkdir(mode=0o500)
    monkeypatch.setenv("ASF_HOME", str(tmp_path / "root"))
    code, _, err = new(capsys, "mine")
    assert code == 223 and "cannot be written" in err and "ASF_HOME" in err
