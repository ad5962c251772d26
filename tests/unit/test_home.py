# SPDX-License-Identifier: BSD-4-Clause
"""Where ASF looks, and where it never looks (invariant 11); the provider's key (S1, S2)."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

import pytest

from asf_lib.core.errors import HostError, ManifestError, SecretError
from asf_lib.engine import home as homes
from asf_lib.engine.home import Home

MANIFEST = "name: {name}\nnetwork: {{allow_domains: [a.example.com]}}\n"
BROKERED = "name: a\nadapter: claude\nllm: {provider: anthropic}\nsecrets: {files: [one.env, two.env]}\n"
KEY = "sk-CANARY-0123456789"


def _agent(base: Path, name: str, text: str | None = None) -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    (folder / "runtime.yml").write_text(text if text is not None else MANIFEST.format(name=name))
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Home:
    root, shipped = tmp_path / "root", tmp_path / "shipped"
    _agent(root / "agents", "mine")
    _agent(shipped, "theirs")
    _agent(shipped, "mine")
    return homes.resolve(str(root), {}, shipped=shipped)


# --- the root --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "env", "own", "expected", "origin"),
    [
        ("{t}/o", {"ASF_HOME": "{t}/e"}, "{t}/c", "{t}/o", "ASF_HOME"),
        (None, {"ASF_HOME": "{t}/e", "XDG_CONFIG_HOME": "{t}/x"}, "{t}/c", "{t}/e", "ASF_HOME"),
        (None, {"ASF_HOME": "", "XDG_CONFIG_HOME": "{t}/x"}, "{t}/c", "{t}/c", "checkout"),
    ],
)
def test_the_order_of_the_roots(
    tmp_path: Path, option: str | None, env: dict[str, str], own: str, expected: str, origin: str
) -> None:
    full = {key: value.format(t=tmp_path) for key, value in env.items()}
    found = homes.resolve(option and option.format(t=tmp_path), full, Path(own.format(t=tmp_path)))
    assert (str(found.root), found.origin) == (expected.format(t=tmp_path), origin)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"XDG_CONFIG_HOME": "{t}/x", "HOME": "{t}/h"}, "{t}/x/asf"),
        ({"XDG_CONFIG_HOME": "relative", "HOME": "{t}/h"}, "{t}/h/.config/asf"),
        ({"HOME": "{t}/h"}, "{t}/h/.config/asf"),
    ],
)
def test_without_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(homes, "checkout", lambda: None)
    found = homes.resolve(env={key: value.format(t=tmp_path) for key, value in env.items()})
    assert (str(found.root), found.origin) == (expected.format(t=tmp_path), "XDG_CONFIG_HOME")


def test_this_checkout_is_found() -> None:
    root = Path(__file__).resolve().parents[2]
    assert homes.checkout() == root
    assert homes.shipped_agents() == root / "agents"


def test_the_current_directory_is_never_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Home) -> None:
    """An agent may own it: neither agents, secrets nor settings are found there."""
    trap = tmp_path / "trap"
    _agent(trap / "agents", "evil")
    _agent(trap, "evil2")
    (trap / "config.yml").write_text("resolver: 192.0.2.66\n")
    monkeypatch.chdir(trap)
    assert homes.agents(home) == ["mine", "theirs"]
    assert homes.load_settings(home).resolver is None
    with pytest.raises(ManifestError, match="there is no agent"):
        homes.agent(home, "evil")


def test_a_relative_asf_home_is_refused() -> None:
    with pytest.raises(HostError, match="absolute"):
        homes.resolve(env={"ASF_HOME": "here"})


def test_a_root_that_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(HostError, match="anybody may write"):
        homes.resolve(str(tmp_path), {})


def test_a_root_that_a_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account's private group, which distributions make writable by their umask, is nobody else."""
    tmp_path.chmod(0o775)
    me = pwd.getpwuid(os.getuid())
    for members, name, private in (([], me.pw_name, True), (["mallory"], me.pw_name, False), ([], "users", False)):
        row = grp.struct_group((name, "x", os.getgid(), members))
        monkeypatch.setattr(grp, "getgrgid", lambda gid, row=row: row)
        if private:
            assert homes.resolve(str(tmp_path), {}).root == tmp_path
            continue
        with pytest.raises(HostError, match=f"group {name} may write"):
            homes.resolve(str(tmp_path), {})


def test_a_root_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((0o40755, 1, 1, 1, 777, 0, 0, 0, 0, 0)))
    with pytest.raises(HostError, match="somebody else"):
        homes.resolve(str(tmp_path), {}, shipped=tmp_path)


def test_a_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(HostError, match="not a folder"):
        homes.resolve(str(tmp_path / "f"), {})


# --- agents ----------------------------------------------------------------------------------------------------


def test_the_operators_agent_comes_before_the_shipped_one(home: Home) -> None:
    mine, theirs = homes.agent(home, "mine"), homes.agent(home, "theirs")
    assert (mine.folder, mine.shipped) == (home.root / "agents" / "mine", False)
    assert (theirs.folder, theirs.shipped) == (home.shipped and home.shipped / "theirs", True)


def test_grants_of_a_shipped_agent_are_written_into_the_root(home: Home) -> None:
    assert homes.agent(home, "theirs").grants_file == home.root / "agents" / "theirs" / "repos.yml"


def test_a_folder_with_grants_alone_does_not_hide_the_shipped_agent(home: Home) -> None:
    (home.root / "agents" / "theirs").mkdir()
    assert homes.agent(home, "theirs").shipped


def test_an_unknown_agent(home: Home) -> None:
    with pytest.raises(ManifestError) as caught:
        homes.agent(home, "their")
    assert caught.value.remedy == "did you mean theirs?"
    assert caught.value.problems[0].allowed == "mine, theirs"


@pytest.mark.parametrize("name", ["../mine", "mine/", "", ".", "Mine", "a.b", "{{ x }}", "-e", "a\n", "a" * 64])
def test_a_name_that_is_none(home: Home, name: str) -> None:
    with pytest.raises(ManifestError) as caught:
        homes.agent(home, name)
    assert caught.value.key == "agent"


def test_links_are_not_followed(tmp_path: Path, home: Home) -> None:
    elsewhere = _agent(tmp_path / "elsewhere", "linked")
    (home.agents_dir / "linked").symlink_to(elsewhere)
    assert "linked" not in homes.agents(home)
    with pytest.raises(ManifestError, match="symbolic link"):
        homes.agent(home, "linked")
    (home.agents_dir / "half").mkdir()
    (home.agents_dir / "half" / "runtime.yml").symlink_to(elsewhere / "runtime.yml")
    with pytest.raises(ManifestError, match="symbolic link"):
        homes.load_manifest(home, "half")


def test_load_manifest(home: Home) -> None:
    assert homes.load_manifest(home, "theirs").name == "theirs"
    (home.agents_dir / "mine" / "runtime.yml").write_text(MANIFEST.format(name="other"))
    with pytest.raises(ManifestError, match="differs from the folder's"):
        homes.load_manifest(home, "mine")


def test_settings(home: Home) -> None:
    assert homes.load_settings(home).file is None
    home.settings_file.write_text("resolver: 192.0.2.53\n")
    assert homes.load_settings(home).resolver == "192.0.2.53"
    home.settings_file.unlink()
    home.settings_file.symlink_to("/dev/null")
    with pytest.raises(ManifestError, match="symbolic link"):
        homes.load_settings(home)


# --- the provider's key ----------------------------------------------------------------------------------------


@pytest.fixture
def keyed(home: Home) -> Home:
    _agent(home.agents_dir, "a", BROKERED)
    home.secrets_dir.mkdir()
    _secret(home, "one.env", f"export ANTHROPIC_API_KEY='{KEY}'\nOTHER=x\n")
    _secret(home, "two.env", "ANTHROPIC_API_KEY=\nTHIRD=y\n")
    return home


def _secret(home: Home, name: str, text: str, mode: int = 0o600) -> Path:
    path = home.secrets_dir / name
    path.write_text(text)
    path.chmod(mode)
    return path


def _key(home: Home):
    return homes.provider_key(home, homes.load_manifest(home, "a"))


def _refused(home: Home) -> str:
    with pytest.raises(SecretError) as caught:
        _key(home)
    text = str(caught.value) + repr(caught.value.as_dict())
    assert "CANARY" not in text
    return text


def test_the_key_is_taken_and_the_others_are_named(keyed: Home) -> None:
    chosen = _key(keyed)
    assert chosen is not None
    assert (chosen.value, chosen.file) == (KEY, str(keyed.secrets_dir / "one.env"))
    names = [(Path(file).name, name) for file, name in chosen.others]
    assert names == [("one.env", "OTHER"), ("two.env", "THIRD")]


@pytest.mark.parametrize("text", [MANIFEST.format(name="a"), BROKERED.replace("}", ", mock: hi}", 1)])
def test_no_key_is_read_where_none_is_needed(home: Home, text: str) -> None:
    _agent(home.agents_dir, "a", text)
    assert _key(home) is None


UNBROKERED = BROKERED.replace("llm: {", "llm: {broker: false, ", 1) + "network: {allow_domains: [api.example.com]}\n"


def _own(home: Home):
    return homes.agent_key(home, homes.load_manifest(home, "a"))


def test_without_the_broker_the_agent_has_the_key_where_there_is_one(keyed: Home) -> None:
    """No file, no variable, an empty one: the client logs in. A file that is wrong stays an error."""
    (keyed.agents_dir / "a" / "runtime.yml").write_text(UNBROKERED)
    assert _key(keyed) is None
    chosen = _own(keyed)
    assert chosen is not None and chosen.value == KEY and [name for _, name in chosen.others] == ["OTHER", "THIRD"]
    (keyed.secrets_dir / "two.env").unlink()
    assert _own(keyed) is not None
    for text in ("", "OTHER=x\n", "ANTHROPIC_API_KEY=\n"):
        _secret(keyed, "one.env", text)
        assert _own(keyed) is None
    _secret(keyed, "one.env", f"ANTHROPIC_API_KEY='{KEY} x'\n")
    with pytest.raises(SecretError, match="one word") as caught:
        _own(keyed)
    assert "CANARY" not in str(caught.value.as_dict())
    _secret(keyed, "one.env", f"ANTHROPIC_API_KEY={KEY}\n", 0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        _own(keyed)
    (keyed.secrets_dir / "one.env").unlink()
    assert _own(keyed) is None


@pytest.mark.parametrize("mode", [0o400, 0o600])
def test_private_modes(keyed: Home, mode: int) -> None:
    (keyed.secrets_dir / "one.env").chmod(mode)
    assert _key(keyed) is not None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o700, 0o777])
def test_other_modes_are_refused(keyed: Home, mode: int) -> None:
    (keyed.secrets_dir / "one.env").chmod(mode)
    text = _refused(keyed)
    assert f"found: {mode:04o}" in text and "chmod 600" in text and "secrets.files[0]" in text


def test_a_missing_file_names_the_manifests_line(keyed: Home) -> None:
    (keyed.secrets_dir / "two.env").unlink()
    text = _refused(keyed)
    assert "two.env: secrets.files[1]" in text and "runtime.yml:4" in text and "ANTHROPIC_API_KEY" in text


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_regular_file(keyed: Home, kind: str) -> None:
    path = keyed.secrets_dir / "one.env"
    path.rename(keyed.secrets_dir / "moved")
    if kind == "link":
        path.symlink_to("moved")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert ("symbolic link" if kind == "link" else "not a regular file") in _refused(keyed)


def test_a_foreign_owner(keyed: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = homes.load_manifest(keyed, "a")
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(SecretError, match="belongs to somebody else"):
        homes.provider_key(keyed, manifest)


def test_errors_of_all_files_come_together(keyed: Home) -> None:
    _secret(keyed, "one.env", f"K= {KEY}\n")
    _secret(keyed, "two.env", f"{KEY}\n")
    text = _refused(keyed)
    assert "one.env:1" in text and "two.env:1" in text


def test_a_large_file(keyed: Home) -> None:
    _secret(keyed, "one.env", "#" * 70000)
    assert "larger than 64 KiB" in _refused(keyed)
