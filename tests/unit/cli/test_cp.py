# SPDX-License-Identifier: BSD-4-Clause
"""The words of ``asf-play cp``; the copy itself is tested on a real session."""

from __future__ import annotations

import pytest

from asf_cli.commands import cp
from asf_cli.errors import CliError


@pytest.mark.parametrize(
    ("word", "session", "path"),
    [
        ("claude:a", "claude", "a"),
        ("claude.x-1:/tmp/a b", "claude.x-1", "/tmp/a b"),
        (":-x", None, "-x"),
        ("claude:a:b\nc", "claude", "a:b\nc"),
    ],
)
def test_places_in_a_session(word, session, path):
    assert cp.remote(word) == cp.Remote(session, path)


@pytest.mark.parametrize("word", ["a", "./a:b", "/a:b", "../x:y", "-", ""])
def test_local_paths(word):
    assert cp.remote(word) is None


@pytest.mark.parametrize(
    "word", ["Claude:a", "a.b.c:x", "claude:", ":", "-x:y", "cl aude:x", "\x1b[2J:x", "claude:a\0b"]
)
def test_words_that_may_be_either(word):
    with pytest.raises(CliError):
        cp.remote(word)


@pytest.mark.parametrize(
    ("path", "folder", "name"),
    [
        ("a", "./", "a"),
        ("/a", "/", "a"),
        ("/a/b/", "/a", "b"),
        ("-x", "./", "-x"),
        ("-/x", "./-", "x"),
        (".", "./.", ""),
        ("..", "./..", ""),
        ("a/..", "./a/..", ""),
        ("/", "/", ""),
        ("a\n", "./", "a\n"),
    ],
)
def test_folder_and_name(path, folder, name):
    assert cp.split(path) == (folder, name)


def test_sizes():
    assert (cp.size("10"), cp.size("2k"), cp.size("1G")) == (10, 2048, 1 << 30)
    for word in ("", "-1", "1.5g", "g", "9" * 20, "1kb"):
        with pytest.raises(CliError):
            cp.size(word)


def test_one_side_is_a_session(run):
    for words in (("a", "b"), ("x:a", "y:b")):
        code, out, err = run("cp", *words)
        assert (code, out) == (64, "") and "one of the two" in err
