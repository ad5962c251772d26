# SPDX-License-Identifier: BSD-4-Clause
"""Verdicts about the host: one good host, and what changes when one fact does (cases S6, F6, N2, N10)."""

import dataclasses
import os
import re

import pytest

import asf_cli  # noqa: F401  gives the shared code its name
from asf_lib.core import advisories, doctor, doctor_facts, doctor_network, doctor_repair
from asf_lib.engine import hostfacts, hostprograms, recovery

GOOD = doctor.Facts(
    uid=1000,
    user="ann",
    kernel=(6, 1, 99),
    user_namespaces=True,
    cgroup="v2",
    controllers=("cpu", "memory", "pids"),
    subuids=65536,
    subgids=65536,
    subid_free=165536,
    run_dir="/run/user/1000",
    run_dir_owner=1000,
    run_dir_mode=0o700,
    programs={
        "podman": (5, 4, 2),
        "crun": (1, 21),
        "conmon": (2, 1, 6),
        "slirp4netns": (1, 2, 0),
        "pasta": None,
        "nft": (1, 0, 6),
        "ip": (6, 1, 0),
        "git": (2, 39, 5),
        "mmdebstrap": (1, 3, 5),
        "newuidmap": (0,),
    },
    runtime="crun",
    nft_json=True,
    storage_driver="overlay",
    storage_native=True,
    storage_root="/home/ann/.local/share/containers/storage",
    disks=tuple(doctor_facts.Disk(name, f"/{name}", 50 << 30) for name in ("store", "state", "cache")),
    podman_error="",
    stale_pause=False,
    tun="ok",
    seccomp="/usr/share/containers/seccomp.json",
    resolvers=("192.0.2.53",),
    resolver=None,
    ipv6=True,
    systemd=True,
    linger=True,
    kvm="ok",
    hardware_virtualization=True,
    selinux="",
    leftovers=(),
    apt=True,
)


def judge(**changes):
    """{id: verdict} of the good host with `changes`."""
    return {verdict.id: verdict for verdict in doctor.verdicts(dataclasses.replace(GOOD, **changes))}


def test_good_host_has_nothing_to_complain_about():
    found = judge()
    assert {verdict.state for verdict in found.values()} == {"ok"}
    assert not any(verdict.remedy for verdict in found.values())
    assert doctor.ready(list(found.values()))


def programs(**changes):
    """The good host's programs with `changes`, as keyword for judge()."""
    return {"programs": {**GOOD.programs, **changes}}


def room(**free):
    """The good host's disks with less room in those named, as keyword for judge()."""
    return {"disks": tuple(dataclasses.replace(disk, free=free.get(disk.name, disk.free)) for disk in GOOD.disks)}


BAD = [
    ("account", "fail", {"uid": 0, "run_dir_owner": 0}, "ordinary user"),
    ("kernel", "fail", {"kernel": (5, 4, 0)}, "5.11"),
    ("user-namespaces", "fail", {"user_namespaces": False}, "max_user_namespaces"),
    ("subids", "fail", {"subuids": 0}, "--add-subuids 165536-231071"),
    ("subids", "fail", {"subgids": 1000}, "--add-subgids"),
    ("run-dir", "fail", {"run_dir": None}, "enable-linger ann"),
    ("run-dir", "fail", {"run_dir_owner": None, "run_dir_mode": None}, "export XDG_RUNTIME_DIR=/run/user/1000"),
    ("run-dir", "fail", {"run_dir_owner": 0}, "sudo, su and become_user"),
    ("run-dir", "fail", {"run_dir_mode": 0o755}, "chmod 0700"),
    ("podman", "fail", programs(podman=None), "apt-get install podman"),
    ("podman", "fail", programs(podman=(4, 2, 9)), "4.3"),
    ("newuidmap", "fail", programs(newuidmap=None), "apt-get install uidmap"),
    ("mmdebstrap", "fail", programs(mmdebstrap=None), "apt-get install mmdebstrap"),
    ("advisory-crun", "fail", programs(crun=(1, 11)), "newer crun"),
    ("advisory-crun", "fail", programs(crun=(1, 11, 0)), "newer crun"),
    ("advisory-crun", "warn", programs(crun=(1, 19, 1)), "newer crun"),
    ("advisory-podman", "warn", programs(podman=(4, 3, 1)), "your distribution"),
    ("advisory-runc", "fail", {"runtime": "runc", **programs(runc=(1, 1, 11))}, "newer runc"),
    ("advisory-kernel", "fail", {"kernel": (5, 15, 24)}, "newer kernel"),
    ("advisory-kernel", "warn", {"kernel": (6, 1, 75)}, "newer kernel"),
    ("linger", "warn", {"linger": False}, "loginctl enable-linger ann"),
    ("leftovers", "warn", {"leftovers": ("17-4711-0123abcd-x",)}, "asf-play prune"),
    ("kvm", "warn", {"kvm": "missing"}, "modprobe kvm"),
    ("kvm", "warn", {"kvm": "denied"}, "--groups kvm ann"),
    ("kvm", "warn", {"kvm": "useless"}, "kernel's log"),
    ("kvm", "warn", {"hardware_virtualization": False}, "hardware virtualization"),  # case K7
    ("selinux", "warn", {"selinux": "enforcing"}, "container_file_t"),  # case F7
    ("runtime", "fail", programs(crun=None), "apt-get install crun"),
    ("runtime", "warn", {"runtime": "runc"}, 'runtime = "crun"'),
    ("uplink", "fail", programs(slirp4netns=None), "slirp4netns"),
    ("uplink", "fail", programs(slirp4netns=(1, 0, 1)), "slirp4netns"),
    ("uplink", "fail", programs(podman=(5, 4, 2), slirp4netns=None, pasta=(2024, 2, 20)), "2024-08-21"),
    ("nft", "fail", programs(nft=None), "apt-get install nftables"),
    ("nft", "fail", {"nft_json": False}, "JSON"),
    ("tun", "fail", {"tun": "missing"}, "modprobe tun"),
    ("tun", "fail", {"tun": "denied"}, "chmod 0666 /dev/net/tun"),
    ("engine", "fail", {"podman_error": "invalid internal status, cannot re-exec"}, "libpod_rootless_lock_1000"),
    ("engine", "fail", {"podman_error": "disk on fire"}, "podman info"),
    ("storage", "fail", {"storage_driver": "vfs"}, 'driver = "overlay"'),
    ("storage", "warn", {"storage_native": False}, ".has-mount-program"),
    ("disk-store", "warn", room(store=5 << 30), "graphroot"),
    ("disk-store", "fail", room(store=1 << 30), "make room"),
    ("disk-state", "warn", room(state=1 << 29), "XDG_STATE_HOME"),
    ("disk-state", "fail", room(state=1 << 20), "XDG_STATE_HOME"),
    ("disk-cache", "warn", room(cache=2 << 30), "XDG_CACHE_HOME"),
    ("disk-cache", "fail", room(cache=1 << 29), "asf-play prune"),
    ("seccomp", "fail", {"seccomp": None}, "containers-common"),
    ("cgroup", "fail", {"cgroup": "hybrid"}, "unified_cgroup_hierarchy"),
    ("limits", "warn", {"controllers": ("memory", "pids")}, "Delegate="),
    ("limits", "warn", {"controllers": ()}, "fallback"),
    ("resolver", "warn", {"resolvers": ("127.0.0.53",)}, "config.yml"),
    ("resolver", "warn", {"resolvers": ("::1", "2001:db8::1")}, "config.yml"),
    ("resolver", "warn", {"resolvers": ()}, "config.yml"),
]


@pytest.mark.parametrize(("check", "state", "changes", "remedy"), BAD)
def test_bad_fact_fails_its_check_alone_and_names_the_remedy(check, state, changes, remedy):
    found = judge(**changes)
    assert found[check].state == state
    assert remedy in found[check].remedy
    others = {name for name, verdict in found.items() if verdict.state == "fail" and name != check}
    assert not others
    assert doctor.ready(list(found.values())) == (state != "fail")


@pytest.mark.parametrize(
    "changes",
    [
        {"linger": None},
        {"selinux": "permissive"},
        {"kernel": (5, 15, 0)},  # a distribution's own number: it does not say what is repaired
        programs(runc=(1, 0)),  # Podman does not use it
        {"kernel": (6, 2, 0)},
    ],
)
def test_what_is_no_reason_to_complain(changes):
    assert {verdict.state for verdict in judge(**changes).values()} == {"ok"}


def test_the_list_of_advisories_says_how_old_it_is():
    assert re.fullmatch(r"known ones up to 20\d\d-\d\d-\d\d; looked up offline", judge()["advisories"].why)


def test_every_range_of_an_advisory_ends_after_it_begins():
    for entry in advisories.ADVISORIES:
        assert all(first < repaired for first, repaired in entry.affected), entry.id
        assert entry not in advisories.known(entry.program, entry.affected[-1][1]), entry.id


def fixes(**changes):
    """The commands that repair the good host with `changes`, as one text each; what needs root begins with #."""
    facts = dataclasses.replace(GOOD, **changes)
    found = doctor_repair.repairs(facts, doctor.verdicts(facts))
    return ["# " * repair.root + " ".join(repair.command) for repair in found]


def test_a_good_host_needs_no_repair():
    assert fixes() == []


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        (
            programs(ip=None, crun=None, newuidmap=None),
            ["# apt-get install --yes --no-install-recommends uidmap iproute2 crun"],
        ),
        (programs(ip=None) | {"apt": False}, []),
        (programs(slirp4netns=None), ["# apt-get install --yes --no-install-recommends passt"]),
        (
            {"subuids": 0},
            ["# usermod --add-subuids 165536-231071 --add-subgids 165536-231071 ann", "podman system migrate"],
        ),
        ({"run_dir": None, "linger": False}, ["# loginctl enable-linger ann"]),  # once
        ({"run_dir": None, "systemd": False, "linger": None}, ["# install -d -m 0700 -o ann /run/user/1000"]),
        ({"tun": "missing"}, ["# modprobe tun"]),
        ({"tun": "denied"}, ["# chmod 0666 /dev/net/tun"]),
        ({"kvm": "denied"}, ["# usermod --append --groups kvm ann"]),
        ({"kvm": "missing"}, []),  # which module it takes is a matter of the CPU
        ({"leftovers": ("17-4711-0123abcd-x",)}, ["asf-play prune --only runs --yes"]),
        ({"storage_driver": "vfs"}, []),  # the store would have to be made again
        (programs(podman=(4, 2)), []),
    ],
)
def test_what_commands_repair(changes, commands):
    assert fixes(**changes) == commands


def test_limits_say_which_one_does_not_bite():
    verdict = judge(controllers=("memory",))["limits"]
    assert verdict.found == "no controller for pids, cpu"
    assert "processes are counted per user" in verdict.why


@pytest.mark.parametrize(
    ("podman", "pasta", "slirp", "helper"),
    [
        ((4, 3, 1), None, (1, 2), "slirp4netns"),
        ((4, 9, 4), (2025, 5, 3), (1, 2), "slirp4netns"),
        ((5, 4, 2), (2025, 5, 3), None, "pasta"),
        ((5, 0, 3), (2024, 2, 20), (1, 2), "slirp4netns"),
        ((5, 0, 3), (2024, 2, 20), None, None),
        (None, None, None, None),
    ],
)
def test_uplink_helper(podman, pasta, slirp, helper):
    assert doctor_network.uplink_helper({"podman": podman, "pasta": pasta, "slirp4netns": slirp}) == helper


def test_n2_resolver_of_config_wins():
    assert judge(resolvers=("127.0.0.1",), resolver="192.0.2.9")["resolver"].found == "192.0.2.9 (config.yml)"


def test_n10_both_kinds_of_host_are_fine():
    assert judge(ipv6=False)["ipv6"].state == judge(ipv6=True)["ipv6"].state == "ok"


def test_a_podman_that_tells_no_version_is_judged_by_its_own_error():
    found = judge(**programs(podman=(0,)), podman_error="broken")
    assert (found["podman"].state, found["engine"].state) == ("ok", "fail")


def test_line_is_one_line_with_the_remedy():
    text = doctor.line(judge(tun="missing")["tun"])
    assert text.startswith("fail tun: ") and text.endswith("Do: as root: `modprobe tun`") and "\n" not in text


@pytest.mark.parametrize(
    ("program", "told", "version"),
    [
        ("podman", "podman version 4.3.1\n", (4, 3, 1)),
        ("crun", "crun version 1.8.1\ncommit: f8a0\n", (1, 8, 1)),
        ("nft", "nftables v1.0.6 (Lester Gooch #5)\n", (1, 0, 6)),
        ("ip", "ip utility, iproute2-6.1.0, libbpf 1.1.2\n", (6, 1, 0)),
        ("pasta", "pasta 0.0~git20250503.587980c-2\n", (2025, 5, 3)),
        ("pasta", "pasta 2024_08_21.1d6142f\n", (2024, 8, 21)),
        ("pasta", "pasta unknown\n", (0,)),
        ("git", "", (0,)),
        ("git", None, None),
    ],
)
def test_versions(program, told, version):
    assert hostprograms.version(program, told) == version


def test_facts_of_this_host_can_be_judged():
    facts = hostfacts.collect()
    assert doctor.verdicts(facts)
    assert [disk.name for disk in facts.disks] == ["store", "state", "cache"]
    assert all(disk.free > 0 for disk in facts.disks)
    assert facts.kvm in ("ok", "missing", "denied", "useless") and facts.selinux in ("", "permissive", "enforcing")


@pytest.mark.parametrize(
    ("file", "service", "found"),
    [
        ("bob:1:1\nann:100000:65536\n{uid}:300000:10\nann:x:1\nann\n", "0: ann 7 7\n", [(100000, 65536), (300000, 10)]),
        ("bob:1:1\n", "0: ann 165536 65536\n1: ann 400000 5\n", [(165536, 65536), (400000, 5)]),
        ("", "Error fetching ranges\n", []),
    ],
)
def test_subordinate_ids_of_files_or_else_of_a_name_service(file, service, found, monkeypatch):
    monkeypatch.setattr(hostfacts, "_user", lambda: "ann")
    monkeypatch.setattr(hostfacts, "_read", lambda path: file.format(uid=os.getuid()) if path == "/etc/subuid" else "")
    monkeypatch.setattr(hostfacts, "_ask_subids", lambda kind: service)
    monkeypatch.setattr(hostprograms, "program", lambda name: f"/usr/bin/{name}")
    assert hostfacts.subordinate("subuid") == found
    assert recovery._subordinate() == found


def test_plan_facts_have_the_fields_of_the_plan():
    plan = pytest.importorskip("asf_lib.core.plan")
    host = plan.Host(**hostfacts.for_plan((4, 3, 1), "192.0.2.53"))
    assert host.resolver == "192.0.2.53"
    assert all("/" in route for route in host.routes)
