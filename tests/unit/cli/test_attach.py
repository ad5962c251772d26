# SPDX-License-Identifier: BSD-4-Clause
"""Attaching, as far as it needs no Podman: whose connection it is, and which bytes are the workload's."""

import os
import threading

import pytest

from asf_cli import attach
from asf_cli.errors import CliError

TABLE = """\
Num       RefCount Protocol Flags    Type St Inode Path
0000: 00000002 00000000 00010000 0005 01 65214 /proc/self/fd/13/attach
0000: 00000003 00000000 00000000 0005 03 65311 /proc/self/fd/13/attach
0000: 00000003 00000000 00000000 0005 03 70000 /proc/self/fd/13/attach
0000: 00000003 00000000 00000000 0001 03 80000 /run/other
0000: 00000003 00000000 00000000 0001 03 90000
"""


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "unix").write_text(TABLE)
    (tmp_path / "77" / "fd").mkdir(parents=True)
    return tmp_path


def hold(proc, *links):
    for number, link in enumerate(links):
        (proc / "77" / "fd" / str(number)).symlink_to(link)


def test_only_accepted_connections_of_this_conmon_count(proc):
    """Another container's attachment (70000) has the same path; the listening socket (65214) is no connection."""
    hold(proc, "socket:[65214]", "/dev/null", "socket:[90000]", "socket:[80000]")
    assert attach.connections(77, str(proc)) == set()
    (proc / "77" / "fd" / "9").symlink_to("socket:[65311]")
    assert attach.connections(77, str(proc)) == {"65311"}


def test_a_conmon_that_is_gone_has_none(proc):
    assert attach.connections(78, str(proc)) == set()


def passed_on(packets, alive):
    """What ``_copy`` makes of Podman's writes, while the workload lives or is gone."""
    source, inlet = os.pipe2(os.O_DIRECT)
    result, sink = os.pipe()
    gate, end = os.pipe()  # readable once its other end is closed, as a pidfd is once its process ended
    if not alive:
        os.close(end)
    writer = threading.Thread(target=lambda: ([os.write(inlet, packet) for packet in packets], os.close(inlet)))
    writer.start()
    attach._copy(source, sink, gate)
    writer.join()
    os.close(sink)
    with os.fdopen(result, "rb") as stream:
        found = stream.read()
    for handle in [source, gate, *([end] if alive else [])]:
        os.close(handle)
    return found


@pytest.mark.parametrize(
    ("packets", "expected"),
    [
        ([b"early\n", b"\n"], b"early\n"),
        ([b"\n"], b""),
        ([b"no newline", b"\n"], b"no newline"),
        ([b"a\n", b"\n", b"\n"], b"a\n\n"),
        ([b"\n", b"b", b"\n", b"\n"], b"\nb\n"),
        ([b"x" * 4096, b"\n\n", b"\n"], b"x" * 4096 + b"\n\n"),
        ([], b""),
    ],
)
def test_podmans_own_newline_is_taken_out(packets, expected):
    assert passed_on(packets, alive=False) == expected


def test_a_newline_of_a_living_workload_passes_at_once():
    source, inlet = os.pipe2(os.O_DIRECT)
    result, sink = os.pipe()
    gate, end = os.pipe()
    copier = threading.Thread(target=attach._copy, args=(source, sink, gate))
    copier.start()
    os.write(inlet, b"\n")
    assert os.read(result, 10) == b"\n"
    os.close(end)
    os.write(inlet, b"\n")
    os.close(inlet)
    copier.join(5)
    os.close(sink)
    assert os.read(result, 10) == b""


def test_a_reader_that_is_gone_does_not_stop_it():
    source, inlet = os.pipe2(os.O_DIRECT)
    result, sink = os.pipe()
    os.close(result)
    os.write(inlet, b"x")
    os.close(inlet)
    attach._copy(source, sink, source)


def test_a_target_whose_process_is_gone():
    with pytest.raises(CliError):
        attach.target({"name": "asf-a.main-agent", "pid": os.getpid(), "start": 1}, True)


@pytest.mark.parametrize(
    ("session", "word", "words"),
    [("claude.main", "claude", "-e agent=claude"), ("claude.two", "claude.two", "-e agent=claude -e session=two")],
)
@pytest.mark.parametrize("how", ["detached", "hangup", "terminated"])
def test_the_way_back_is_told(session, word, words, how):
    told = attach.describe(attach.Ending(how), session)
    assert f"asf-play shell {word};" in told and told.endswith(f"asf-play close.yml {words}")
