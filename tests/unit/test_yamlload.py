# SPDX-License-Identifier: BSD-4-Clause
"""YAML is read strictly: what two readers could understand differently is not text."""

from __future__ import annotations

import grp
import os
from pathlib import Path

import pytest

from asf_lib.core.errors import ManifestError, Problem
from asf_lib.core.marked import DECIMAL, FLAG, LIST, MAP, NULL, ODD, TEXT, WHOLE, Node, walk
from asf_lib.engine import yamlload


def _parse(data: str | bytes) -> Node:
    tree = yamlload.parse(data.encode() if isinstance(data, str) else data, "t.yml")
    assert tree is not None
    return tree


def _refused(data: str | bytes) -> Problem:
    with pytest.raises(ManifestError) as caught:
        yamlload.parse(data.encode() if isinstance(data, str) else data, "t.yml")
    assert caught.value.file == "t.yml"
    return caught.value.problems[0]


def _faults(text: str) -> list[str]:
    return [fault.message for _, node in walk(_parse(text)) for fault in node.faults]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *((word, ODD) for word in "on off yes no y n On OFF Yes NO True FALSE".split()),
        *(
            (word, ODD)
            for word in "0o12 012 0x1F 0b1 1_000 +1 1e3 1.5e3 1. .5 1:30 190:20:30 .inf -.INF .nan << =".split()
        ),
        *((word, ODD) for word in ("2024-01-31", "2024-1-1", "2024-01-31T10:00:00Z", "2024-01-31 10:00:00")),
        *((word, ODD) for word in ("-0", "00", "9999999999999999999999", "1.0000000000000000000000001")),
        *((word, NULL) for word in ("~", "null", "Null", "NULL", "")),
        *((word, FLAG) for word in ("true", "false")),
        *((word, WHOLE) for word in ("0", "1", "-7", "65535")),
        *((word, DECIMAL) for word in ("1.5", "-0.25", "10.0")),
        *((word, TEXT) for word in ("one", "192.0.2.1", "192.0.2.0/24", "v1", "1.2.3", "8g", "oN1", "e3", "a=b", "-x")),
        *((word, TEXT) for word in ("'on'", '"1e3"', '"2024-01-31"', "'null'", '""', "|\n  12")),
    ],
)
def test_scalars(text: str, kind: str) -> None:
    assert _parse(f"k: {text}\n").pairs()[0][1].kind == kind


def test_marks() -> None:
    tree = _parse('a: 1\nb:\n  - "x"\n  - {c: d}\n  - |\n    text\n    more\ne: f\n')
    places = {path: (node.line, node.column, node.end_line) for path, node in walk(tree)}
    assert places == {
        "": (1, 1, 8), "a": (1, 4, 1), "b": (3, 3, 7), "b[0]": (3, 5, 3), "b[1]": (4, 5, 4), "b[1].c": (4, 9, 4),
        "b[2]": (5, 5, 7), "e": (8, 4, 8),
    }  # fmt: skip
    assert [node.kind for _, node in walk(tree)][:3] == [MAP, WHOLE, LIST]
    assert tree.pairs()[1][1].items()[1].flow and not tree.flow


def test_duplicates_stay_in_the_tree() -> None:
    assert [key.value for key, _ in _parse("a: 1\na: 2\n").pairs()] == ["a", "a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!str 1", ["tags are not allowed"]),
        ("a: !x {}", ["tags are not allowed"]),
        ("a: !!python/object/apply:os.system [id]", ["tags are not allowed"]),
        ("!!map {a: 1}", ["tags are not allowed"]),
        ("a: &x 1\nb: *x", ["anchors are not allowed", "aliases are not allowed"]),
        ("a: &x [*x]", ["anchors are not allowed", "aliases are not allowed"]),
        ("&k a: 1", ["anchors are not allowed"]),
        ("%YAML 1.1\n---\na: 1", ["directives are not allowed"]),
        ("%TAG ! tag:example.com,2024:\n---\na: 1", ["directives are not allowed"]),
    ],
)
def test_what_is_not_allowed_hangs_in_the_tree(text: str, words: list[str]) -> None:
    assert _faults(text) == words


def test_an_alias_bomb_is_a_few_nodes() -> None:
    lines = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    lines += [
        f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    assert sum(1 for _ in walk(_parse("\n".join(lines)))) < 200


@pytest.mark.parametrize(
    ("data", "words", "line"),
    [
        ("a: b: c\n", "not valid YAML: mapping values are not allowed here", 1),
        ("a: 1\n\tb: 2\n", "not valid YAML", 2),
        ("a: [1, 2\nb: 3\n", "not valid YAML", None),
        ("a: 'x\n", "not valid YAML", None),
        ("a: *\n", "not valid YAML", 1),
        ("a: 1\n---\nb: 2\n", "more than one document", 2),
        ("a: x\n\x01: 1\n", "the character U+0001 is not allowed", 2),
        (b"a: 1\nb: \xff\n", "the file is not UTF-8", 2),
        ("a: 1\n".encode("utf-16"), "the file is not UTF-8", 1),
        ('a: "\\UFFFFFFFF"\n', "not valid YAML", None),
        ("[" * 200000, "nested deeper than 24 levels", 1),
        ("a: " + "{a: " * 30 + "1" + "}" * 30, "nested deeper than 24 levels", 1),
        (b"#" * (256 * 1024 + 1), "larger than 256 KiB", None),
    ],
)
def test_what_cannot_be_read(data: str | bytes, words: str, line: int | None) -> None:
    problem = _refused(data)
    assert words in problem.message
    if line is not None:
        assert problem.line == line


def test_many_values_are_bounded() -> None:
    assert "more than" in _refused("a: [" + "[]," * 30000 + "]").message


@pytest.mark.parametrize("data", [b"", b"# only a comment\n", b"\xef\xbb\xbf", b"---\n...\n"])
def test_an_empty_document(data: bytes) -> None:
    tree = yamlload.parse(data, "t.yml")
    assert tree is None or tree.kind == NULL


def test_a_byte_order_mark_and_crlf_are_accepted() -> None:
    tree = _parse(b"\xef\xbb\xbfname: a\r\nkey: b\r\n")
    assert [(key.value, value.value) for key, value in tree.pairs()] == [("name", "a"), ("key", "b")]


# --- files -----------------------------------------------------------------------------------------------------


def _load(path: Path) -> Problem:
    with pytest.raises(ManifestError) as caught:
        yamlload.load(str(path))
    assert caught.value.file == str(path)
    return caught.value.problems[0]


def test_a_regular_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("a: 1\n")
    tree = yamlload.load(str(path))
    assert tree is not None and tree.pairs()[0][1].value == 1


def test_a_missing_file(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in _load(tmp_path / "a.yml").message


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """F2: what an agent leaves is not read through."""
    (tmp_path / "real.yml").write_text("a: 1\n")
    (tmp_path / "a.yml").symlink_to("real.yml")
    assert _load(tmp_path / "a.yml").message == "this is a symbolic link"


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yml")
    assert _load(tmp_path / "a.yml").message == "this is not a regular file"


def test_a_folder_and_a_device(tmp_path: Path) -> None:
    assert "not a regular file" in _load(tmp_path).message
    assert "not a regular file" in _load(Path("/dev/zero")).message


def test_a_large_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_bytes(b"#" * (256 * 1024 + 1))
    assert "larger than 256 KiB" in _load(path).message


def test_a_file_that_anybody_may_write(tmp_path: Path) -> None:
    path = tmp_path / "a.yml"
    path.write_text("a: 1\n")
    path.chmod(0o666)
    assert "anybody may write" in _load(path).message


def test_a_file_that_a_group_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yml"
    path.write_text("a: 1\n")
    path.chmod(0o664)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("team", "x", gid, [])))
    assert "group team may write" in _load(path).message


def test_a_file_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yml"
    path.write_text("a: 1\n")
    os.chmod(path, 0o644)
    if os.getuid() == 0:
        os.chown(path, 4242, 4242)
    monkeypatch.setattr(os, "getuid", lambda: 4243)
    assert "belongs to somebody else" in _load(path).message


def test_a_path_with_nul() -> None:
    assert "NUL" in _load(Path("/tmp/a\0b")).message
