# SPDX-License-Identifier: BSD-4-Clause
"""All evidence of an account (invariant 9): tampering is seen, exports follow no link, pruning takes only ASF's own."""

from __future__ import annotations

import calendar
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asf_cli import errors, main
from asf_lib.core import evidence, retention
from asf_lib.core.errors import EngineError
from asf_lib.core.retention import DAY, Kept, Retention
from asf_lib.engine import evidenceindex, evidencestore, reporting, state
from asf_lib.engine.evidencefs import Evidence, seal

Env = dict[str, str]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Env:
    names = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(tmp_path)}
    for name, value in {**names, "ASF_HOME": str(tmp_path / "asf"), "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "asf").mkdir()
    return names


def closed(env: Env, session: str = "claude.main", age: int = 0, size: int = 0) -> Evidence:
    """A run that was closed as teardown closes one, some days ago."""
    found = Evidence.create(session, env=env)
    if age:
        then = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - age * DAY))
        found.folder = found.folder.rename(found.folder.with_name(then + found.folder.name[-5:]))
    found.write(
        "plan.json", {"digest": "d", "plan": {"session": {"id": session}}, "filler": ["x" * 1000] * (size // 1000)}
    )
    found.write("verification.json", {"ok": True, "probes": [{"id": "a", "verdict": "pass", "vantage": "outside"}]})
    found.write_lines("decisions.jsonl", [{"decision": "deny", "host": "evil.example", "reason": "denied-name"}])
    found.write("cleanup.json", {"actions": [], "left": []})
    assert reporting.write(found) == []
    seal(found, env)
    return found


def place(found: Evidence) -> evidencestore.Place:
    return evidencestore.Place(found.folder.parent.name, found.folder.name, found.folder)


def wrong(found: Evidence, env: Env) -> str:
    """What is wrong with one run, in one text."""
    return "\n".join(evidencestore.verify(place(found), evidenceindex.read(env), env)["problems"])


def test_what_a_close_leaves_is_whole(env: Env) -> None:
    found = closed(env)
    assert wrong(found, env) == ""
    assert {path.name for path in found.folder.iterdir()} == {*evidence.FILES, evidence.CHAIN} - {
        "requests.jsonl",
        "revisions.jsonl",
        "rotations.jsonl",
        "routed.json",
        "supervisor.jsonl",
        "usage.json",
    }
    assert evidencestore.verify_index(evidenceindex.read(env), env) == []


# ---- tampering with a run


def _edit(folder: Path) -> None:
    (folder / "decisions.jsonl").write_bytes((folder / "decisions.jsonl").read_bytes().replace(b"deny", b"allo"))


def _link(folder: Path) -> None:
    """The file lies elsewhere, with the same content."""
    (folder / "cleanup.json").rename(folder.parent / "elsewhere")
    (folder / "cleanup.json").symlink_to(folder.parent / "elsewhere")


def _reorder(folder: Path) -> None:
    chain = json.loads((folder / "chain.json").read_text())
    chain["entries"][0], chain["entries"][1] = chain["entries"][1], chain["entries"][0]
    (folder / "chain.json").write_text(json.dumps(chain))


def _forget(folder: Path) -> None:
    """A file is taken out, and the chain is computed anew without it."""
    chain, entries = json.loads((folder / "chain.json").read_text()), []
    (folder / "decisions.jsonl").unlink()
    for entry in chain["entries"]:
        if entry["file"] != "decisions.jsonl":
            entries = evidence.extended(entries, entry["file"], entry["sha256"])
    (folder / "chain.json").write_text(json.dumps({**chain, "entries": entries}))


def _fifo(folder: Path) -> None:
    (folder / "usage.json").unlink(missing_ok=True)
    os.mkfifo(folder / "usage.json")


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "edit": (_edit, "decisions.jsonl was changed: its SHA-256 is "),
    "remove": (lambda folder: (folder / "verification.json").unlink(), "verification.json is missing"),
    "add": (lambda folder: (folder / "usage.json").write_text("{}"), "usage.json is not in the chain"),
    "add another name": (lambda folder: (folder / "x").write_text(""), "x is not in the chain"),
    "report": (lambda folder: (folder / "report.html").write_text("<p>all well"), "report.html was changed"),
    "reorder": (_reorder, "entry 0 (verification.json) does not follow the one before"),
    "chain anew": (_forget, "the chain ends in "),
    "chain gone": (lambda folder: (folder / "chain.json").unlink(), "chain.json is missing"),
    "chain damaged": (lambda folder: (folder / "chain.json").write_text("{"), "chain.json is damaged"),
    "chain empty": (lambda folder: (folder / "chain.json").write_text('{"entries":[]}'), "is not in the chain"),
    "chain of lies": (lambda folder: (folder / "chain.json").write_text('{"entries":[1]}'), "chain.json is damaged"),
    "link": (_link, "cleanup.json is a symbolic link"),
    "fifo": (_fifo, "usage.json is not a regular file"),
    "folder": (lambda folder: (folder / "usage.json").mkdir(), "usage.json is not a regular file"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampering_with_a_run_is_seen(name: str, env: Env, capsys: pytest.CaptureFixture[str]) -> None:
    act, said = TAMPERINGS[name]
    other, found = closed(env, "claude.two"), closed(env)
    act(found.folder)
    assert said in wrong(found, env)
    assert main.main(["evidence", "verify", "--json"]) == errors.VERIFY
    told = json.loads(capsys.readouterr().out)
    assert {run["session"]: run["ok"] for run in told["runs"]} == {"claude.two": True, "claude.main": False}
    assert main.main(["evidence", "verify", "claude.main"]) == errors.VERIFY
    assert said in capsys.readouterr().out
    assert main.main(["evidence", "verify", "claude.two"]) == errors.OK and wrong(other, env) == ""


def test_the_folder_of_another_run_is_seen(env: Env) -> None:
    one, two = closed(env), closed(env, "claude.two")
    for path in one.folder.iterdir():
        path.unlink()
    for path in two.folder.iterdir():
        (one.folder / path.name).write_bytes(path.read_bytes())
    assert "chain.json is of another run: claude.two" in wrong(one, env)


def test_a_folder_that_is_a_link_is_no_run(env: Env) -> None:
    found = closed(env)
    moved = found.folder.rename(found.folder.parent.parent / "moved")
    found.folder.symlink_to(moved)
    assert "the folder cannot be read: a symbolic link" in wrong(found, env)
    assert evidencestore.places(env) == []
    (missing,) = evidencestore.verify_index(evidenceindex.read(env), env)
    assert missing == f"the folder of claude.main {found.folder.name} is missing"


# ---- tampering with the index


def _lines(env: Env) -> list[bytes]:
    return evidenceindex.path(env).read_bytes().splitlines(keepends=True)


INDEXES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "first line gone": (lambda rows: rows[1:], "line 1 (claude.b "),
    "middle line gone": (lambda rows: [rows[0], rows[2]], "line 2 (claude.c "),
    "reordered": (lambda rows: [rows[0], rows[2], rows[1]], "line 2 (claude.c "),
    "edited": (lambda rows: [rows[0].replace(b'"files":6', b'"files":5'), *rows[1:]], "line 2 (claude.b "),
    "damaged": (lambda rows: [rows[0], b"{}\n", rows[2]], "line 2 is damaged"),
    "cut inside": (lambda rows: [*rows[:2], rows[2][:-9]], "the last line is cut"),
    "truncated": (lambda rows: rows[:2], "it was closed, and its head is not in the index"),
    "empty": (lambda rows: [], "it was closed, and its head is not in the index"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_tampering_with_the_index_is_seen(name: str, env: Env, capsys: pytest.CaptureFixture[str]) -> None:
    act, said = INDEXES[name]
    for session in ("claude.a", "claude.b", "claude.c"):
        closed(env, session)
    evidenceindex.path(env).write_bytes(b"".join(act(_lines(env))))
    assert main.main(["evidence", "verify"]) == errors.VERIFY
    assert said in capsys.readouterr().out
    closed(env, "claude.later")  # goes on after a line that was cut, and hides nothing
    assert main.main(["evidence", "verify"]) == errors.VERIFY
    assert name == "cut inside" or said in capsys.readouterr().out


def test_an_index_that_is_a_link_is_refused(env: Env, tmp_path: Path) -> None:
    closed(env)
    evidenceindex.path(env).rename(tmp_path / "index")
    evidenceindex.path(env).symlink_to(tmp_path / "index")
    with pytest.raises(EngineError, match="a symbolic link"):
        evidenceindex.read(env)
    with pytest.raises(OSError):
        evidenceindex.append({"session": "claude.main", "run": "r", "head": "h"}, env)


def test_a_full_disk_leaves_no_half_line(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(env)
    before, write = _lines(env), os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda handle, content: write(handle, content[:20]))
        with pytest.raises(OSError, match="No space left"):
            evidenceindex.append({"session": "claude.main", "run": "r", "head": "h"}, env)
    assert _lines(env) == before


def test_the_index_says_the_same_once(env: Env) -> None:
    found = closed(env)
    seal(found, env)
    assert len(_lines(env)) == 1


# ---- a live run, and one that was never closed


def test_a_live_run_grows_and_is_no_problem(env: Env) -> None:
    found = Evidence.create("claude.main", env=env)
    found.write("plan.json", {"a": 1})
    state.write({"session": "claude.main", "evidence": str(found.folder)}, env)
    assert wrong(found, env) == ""
    assert evidencestore.listing(env)[0]["state"] == "live"


def test_a_run_that_was_never_closed_is_said(env: Env, capsys: pytest.CaptureFixture[str]) -> None:
    Evidence.create("claude.main", env=env).write("plan.json", {"a": 1})
    assert main.main(["evidence", "verify"]) == errors.OK
    assert "nothing vouches for it" in capsys.readouterr().out


# ---- list, show, export


def test_list_shows_what_is_there_and_what_is_gone(env: Env, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = closed(env, age=500), closed(env)
    closed(env, "codex.x")
    assert main.main(["evidence", "prune", "--json"]) == errors.OK
    capsys.readouterr()
    assert main.main(["evidence", "list", "claude", "--json"]) == errors.OK
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [(row["run"], row["state"]) for row in rows] == [(old.folder.name, "removed"), (new.folder.name, "closed")]
    assert rows[0]["head"] == old.head() if old.folder.exists() else rows[0]["head"]
    assert main.main(["evidence", "list", "cluade"]) == errors.USAGE
    assert "did you mean claude?" in capsys.readouterr().err


def test_show_is_the_last_run_of_the_session(env: Env, capsys: pytest.CaptureFixture[str]) -> None:
    closed(env, age=3)
    found = closed(env)
    closed(env, "claude.other")
    assert main.main(["evidence", "show", "claude", "--json"]) == errors.OK
    told = json.loads(capsys.readouterr().out)
    assert told["run"] == found.folder.name and told["problems"] == [] and told["chain"]["head"] == found.head()
    assert told["decisions"]["totals"] == {"deny": {"denied-name": 1}}
    assert main.main(["evidence", "show", f"claude.main/{found.folder.name}"]) == errors.OK
    assert main.main(["evidence", "show", found.folder.name, "--json"]) == errors.OK
    assert main.main(["evidence", "show", "20200101T000000Z-abcd"]) == errors.USAGE
    shown = capsys.readouterr().out
    assert "evil.example" in shown and found.head() in shown
    assert main.main(["evidence", "show", "claude", "--html"]) == errors.OK
    assert capsys.readouterr().out.encode() == (found.folder / "report.html").read_bytes()


def test_show_escapes_what_a_workload_wrote(env: Env, capsys: pytest.CaptureFixture[str]) -> None:
    found = Evidence.create("claude.main", env=env)
    found.write_lines("decisions.jsonl", [{"decision": "deny", "host": "\x1b]0;x\x07‮", "reason": "\x9b2J"}])
    seal(found, env)
    assert main.main(["evidence", "show"]) == errors.OK
    shown = capsys.readouterr().out
    assert not [char for char in shown if (ord(char) < 0x20 and char != "\n") or char in "\x9b‮"]


def test_export_copies_and_is_verified_elsewhere(
    env: Env, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = closed(env)
    target = tmp_path / "handed-over"
    assert main.main(["evidence", "export", "claude", str(target), "--json"]) == errors.OK
    told = json.loads(capsys.readouterr().out)
    assert (
        told["folder"] == str(target)
        and told["head"] == found.head()
        and (target / "report.html").stat().st_mode & 0o77 == 0
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of-somebody-else"))
    verify = ["evidence", "verify", str(target)]
    assert main.main([*verify, "--head", found.head()]) == errors.OK
    assert main.main([*verify, "--head", "0" * 64]) == errors.VERIFY
    assert "the head that was given says 0000" in capsys.readouterr().out
    assert main.main(verify) == errors.OK and "nothing vouches for it" in capsys.readouterr().out
    (target / "decisions.jsonl").write_text("")
    assert main.main([*verify, "--head", found.head()]) == errors.VERIFY
    assert main.main([*verify, "--head", "xyz"]) == errors.USAGE


def test_export_refuses_an_existing_target_and_follows_no_link(env: Env, tmp_path: Path) -> None:
    found = closed(env)
    secret = tmp_path / "secret"
    secret.write_text("private")
    (tmp_path / "there").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("there", "dangling"):
        assert main.main(["evidence", "export", "claude", str(tmp_path / name)]) == errors.ENGINE
    assert not (tmp_path / "nowhere").exists() and list((tmp_path / "there").iterdir()) == []
    (found.folder / "cleanup.json").unlink()
    (found.folder / "cleanup.json").symlink_to(secret)
    assert main.main(["evidence", "export", "claude", str(tmp_path / "new")]) == errors.VERIFY
    assert not (tmp_path / "new" / "cleanup.json").exists()
    assert main.main(["evidence", "export", str(tmp_path / "there"), str(tmp_path / "new2")]) == errors.ENGINE
    assert not (tmp_path / "new2").exists()


# ---- retention


def _kept(day: int, size: int = 10, live: bool = False, session: str = "a.b") -> Kept:
    return Kept(session, time.strftime("%Y%m%dT000000Z-abcd", time.gmtime(day * DAY)), size, live)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Retention(0, 0, 0), []),
        (Retention(9, 3, 900), [(1, "age"), (3, "age"), (4, "age")]),
        (Retention(3, 0, 0), [(1, "count"), (3, "count")]),
        (Retention(0, 0, 35), [(1, "size"), (3, "size")]),
        (Retention(1, 0, 0), [(1, "count"), (3, "count"), (4, "count"), (9, "count")]),  # the live one counts
        (Retention(4, 6, 1), [(1, "age"), (3, "age"), (4, "size"), (9, "size")]),
    ],
)
def test_surplus(limits: Retention, expected: list[tuple[int, str]]) -> None:
    days = (9, 1, 4, 3)
    found = [*(_kept(day) for day in days), _kept(2, live=True)]
    chosen = retention.surplus(found, limits, 10 * DAY - 1 if limits.days == 6 else 8 * DAY)
    assert [(one.began // DAY, why) for one, why in chosen] == expected


def test_began_is_what_the_name_says() -> None:
    assert Kept("a.b", "20260102T030405Z-abcd", 0).began == calendar.timegm((2026, 1, 2, 3, 4, 5))


def test_a_name_that_is_no_time_breaks_no_close() -> None:
    odd = Kept("a.b", "20269999T999999Z-abcd", 1)
    assert retention.surplus([odd, _kept(1)], Retention(days=1), 100 * DAY) == [(_kept(1), "age")]


def _config(tmp_path: Path, text: str) -> None:
    (tmp_path / "asf" / "config.yml").write_text(text)


def test_prune_by_the_operators_settings(env: Env, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [closed(env, age=age) for age in (40, 20, 1)]
    _config(tmp_path, "evidence: {days: 30}\n")
    assert main.main(["evidence", "prune", "--dry-run", "--json"]) == errors.OK
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] is True and [row["run"] for row in told["removed"]] == [runs[0].folder.name]
    assert told["bytes"] > 1000 and all(run.folder.exists() for run in runs)
    head = runs[0].head()
    assert main.main(["evidence", "prune"]) == errors.OK
    assert "removed 1 runs" in capsys.readouterr().out
    assert [run.folder.exists() for run in runs] == [False, True, True]
    index = evidenceindex.read(env)
    assert index.head("claude.main", runs[0].folder.name) == head and index.entries[-1]["removed"] == "age"
    assert main.main(["evidence", "verify"]) == errors.OK, "a run that prune removed is no missing one"


def test_prune_by_size(env: Env, tmp_path: Path) -> None:
    runs = [closed(env, age=age, size=12_000_000 // 3) for age in (3, 2, 1)]
    assert all(sum(f.stat().st_size for f in run.folder.iterdir()) > 4_000_000 for run in runs)
    done = evidencestore.prune(Retention(0, 0, 9_000_000), env)
    assert [row["why"] for row in done["removed"]] == ["size"] and not runs[0].folder.exists()


def test_prune_never_takes_a_live_run(env: Env) -> None:
    live = closed(env, age=400)
    state.write({"session": "claude.main", "evidence": str(live.folder)}, env)
    old = closed(env, age=300)
    gone = evidencestore.prune(Retention(1, 1, 1), env)
    assert [row["run"] for row in gone["removed"]] == [old.folder.name] and live.folder.exists()
    # A record that nobody can read keeps everything of its session.
    (Path(env["XDG_STATE_HOME"]) / "asf" / "live" / "claude.main.json").write_text("{")
    assert evidencestore.prune(Retention(1, 1, 1), env)["removed"] == [] and live.folder.exists()


def test_prune_never_takes_a_run_that_is_being_closed(env: Env) -> None:
    import threading

    old, done = closed(env, age=300), threading.Event()
    found: list[Any] = []
    with state.lock("claude.main", env):
        worker = threading.Thread(
            target=lambda: (found.append(evidencestore.prune(Retention(1, 1, 1), env)), done.set())
        )
        worker.start()
        assert done.wait(20)
    worker.join()
    assert found[0]["removed"] == [] and "works on session claude.main" in found[0]["kept"][0] and old.folder.exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "subfolder", "link"])
def test_prune_never_takes_what_is_not_asfs(foreign: str, env: Env, tmp_path: Path) -> None:
    found = closed(env, age=400)
    if foreign == "subfolder":
        (found.folder / foreign).mkdir()
    elif foreign == "link":
        (found.folder / "usage.json").symlink_to(tmp_path)
    else:
        (found.folder / foreign).write_text("mine")
    done = evidencestore.prune(Retention(1, 1, 1), env)
    assert done["removed"] == [] and "is not ASF's" in done["kept"][0] and (found.folder / "plan.json").exists()


def test_prune_looks_at_no_folder_of_another_name(env: Env, tmp_path: Path) -> None:
    store = evidencestore.store(env)
    for name in ("claude.main/20200101T000000Z", "claude.main/latest", "notes/20200101T000000Z-abcd", "claude.main/x"):
        (store / name).mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (store / "claude.linked").symlink_to(outside)
    (outside / "20200101T000000Z-abcd").mkdir()
    (store / "claude.main" / "20200101T000000Z-abcd").symlink_to(outside / "20200101T000000Z-abcd")
    assert evidencestore.prune(Retention(1, 1, 1), env) == {"removed": [], "kept": [], "bytes": 0}
    assert (outside / "20200101T000000Z-abcd").is_dir()


def test_close_prunes_and_a_wrong_setting_does_not_stop_it(env: Env, tmp_path: Path) -> None:
    old = closed(env, age=400)
    _config(tmp_path, "evidence: {days: often}\n")
    (said,) = evidencestore.prune_at_close(env)
    assert said.startswith("old evidence not pruned: ") and old.folder.exists()
    _config(tmp_path, "evidence: {runs: 0, days: 300, size: 1g}\n")
    assert evidencestore.prune_at_close(env) == [f"removed evidence of claude.main {old.folder.name} (age)"]
