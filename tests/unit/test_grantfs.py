# SPDX-License-Identifier: BSD-4-Clause
"""Facts about repositories read without following links or running git, and the file of grants (F1, F2, F3, F5)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from asf_lib.core.errors import GrantError, ManifestError
from asf_lib.core.grants import Grant
from asf_lib.engine import grantfile, grantfs, home as homes
from asf_lib.engine.home import Home

GIT = shutil.which("git")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "work" / "repo"
    (folder / ".git" / "objects" / "info").mkdir(parents=True)
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("a\n")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A root with one agent, and the other folders of ASF apart from the repositories."""
    for name, folder in (("XDG_STATE_HOME", "s"), ("XDG_CACHE_HOME", "c"), ("XDG_DATA_HOME", "d"), ("HOME", "h")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    folder = tmp_path / "root" / "agents" / "a"
    folder.mkdir(parents=True)
    (folder / "runtime.yml").write_text("name: a\nnetwork: {allow_domains: [a.example.com]}\n")
    return homes.resolve(str(tmp_path / "root"), {})


def _file(home: Home) -> Path:
    return home.agents_dir / "a" / "repos.yml"


# --- facts -----------------------------------------------------------------------------------------------------


def test_facts_of_an_ordinary_repository(repo: Path) -> None:
    facts = grantfs.facts(str(repo))
    assert (facts.error, facts.git, facts.git_target, facts.uid) == (None, "dir", None, os.getuid())
    assert (facts.specials, facts.mounts, facts.alternates, facts.complete) == ((), (), (), True)
    assert facts.entries == 5
    found = os.lstat(repo)
    assert facts.place.chain[0] == (found.st_dev, found.st_ino)
    assert facts.place.chain[-1] == (os.lstat("/").st_dev, os.lstat("/").st_ino)


@pytest.mark.parametrize(
    ("kind", "error"),
    [("missing", "the path does not exist"), ("file", "the path is not a folder"), ("nul", "the path cannot be read")],
)
def test_what_cannot_be_looked_at(tmp_path: Path, kind: str, error: str) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "missing") if kind == "missing" else str(tmp_path / "file") if kind == "file" else "/a\0b"
    assert (grantfs.facts(path).error or "").startswith(error)


def test_sockets_fifos_and_devices_are_found(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / "deep" / "er").mkdir(parents=True)
    os.mkfifo(repo / "deep" / "er" / "pipe")
    monkeypatch.chdir(repo / "deep")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
    (repo / "link").symlink_to("/dev/null")
    assert dict(grantfs.facts(str(repo)).specials) == {"deep/er/pipe": "FIFO", "deep/sock": "socket"}


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes device nodes")
def test_a_device_node(repo: Path) -> None:
    os.mknod(repo / "null", 0o020666, os.makedev(1, 3))
    assert grantfs.facts(str(repo)).specials == (("null", "character device"),)


def test_f2_the_search_follows_no_link(repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    os.mkfifo(outside / "pipe")
    (repo / "out").symlink_to(outside)
    facts = grantfs.facts(str(repo))
    assert facts.specials == () and facts.complete


def test_the_search_is_bounded_and_says_so(repo: Path) -> None:
    for number in range(50):
        (repo / f"f{number}").write_text("")
    facts = grantfs.facts(str(repo), max_entries=20)
    assert not facts.complete and facts.entries == 20
    for number in range(600):
        (repo / f"g{number}").write_text("")
    assert not grantfs.facts(str(repo), max_seconds=0.0).complete


def test_a_deep_chain_meets_the_bound_too(repo: Path) -> None:
    (repo / "/".join(["d"] * 200)).mkdir(parents=True)
    assert not grantfs.facts(str(repo), max_seconds=0.0).complete
    assert grantfs.facts(str(repo)).complete


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_folder_that_was_not_searched_is_refused(repo: Path, home: Home) -> None:
    (repo / "shut" / "in").mkdir(parents=True)
    (repo / "shut").chmod(0o000)
    try:
        assert grantfs.facts(str(repo)).unreadable == "shut"
        with pytest.raises(GrantError, match="cannot be searched for sockets and devices: shut"):
            grantfs.add("a", str(repo), home=home)
    finally:
        (repo / "shut").chmod(0o700)


def test_a_tree_past_the_bound_is_refused(repo: Path, home: Home) -> None:
    """An agent could pad its tree in one session to hide a socket from the next."""
    grant = Grant(str(repo), "ro")
    with pytest.raises(GrantError, match="too large to be searched"):
        grantfs.check([grant], grantfs.context(home, [grant], max_entries=3))


def test_f2_a_path_that_was_swapped_for_a_link(repo: Path) -> None:
    """The real location shows, and with it the refusal."""
    moved = repo.with_name("moved")
    repo.rename(moved)
    repo.symlink_to(moved)
    assert grantfs.facts(str(repo)).place.path == str(moved)


@pytest.mark.parametrize(
    ("kind", "expected"), [("symlink", "symlink"), ("fifo", "other"), ("text", "other"), ("absent", "absent")]
)
def test_kinds_of_git(repo: Path, kind: str, expected: str) -> None:
    shutil.rmtree(repo / ".git")
    if kind == "symlink":
        (repo / ".git").symlink_to("elsewhere")
    elif kind == "fifo":
        os.mkfifo(repo / ".git")
    elif kind == "text":
        (repo / ".git").write_text("nothing that git knows\n")
    assert grantfs.facts(str(repo)).git == expected


@pytest.mark.parametrize(
    ("text", "target"),
    [("gitdir: /w/main/.git/worktrees/x\n", "/w/main/.git/worktrees/x"), ("gitdir: ../outer/.git/modules/x", None)],
)
def test_f5_a_git_file_is_read(repo: Path, text: str, target: str | None) -> None:
    shutil.rmtree(repo / ".git")
    (repo / ".git").write_text(text)
    facts = grantfs.facts(str(repo))
    assert facts.git == "file"
    assert facts.git_target == (target or str(repo.parent / "outer" / ".git" / "modules" / "x"))


def test_f5_a_commondir_counts_too(repo: Path) -> None:
    (repo / ".git" / "commondir").write_text("../../elsewhere/.git\n")
    assert grantfs.facts(str(repo)).git_target == str(repo.parent / "elsewhere" / ".git")


def test_alternates_outside_are_named(repo: Path) -> None:
    (repo / ".git" / "objects" / "info" / "alternates").write_text("/w/shared/objects\n# x\n../../inside\n")
    assert grantfs.facts(str(repo)).alternates == ("/w/shared/objects",)


@pytest.mark.skipif(GIT is None, reason="git is not installed")
def test_f5_a_real_worktree(tmp_path: Path, home: Home) -> None:
    main, linked = tmp_path / "w" / "main", tmp_path / "w" / "linked"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q", str(main)], ["-C", str(main), *who, "commit", "-q", "--allow-empty", "-m", "x"],
                  ["-C", str(main), "worktree", "add", "-q", str(linked)]):  # fmt: skip
        subprocess.run(["git", *words], env=env, check=True, capture_output=True)
    with pytest.raises(GrantError) as caught:
        grantfs.add("a", str(linked), home=home)
    assert caught.value.code == "git-outside"
    assert f"grant the main repository {main}" in (caught.value.remedy or "")
    assert not _file(home).exists()


def test_f3_nothing_of_the_repository_is_executed(repo: Path, tmp_path: Path, home: Home) -> None:
    """Configuration that would run a program, were git ever asked."""
    canary = tmp_path / "canary"
    (repo / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (repo / ".git" / "config").write_text(f'[core]\n\tfsmonitor = "touch {canary}"\n\thooksPath = {tmp_path}\n')
    grantfs.add("a", str(repo), home=home)
    grantfs.granted(home, "a")
    assert not canary.exists()


# --- refusals with real folders --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["root", "root/agents", "s/asf", "c/asf", "d/containers", "h", "."])
def test_places_that_asf_trusts(tmp_path: Path, home: Home, place: str) -> None:
    path = tmp_path / place
    path.mkdir(parents=True, exist_ok=True)
    with pytest.raises(GrantError) as caught:
        grantfs.add("a", str(path), "ro", home=home)
    assert caught.value.code in ("grant", None)


@pytest.mark.parametrize(
    "case", ["xdg", "home", "storage.conf", "secrets", "agents", "secrets through a link", "the link itself"]
)
def test_places_outside_the_root_that_asf_trusts(
    repo: Path, tmp_path: Path, home: Home, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman's configuration, and what links of the root name: not even for reading."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    inside, words = repo / "in", "Podman's configuration"
    inside.mkdir()
    if case == "xdg":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(inside))
    elif case == "home":
        monkeypatch.setenv("HOME", str(inside))
    elif case == "storage.conf":
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(inside / "storage.conf"))
        words = "the file of CONTAINERS_STORAGE_CONF"
    elif case == "agents":
        home.agents_dir.rename(inside / "agents")
        home.agents_dir.symlink_to(inside / "agents")
        words = "ASF's agents"
    else:
        other, words = tmp_path / "other", "ASF's secrets"
        other.mkdir()
        (inside / "link").symlink_to(inside if case != "the link itself" else other)
        home.secrets_dir.symlink_to(inside if case == "secrets" else inside / "link")
    with pytest.raises(GrantError, match=words):
        grantfs.add("a", str(repo), "ro", home=home)


@pytest.mark.parametrize("variable", ["PATH", "ASF_PATH", "ANSIBLE_COLLECTIONS_PATH", "ca_bundle"])
def test_places_that_asf_relies_on_are_not_writable(
    repo: Path, tmp_path: Path, home: Home, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repo / "bin").mkdir()
    (tmp_path / "link").symlink_to(repo / "bin")
    if variable == "ca_bundle":
        (repo / "bin" / "ca.pem").write_text("")
        home.settings_file.write_text(f"ca_bundle: {tmp_path}/link/ca.pem\n")
    else:
        monkeypatch.setenv(variable, f"{tmp_path}/link:/usr/bin")
    with pytest.raises(GrantError) as caught:
        grantfs.add("a", str(repo), home=home)
    assert variable.replace("ASF_PATH", "PATH") in caught.value.message and str(repo / "bin") in caught.value.message
    assert grantfs.add("a", str(repo), "ro", home=home)["mode"] == "ro"


def test_storage_of_the_engine(tmp_path: Path, repo: Path, home: Home) -> None:
    with pytest.raises(GrantError, match="the container storage"):
        grantfs.add("a", str(repo), home=home, storage=[str(repo / "storage")])


def test_a_live_tree(repo: Path, home: Home) -> None:
    grantfs.add("a", str(repo), home=home)
    with pytest.raises(GrantError, match=r"session b\.main already has"):
        grantfs.granted(home, "a", live=[("b.main", str(repo / "src"))])


def test_the_interpreter(home: Home) -> None:
    import sys

    with pytest.raises(GrantError, match="the Python interpreter"):
        grantfs.add("a", sys.prefix, "ro", home=home)


def test_f2_a_link_in_the_path_is_resolved_at_add_and_refused_at_open(repo: Path, tmp_path: Path, home: Home) -> None:
    (tmp_path / "alias").symlink_to(repo.parent)
    added = grantfs.add("a", str(tmp_path / "alias" / "repo"), home=home)
    assert added["path"] == str(repo)
    real = repo.parent.with_name("elsewhere")
    repo.parent.rename(real)
    repo.parent.symlink_to(real)
    with pytest.raises(GrantError, match="the path's real location is"):
        grantfs.granted(home, "a")


@pytest.mark.parametrize(
    "name",
    ["with blank", "co:lon", "com,ma", 'qu"ote', "sing'le", "-dash", "back\\slash", "{{ x }}", "ünï🙂", "bidi\u202e"],
)
def test_f1_odd_names_survive_the_file_exactly(tmp_path: Path, home: Home, name: str) -> None:
    folder = tmp_path / "w" / name
    folder.mkdir(parents=True)
    grantfs.add("a", str(folder), "ro", home=home)
    assert grantfs.load(home, "a") == [Grant(str(folder), "ro")]
    assert all(line.isprintable() for line in _file(home).read_text().splitlines())
    grantfs.remove("a", str(folder), home=home)
    assert grantfs.load(home, "a") == []


@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[0m", b"bad\xff"])
def test_f1_other_names_are_refused(tmp_path: Path, home: Home, name: str | bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), os.fsencode(name))
    os.mkdir(path)
    with pytest.raises(GrantError, match=r"control character|not UTF-8"):
        grantfs.add("a", os.fsdecode(path), home=home)


# --- add, remove, list -----------------------------------------------------------------------------------------


def test_add_list_remove(repo: Path, home: Home) -> None:
    row = {"agent": "a", "path": str(repo), "mode": "rw", "target": "/workspace/repos/repo"}
    assert grantfs.add("a", str(repo), home=home) == {**row, "warnings": []}
    assert grantfs.list_grants("a", home) == [row]
    assert row in grantfs.list_grants(None, home)
    assert grantfs.add("a", str(repo), "ro", home=home)["mode"] == "ro"
    assert grantfs.load(home, "a") == [Grant(str(repo), "ro")]
    assert grantfs.remove("a", "repo", home)["path"] == str(repo)
    assert grantfs.list_grants("a", home) == []
    with pytest.raises(GrantError, match="no such grant"):
        grantfs.remove("a", str(repo), home)


def test_a_grant_whose_folder_is_gone_can_be_removed(repo: Path, home: Home) -> None:
    grantfs.add("a", str(repo), home=home)
    shutil.rmtree(repo)
    assert grantfs.remove("a", str(repo), home)["path"] == str(repo)


@pytest.mark.parametrize(
    ("agent", "path", "mode"), [("nobody", "/w", "rw"), ("a", "relative", "rw"), ("a", "/w", "wr")]
)
def test_bad_requests(home: Home, agent: str, path: str, mode: str) -> None:
    with pytest.raises((GrantError, ManifestError)):
        grantfs.add(agent, path, mode, home=home)
    assert not _file(home).exists()


def test_a_mode_that_is_not_built(repo: Path, home: Home) -> None:
    with pytest.raises(GrantError, match="cannot enforce mode: clone yet"):
        grantfs.add("a", str(repo), "clone", home=home)
    assert not _file(home).exists()


def test_warnings_reach_the_caller(repo: Path, home: Home) -> None:
    (repo / ".git" / "objects" / "info" / "alternates").write_text("/w/shared/objects\n")
    (warning,) = grantfs.add("a", str(repo), home=home)["warnings"]
    assert "/w/shared/objects" in warning


def test_two_commands_at_once_lose_nothing(tmp_path: Path, home: Home) -> None:
    paths = [tmp_path / "w" / f"r{number}" for number in range(8)]
    for path in paths:
        path.mkdir(parents=True)
    threads = [threading.Thread(target=grantfs.add, args=("a", str(path), "ro", home)) for path in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(grant.path for grant in grantfs.load(home, "a")) == sorted(map(str, paths))


def test_a_broken_file_is_named_and_left_alone(repo: Path, home: Home) -> None:
    _file(home).write_text("repos: [relative]\n")
    with pytest.raises(GrantError) as caught:
        grantfs.add("a", str(repo), home=home)
    assert (caught.value.file, caught.value.line) == (str(_file(home)), 1)
    assert _file(home).read_text() == "repos: [relative]\n"


def test_a_grants_file_that_is_a_link(repo: Path, tmp_path: Path, home: Home) -> None:
    (tmp_path / "other.yml").write_text("repos: []\n")
    _file(home).symlink_to(tmp_path / "other.yml")
    with pytest.raises(GrantError, match="symbolic link"):
        grantfs.add("a", str(repo), home=home)


# --- the text --------------------------------------------------------------------------------------------------

A, B = Grant("/w/a"), Grant("/w/b", "ro")


@pytest.mark.parametrize(
    ("before", "grants", "after"),
    [
        ("", [A], f'{grantfile._HEADER}repos:\n  - "/w/a"\n'),
        ("# mine\n", [A], '# mine\nrepos:\n  - "/w/a"\n'),
        ("# mine\nrepos: []  # none yet\n", [A], '# mine\nrepos:  # none yet\n  - "/w/a"\n'),
        ("repos:\n- /w/a # first\n# end\n", [A, B], 'repos:\n- /w/a # first\n- {path: "/w/b", mode: ro}\n# end\n'),
        ("repos:\n  # about b\n  - path: /w/b\n    mode: ro  # x\n  # about a\n  - /w/a\n", [A],
         "repos:\n  # about b\n  # about a\n  - /w/a\n"),
        ("# c\nrepos:  # d\n  - /w/a\n", [], "# c\nrepos: []  # d\n"),
        ("repos:\n  - /w/a", [A, B], 'repos:\n  - /w/a\n  - {path: "/w/b", mode: ro}\n'),
        ("repos: [/w/a]\n", [A, B], grantfile._HEADER + 'repos:\n  - "/w/a"\n  - {path: "/w/b", mode: ro}\n'),
        ("repos:\n  -\n    /w/a\n  - {path: /w/b, mode: ro}\n", [B],
         grantfile._HEADER + 'repos:\n  - {path: "/w/b", mode: ro}\n'),
        ("\ufeffrepos:\r\n  - /w/a\r\n", [A, B], 'repos:\n  - /w/a\n  - {path: "/w/b", mode: ro}\n'),
        ("# c\nrepos: [/w/a] # same\n", [A], "# c\nrepos: [/w/a] # same\n"),
    ],
)  # fmt: skip
def test_comments_and_layout_are_kept(tmp_path: Path, before: str, grants: list[Grant], after: str) -> None:
    path = tmp_path / "repos.yml"
    if before:
        path.write_text(before)
    with grantfile.locked(path) as file:
        file.write(grants)
    assert path.read_text() == after
    assert sorted(grantfile.load(path), key=lambda grant: grant.path) == grants


def test_comments_that_cannot_be_kept_are_not_lost(tmp_path: Path) -> None:
    path = tmp_path / "repos.yml"
    text = "repos: [/w/a] # important\n"
    path.write_text(text)
    with pytest.raises(GrantError, match="comments"), grantfile.locked(path) as file:
        file.write([A, B])
    assert path.read_text() == text and os.listdir(tmp_path) == ["repos.yml"]
