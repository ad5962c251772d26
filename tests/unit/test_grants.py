# SPDX-License-Identifier: BSD-4-Clause
"""Which grants are refused, decided from facts alone (invariant 11; F1, F2, F5, F6)."""

from __future__ import annotations

import pytest

from asf_lib.core import grants as core
from asf_lib.core.errors import GrantError, Problem
from asf_lib.core.grants import Context, Facts, Grant, Place
from asf_lib.engine import yamlload

UID = 1234


def _read(text: str) -> list[Grant]:
    return core.validate(yamlload.parse(text.encode(), "repos.yml"), "repos.yml")


def _place(path: str) -> Place:
    return Place(path)


def _facts(path: str, **changes: object) -> Facts:
    values: dict[str, object] = {"place": _place(path), "uid": UID, "git": "dir"}
    return Facts(**{**values, **changes})  # type: ignore[arg-type]


def _check(*pairs: tuple[Grant, Facts], **context: object) -> list[Problem]:
    return core.check([grant for grant, _ in pairs], Context(UID, [facts for _, facts in pairs], **context))  # type: ignore[arg-type]


def _refused(*pairs: tuple[Grant, Facts], **context: object) -> list[str]:
    with pytest.raises(GrantError) as caught:
        _check(*pairs, **context)
    assert all(problem.remedy for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


def _grant(path: str = "/w/repo", mode: str = "rw") -> Grant:
    return Grant(path, mode, file="repos.yml", line=3, key="repos[0]")


# --- the file --------------------------------------------------------------------------------------------------


def test_forms_of_an_entry() -> None:
    text = "repos:\n  - /w/a\n  - {path: /w/b, mode: ro}\n  - path: /w/c\n    git: open\n"
    assert _read(text) == [Grant("/w/a"), Grant("/w/b", "ro"), Grant("/w/c", "rw", "open")]
    assert [(grant.line, grant.key) for grant in _read(text)] == [(2, "repos[0]"), (3, "repos[1]"), (4, "repos[2]")]
    assert (_read(text)[1].name, _read(text)[1].target, _read(text)[1].rw) == ("b", "/workspace/repos/b", False)


@pytest.mark.parametrize("text", ["", "repos: []\n", "# none\n", "{}\n"])
def test_no_grants(text: str) -> None:
    assert _read(text) == []


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("repos: [relative]", "repos[0]", "must be absolute"),
        ("repos: ['~/x']", "repos[0]", "must be absolute"),
        ("repos: [/w/../etc]", "repos[0]", "without `.`, `..`"),
        ("repos: [/w/a/]", "repos[0]", "without `.`, `..`"),
        ("repos: [//w/a]", "repos[0]", "without `.`, `..`"),
        ("repos: [{path: /w/a, mode: write}]", "repos[0].mode", "unknown value"),
        ("repos: [{path: /w/a, mod: ro}]", "repos[0].mod", "did you mean mode?"),
        ("repos: [{mode: ro}]", "repos[0].path", "missing"),
        ("repos: [{path: /w/a, mode: ro, git: open}]", "repos[0].git", "no meaning with mode ro"),
        ("repos: [1]", "repos[0]", "text or a mapping belongs here"),
        ("repo: []", "repo", "did you mean repos?"),
        ('repos: ["/w/a\\nb"]', "repos[0]", "control character"),
        ("repos: /w/a", "repos", "a list belongs here"),
    ],
)
def test_bad_files(text: str, key: str, words: str) -> None:
    with pytest.raises(GrantError) as caught:
        _read(text)
    assert caught.value.key == key
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("repos: [{path: /w/a, mode: clone}]", "repos[0].mode"),
        ("repos: [{path: /w/a, git: guarded}]", "repos[0].git"),
        ("repos: [{path: /w/a, ssh_agent: /run/x}]", "repos[0].ssh_agent"),
    ],
)
def test_what_is_not_built_is_refused_by_name(text: str, key: str) -> None:
    (problem,) = core.unbuilt(_read(text))
    assert (problem.key, problem.code) == (key, "not-built")


# --- F1: names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["with blank", " lead", "trail ", "co:lon", "com,ma", 'qu"ote', "sing'le", "-dash", "--privileged", "back\\slash",
     "$HOME", "{{ x }}", "ünï", "a,ro=true", "#hash", "%41", "*", "~", "a;b", "bidi\u202e", "nb\u00a0"],
)  # fmt: skip
def test_f1_odd_names_are_mounted_exactly(name: str) -> None:
    path = f"/w/{name}"
    assert core.unmountable(path) is None
    assert _check((_grant(path), _facts(path))) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("new\nline", "control character"),
        ("cr\r", "control character"),
        ("esc\x1b[31m", "control character"),
        ("tab\t", "control character"),
        ("c1\x9b", "control character"),
        ("bad\udcff", "not UTF-8"),
    ],
)
def test_f1_others_are_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(GrantError) as caught:
        _check((_grant(f"/w/{name}"), _facts(f"/w/{name}")))
    assert words in caught.value.message
    assert "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


# --- places ----------------------------------------------------------------------------------------------------


def test_an_ordinary_grant() -> None:
    assert _check((_grant(), _facts("/w/repo"))) == []
    assert _check((_grant(mode="ro"), _facts("/w/repo", uid=0, git="absent"))) == []


def test_a_grant_without_facts_is_a_bug_and_no_grant() -> None:
    with pytest.raises(ValueError, match="do not match"):
        core.check([_grant()], Context(UID, []))


def test_what_cannot_be_read() -> None:
    assert _refused((_grant(), _facts("/w/repo", error="the path does not exist"))) == ["the path does not exist"]


def test_f2_a_changed_real_location_is_refused() -> None:
    (message,) = _refused((_grant(), _facts("/elsewhere/repo")))
    assert message == "the path's real location is /elsewhere/repo"


@pytest.mark.parametrize("mode", ["rw", "ro"])
@pytest.mark.parametrize(
    ("path", "place"),
    [("/srv/asf", "/srv/asf"), ("/srv", "/srv/asf"), ("/srv/asf/x/y", "/srv/asf")],
)
def test_what_asf_trusts_is_neither_inside_nor_around(path: str, place: str, mode: str) -> None:
    (message,) = _refused((_grant(path, mode), _facts(path)), protected=[("ASF's root", _place(place))])
    assert message == "the folder contains or lies in ASF's root (/srv/asf)"


def test_a_neighbour_with_the_same_beginning_is_fine() -> None:
    assert _check((_grant("/srv/asf2"), _facts("/srv/asf2")), protected=[("ASF's root", _place("/srv/asf"))]) == []


def test_another_mount_of_a_protected_place_is_recognized() -> None:
    root = Place("/srv/asf", ((1, 10), (1, 2)))
    inside = _facts("/mnt/x/y", place=Place("/mnt/x/y", ((1, 30), (1, 10), (5, 1))))
    assert "lies in ASF's root" in _refused((_grant("/mnt/x/y"), inside), protected=[("ASF's root", root)])[0]


@pytest.mark.parametrize("path", ["/home/me", "/home", "/"])
def test_home_directories_and_the_root(path: str) -> None:
    messages = _refused((_grant(path), _facts(path)), homes=[_place("/home/me")])
    assert any("home directory" in message or "root cannot be granted" in message for message in messages)


def test_a_repository_in_a_home_is_fine() -> None:
    assert _check((_grant("/home/me/p"), _facts("/home/me/p")), homes=[_place("/home/me"), _place("/home")]) == []


@pytest.mark.parametrize("live", ["/w/repo", "/w", "/w/repo/sub"])
@pytest.mark.parametrize("mode", ["rw", "ro"])
def test_a_tree_that_a_live_session_has_rw(live: str, mode: str) -> None:
    (message,) = _refused((_grant(mode=mode), _facts("/w/repo")), live=[("b.main", _place(live))])
    assert message == f"session b.main already has {live} rw"


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        (("/a/x", "rw"), ("/b/x", "ro"), "the same base name as /a/x: both would be /workspace/repos/x"),
        (("/a/x", "rw"), ("/a/x/y", "ro"), "it overlaps with /a/x, and one of them is rw"),
        (("/a/x/y", "ro"), ("/a/x", "rw"), "it overlaps with /a/x/y, and one of them is rw"),
        (("/a/x", "ro"), ("/a/x/y", "ro"), None),
        (("/a/x", "rw"), ("/a/xy", "rw"), None),
    ],
)
def test_two_grants(first: tuple[str, str], second: tuple[str, str], refused: str | None) -> None:
    pairs = [(_grant(*one), _facts(one[0])) for one in (first, second)]
    if refused is None:
        assert _check(*pairs) == []
    else:
        assert _refused(*pairs) == [refused]


# --- trees -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"git": "symlink"}, "its .git is a symbolic link"),
        ({"git": "other"}, "its .git is neither a folder nor a file"),
        ({"specials": (("a/s\x1b", "socket"),)}, "the tree contains a socket: a/s\\x1b"),
        ({"specials": (("f", "FIFO"),)}, "the tree contains a FIFO: f"),
        ({"mounts": ("sub",)}, "something is mounted inside the tree: sub"),
        (
            {"complete": False, "entries": 9},
            "the tree is too large to be searched for sockets and devices (ended after 9 entries)",
        ),
        (
            {"complete": False, "unreadable": "a/b"},
            "a folder in it cannot be searched for sockets and devices: a/b",
        ),
    ],
)
def test_trees_that_are_refused(changes: dict[str, object], message: str) -> None:
    for mode in ("rw", "ro"):
        assert _refused((_grant(mode=mode), _facts("/w/repo", **changes))) == [message]


@pytest.mark.parametrize(
    ("target", "words", "remedy"),
    [
        ("/w/main/.git/worktrees/repo", "a linked worktree", "grant the main repository /w/main"),
        ("/w/bare.git/worktrees/repo", "a linked worktree", "grant the main repository /w/bare.git"),
        ("/w/outer/.git/modules/libs/repo", "a submodule", "grant the repository that holds it, /w/outer"),
        ("/somewhere/gitdir", "its git folder lies outside", "git clone"),
    ],
)
def test_f5_worktrees_and_submodules_are_detected_with_a_way_that_works(target: str, words: str, remedy: str) -> None:
    with pytest.raises(GrantError) as caught:
        _check((_grant(), _facts("/w/repo", git="file", git_target=target)))
    assert words in caught.value.message and caught.value.code == "git-outside"
    assert remedy in (caught.value.remedy or "")


def test_a_git_folder_inside_the_tree_is_fine() -> None:
    assert _check((_grant(), _facts("/w/repo", git="file", git_target="/w/repo/.real"))) == []


def test_f6_a_tree_of_somebody_else_cannot_be_rw() -> None:
    (message,) = _refused((_grant(), _facts("/w/repo", uid=0)))
    assert message == f"the folder belongs to uid 0, so the agent could not write it as you (uid {UID})"


def test_what_is_said_and_not_refused() -> None:
    (warning,) = _check((_grant(), _facts("/w/repo", alternates=("/w/shared/objects",))))
    assert "git takes objects from /w/shared/objects" in warning.message


def test_every_refusal_is_reported_with_its_place() -> None:
    pairs = [(_grant("/a/x"), _facts("/a/x", git="symlink")), (_grant("/b/x"), _facts("/c/x", uid=0))]
    with pytest.raises(GrantError) as caught:
        _check(*pairs)
    assert len(caught.value.problems) == 4
    assert {(problem.file, problem.line, problem.key) for problem in caught.value.problems} == {
        ("repos.yml", 3, "repos[0].path")
    }
