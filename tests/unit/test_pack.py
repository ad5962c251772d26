# SPDX-License-Identifier: BSD-4-Clause
"""What goes into a session, and that no agent decides what that is (invariant 11, F2)."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from asf_lib.core.errors import GrantError
from asf_lib.core.untar import ArchiveError, Limits
from asf_lib.engine import grantfs, hostpath, pack

SMALL = Limits(1000, 20)


@pytest.fixture
def trees(tmp_path: Path):
    """A granted tree, in which the agent may put anything, and a secret outside."""
    granted = tmp_path / "repo"
    granted.mkdir()
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    return [("agent claude", grantfs.place(str(granted)))]


def packed(path: Path, trees, skip: bool = False, limits: Limits = SMALL):
    out = io.BytesIO()
    spot = hostpath.source(str(path), trees)
    try:
        copied = pack.pack(spot.parent, spot.name, "x", out, limits, skip)
    finally:
        os.close(spot.parent)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        return copied, {one.name: one for one in archive.getmembers()}


def test_a_folder_with_everything(tmp_path: Path, trees):
    top = tmp_path / "top"
    top.mkdir()
    (top / "-a\n b").write_text("x")
    (top / "link").symlink_to("/etc/passwd")
    copied, found = packed(top, trees)
    assert sorted(found) == ["x", "x/-a\n b", "x/link"] and found["x/link"].issym()
    assert (copied.files, copied.folders, copied.links, copied.bytes) == (1, 1, 1, 1)
    assert found["x"].uid == 0 and found["x"].uname == ""


def test_a_link_is_copied_as_a_link(tmp_path: Path, trees):
    (tmp_path / "l").symlink_to("secret/key")
    _, found = packed(tmp_path / "l", trees)
    assert found["x"].issym()


def test_special_files(tmp_path: Path, trees):
    top = tmp_path / "top"
    top.mkdir()
    os.mkfifo(top / "fifo")
    with pytest.raises(ArchiveError, match="neither"):
        packed(top, trees)
    copied, found = packed(top, trees, skip=True)
    assert list(found) == ["x"] and copied.left_out == ["x/fifo: a special file"]


def test_bounds(tmp_path: Path, trees):
    top = tmp_path / "top"
    top.mkdir()
    (top / "big").write_bytes(b"x" * 1001)
    with pytest.raises(ArchiveError, match="more than allowed"):
        packed(top, trees)
    with pytest.raises(ArchiveError, match="more entries"):
        packed(top, trees, limits=Limits(10000, 1))


# --- paths ------------------------------------------------------------------------------------------------------------


def test_a_link_of_the_agents_is_not_followed(tmp_path: Path, trees):
    """The agent puts a link into its repository and the operator copies what seems to lie there (F2)."""
    (tmp_path / "repo" / "docs").symlink_to(tmp_path / "secret")
    with pytest.raises(GrantError, match="agent claude"):
        hostpath.source(str(tmp_path / "repo" / "docs" / "key"), trees)
    (tmp_path / "mine").symlink_to(tmp_path / "repo")  # the operator's own links are followed, to the same end
    with pytest.raises(GrantError, match="agent claude"):
        hostpath.source(str(tmp_path / "mine" / "docs" / "key"), trees)


def test_the_operators_own_links_are_followed(tmp_path: Path, trees):
    (tmp_path / "mine").symlink_to("secret")
    spot = hostpath.source(str(tmp_path / "mine" / "key"), trees)
    os.close(spot.parent)
    assert spot.path == str(tmp_path / "secret" / "key")


@pytest.mark.parametrize("where", ["repo", "repo/new", "repo/sub/new", "mine/new", "", "into/new"])
def test_nothing_is_written_where_an_agent_may_write(tmp_path: Path, trees, where: str):
    (tmp_path / "repo" / "sub").mkdir()
    (tmp_path / "mine").symlink_to("repo")
    (tmp_path / "repo" / "out").symlink_to(tmp_path / "secret")
    (tmp_path / "into").symlink_to("repo/out")
    with pytest.raises(GrantError):
        # "" is the folder above: a copy of the name "repo" would replace the tree
        hostpath.target(str(tmp_path / where), "repo", trees)


def test_a_target_of_the_operators(tmp_path: Path, trees):
    (tmp_path / "out").mkdir()
    for path, name, real in (("out", "n", "out/n"), ("out/new", "n", "out/new"), ("new", "n", "new")):
        spot = hostpath.target(str(tmp_path / path), name, trees)
        os.close(spot.parent)
        assert spot.path == str(tmp_path / real) and spot.name == os.path.basename(real)
    with pytest.raises(FileNotFoundError):
        hostpath.target(str(tmp_path / "absent" / "new"), "n", trees)
    with pytest.raises(FileNotFoundError):
        hostpath.target(f"{tmp_path}/absent/", "n", trees)


def test_links_in_a_circle(tmp_path: Path, trees):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(GrantError, match="too many links"):
        hostpath.source(str(tmp_path / "a" / "x"), trees)


def test_a_tree_that_only_a_living_containers_labels_tell_is_writable_too(monkeypatch: pytest.MonkeyPatch):
    """L2: the record is gone and the grant was taken back, but the container still holds the tree."""
    monkeypatch.setattr(grantfs, "list_grants", lambda: [])
    monkeypatch.setattr(hostpath.planning, "live_trees", lambda but: [])
    monkeypatch.setattr(hostpath.planning, "unrecorded_trees", lambda podman, found, but: [("lost.main", "/srv/tree")])
    monkeypatch.setattr(hostpath.inventory, "Inventory", lambda podman: None)
    assert [(whose, place.path) for whose, place in hostpath.writable(None)] == [("session lost.main", "/srv/tree")]
