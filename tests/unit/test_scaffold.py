# SPDX-License-Identifier: BSD-4-Clause
"""A new agent's folder is whole and valid, or it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from asf_lib.core.errors import ManifestError
from asf_lib.engine import home as homes, scaffold

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted(path.parent.name for path in (ROOT / "agents").glob("*/runtime.yml"))


@pytest.fixture
def home(tmp_path):
    return homes.Home(tmp_path, "ASF_HOME", ROOT / "agents")


def own(home, name, text, **files):
    folder = home.agents_dir / name
    folder.mkdir(parents=True)
    (folder / "runtime.yml").write_text(text)
    for file, content in files.items():
        (folder / file).write_text(content)
    return folder


def left(home):
    return sorted(os.listdir(home.agents_dir))


@pytest.mark.parametrize("source", SHIPPED)
def test_every_shipped_agent_can_be_copied(home, source):
    made = scaffold.make(home, "mine", source)
    manifest = homes.load_manifest(home, "mine")
    assert manifest.name == "mine" and made.folder == home.agents_dir / "mine"
    assert sorted(made.files) == sorted(
        str(path.relative_to(made.folder)) for path in made.folder.rglob("*") if path.is_file()
    )
    assert not {"adapter.yml", "image", "files", "repos.yml"} & set(os.listdir(made.folder))
    homes.load_packages(home, manifest)
    assert left(home) == ["mine"]


def test_comments_stay_and_packages_are_hinted_at(home):
    text = (scaffold.make(home, "mine", "python-agent").folder / "runtime.yml").read_text()
    assert text.startswith("# SPDX") and "# packages:" in text and "\nname: mine\n" in text


def test_a_copy_is_the_operators_alone(home):
    folder = scaffold.make(home, "mine", "claude").folder
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "runtime.yml").stat().st_mode & 0o777 == 0o600


def test_a_shipped_agents_name_can_be_taken_and_its_grants_stay(home):
    (home.agents_dir / "claude").mkdir(parents=True)
    (home.agents_dir / "claude" / "repos.yml").write_text("repos: []\n")
    made = scaffold.make(home, "claude", "claude")
    assert (made.folder / "repos.yml").read_text() == "repos: []\n" and not homes.agent(home, "claude").shipped


@pytest.mark.parametrize("name", ["", "-x", "A", "a/b", "../x", "x" * 64, "ä"])
def test_a_wrong_name_makes_nothing(home, name):
    with pytest.raises(ManifestError):
        scaffold.make(home, name, "python-agent")
    assert not home.agents_dir.exists()


def test_a_name_that_is_taken_is_refused(home):
    folder = own(home, "mine", "name: mine\n")
    with pytest.raises(ManifestError, match="already"):
        scaffold.make(home, "mine", "python-agent")
    assert (folder / "runtime.yml").read_text() == "name: mine\n" and left(home) == ["mine"]


def test_an_unknown_source_is_refused(home):
    with pytest.raises(ManifestError, match="python-agent"):
        scaffold.make(home, "mine", "python-agnt")


@pytest.mark.parametrize(
    "text",
    [
        "name: broken\nllm: {}\n",
        "{name: broken, llm: {mock: hi, protocol: openai}}\n",
        "name: broken\nllm: {mock: hi, protocol: openai}\npackages: {pip: missing.txt}\n",
    ],
)
def test_a_source_that_would_not_be_valid_leaves_nothing(home, text):
    own(home, "broken", text)
    with pytest.raises(ManifestError):
        scaffold.make(home, "mine", "broken")
    assert left(home) == ["broken"]


def test_a_link_in_the_source_is_refused(home):
    folder = own(home, "linked", "name: linked\nllm: {mock: hi, protocol: openai}\n")
    (folder / "key").symlink_to("/etc/passwd")
    with pytest.raises(ManifestError, match="cannot be copied"):
        scaffold.make(home, "mine", "linked")
    assert left(home) == ["linked"]


def test_a_file_in_the_way_is_named_and_kept(home):
    (home.agents_dir / "mine").mkdir(parents=True)
    (home.agents_dir / "mine" / "README.md").write_text("mine\n")
    own(home, "readme", "name: readme\nllm: {mock: hi, protocol: openai}\n", **{"README.md": "theirs\n"})
    with pytest.raises(ManifestError, match=r"README\.md"):
        scaffold.make(home, "mine", "readme")
    assert (home.agents_dir / "mine" / "README.md").read_text() == "mine\n"
