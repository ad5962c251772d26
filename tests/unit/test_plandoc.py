# SPDX-License-Identifier: BSD-4-Clause
"""The plan's file is read only as it was written (invariant 7)."""

import json

import pytest

from asf_lib.core.errors import EngineError
from asf_lib.core.plan import VERSION
from asf_lib.engine import plandoc

PLAN = {
    "version": VERSION,
    "session": {"id": "a.main"},
    "containers": [{"role": "agent", "name": "asf-a.main-agent"}, {"role": "caddy", "name": "asf-a.main-caddy"}],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.json"


def test_what_was_written_is_read(path):
    written = plandoc.write(str(path), PLAN)
    read = plandoc.read(str(path))
    assert read == written and read.plan == PLAN and read.session == "a.main" and len(read.digest) == 64
    assert read.names() == {"agent": "asf-a.main-agent", "caddy": "asf-a.main-caddy"}


def test_the_order_of_keys_is_no_part_of_the_digest(path):
    turned = dict(reversed(list(PLAN.items())))
    assert plandoc.write(str(path), PLAN).digest == plandoc.write(str(path), turned).digest


def test_a_plan_that_was_changed_is_refused(path):
    plandoc.write(str(path), PLAN)
    document = json.loads(path.read_text())
    document["plan"]["containers"][0]["name"] = "other"
    path.write_text(json.dumps(document))
    with pytest.raises(EngineError, match="does not match its digest") as caught:
        plandoc.read(str(path))
    assert caught.value.code == "plan-file" and caught.value.file == str(path) and "close" in caught.value.remedy


def test_a_plan_of_another_version_is_refused(path):
    plandoc.write(str(path), {**PLAN, "version": VERSION + 1})
    with pytest.raises(EngineError, match="another version"):
        plandoc.read(str(path))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"digest": "x"}', '{"digest": "x", "plan": []}', "\xff"])
def test_a_damaged_file_is_named(path, text):
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(EngineError) as caught:
        plandoc.read(str(path))
    assert caught.value.code == "plan-file" and caught.value.file == str(path) and caught.value.remedy


def test_a_missing_file_and_a_relative_path(path):
    with pytest.raises(EngineError, match="cannot be read"):
        plandoc.read(str(path))
    with pytest.raises(EngineError, match="absolute"):
        plandoc.read("plan.json")


def test_the_evidence_holds_no_value_that_looks_like_a_secret(path):
    env = {"MY_TOKEN": "canary-0123456789", "PLAIN": "shown"}
    document = plandoc.write(str(path), {**PLAN, "gate": {"env": env, "uid": 1}, "manifest": {"env": env}})
    kept = plandoc.for_evidence(document)
    assert "canary" not in json.dumps(kept) and kept["plan"]["gate"] == {
        "env": {**env, "MY_TOKEN": "[redacted]"},
        "uid": 1,
    }
    assert kept["digest"] == document.digest and document.plan["gate"]["env"] == env
    assert plandoc.redactor(str(path)).text("host canary-0123456789.example") == "host [redacted].example"


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"plan": {"manifest": {"env": 3}}}'])
def test_without_a_plan_there_is_nothing_to_take_out(path, content):
    if content is not None:
        path.write_text(content)
    assert plandoc.redactor(str(path)).text("canary") == "canary" == plandoc.redactor(None).text("canary")
