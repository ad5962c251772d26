# SPDX-License-Identifier: BSD-4-Clause
"""ASF's seccomp profile, read as libseccomp reads it: which call gets which answer (invariant 1, N11)."""

import json
from pathlib import Path

import pytest

from asf_lib.core import seccomp
from asf_lib.core.errors import HostError

ENOSYS, EPERM = 38, 1

#: In the form of the engine's file, with what matters: allowed by name, by argument, by capability, denied.
DEFAULT = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 1,
    "archMap": [
        {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]},
        {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
        {"architecture": "SCMP_ARCH_S390X", "subArchitectures": ["SCMP_ARCH_S390"]},
    ],
    "syscalls": [
        {
            "names": [*"read clone clone3 unshare mount umount2 pivot_root socketcall socketpair keyctl".split()],
            "action": "SCMP_ACT_ALLOW",
        },
        {"names": ["setns", "bpf"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
        {"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
        {"names": ["sethostname"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
        {
            "names": ["personality"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 8, "valueTwo": 0, "op": "SCMP_CMP_EQ"}],
        },
        {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_AUDIT_WRITE"]}},
        {
            "names": ["socket"],
            "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 16, "valueTwo": 0, "op": "SCMP_CMP_NE"}],
            "excludes": {"caps": ["CAP_AUDIT_WRITE"]},
        },
    ],
}


def _holds(condition, args):
    value = args[condition["index"]] if condition["index"] < len(args) else 0
    if condition["op"] == "SCMP_CMP_EQ":
        return value == condition["value"]
    if condition["op"] == "SCMP_CMP_NE":
        return value != condition["value"]
    assert condition["op"] == "SCMP_CMP_MASKED_EQ"
    return value & condition["value"] == condition["valueTwo"]


def answer(profile, name, *args):
    """'allow', or the errno, for a process without capabilities. Rules that contradict each other are an error."""
    matching = {
        "allow" if rule["action"] == "SCMP_ACT_ALLOW" else rule["errnoRet"]
        for rule in profile["syscalls"]
        if name in rule["names"]
        and not (rule.get("includes") or {}).get("caps")
        and all(_holds(c, args) for c in rule.get("args") or [])
    }
    assert len(matching) <= 1, (name, args, matching)
    return matching.pop() if matching else profile["defaultErrnoRet"]


PLAIN = seccomp.profile(DEFAULT)
NESTED = seccomp.profile(DEFAULT, nested_sandbox=True)
RAW = seccomp.profile(DEFAULT, net_raw=True)
NEWUSER, NEWNET, SIGCHLD = 0x10000000, 0x40000000, 17


def test_ordinary_calls_stay_as_the_engine_has_them():
    for profile in (PLAIN, NESTED, RAW):
        assert answer(profile, "read") == "allow"
        assert answer(profile, "personality", 8) == "allow"
        assert answer(profile, "personality", 4) == ENOSYS
        assert answer(profile, "sethostname") == EPERM


def test_what_the_default_does_not_know_is_enosys_so_that_refusals_can_be_told_from_the_kernels():
    assert answer(PLAIN, "a_call_of_tomorrow") == ENOSYS


def test_other_system_call_tables_are_gone():
    assert [a["architecture"] for a in PLAIN["archMap"]] == ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"]
    assert all(a["subArchitectures"] == [] for a in PLAIN["archMap"])


@pytest.mark.parametrize("name", seccomp.REFUSED)
def test_refused_in_every_container(name):
    assert {answer(p, name) for p in (PLAIN, NESTED, RAW)} == {EPERM}


@pytest.mark.parametrize("name", seccomp.NESTED)
def test_namespaces_and_mounts_belong_to_a_nested_sandbox_alone(name):
    assert answer(PLAIN, name) == answer(RAW, name) == EPERM
    assert answer(NESTED, name) == "allow"


def test_clone_makes_threads_and_processes_but_no_namespace():
    assert answer(PLAIN, "clone", SIGCHLD) == "allow"
    assert answer(PLAIN, "clone", 0x3D0F00) == "allow"  # what pthread_create passes
    for flag in seccomp.CLONE_NEW.values():
        assert answer(PLAIN, "clone", flag | SIGCHLD) == EPERM
    assert answer(PLAIN, "clone", NEWUSER | NEWNET | SIGCHLD) == EPERM
    assert answer(NESTED, "clone", NEWUSER | SIGCHLD) == "allow"


def test_clone3_is_enosys_even_for_a_nested_sandbox():
    assert {answer(p, "clone3") for p in (PLAIN, NESTED, RAW)} == {ENOSYS}


STREAM, DGRAM, RAWTYPE, CLOEXEC, NONBLOCK, HIGH = 1, 2, 3, 0o2000000, 0o4000, 1 << 32


@pytest.mark.parametrize(
    "args",
    [
        (1, STREAM, 0),
        (1, 5, 0),
        (2, STREAM | CLOEXEC | NONBLOCK, 6),
        (2, STREAM, 262),
        (10, DGRAM | CLOEXEC, 17),
        (16, RAWTYPE, 0),
    ],
)
def test_sockets_that_ordinary_programs_need(args):
    assert answer(PLAIN, "socket", *args) == "allow"


@pytest.mark.parametrize("family", [f for f in range(64) if f not in (1, 2, 10, 16)])
def test_every_other_family_is_refused_vsock_included(family):
    """N11."""
    assert {answer(p, "socket", family, t, 0) for p in (PLAIN, NESTED, RAW) for t in (1, 2, 3, 5)} == {ENOSYS}


@pytest.mark.parametrize(
    "args", [(HIGH | 40, 1, 0), (HIGH | 38, 5, 0), (16, 3, 9), (16, 3, HIGH | 9), (16, 3, 12), (HIGH | 16, 3, 0)]
)
def test_high_bits_and_other_netlink_protocols_are_refused(args):
    assert answer(PLAIN, "socket", *args) == ENOSYS


def test_raw_sockets_come_with_net_raw_and_packet_sockets_never():
    assert answer(PLAIN, "socket", 2, RAWTYPE | CLOEXEC, 1) == ENOSYS
    assert answer(RAW, "socket", 2, RAWTYPE | CLOEXEC, 1) == "allow"
    assert answer(RAW, "socket", 17, RAWTYPE, 0) == ENOSYS


def test_socketpair_is_for_unix_sockets():
    assert answer(PLAIN, "socketpair", 1, STREAM, 0) == "allow"
    assert {answer(PLAIN, "socketpair", f, STREAM, 0) for f in (2, 30, 40, HIGH | 1)} == {ENOSYS}


def test_rules_that_need_a_capability_are_dropped():
    assert not any((rule.get("includes") or {}).get("caps") for rule in PLAIN["syscalls"])


def test_the_input_is_left_alone_and_the_result_is_json():
    before = json.dumps(DEFAULT)
    json.dumps(seccomp.profile(DEFAULT))
    assert json.dumps(DEFAULT) == before


@pytest.mark.parametrize(
    "change",
    [
        {"syscalls": None},
        {"syscalls": ["read"]},
        {"defaultAction": "SCMP_ACT_ALLOW"},
        {"archMap": []},
        {"archMap": [{"architecture": "SCMP_ARCH_S390X"}]},
    ],
)
def test_what_is_no_allow_list_is_refused(change):
    with pytest.raises(HostError) as caught:
        seccomp.profile({**DEFAULT, **change})
    assert "profile" in str(caught.value)


def test_an_engine_without_a_default_profile_is_named():
    with pytest.raises(HostError) as caught:
        seccomp.profile({})
    assert "not found" in caught.value.message and caught.value.remedy


@pytest.mark.skipif(not Path("/usr/share/containers/seccomp.json").exists(), reason="no engine default on this host")
def test_the_real_default_of_this_host():
    profile = seccomp.profile(json.loads(Path("/usr/share/containers/seccomp.json").read_text()))
    assert answer(profile, "openat") == answer(profile, "execve") == answer(profile, "futex") == "allow"
    assert answer(profile, "socket", 16, 3, HIGH | 9) == ENOSYS
    assert answer(profile, "clone", NEWUSER) == EPERM
