# SPDX-License-Identifier: BSD-4-Clause
"""Verdicts about the host: one good host, and what changes when one fact does (cases S6, F6, N2, N10)."""

import dataclasses

import pytest

import asf_cli  # noqa: F401  gives the shared code its name
from asf_lib.core import doctor
from asf_lib.engine import hostfacts, hostprograms

GOOD = doctor.Facts(
    uid=1000,
    user="ann",
    kernel=(6, 1, 0),
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
        "podman": (4, 3, 1),
        "crun": (1, 8, 1),
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
    disk_free=50 << 30,
    podman_error="",
    stale_pause=False,
    tun="ok",
    seccomp="/usr/share/containers/seccomp.json",
    resolvers=("192.0.2.53",),
    resolver=None,
    ipv6=True,
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
    ("crun", "fail", programs(crun=(1, 11)), "another release"),
    ("crun", "fail", programs(crun=(1, 11, 0)), "another release"),
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
    ("disk", "warn", {"disk_free": 5 << 30}, "graphroot"),
    ("disk", "fail", {"disk_free": 1 << 30}, "make room"),
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
    assert doctor.uplink_helper({"podman": podman, "pasta": pasta, "slirp4netns": slirp}) == helper


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
    assert facts.disk_free > 0


def test_plan_facts_have_the_fields_of_the_plan():
    plan = pytest.importorskip("asf_lib.core.plan")
    host = plan.Host(**hostfacts.for_plan((4, 3, 1), "192.0.2.53"))
    assert host.resolver == "192.0.2.53"
    assert all("/" in route for route in host.routes)
