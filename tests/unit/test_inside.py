# SPDX-License-Identifier: BSD-4-Clause
"""The host's verdict on a gate's report: what is missing, odd or merely claimed never passes (L6, invariants 3, 10)."""

import copy
import re
from pathlib import Path

import pytest

from asf_lib.core import inside

GATE = Path(__file__).resolve().parents[2] / "roles" / "workload" / "files" / "gate"

L1, L2 = "198.18.0.1:3128", "198.18.0.1:4000"
PLAN = {
    "version": 1,
    "plan_digest": "d" * 64,
    "uid": 1000,
    "gid": 1000,
    "caps": "0" * 16,
    "nested_sandbox": False,
    "net_raw": False,
    "token_file": "/run/secrets/asf-token",
    "probes": {
        "unreach": ["198.51.100.1:443", "[2001:db8::1]:443"],
        "reach": [L1, L2],
        "closed": ["198.18.0.1:22"],
        "dns": ["198.18.0.1:53"],
        "allow": {"proxy": L1, "target": "docs.example.com:443"},
        "front": {"addr": L2, "path": "/asf/control"},
        "policy": "0123456789abcdef",
        "deny": {"proxy": L1, "target": "asf-denied.invalid:443"},
        "tls": {"addr": "198.18.0.1:443", "allow": "docs.example.com", "deny": "asf-denied.invalid"},
        "mounts": [
            {"target": "/workspace/repos/a b", "type": "", "rw": True},
            {"target": "/tmp", "type": "tmpfs", "rw": True},
            {"target": "/workspace/repos/ro", "type": "", "rw": False},
        ],
        "gone": [],
        "routed": {
            "allowed": "192.0.2.1:22",
            "blocked": "192.0.2.1:23",
            "udp": ["192.0.2.1:53"],
            "icmp": ["192.0.2.1"],
            "silent": ["198.18.0.9:80"],
            "routes": ["192.0.2.0/24"],
            "via": "198.18.0.9",
        },
    },
}
ROUTES = (
    "198.18.0.1/32,via:-,dev:2,table:254 198.18.0.9/32,via:-,dev:3,table:254"
    " 192.0.2.0/24,via:198.18.0.9,dev:3,table:254"
)
V6 = "[2001:db8::1]:443"
GOOD = {
    "pid1": "1",
    "pid1-opaque": "dumpable=0",
    "seccomp-mode": "2",
    "no-new-privs": "1",
    "caps": " ".join(f"{s}={'0' * 16}" for s in ("inh", "prm", "eff", "bnd", "amb")),
    "uid-gid": "uid=1000,1000,1000,1000 gid=1000,1000,1000,1000 groups=",
    "namespaces": "user=4026532473 pid=4026532477 ipc=4026532476 uts=4026532475 net=4026532478",
    "fds": "more=0",
    "core-limit": "soft=0 hard=0",
    "environ": "PATH TERM container HOSTNAME HOME",
    "sys-clone3": "ENOSYS",
    "entry-int80": "SIGSYS",
    "entry-x32": "ENOSYS",
    "sock-control": "unix=ok inet=ok inet6=ok netlink=ok",
    "sock-families": "refused=60/60",
    "sock-vsock": "refused=3/3",
    "sock-highbits": "refused=4/4",
    "sock-netlink": "refused=31/31",
    "sock-raw": "ENOSYS",
    "sock-pair": "refused=4/4",
    "net-links": "up=lo,eth0,eth1",
    "loopback": "tcp=connected udp=answered",
    "net-routes": f"routes=3 own=4 {ROUTES}",
    "routed-allow": "192.0.2.1:22/tcp=connected",
    "routed-block": "192.0.2.1:23/tcp=timeout",
    "routed-udp": "192.0.2.1:53/udp=answered",
    "routed-icmp": "192.0.2.1/icmp=answered",
    "gateway-silent": "198.18.0.9:80/tcp=timeout 198.18.0.9:80/udp=silent 198.18.0.9/icmp=silent",
    "no-ipv6": "addresses=0",
    "unreach": "198.51.100.1:443/tcp=ENETUNREACH 198.51.100.1:443/udp=ENETUNREACH 198.51.100.1:443/icmp=socket-EACCES"
    f" {V6}/tcp=EADDRNOTAVAIL {V6}/udp=EADDRNOTAVAIL {V6}/icmp=socket-EACCES",
    "reach": f"{L1}/tcp=connected {L2}/tcp=connected",
    "closed": "198.18.0.1:22/tcp=ECONNREFUSED",
    "dns-silent": "198.18.0.1:53/udp=silent 198.18.0.1:53/tcp=ECONNREFUSED",
    "proxy-allow": "200:ok",
    "proxy-reach": "200:ok",
    "proxy-deny": "403:denied-name",
    "tls-allow": "server-hello",
    "tls-deny": "alert:49",
    "front-control": "204:ok",
    "policy-current": "0123456789abcdef",
    "front-refuses": "none=401 wrong=401:unauthorized",
    "mounts": r"/,overlay,ro /proc,proc,rw /dev,tmpfs,rw /dev/null,devtmpfs,rw /etc/hosts,ext4,ro /asf/gate,ext4,ro"
    r" /run/secrets/asf-token,ext4,ro /sys,sysfs,ro /proc/sys,proc,ro /tmp,tmpfs,rw"
    r" /workspace/repos/a\040b,ext4,rw /workspace/repos/ro,ext4,ro",
    "root-readonly": "EROFS",
    "proc-masked": "/proc/sys=masked /proc/kcore=absent",
    "dev-nodes": "null zero pts shm",
    "no-sockets": "found=0",
}
for _row in inside.INSIDE:
    GOOD.setdefault(_row.id, "EPERM")


def report(**changed):
    """A good report; `changed` maps ids (with _ for -) to another `got`, or to a dict merged into the check."""
    checks = {name: {"id": name, "got": got, "verdict": "pass", "reason": ""} for name, got in GOOD.items()}
    for key, value in changed.items():
        check = checks[key.replace("_", "-")]
        check.update(value if isinstance(value, dict) else {"got": value})
    head = {"version": 1, "pid": 1, "nonce": "a" * 32, "plan_digest": "d" * 64, "us": 5}
    return {**head, "checks": list(checks.values())}


def verdicts(rep, plan=PLAN, **options):
    return {r["id"]: r["verdict"] for r in inside.judge(rep, plan, **options)}


def bad(rep, plan=PLAN, **options):
    return {k: v for k, v in verdicts(rep, plan, **options).items() if v != "pass"}


def test_a_good_report_passes_completely():
    results = inside.judge(report(), PLAN)
    assert bad(report()) == {}
    assert [r["id"] for r in results] == ["gate-report", *(row.id for row in inside.INSIDE)]
    assert all(set(r) == {"id", "invariant", "vantage", "expect", "verdict", "evidence"} for r in results)
    assert {r["vantage"] for r in results} == {"inside"}


def test_the_gates_table_is_this_table():
    """The gate (Go) and the host (Python) name the same probes, invariants and expectations."""
    rows = re.findall(r'^\t"([a-z0-9-]+)":\s*\{(\d+), "(.*)"\},$', (GATE / "definitions.go").read_text(), re.M)
    assert {n: (int(i), e) for n, i, e in rows} == {r.id: (r.invariant, r.expect) for r in inside.INSIDE}


@pytest.mark.parametrize("row", inside.INSIDE, ids=lambda row: row.id)
def test_every_probe_can_fail_and_be_missed(row):
    """No rule accepts everything; a check that was not reported, or says nothing, is inconclusive (L6)."""
    without = report()
    without["checks"] = [c for c in without["checks"] if c["id"] != row.id]
    assert verdicts(without)[row.id] == "inconclusive"
    assert next(r for r in inside.judge(without, PLAN) if r["id"] == row.id)["evidence"] == "probe did not run"
    assert verdicts(report(**{row.id: "nonsense"}))[row.id] in ("fail", "inconclusive")
    assert verdicts(report(**{row.id: {"got": "", "verdict": "inconclusive"}}))[row.id] == "inconclusive"
    assert verdicts(report(**{row.id: {"verdict": "fail"}}))[row.id] == "fail"
    assert verdicts(report(**{row.id: {"verdict": "excellent"}}))[row.id] == "inconclusive"


@pytest.mark.parametrize(
    ("name", "got", "verdict"),
    [
        ("seccomp-mode", "0", "fail"),
        ("caps", GOOD["caps"].replace("bnd=" + "0" * 16, "bnd=00000000800405fb"), "fail"),
        ("caps", "eff=" + "0" * 16, "fail"),
        ("uid-gid", "uid=1000,0,1000,1000 gid=1000,1000,1000,1000 groups=", "fail"),
        ("uid-gid", "uid=1000,1000,1000,1000 gid=1000,1000,1000,1000 groups=4242", "fail"),
        ("namespaces", GOOD["namespaces"].replace("4026532477", "4026531836"), "fail"),
        ("namespaces", "user=4026532473", "inconclusive"),
        ("environ", "PATH HOME ANTHROPIC_API_KEY", "fail"),
        ("sys-unshare", "ok", "fail"),
        ("sys-setns", "EBADF", "fail"),
        ("sys-clone3", "EPERM", "fail"),
        ("clone-newuser", "ran", "fail"),
        ("entry-int80", "returned", "fail"),
        ("sock-vsock", "refused=2/3 stream=ok", "fail"),
        ("sock-highbits", "refused=3/4 audit=ok", "fail"),
        ("sock-families", "refused=0/0", "fail"),
        ("sock-raw", "ok", "fail"),
        ("net-links", "up=lo,eth0", "fail"),
        ("net-links", "up=lo,eth0,eth1,x0", "fail"),
        ("net-links", "up=", "fail"),
        ("net-routes", "routes=0 own=4", "fail"),
        ("net-routes", f"routes=4 own=4 {ROUTES} 0.0.0.0/0,via:198.18.0.1,dev:2,table:254", "fail"),
        ("net-routes", f"routes=4 own=4 {ROUTES} 198.18.0.5/32,via:-,dev:2,table:77", "fail"),
        ("net-routes", f"routes=4 own=4 {ROUTES}", "fail"),
        (
            "net-routes",
            "routes=3 own=4 " + ROUTES.replace("192.0.2.0/24,via:198.18.0.9", "192.0.2.0/24,via:198.18.0.1"),
            "fail",
        ),
        ("net-routes", "routes=3 own=4 " + ROUTES.replace("192.0.2.0/24", "192.0.0.0/16"), "fail"),
        ("net-routes", "routes=3 own=4 " + ROUTES.replace("198.18.0.1/32,via:-", "198.18.0.1/32,via:9.9.9.9"), "fail"),
        ("routed-allow", "192.0.2.1:22/tcp=ECONNREFUSED", "inconclusive"),
        ("routed-allow", "192.0.2.9:22/tcp=connected", "inconclusive"),
        ("routed-block", "192.0.2.1:23/tcp=connected", "fail"),
        ("routed-block", "192.0.2.1:23/tcp=ENETUNREACH", "inconclusive"),
        ("routed-udp", "192.0.2.1:53/udp=ENETUNREACH", "inconclusive"),
        ("routed-icmp", "192.0.2.1/icmp=socket-EACCES", "inconclusive"),
        ("gateway-silent", GOOD["gateway-silent"].replace("80/tcp=timeout", "80/tcp=ECONNREFUSED"), "fail"),
        ("gateway-silent", GOOD["gateway-silent"].replace("/icmp=silent", "/icmp=answered"), "fail"),
        ("gateway-silent", GOOD["gateway-silent"].replace(" 198.18.0.9/icmp=silent", ""), "inconclusive"),
        ("no-ipv6", "addresses=1", "fail"),
        ("unreach", GOOD["unreach"].replace("tcp=ENETUNREACH", "tcp=timeout"), "fail"),
        ("unreach", GOOD["unreach"].replace("udp=ENETUNREACH", "udp=connected"), "fail"),
        ("unreach", GOOD["unreach"].replace("tcp=ENETUNREACH", "tcp=ECONNREFUSED"), "fail"),
        ("unreach", GOOD["unreach"].replace("tcp=ENETUNREACH", "tcp=EMFILE"), "inconclusive"),
        ("unreach", "198.51.100.1:443/tcp=ENETUNREACH", "inconclusive"),
        ("reach", f"{L1}/tcp=connected {L2}/tcp=ECONNREFUSED", "inconclusive"),
        ("reach", f"{L1}/tcp=connected", "inconclusive"),
        ("closed", "198.18.0.1:22/tcp=connected", "fail"),
        ("closed", "198.18.0.1:22/tcp=timeout", "inconclusive"),
        ("dns-silent", "198.18.0.1:53/udp=answered 198.18.0.1:53/tcp=ECONNREFUSED", "fail"),
        ("dns-silent", "198.18.0.1:53/udp=silent 198.18.0.1:53/tcp=connected", "fail"),
        ("dns-silent", "198.18.0.1:53/udp=silent 198.18.0.1:53/tcp=EMFILE", "inconclusive"),
        ("proxy-allow", "403:denied-name", "fail"),
        ("proxy-allow", "502", "inconclusive"),
        ("proxy-allow", "ECONNREFUSED", "inconclusive"),
        ("proxy-deny", "200:ok", "fail"),
        ("proxy-deny", "502:upstream-dns-notfound", "fail"),
        ("proxy-deny", "403", "inconclusive"),
        ("proxy-deny", "403:denied-port", "inconclusive"),
        ("proxy-deny", "ECONNREFUSED", "inconclusive"),
        ("tls-allow", "alert:49", "fail"),
        ("tls-allow", "alert:112", "inconclusive"),
        ("tls-allow", "ECONNREFUSED", "inconclusive"),
        ("tls-deny", "server-hello", "fail"),
        ("tls-deny", "alert:80", "fail"),
        ("tls-deny", "alert:50", "inconclusive"),
        ("tls-deny", "closed", "inconclusive"),
        ("tls-deny", "ECONNREFUSED", "inconclusive"),
        ("policy-current", "fedcba9876543210", "fail"),
        ("policy-current", "none", "inconclusive"),
        ("policy-current", "ECONNREFUSED", "inconclusive"),
        ("front-control", "401:unauthorized", "fail"),
        ("front-control", "200", "inconclusive"),
        ("front-refuses", "none=204:ok wrong=401", "fail"),
        ("front-refuses", "none=401 wrong=204:ok", "fail"),
        ("front-refuses", "none=503 wrong=401", "inconclusive"),
        ("mounts", GOOD["mounts"] + " /mnt,ext4,rw", "fail"),
        ("mounts", GOOD["mounts"] + " /mnt,ext4,ro", "fail"),
        ("mounts", GOOD["mounts"].replace("/repos/ro,ext4,ro", "/repos/ro,ext4,rw"), "fail"),
        ("mounts", GOOD["mounts"].replace(r"a\040b,ext4,rw", r"a\040b,ext4,ro"), "fail"),
        ("mounts", GOOD["mounts"].replace(r" /workspace/repos/ro,ext4,ro", ""), "fail"),
        ("mounts", GOOD["mounts"].replace("/tmp,tmpfs", "/tmp,ext4"), "fail"),
        ("mounts", GOOD["mounts"].replace("/,overlay,ro", "/,overlay,rw"), "fail"),
        ("mounts", GOOD["mounts"].replace("/,overlay,ro ", ""), "inconclusive"),
        ("root-readonly", "EACCES", "fail"),
        ("proc-masked", "/proc/sys=writable /proc/kcore=absent", "fail"),
        ("proc-masked", "/proc/sys=absent", "fail"),
        ("dev-nodes", "null fuse", "fail"),
        ("dev-nodes", "", "inconclusive"),
        ("no-sockets", "found=1 /run/podman/podman.sock=ok", "fail"),
        ("pid1-opaque", "environ=ok mem=EACCES", "fail"),
        ("fds", "more=1 3=/home", "fail"),
    ],
)
def test_the_host_decides_from_what_was_got_whatever_the_gate_thinks(name, got, verdict):
    """Every one of these is reported with the verdict "pass" by a gate that lies or is wrong."""
    assert verdicts(report(**{name: got}))[name] == verdict


def test_an_upstream_that_is_down_warns_and_does_not_deny():
    """P2: the decision half passes, the reach half alone may warn."""
    for reason in ("upstream-refused", "upstream-timeout", "upstream-dns-notfound"):
        rep = report(proxy_allow=f"502:{reason}", proxy_reach={"got": f"502:{reason}", "verdict": "warn"})
        assert bad(rep) == {"proxy-reach": "warn"}
    for word in ("alert:80", "closed", "silent"):
        assert bad(report(tls_allow={"got": word, "verdict": "warn"})) == {"tls-allow": "warn"}


def test_what_nobody_answered_is_said_to_be_inconclusive_and_stops_nothing():
    silent = report(routed_udp="192.0.2.1:53/udp=silent", routed_icmp="192.0.2.1/icmp=silent")
    assert bad(silent) == {"routed-udp": "warn", "routed-icmp": "warn"}
    texts = [r["evidence"] for r in inside.judge(silent, PLAN) if r["verdict"] == "warn"]
    assert all(text.startswith("inconclusive: nobody answered") for text in texts)


def test_only_the_reach_half_may_warn():
    assert bad(report(caps={"verdict": "warn"})) == {"caps": "inconclusive"}


def test_denials_count_only_beside_their_control():
    dead = f"{L1}/tcp=ENETUNREACH {L2}/tcp=ENETUNREACH"
    assert bad(report(reach=dead)) == {k: "inconclusive" for k in ("reach", "unreach", "closed", "dns-silent")}
    assert bad(report(front_control="ECONNREFUSED")) == {k: "inconclusive" for k in ("front-control", "front-refuses")}
    closed = bad(report(routed_allow="192.0.2.1:22/tcp=ECONNREFUSED"))
    assert closed == {k: "inconclusive" for k in ("routed-allow", "routed-block", "gateway-silent")}
    refused = bad(report(proxy_allow="timeout"))
    assert refused["proxy-deny"] == refused["tls-deny"] == "inconclusive"
    assert bad(report(sock_control="unix=ENOSYS inet=ok inet6=ok netlink=ok"))["sock-vsock"] == "inconclusive"


def test_a_brokered_session_without_a_name_to_ask_for_has_the_front_as_control():
    plan = copy.deepcopy(PLAN)
    plan["probes"]["allow"] = None
    assert bad(report(), plan) == {}
    refused = bad(report(front_control="401"), plan)
    denials = dict.fromkeys(("proxy-deny", "tls-deny", "front-refuses"), "inconclusive")
    assert refused == {"front-control": "fail", **denials}
    plan["probes"]["front"] = None
    dead = f"{L1}/tcp=connected {L2}/tcp=ECONNREFUSED"
    assert bad(report(reach=dead), plan)["proxy-deny"] == "inconclusive"


def test_without_a_transparent_control_only_the_denial_is_asked_for():
    plan = copy.deepcopy(PLAN)
    plan["probes"]["tls"]["allow"] = ""
    assert {"tls-allow"} == {row.id for row in inside.INSIDE} - set(verdicts(report(), plan))
    plan["probes"]["tls"] = None
    assert {"tls-allow", "tls-deny"} == {row.id for row in inside.INSIDE} - set(verdicts(report(), plan))


def test_a_live_session_is_answered_by_a_fresh_process():
    rep = report(pid1_opaque="environ=EACCES mem=EACCES")
    rep["pid"] = 77
    rep["checks"] = [c for c in rep["checks"] if c["id"] != "pid1"]
    assert bad(rep) == bad(rep, first=False) == {}
    assert "pid1" not in verdicts(rep)
    assert bad(rep, first=True) == {"gate-report": "inconclusive", "pid1": "inconclusive"}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"plan_digest": "e" * 64},
        {"nonce": "short"},
        {"nonce": None},
        {"pid": True},
        {"pid": "1"},
        {"pid": 0},
    ],
)
def test_a_report_for_another_plan_or_in_another_form_is_inconclusive(change):
    assert bad({**report(), **change}, first=True)["gate-report"] == "inconclusive"


@pytest.mark.parametrize(
    "junk",
    [
        None,
        [],
        "x",
        7,
        {},
        {"checks": None},
        {"checks": {"id": "caps"}},
        {"checks": [None, 3, {"id": []}, {"id": "caps"}]},
    ],
)
def test_junk_never_raises_and_never_passes(junk):
    assert set(verdicts(junk, first=True).values()) == {"inconclusive"}


def test_an_id_reported_twice_counts_as_not_reported():
    rep = report()
    rep["checks"].append({"id": "caps", "got": GOOD["caps"], "verdict": "pass", "reason": ""})
    assert bad(rep) == {"caps": "inconclusive"}


def test_unknown_ids_are_noted_and_ignored():
    rep = report()
    rep["checks"].append({"id": "made\x1b[2Jup", "got": "", "verdict": "fail", "reason": ""})
    results = inside.judge(rep, PLAN)
    assert bad(rep) == {}
    assert "unknown probes ignored" in results[0]["evidence"] and "\x1b" not in results[0]["evidence"]


def test_evidence_is_bounded_and_harmless():
    noisy = {"got": "null", "reason": "a" * 99999, "verdict": "fail"}
    rep = report(environ="X" * 7000 + "\x1b]0;x\x07", dev_nodes=noisy)
    for result in inside.judge(rep, PLAN):
        assert len(result["evidence"]) <= inside.EVIDENCE_LIMIT and result["evidence"].isprintable()
    assert verdicts(report(caps="0" * 9000))["caps"] == "inconclusive"


def test_a_nested_sandbox_turns_the_expectation_round():
    plan = {**PLAN, "nested_sandbox": True}
    given = {
        "sys_unshare": "ok",
        "sys_setns": "EBADF",
        "sys_mount": "EFAULT",
        "sys_umount": "EFAULT",
        "sys_chroot": "EFAULT",
        "clone_newuser": "ran",
    }
    assert bad(report(**given), plan) == {}
    assert set(bad(report(), plan)) == {key.replace("_", "-") for key in given}
    assert bad(report(**given, sys_fsconfig="EINVAL"), plan) == {"sys-fsconfig": "fail"}


def test_net_raw_opens_raw_sockets_and_holds_one_capability():
    plan = {**PLAN, "net_raw": True, "caps": "0000000000002000"}
    caps = GOOD["caps"].replace("0" * 16, "0000000000002000")
    assert bad(report(sock_raw="ok", caps=caps), plan) == {}
    assert bad(report(caps=caps), plan) == {"sock-raw": "fail"}


def test_without_cables_there_is_no_link_and_no_route():
    plan = copy.deepcopy(PLAN)
    plan["probes"].update(reach=[], closed=[], dns=[], allow=None, deny=None, tls=None, front=None, routed=None)
    rep = report(net_links="up=lo", net_routes="routes=0 own=4")
    assert bad(rep, plan) == {}
    assert not {"reach", "proxy-deny", "front-control"} & set(verdicts(rep, plan))
    assert set(bad(report(), plan)) == {"net-links", "net-routes"}


def test_dropped_packets_close_a_port_only_where_the_plan_says_so():
    plan = copy.deepcopy(PLAN)
    plan["probes"]["dropped_ok"] = True
    assert bad(report(closed="198.18.0.1:22/tcp=timeout"), plan) == {}
