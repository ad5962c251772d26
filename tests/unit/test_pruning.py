# SPDX-License-Identifier: BSD-4-Clause
"""What may be pruned: never what is foreign, used, being built, or what any clone's build names; folders by owner."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

import asf_cli  # noqa: F401  gives the shared code its name
from asf_cli.commands import prune
from asf_cli.errors import CliError
from asf_cli.parser import parse
from asf_lib.core import images, pruning
from asf_lib.engine import pruning as engine

CURRENT = {"base": "localhost/asf/base:aaaaaaaaaaaa", "agent-generic": "localhost/asf/agent-generic:bbbbbbbbbbbb"}


def row(*names: str, label: str | None = "agent-generic", containers: int = 0) -> dict[str, Any]:
    labels = {"asf.image": label} if label else None
    return {"Names": list(names) or None, "Labels": labels, "Size": 10, "Containers": containers}


def test_only_asf_s_own_old_images_go_and_the_base_last() -> None:
    old, older = "localhost/asf/agent-generic:cccccccccccc", "localhost/asf/base:dddddddddddd"
    rows = [
        row(older, label="base"),
        row(CURRENT["agent-generic"], old),
        row("localhost/mine:latest"),  # built on an image of ASF's: it inherits the label
        row("localhost/asf/agent-generic:eeeeeeeeeeee", label=None),  # a name alone is no proof
        row("localhost/asf/agent-generic:ffffffffffff", containers=1),
        row("localhost/asf/agent-generic:building-000000000000"),
        row(),
    ]
    found = pruning.old_images(rows, set(CURRENT.values()))
    assert [item.name for item in found] == [old, older]
    assert {item.bytes for item in found} == {10}


def record(name: str, tag: str, sources: dict[str, str], parent: str = "", **changes: Any) -> dict[str, Any]:
    spec = images.SPECS[name]
    made = {"name": name, "tag": tag, "parent": parent, "pins": {key: "p" for key in spec.pins}}
    made |= {"sources": {key: sources[key] for key in spec.sources}, "wheels": {key: "w" for key in spec.wheels}}
    return {**made, **changes}


def test_a_build_with_another_mirror_or_base_image_is_current_too() -> None:
    sources = {name: f"s-{name}" for name in images.SOURCES}
    pins = {**{pin: "p" for spec in images.SPECS.values() for pin in spec.pins}, "wheels": {}}
    pins["wheels"] = {wheel: "w" for spec in images.SPECS.values() for wheel in spec.wheels}
    base, child = "localhost/asf/base:1", "localhost/asf/agent-generic:1"
    records = [record("agent-generic", child, sources, base), record("base", base, sources)]
    assert pruning.needed(CURRENT, sources, pins, records) == {*CURRENT.values(), base, child}
    changed = [record("agent-generic", child, sources, base), record("base", base, sources, pins={"base": "old"})]
    assert pruning.needed(CURRENT, sources, pins, changed) == set(CURRENT.values()), "its base is not current"
    edited = [record("agent-generic", child, {**sources, "agent": "edited"}, CURRENT["base"])]
    assert pruning.needed(CURRENT, sources, pins, edited) == set(CURRENT.values())


def test_wheels_that_are_pinned_stay() -> None:
    pins = {"wheels": {"pip": {"sha256": {"any": "0123456789abcdef"}}}}
    names = ["pip-26.3-0123456789ab.whl", "pip-25.0-ffffffffffff.whl", "notes.txt"]
    assert pruning.old_downloads(names, pins) == ["pip-25.0-ffffffffffff.whl"]


def clone(cache: Path, key: str, place: Path | None) -> None:
    own = cache / f"collections-clone-{key}/ansible_collections/asf"
    own.mkdir(parents=True)
    (own / "sandbox").symlink_to(place or cache / "gone")


def test_environments_of_living_clones_stay(tmp_path: Path) -> None:
    cache, repo = tmp_path / "cache", tmp_path / "repo"
    (repo / "requirements").mkdir(parents=True)
    for name in ("dev.txt", "collections.txt"):
        (repo / "requirements" / name).write_text(name)
    digests = {n: hashlib.sha256(n.encode()).hexdigest()[:12] for n in ("dev.txt", "collections.txt")}
    clone(cache, "live", repo)
    clone(cache, "gone", None)
    keep = [f"venv-{digests['dev.txt']}", f"collections-{digests['collections.txt']}"]
    for name in [*keep, "venv-old", "collections-old", "go", "packages"]:
        (cache / name).mkdir()
    found = {Path(item.name).name for item in engine._environments(cache)}
    assert found == {"collections-clone-gone", "venv-old", "collections-old"}
    assert engine.clones(cache) == [cache / "collections-clone-live/ansible_collections/asf/sandbox"]


def test_without_a_living_clone_no_environment_is_judged(tmp_path: Path) -> None:
    (tmp_path / "venv-old").mkdir()
    assert engine._environments(tmp_path) == []


def test_a_size_counts_a_tree_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_bytes(b"x" * 100_000)
    big = tmp_path / "big"
    big.write_bytes(b"x" * 10_000_000)
    (tmp_path / "tree/link").symlink_to(big)
    size = engine._size(tmp_path / "tree")
    assert size is not None and 100_000 <= size < 1_000_000
    assert engine._size(tmp_path / "missing") is None


def test_what_cannot_be_removed_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    inside = tmp_path / "folder/file"
    inside.touch()
    assert engine._remove(None, pruning.Item("runs", str(inside), 0, "")) == "" and not inside.exists()  # type: ignore[arg-type]
    assert engine._remove(None, pruning.Item("runs", str(tmp_path / "folder"), 0, "")) == ""  # type: ignore[arg-type]
    assert not (tmp_path / "folder").exists()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "link").symlink_to(outside)
    assert engine._remove(None, pruning.Item("runs", str(tmp_path / "link"), 0, "")) == ""  # type: ignore[arg-type]
    assert outside.exists(), "a link was followed"
    if os.getuid():
        assert engine._remove(None, pruning.Item("runs", "/proc/self/status", 0, "")) != ""  # type: ignore[arg-type]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Two things that can go; what was removed stands in `gone`, what refuses in `stuck`."""
    state: dict[str, Any] = {"gone": [], "stuck": []}
    items = [
        pruning.Item("images", "localhost/asf/caddy:1", 2048, "old"),
        pruning.Item("runs", "/r\x1b[31m", None, "x"),
    ]

    class Workshop:
        cache = tmp_path

    def remove(_host: object, found: list[pruning.Item]) -> tuple[list[pruning.Item], list[str]]:
        state["gone"] = [item.name for item in found if item.name not in state["stuck"]]
        return [i for i in found if i.name in state["gone"]], [f"{name} was not removed" for name in state["stuck"]]

    monkeypatch.setattr(prune, "_workshop", lambda content: Workshop())
    monkeypatch.setattr(engine, "find", lambda hosts, kinds: [item for item in items if item.kind in kinds])
    monkeypatch.setattr(engine, "remove", remove)
    return state


def test_dry_run_removes_nothing_and_escapes(store: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert prune.run(parse(["prune", "--dry-run"])) == 0
    out = capsys.readouterr().out
    assert store["gone"] == [] and "2 KiB" in out and "size unknown" in out and "\x1b" not in out


def test_without_a_terminal_it_wants_yes(store: dict[str, Any]) -> None:
    for words in (["prune"], ["prune", "--json"]):
        with pytest.raises(CliError, match="no terminal to ask on"):
            prune.run(parse(words))
    assert store["gone"] == []


def test_yes_removes_what_was_asked_for(store: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert prune.run(parse(["prune", "--only", "runs", "--yes"])) == 0
    assert store["gone"] == ["/r\x1b[31m"] and "removed 1 of 1" in capsys.readouterr().out


def test_what_stays_makes_the_exit_code(store: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    store["stuck"] = ["localhost/asf/caddy:1"]
    assert prune.run(parse(["prune", "--yes", "--json"])) == 224
    assert '"kept": [\n    "localhost/asf/caddy:1 was not removed"' in capsys.readouterr().out


def test_the_kinds_of_the_command_are_those_of_the_core() -> None:
    assert prune._KINDS == pruning.KINDS
