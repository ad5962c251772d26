# SPDX-License-Identifier: BSD-4-Clause
"""Evidence (invariant 9): bounded, redacted, chained by digest, private, written as a whole."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from asf_lib.core import evidence
from asf_lib.core.errors import AsfError, HostError
from asf_lib.core.redact import Redactor
from asf_lib.engine import evidencefs
from asf_lib.engine.evidencefs import Evidence

SESSION = "claude.main"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}


def test_documents_are_ascii_and_end_with_a_newline() -> None:
    content = evidence.document({"host": "\x1b[2J‮é"})
    assert content.endswith(b"}\n") and content.isascii() and b"\x1b" not in content
    assert json.loads(content) == {"host": "\x1b[2J‮é"}


def test_strings_lists_and_depth_are_bounded_and_counted() -> None:
    deep: object = "x"
    for _ in range(40):
        deep = [deep]
    kept, dropped = evidence.bounded(
        {"long": "a" * 50, "many": list(range(10)), "deep": deep}, max_text=10, max_items=4
    )
    assert len(kept["long"]) == 10 and kept["many"] == [0, 1, 2, 3]
    assert dropped == 1 + 6 + 1


def test_a_document_that_is_cut_says_so() -> None:
    assert json.loads(evidence.bounded_document({"a": "x" * 5000}))["dropped"] == 1
    assert json.loads(evidence.bounded_document(["x" * 5000]))["dropped"] == 1
    assert "dropped" not in json.loads(evidence.bounded_document({"a": "x"}))


def test_a_huge_document_leaves_its_size_and_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MAX_BYTES", 100)
    assert set(json.loads(evidence.bounded_document({"a": ["b" * 90] * 9}))) == {"dropped", "bytes", "sha256"}


@pytest.mark.parametrize(("number", "before"), [(3, 0), (10, 0), (11, 0), (25, 0), (25, 7), (0, 4)])
def test_first_and_last_records_are_kept(number: int, before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MAX_RECORDS", 10)
    records = [
        json.loads(row) for row in evidence.bounded_lines([{"n": n} for n in range(number)], before).splitlines()
    ]
    kept = [record["n"] for record in records if "n" in record]
    dropped = sum(record.get("dropped", 0) for record in records)
    assert len(kept) + dropped == number + before and len(kept) == min(number, 10)
    assert kept == sorted(kept)
    if number > 10:
        assert kept == [0, 1, 2, 3, 4, *range(number - 5, number)] and "dropped" in records[5]


@pytest.mark.parametrize("busy", ["deny", "allow"])
def test_a_flood_does_not_hide_where_something_went(busy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One allowed decision between many refused ones, or between many that were allowed to another host."""
    monkeypatch.setattr(evidence, "MAX_RECORDS", 16)
    flood = [{"decision": busy, "host": "busy.example", "port": 443, "ts": n} for n in range(100)]
    records = [*flood[:50], {"decision": "allow", "host": "other.example", "port": 443, "ts": 49.5}, *flood[50:]]
    kept = [json.loads(row) for row in evidence.bounded_lines(records, 7).splitlines()]
    assert "other.example" in [one.get("host") for one in kept]
    (dropped,) = [one["dropped"] for one in kept if "dropped" in one]
    assert len(kept) - 1 + dropped == 101 + 7 and len(kept) <= 17
    times = [one["ts"] for one in kept if "ts" in one]
    assert times == sorted(times) and times[0] == 0 and times[-1] == 99


def test_records_are_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "MAX_BYTES", 200)
    content = evidence.bounded_lines([{"n": "x" * 30} for _ in range(50)])
    assert len(content) < 240 and b'"dropped"' in content


def _chain(*files: tuple[str, str]) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = []
    for name, content in files:
        entries = evidence.extended(entries, name, evidence.digest(content.encode()))
    return entries


def test_chain_tells_changed_missing_and_added_files() -> None:
    entries = _chain(("a", "1"), ("b", "2"))
    good = {"a": evidence.digest(b"1"), "b": evidence.digest(b"2")}
    assert evidence.check(entries, good) == []
    assert evidence.check(entries, {**good, "a": "0"}) == [
        "a was changed: its SHA-256 is 0…, written was 6b86b273ff34fce1…"
    ]
    assert evidence.check(entries, {"a": good["a"]}) == ["b is missing"]
    assert evidence.check(entries, {**good, "c": "0"}) == ["c is not in the chain"]


def test_chain_notices_a_forged_entry() -> None:
    entries = _chain(("a", "1"), ("b", "2"))
    forged = [{**entries[0], "sha256": evidence.digest(b"x")}, entries[1]]
    assert any("does not follow" in one for one in evidence.check(forged, {}))
    assert evidence.check(entries[1:], {"b": evidence.digest(b"2")})[0].startswith("entry 0")


def test_the_same_content_again_adds_nothing_and_a_new_one_replaces() -> None:
    entries = _chain(("a", "1"), ("a", "1"))
    assert len(entries) == 1
    entries = evidence.extended(entries, "a", evidence.digest(b"2"))
    assert len(entries) == 2 and evidence.check(entries, {"a": evidence.digest(b"2")}) == []
    assert evidence.head([]) == evidence.GENESIS


def test_folder_and_files_are_private_and_chained(env: dict[str, str]) -> None:
    found = Evidence.create(SESSION, env=env)
    found.write("plan.json", {"a": 1})
    found.write_lines("decisions.jsonl", [{"host": "a"}])
    for path in (found.folder, found.folder.parent, found.folder.parent.parent, Path(env["XDG_STATE_HOME"])):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.folder.iterdir()} == {0o600}
    assert found.check() == [] and found.read_lines("decisions.jsonl") == [{"host": "a"}]
    (found.folder / "plan.json").write_text("{}")
    assert [text.partition(":")[0] for text in found.check()] == ["plan.json was changed"]


def test_S4_secrets_are_taken_out_before_anything_is_cut(env: dict[str, str]) -> None:
    key = "canary-0123456789abcdef"
    found = Evidence.create(SESSION, Redactor([key]), env)
    found.write("verification.json", {"x": "y" * (evidence.MAX_TEXT - 10) + key, key: 1})
    found.write_lines("decisions.jsonl", [{"host": f"{key}.example.com"}])
    for path in found.folder.iterdir():
        assert b"canary-" not in path.read_bytes(), path


def test_only_known_files_are_written(env: dict[str, str]) -> None:
    with pytest.raises(AsfError):
        Evidence.create(SESSION, env=env).write("../x", {})


def test_writes_together_give_one_chain_and_survive_an_error(env: dict[str, str]) -> None:
    found = Evidence.create(SESSION, env=env)
    with pytest.raises(RuntimeError), found.together():
        found.write("plan.json", {})
        found.write("usage.json", {})
        raise RuntimeError
    assert [entry["file"] for entry in found.entries()] == ["plan.json", "usage.json"] and found.check() == []


def test_a_record_cannot_lead_the_evidence_elsewhere(env: dict[str, str], tmp_path: Path) -> None:
    mine = Evidence.create(SESSION, env=env)
    assert Evidence.of(SESSION, str(mine.folder), env=env).folder == mine.folder
    for other in (str(tmp_path), str(mine.folder.parent / "x"), str(mine.folder / ".." / ".." / "x"), None):
        found = Evidence.of(SESSION, other, env=env)
        assert found.folder.parent == mine.folder.parent and found.folder != mine.folder


def test_a_link_in_place_of_the_folder_is_refused(env: dict[str, str], tmp_path: Path) -> None:
    mine = Evidence.create(SESSION, env=env)
    mine.folder.rmdir()
    mine.folder.symlink_to(tmp_path)
    with pytest.raises(HostError):
        Evidence.of(SESSION, str(mine.folder), env=env)


def test_the_head_is_indexed_once_outside_of_the_folder(env: dict[str, str]) -> None:
    found = Evidence.create(SESSION, env=env)
    found.write("cleanup.json", {"left": []})
    assert evidencefs.seal(found, env) == evidencefs.seal(found, env) == found.head()
    rows = (Path(env["XDG_STATE_HOME"]) / "asf" / "index.jsonl").read_text().splitlines()
    assert [json.loads(row)["head"] for row in rows] == [found.head()]
    assert json.loads(rows[0])["session"] == SESSION


def test_damaged_files_read_as_nothing(env: dict[str, str]) -> None:
    found = Evidence.create(SESSION, env=env)
    (found.folder / "chain.json").write_text("{")
    (found.folder / "decisions.jsonl").write_text('{"a":1}\n{\n[]\n')
    assert found.entries() == [] and found.read("plan.json") is None
    assert found.read_lines("decisions.jsonl") == [{"a": 1}]
