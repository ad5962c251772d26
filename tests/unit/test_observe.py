# SPDX-License-Identifier: BSD-4-Clause
"""What is read back from the kernel: parsed without surprise, to its end, and without following a link."""

import json
import os

import pytest

from asf_lib.engine import apart, observe
from asf_lib.engine.podman import Result

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local, state, remote="00000000:0000"):
    return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0\n"


def test_listening_tcp_and_unconnected_udp():
    table = HEAD + row("0100120A:0C38", "0A") + row("0100120A:0C39", "01") + row("00000000:0035", "07")
    assert observe.listening(table) == ["10.18.0.1:3128", "0.0.0.0:53"]


def test_the_address_of_the_cable():
    assert observe.listening(HEAD + row("010012C6:0FA0", "0A")) == ["198.18.0.1:4000"]


@pytest.mark.parametrize(
    "raw, text",
    [
        ("00000000000000000000000000000000:1F90", "[::]:8080"),
        ("00000000000000000000000001000000:1F90", "[::1]:8080"),
        ("B80D0120000000000000000001000000:01BB", "[2001:db8::1]:443"),
        ("0000000000000000FFFF0000010012C6:0C38", "[::ffff:c612:1]:3128"),
    ],
)
def test_tcp6(raw, text):
    """A listener of the other family is one too: a dual-stack wildcard also takes IPv4."""
    assert observe.listening(HEAD + row(raw, "0A", "0" * 32 + ":0000")) == [text]


def test_all_four_tables_at_once_with_their_headings():
    table = HEAD + row("010012C6:0C38", "0A") + HEAD + HEAD + row("0" * 32 + ":0035", "07", "0" * 32 + ":0000")
    assert observe.listening(table) == ["198.18.0.1:3128", "[::]:53"]


def test_nothing():
    assert observe.listening("") == [] and observe.listening(HEAD) == []


def test_a_file_is_read_to_its_end(tmp_path, monkeypatch):
    """procfs gives a page per read: many mounts need more than one."""
    file = tmp_path / "mountinfo"
    file.write_text("x" * 10000)
    whole = os.read
    monkeypatch.setattr(observe.os, "read", lambda fd, size: whole(fd, min(size, 4096)))
    assert len(observe._read(str(file))) == 10000


def test_a_file_without_end_and_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr(observe, "MAX_READ", 100)
    (tmp_path / "large").write_text("x" * 1000)
    (tmp_path / "link").symlink_to("large")
    with pytest.raises(ValueError, match="longer than"):
        observe._read(str(tmp_path / "large"))
    with pytest.raises(OSError):
        observe._read(str(tmp_path / "link"))


def test_N3_who_else_lives_in_a_namespace():
    """The caller's own pid namespace is the operator's: what lives there is no other container."""
    (found,) = apart.neighbours({"agent": os.getpid()}).values()
    assert found["seen"] is True and found["strangers"] == []
    (gone,) = apart.neighbours({"agent": 2**22 + 1}).values()
    assert gone == {"seen": False, "others": 0, "strangers": []}


def test_N3_a_stranger_is_told_from_a_descendant(monkeypatch):
    """Pid 5 made a pid namespace below the container's own; 6 belongs to another container, and shares its network."""

    def ns(pid, net):
        return {kind: f"{kind}:[{net if kind == 'net' else pid}]" for kind in observe.SEPARATE}

    known = {1: ns("host", "host"), 4: ns("a", "a"), 5: ns("a2", "a"), 6: ns("b", "a"), 7: ns("c", "c")}
    monkeypatch.setattr(apart, "_processes", lambda: known.items())
    monkeypatch.setattr(apart.os, "readlink", lambda path: "pid:[host]")
    monkeypatch.setattr(apart.procs, "parent", {4: 1, 5: 4, 6: 1, 7: 1, 1: None}.get)
    assert apart.neighbours({"agent": 4}) == {"agent": {"seen": True, "others": 3, "strangers": ["6 net"]}}


def test_N3_namespace_numbers_are_read_as_the_kernel_writes_them():
    head = (28).to_bytes(4, "little") + (88).to_bytes(2, "little") + bytes(10) + bytes(4)
    assert apart._answer(head + b"\x08\x00\x01\x00" + (3).to_bytes(4, "little")) == 3
    assert apart._answer(head + b"\x08\x00\x01\x00" + (-1).to_bytes(4, "little", signed=True)) == -1
    refused = head[:4] + (2).to_bytes(2, "little") + bytes(10) + (-3).to_bytes(4, "little", signed=True)
    with pytest.raises(OSError):
        apart._answer(refused)
    for wrong in (head, head[:4] + (3).to_bytes(2, "little") + bytes(14)):
        with pytest.raises(ValueError):
            apart._answer(wrong)


def test_own_namespaces_and_status():
    assert set(observe._namespaces("self")) == set(observe.SEPARATE)
    assert observe._status(os.getpid())["Pid"] == str(os.getpid())


def test_the_root_of_a_mount_is_reached_without_following_a_link(tmp_path):
    real = tmp_path / "real" / "repo"
    real.mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    found = real.stat()
    assert observe._root_of(os.getpid(), str(real)) == [found.st_dev, found.st_ino]
    with pytest.raises(OSError):
        observe._root_of(os.getpid(), str(tmp_path / "link" / "repo"))


def test_a_reading_that_fails_is_absent_and_said():
    def broken():
        raise FileNotFoundError("/proc/1/x")

    assert observe._guarded(broken) == {"unread": "FileNotFoundError: /proc/1/x"}
    assert observe._guarded(lambda: {"a": 1}) == {"a": 1}


def test_nameservers(tmp_path):
    (tmp_path / "resolv.conf").write_text("# x\nsearch a\nnameserver 198.51.100.53\nnameserver 192.0.2.1\n")
    assert observe._nameservers(str(tmp_path / "resolv.conf")) == ["198.51.100.53", "192.0.2.1"]


class FakePodman:
    def __init__(self, rows):
        self.rows, self.asked = rows, []

    def run(self, args, check=True):
        self.asked.append(args)
        return Result(0, json.dumps(self.rows), "")


def test_inspect_keeps_the_few_fields_by_role():
    item = {
        "Id": "i",
        "Name": "asf-a.main-agent",
        "ImageName": "localhost/x:1",
        "State": {"Pid": 5, "Status": "Running", "ExitCode": 0},
        "HostConfig": {"ReadonlyRootfs": True, "NetworkMode": "none"},
        "Config": {"Labels": {"asf.session": "a.main"}},
    }
    podman = FakePodman([item])
    (got,) = [observe.inspect(podman, {"agent": "asf-a.main-agent"})]
    assert set(got) == {"agent"} and podman.asked == [["inspect", "--type", "container", "asf-a.main-agent"]]
    agent = got["agent"]
    assert (agent["pid"], agent["status"], agent["read_only"], agent["privileged"]) == (5, "running", True, False)
    assert agent["devices"] == agent["effective_caps"] == [] and agent["resolv_conf"] == ""
