# SPDX-License-Identifier: BSD-4-Clause
"""What a client needs is data of its adapter: as strict as a manifest, plain replacement, nothing by default."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import adapters, images, plan as plans, workload
from asf_lib.core.adapters import Adapter
from asf_lib.core.errors import ManifestError, PlanError
from asf_lib.engine import home, yamlload
from tests.unit.test_plan import BROKERED, PLAIN, SETTINGS, build

ROOT = Path(__file__).resolve().parents[2]


def _read(text: str, name: str = "claude") -> Adapter:
    return adapters.validate(yamlload.parse(text.encode(), adapters.FILE), adapters.FILE, name)


def _environment(adapter: Adapter, models: Any = (), protocol: Any = "openai", given: Any = None) -> Any:
    return workload.environment(adapter, models, protocol, None, False, {}, dict(given or {}))


@pytest.mark.parametrize("name", sorted(adapters.FOLDERS))
def test_every_adapter_has_its_file_and_its_image(name: str) -> None:
    assert home.load_adapter(ROOT, name).file.endswith(adapters.FILE)
    assert (ROOT / images.SOURCES[f"agent-{name}"] / "Containerfile").is_file()
    assert name in images.ADAPTERS


def test_no_adapter_lies_in_a_folder_that_nothing_reads() -> None:
    found = {path.parent.name for path in (ROOT / "agents").glob(f"*/{adapters.FILE}")}
    assert found == set(adapters.FOLDERS.values())


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("adapter: claude\nenvs: {}\n", "envs"),
        ("adapter: generic\n", "adapter"),
        ("env: {A: b}\n", "adapter"),
        ("adapter: claude\nenv: {A: 1}\n", "env.A"),
        ("adapter: claude\nenv: {'a b': c}\n", None),
        ("adapter: claude\nfront_env: {A: 'x@FRONT@'}\n", "front_env.A"),
        ("adapter: claude\ntoken_env: [A, A]\n", None),
        ("adapter: claude\nkey_env: [A B]\n", None),
        ("", None),
        ("- claude\n", None),
    ],
)
def test_what_is_wrong_is_named(text: str, key: str | None) -> None:
    with pytest.raises(ManifestError) as raised:
        _read(text)
    found = [problem.key for problem in raised.value.problems]
    assert found and (key is None or key in found), found
    assert all(problem.file == adapters.FILE for problem in raised.value.problems)


def test_placeholders_are_replaced_once_and_only_with_a_front() -> None:
    adapter = _read("adapter: claude\nfront_env: {A: '@FRONT_URL@/x @FRONT_HOST@ @CA_FILE@', B: '@MODEL@'}\n")
    env, _ = _environment(adapter, ["gpt-*", "gpt-5", "o3"])
    port = workload.L2_PORT
    assert env["A"] == f"http://front:{port}/x front:{port} {workload.CA_FILE}" and env["B"] == "gpt-5"
    without, tokens = _environment(adapter, ["gpt-5"], None)
    assert "A" not in without and "B" not in without and tokens == []
    assert adapters.filled("@MODEL@", {"@MODEL@": "@CA_FILE@", "@CA_FILE@": "x"}, "f", "k") == "@CA_FILE@"
    assert adapters.filled("me@host @x@ @@", {}, "f", "k") == "me@host @x@ @@"


def test_a_model_that_nobody_names_is_an_error_with_file_and_key() -> None:
    adapter = _read("adapter: claude\nfront_env: {B: '@MODEL@'}\n")
    for models in ((), ("gpt-*",)):
        with pytest.raises(PlanError) as raised:
            _environment(adapter, models)
        told = str(raised.value)
        assert adapters.FILE in told and "front_env.B" in told and "llm.models" in told
    own = _read("adapter: claude\nmodel: opus\nfront_env: {B: '@MODEL@'}\n")
    assert _environment(own, ("gpt-*",))[0]["B"] == "opus"


def test_the_manifests_env_comes_last_for_values_and_tokens() -> None:
    adapter = _read("adapter: claude\nenv: {A: '1'}\nfront_env: {B: '2'}\ntoken_env: [T, OPENAI_API_KEY]\n")
    env, tokens = _environment(adapter)
    assert (env["A"], env["B"], tokens) == ("1", "2", ["OPENAI_API_KEY", "T"])
    env, tokens = _environment(adapter, given={"A": "mine", "B": "own", "T": "t"})
    assert (env["A"], env["B"], env["T"], tokens) == ("mine", "own", "t", ["OPENAI_API_KEY"])


def test_claudes_switches_are_in_its_file() -> None:
    env, _ = _environment(home.load_adapter(ROOT, "claude"), protocol="anthropic")
    assert env["DISABLE_AUTOUPDATER"] == "1" and env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert "DISABLE_AUTOUPDATER" not in _environment(home.load_adapter(ROOT, "generic"))[0]


def _with_file(when: str, text: str) -> plans.Settings:
    row = adapters.PolicyFile("x.toml", "/etc/codex/x.toml", when, text)
    return replace(SETTINGS, adapter=Adapter(files=(row,)))


@pytest.mark.parametrize(("when", "seen"), [("always", True), ("brokered", True), ("direct", False)])
def test_a_file_is_written_filled_and_mounted_read_only(when: str, seen: bool) -> None:
    plan = build(BROKERED, settings=_with_file(when, "url = @FRONT_URL@\n"))
    texts = {entry["path"]: entry.get("text") for entry in plan["files"]}
    mounts = {row["target"]: row["rw"] for row in plan["mounts"] if row["role"] == "agent"}
    assert texts.get("adapter/codex_x.toml") == (f"url = http://front:{workload.L2_PORT}\n" if seen else None)
    assert mounts.get("/etc/codex/x.toml") == (False if seen else None)


def test_the_fronts_placeholders_have_no_value_without_one() -> None:
    with pytest.raises(PlanError) as raised:
        build(PLAIN, settings=_with_file("always", "@FRONT_URL@"))
    assert "@FRONT_URL@" in str(raised.value) and "x.toml" in str(raised.value)


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "/home/node/x", "/etc/codex/../x", "/etc/a/b/c", "/workspace/repos/x", "/etc/ssl/"]
)
def test_files_lie_in_a_folder_of_etc_alone(target: str) -> None:
    with pytest.raises(ManifestError) as raised:
        _read(f"adapter: claude\nfiles: [{{source: x, target: {target}}}]\n")
    assert [problem.key for problem in raised.value.problems] == ["files[0].target"]


def test_two_files_of_one_target_are_refused() -> None:
    with pytest.raises(ManifestError):
        _read("adapter: claude\nfiles: [{source: x, target: /etc/a/b}, {source: y, target: /etc/a/b}]\n")


def test_what_is_no_text_file_is_refused_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "agents/claude"
    (folder / "files").mkdir(parents=True)
    (folder / adapters.FILE).write_text("adapter: claude\nfiles: [{source: x, target: /etc/a/b}]\n")
    place = folder / "files/x"
    (tmp_path / "secret").write_text("s")
    makers = [
        lambda: None,
        lambda: place.symlink_to(tmp_path / "secret"),
        lambda: place.write_bytes(b"\xff"),
        lambda: place.write_text("x" * 70000),
        place.mkdir,
    ]
    for make in makers:
        make()
        with pytest.raises(ManifestError) as raised:
            home.load_adapter(tmp_path, "claude")
        assert raised.value.problems[0].file == str(place)
        place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink(missing_ok=True)
    place.write_text("good")
    assert home.load_adapter(tmp_path, "claude").files[0].text == "good"


def test_claudes_policy_is_what_its_page_says() -> None:
    """JSON holds no comments: each setting has a row in README.md, which says why."""
    files = {row.source: row.text for row in home.load_adapter(ROOT, "claude").files}
    policy, page = json.loads(files["managed-settings.json"]), (ROOT / "agents/claude/README.md").read_text()
    permissions = [f"permissions.{name}" for name in policy.pop("permissions")]
    for name in [*policy, *permissions, *policy["env"]]:
        assert f"`{name}`" in page or f"`…{name.removeprefix('CLAUDE_CODE_DISABLE_')}`" in page, name
