# SPDX-License-Identifier: BSD-4-Clause
"""Hostile tar streams: what is refused, what may be left out, and that nothing is made outside (invariant 11)."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import stat
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import untar
from asf_lib.core.errors import EngineError
from asf_lib.core.untar import ArchiveError, Limits, Reader, Unsafe, Vetting
from asf_lib.engine import unpack

SMALL = Limits(1 << 20, 100)


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "", **fields: Any):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def stream(*entries: Any, form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


FOLDER = entry("d", kind=tarfile.DIRTYPE)


@pytest.fixture
def target(tmp_path: Path):
    """An open folder, beside which something must not be touched."""
    (tmp_path / "outside").write_text("mine")
    inside = tmp_path / "in"
    inside.mkdir()
    handle = os.open(inside, os.O_PATH | os.O_DIRECTORY)  # as hostpath opens it

    def make(data: bytes, limits: Limits = SMALL, force: bool = False, skip: bool = False, top: str = "d"):
        return unpack.unpack(io.BytesIO(data).read, lambda: None, handle, "new", top, limits, force, skip)

    yield inside, make
    os.close(handle)
    assert (tmp_path / "outside").read_text() == "mine"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["in", "outside"]
    assert all(not one.name.startswith(".asf") for one in inside.iterdir()), "something half made is left"


Target = tuple[Path, Callable[..., unpack.Copied]]


def test_an_honest_folder(target: Target):
    inside, make = target
    data = stream(
        FOLDER,
        entry("d/f", b"hello", mode=0o6755, mtime=1000),
        entry("d/sub", kind=tarfile.DIRTYPE),
        entry("d/sub/-x\n b", b"odd"),
        entry("d/hard", kind=tarfile.LNKTYPE, link="d/f"),
        entry("d/sub/up", kind=tarfile.SYMTYPE, link="../f"),
        entry("d/implied/deep/g", b"g"),
    )
    copied = make(data)
    new = inside / "new"
    assert (copied.files, copied.links, copied.bytes, copied.left_out) == (4, 1, 9, [])
    assert (new / "sub" / "-x\n b").read_text() == "odd" and (new / "implied/deep/g").read_text() == "g"
    assert (new / "hard").read_text() == "hello" and (new / "sub/up").resolve() == (new / "f").resolve()
    found = (new / "f").stat()
    assert stat.S_IMODE(found.st_mode) & 0o7000 == 0 and found.st_mode & 0o100 and found.st_mtime == 1000


def test_a_single_file(target: Target):
    inside, make = target
    make(stream(entry("./f", b"x")), top="f")
    assert (inside / "new").read_bytes() == b"x"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_format(target: Target, form: int):
    inside, make = target
    name = "d/" + "/".join(["a" * 45] * 2 + ["b" * 50 if form == tarfile.USTAR_FORMAT else "ü" * 120])
    make(stream(FOLDER, entry(name, b"x"), form=form))
    assert (inside / "new" / name[2:]).read_bytes() == b"x"


# --- refused as a whole -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        entry("/etc/passwd", b"x"),
        entry("d/../../outside", b"x"),
        entry("../outside", b"x"),
        entry("d/..", b"x"),
        entry("other", b"x"),
        entry("d/" + "a" * 300, b"x"),
        entry("d" + "/a" * 300, b"x"),
        entry("d/hard", kind=tarfile.LNKTYPE, link="/etc/passwd"),
        entry("d/hard", kind=tarfile.LNKTYPE, link="../../outside"),
        entry("d/hard", kind=tarfile.LNKTYPE, link="d/absent"),
        entry("d/hard", kind=tarfile.LNKTYPE, link="d"),
    ],
    ids=lambda one: repr(one[0].name)[:30] + one[0].linkname,
)
@pytest.mark.parametrize("skip", [False, True])
def test_names_that_lead_outside(target: Target, bad: Any, skip: bool):
    _, make = target
    with pytest.raises(ArchiveError):
        make(stream(FOLDER, entry("d/good", b"x"), bad), skip=skip)


@pytest.mark.parametrize(
    "entries",
    [
        [entry("d/l", kind=tarfile.SYMTYPE, link="."), entry("d/l/f", b"x")],
        [entry("d/f", b"x"), entry("d/f/g", b"x")],
        [entry("d/f", b"x"), entry("d/f", b"y")],
        [entry("d/l", kind=tarfile.SYMTYPE, link="f"), entry("d/l", b"x")],
        [entry("d/f", b"x"), entry("d/f", kind=tarfile.SYMTYPE, link="g")],
        [entry("d/s", kind=tarfile.DIRTYPE), entry("d/s", kind=tarfile.SYMTYPE, link=".")],
        [entry("d", kind=tarfile.SYMTYPE, link="x")],
        [entry("d/l", kind=tarfile.SYMTYPE, link="/tmp"), entry("d/l/f", b"x")],
        [entry("d/l", kind=tarfile.SYMTYPE, link="f"), entry("d/h", kind=tarfile.LNKTYPE, link="d/l")],
    ],
)
def test_entries_that_contradict_each_other(target: Target, entries: list[Any]):
    _, make = target
    with pytest.raises(ArchiveError):
        make(stream(FOLDER, *entries), skip=True)


def test_more_than_allowed(target: Target):
    _, make = target
    with pytest.raises(ArchiveError, match="more entries"):
        make(stream(FOLDER, *(entry(f"d/{number}") for number in range(10))), Limits(1 << 20, 10))
    with pytest.raises(ArchiveError, match="more than allowed"):
        make(stream(FOLDER, entry("d/a", b"x" * 600), entry("d/b", b"x" * 600)), Limits(1000, 10))


def test_a_size_is_believed_before_a_byte_is_read(target: Target):
    """A header that claims a terabyte is refused at once, whatever follows."""
    _, make = target
    info, _ = entry("d/huge")
    info.size = 1 << 40
    with pytest.raises(ArchiveError, match="more than allowed"):
        make(stream(FOLDER)[:512] + info.tobuf(tarfile.GNU_FORMAT))


def test_a_negative_size_is_no_size():
    info, _ = entry("f")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"-0000000777\0"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    with pytest.raises(ArchiveError, match="damaged"):
        list(Reader(io.BytesIO(bytes(header) + bytes(1024)).read).members())


def test_many_entries_in_a_deep_folder_are_cheap():
    """What an entry costs in memory does not hang on how long its folders' names are."""
    deep = "d" + f"/{'n' * 255}" * 190
    data = stream(FOLDER, *(entry(f"{deep}/{number}") for number in range(300)))
    tracemalloc.start()
    try:
        vetting = Vetting("d", Limits(1 << 20, 1000))
        for member in Reader(io.BytesIO(data).read).members():
            vetting.admit(member)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 << 20  # names anew for each: 17 MB


def test_a_link_longer_than_any_path(target: Target):
    _, make = target
    with pytest.raises(ArchiveError, match="too long"):
        make(stream(FOLDER, entry("d/l", kind=tarfile.SYMTYPE, link="a/" * 4000)), skip=True)


@pytest.mark.parametrize("flag", [b"L", b"K", b"x", b"g"])
def test_a_header_of_a_gigabyte_is_not_read(flag: bytes):
    info, _ = entry("n", kind=flag)
    info.size = 1 << 30
    with pytest.raises(ArchiveError, match="too long"):
        list(Reader(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 4096).read).members())


def test_headers_without_end():
    info, _ = entry("n", kind=b"L")
    info.size = 5
    one = info.tobuf(tarfile.GNU_FORMAT) + b"name\0".ljust(512, b"\0")
    with pytest.raises(ArchiveError, match="too many headers"):
        list(Reader(io.BytesIO(one * 1000).read).members())


@pytest.mark.parametrize(
    "data", [b"", b"x", b"hello world " * 100, stream(FOLDER)[:512], stream(FOLDER, entry("d/f", b"x" * 2000))[:1500]]
)
def test_what_is_no_archive_or_half_of_one(target: Target, data: bytes):
    _, make = target
    with pytest.raises(ArchiveError):
        make(data)


def test_an_empty_archive_and_one_with_nothing_safe(target: Target):
    _, make = target
    with pytest.raises(ArchiveError, match="nothing to copy"):
        make(bytes(1024))
    with pytest.raises(ArchiveError, match="nothing to copy"):
        make(stream(entry("d", kind=tarfile.SYMTYPE, link="/etc")), skip=True)


@pytest.mark.parametrize("text", [b"9 path=a\n", b"999 path=abc\n", b"x path=a\n", b"12 path", b"10 size=x\n", b" =\n"])
def test_damaged_pax_records(text: bytes):
    info, _ = entry("n", kind=b"x")
    info.size = len(text)
    data = (
        info.tobuf(tarfile.GNU_FORMAT) + text.ljust(512, b"\0") + entry("f")[0].tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    )
    if text == b"9 path=a\n":  # this one is a right record
        assert [one.name for one in Reader(io.BytesIO(data).read).members()] == ["a"]
        return
    with pytest.raises(ArchiveError):
        list(Reader(io.BytesIO(data).read).members())


# --- left out on request ----------------------------------------------------------------------------------------------

UNSAFE = [
    entry("d/dev", kind=tarfile.CHRTYPE, devmajor=1, devminor=3),
    entry("d/blk", kind=tarfile.BLKTYPE),
    entry("d/fifo", kind=tarfile.FIFOTYPE),
    entry("d/strange", kind=b"Z"),
    entry("d/abs", kind=tarfile.SYMTYPE, link="/etc/passwd"),
    entry("d/up", kind=tarfile.SYMTYPE, link="../outside"),
    entry("d/s/up", kind=tarfile.SYMTYPE, link="../../outside"),
    entry("d/through", kind=tarfile.SYMTYPE, link="s/../../outside"),
    entry("d/none", kind=tarfile.SYMTYPE, link=""),
]


@pytest.mark.parametrize("bad", UNSAFE, ids=lambda one: one[0].name)
def test_special_files_and_links_that_lead_outside(target: Target, bad: Any):
    inside, make = target
    data = stream(FOLDER, entry("d/good", b"x"), bad)
    with pytest.raises(Unsafe) as caught:
        make(data)
    assert "--skip-unsafe" in (caught.value.remedy or "")
    copied = make(data, skip=True)
    assert copied.left_out_count == 1 and len(copied.left_out) == 1
    assert [one.name for one in (inside / "new").iterdir() if not one.is_dir()] == ["good"]


def test_what_was_left_out_is_told_with_a_bound_and_escaped(target: Target):
    _, make = target
    data = stream(FOLDER, *(entry(f"d/\x1b]0;{n}\x07", kind=tarfile.FIFOTYPE) for n in range(80)))
    copied = make(data, skip=True)
    assert copied.left_out_count == 80 and len(copied.left_out) == 50
    assert all(text.isprintable() for text in copied.left_out)


@pytest.mark.parametrize(
    ("path", "link", "inside"),
    [
        (("a",), "b", True),
        (("a",), ".", True),
        (("a",), "./b//c", True),
        (("a", "b"), "../c", True),
        (("a", "b"), "..", True),
        (("a",), "..", False),
        (("a", "b"), "../..", False),
        (("a",), "b/..", False),  # b may be a link itself
        (("a", "b"), "../c/../d", False),
        (("a",), "/a", False),
        ((), "a", False),
        (("a",), "b\0c", False),
    ],
)
def test_where_a_link_may_lead(path: tuple[str, ...], link: str, inside: bool):
    assert untar.stays(path, link) is inside


def test_links_that_are_safe_alone_and_not_together(target: Target):
    """``s`` leads to the top, ``d/t`` through it: each name would be inside, both together would leave."""
    _, make = target
    data = stream(
        FOLDER,
        entry("d/x/s", kind=tarfile.SYMTYPE, link=".."),
        entry("d/x/t", kind=tarfile.SYMTYPE, link="s/../outside"),
    )
    with pytest.raises(Unsafe):
        make(data)


# --- the target -------------------------------------------------------------------------------------------------------


def test_nothing_is_replaced_without_force(target: Target):
    inside, make = target
    (inside / "new").mkdir()
    (inside / "new" / "kept").write_text("old")
    with pytest.raises(ArchiveError, match="already"):
        make(stream(FOLDER, entry("d/f", b"x")))
    assert (inside / "new" / "kept").read_text() == "old"
    make(stream(FOLDER, entry("d/f", b"x")), force=True)
    assert [one.name for one in (inside / "new").iterdir()] == ["f"]


def test_force_keeps_the_old_when_the_new_is_refused(target: Target):
    inside, make = target
    (inside / "new").write_text("old")
    with pytest.raises(ArchiveError):
        make(stream(FOLDER, entry("d/../../x", b"x")), force=True)
    assert (inside / "new").read_text() == "old"


def test_a_link_in_the_place_of_the_target_is_not_followed(target: Target, tmp_path: Path):
    inside, make = target
    (inside / "new").symlink_to(tmp_path / "outside")
    with pytest.raises(ArchiveError, match="already"):
        make(stream(entry("d", b"x")))
    make(stream(entry("d", b"x")), force=True)
    assert not (inside / "new").is_symlink() and (inside / "new").read_bytes() == b"x"


def test_somebody_who_takes_the_name_meanwhile_wins(target: Target, monkeypatch: pytest.MonkeyPatch):
    inside, make = target
    real = unpack._place

    def late(folder: int, parent: int, name: str, force: bool) -> None:
        (inside / "new").write_text("first")
        real(folder, parent, name, force)

    monkeypatch.setattr(unpack, "_place", late)
    with pytest.raises(ArchiveError, match="already"):
        make(stream(entry("d", b"x")))
    assert (inside / "new").read_text() == "first"


def test_a_sender_that_failed_at_its_end_leaves_nothing(tmp_path: Path):
    """tar goes on after a file that it could not read, and says so by its exit code."""

    def failed() -> None:
        raise EngineError("tar failed")

    handle = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)  # as hostpath opens it
    data = io.BytesIO(stream(FOLDER, entry("d/f", b"x")))
    with pytest.raises(EngineError, match="tar failed"):
        unpack.unpack(data.read, failed, handle, "new", "d", SMALL, False, False)
    os.close(handle)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_copy_left_is_swept_by_the_next(target: Target):
    """Not what somebody holds, what was made just now, what is a link, or what has another name."""
    inside, make = target
    names = [f".asf-cp-{number:016x}" for number in range(4)] + [".asf-cp-mine"]
    dead, held, fresh, link, other = (inside / name for name in names)
    for folder in (dead, held, fresh, other):
        (folder / "x").mkdir(parents=True)
    for folder in (dead, held, other):
        os.utime(folder, (1000, 1000))
    link.symlink_to(other)
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    make(stream(entry("d", b"x")))
    assert not dead.exists() and all((folder / "x").exists() for folder in (held, fresh, other)) and link.is_symlink()
    os.close(handle)
    link.unlink()
    for folder in (held, fresh, other):
        shutil.rmtree(folder)


def test_vetting_without_a_top_takes_names_as_they_are():
    vetting = Vetting("", SMALL)
    assert vetting.path("./") == () and vetting.path("./a/b") == ("a", "b")
    with pytest.raises(ArchiveError):
        vetting.path("a/../b")
