# SPDX-License-Identifier: BSD-4-Clause
"""Verdicts of the outside probes over synthetic observations: each can fail, and none passes without having looked."""

import copy

import pytest

from asf_lib.core import policy, probes
from asf_lib.core.topology import topology

T = topology("198.18.0.0/24")
ROLES = ("caddy", "broker", "agent")
SOURCE = "/home/op/repo"


def make_plan():
    nft = policy.nft(T, [3128, 4000], True, policy.Uplink("198.51.100.53", ["198.18.1.0/24"], [443]))
    return {
        "session": {"id": "a.main"},
        "workload": {"uid": 1000},
        "gate": {"caps": "0" * 16, "net_raw": False},
        "repos": [{"name": "repo", "path": SOURCE, "rw": True, "target": "/workspace/repos/repo", "root": [1, 2]}],
        "containers": [
            {
                "role": r,
                "name": f"asf-a.main-{r}",
                "image": f"localhost/asf/{r}:1",
                "network": "slirp4netns:cidr=198.18.1.0/24" if r == "caddy" else "none",
                "args": ["create", f"--hostname={r}"],
            }
            for r in ROLES
        ],
        "wiring": {
            "cables": [T.agent.as_dict(), T.broker.as_dict()],
            "nft": [{"role": "caddy", "rules": nft}],
            "uplinks": [{"role": "caddy", "interface": "tap0"}],
            "routes": [],
            "forward": [],
        },
        "network": {
            "resolver": "198.51.100.53",
            "aliases": [{"address": "198.18.1.2", "port": 443}],
            "hosts": [["198.18.0.1", "front"], ["198.18.0.1", "docs.example.com"]],
        },
        "listeners": [{"role": "caddy", "name": "L1", "address": "198.18.0.1:3128"}],
        "limits": {
            role: {"ulimits": ["core=0:0"], "cgroup": {"pids.max": "64"} if role == "agent" else {}} for role in ROLES
        },
        "mounts": [
            {"role": "agent", "target": "/workspace/repos/repo", "rw": True, "kind": "bind", "source": SOURCE},
            {"role": "agent", "target": "/asf/gate", "rw": False, "kind": "bind", "source": ""},
            {"role": "agent", "target": "/tmp", "rw": True, "kind": "tmpfs", "source": "", "size": 65536},
            {"role": "caddy", "target": "/tmp", "rw": True, "kind": "tmpfs", "source": "", "size": 65536},
            {"role": "broker", "target": "/tmp", "rw": True, "kind": "tmpfs", "source": "", "size": 65536},
        ],
    }


def info_line(target, rw="rw", fstype="ext4", size=""):
    return f"1 2 8:1 / {target} {rw},nosuid,nodev,relatime - {fstype} /dev/x rw{size}"


def planned_line(mount):
    """The line of a mount that is as planned."""
    tmpfs = {"fstype": "tmpfs", "size": f",size={mount['size'] // 1024}k"} if mount["kind"] == "tmpfs" else {}
    return info_line(mount["target"], "rw" if mount["rw"] else "ro", **tmpfs)


def observe(plan, role):
    own = probes.ends(plan, role)
    links = [{"ifname": "lo", "flags": ["LOOPBACK"]}]
    links += [{"ifname": o["interface"], "flags": ["NOARP", "UP"], "address": o["mac"]} for o, _ in own]
    addresses = [{"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]}]
    addresses += [
        {
            "ifname": o["interface"],
            "addr_info": [{"family": "inet", "local": o["ip"], "address": p["ip"], "prefixlen": 32}],
        }
        for o, p in own
    ]
    routes = [{"dst": "127.0.0.1", "dev": "lo", "table": "local"}]
    routes += [{"dst": p["ip"], "dev": o["interface"]} for o, p in own]
    if role == "caddy":
        links.append({"ifname": "tap0", "flags": ["UP"], "address": "aa"})
        addresses.append(
            {"ifname": "tap0", "addr_info": [{"family": "inet", "local": "198.18.1.100", "prefixlen": 24}]}
        )
        routes += [{"dst": "default", "dev": "tap0"}, {"dst": "198.18.1.0/24", "dev": "tap0"}]
    mounts = [info_line("/", "ro"), info_line("/proc", fstype="proc"), info_line("/sys", "ro")]
    mounts += [planned_line(m) for m in plan["mounts"] if m["role"] == role]
    return {
        "links": links,
        "addresses": addresses,
        "routes": routes,
        "routes6": [],
        "neighbours": [
            {"dev": o["interface"], "dst": p["ip"], "lladdr": p["mac"], "state": ["PERMANENT"]} for o, p in own
        ],
        "nft": [
            {"metainfo": {"version": "1"}},
            *(copy.deepcopy(plan["wiring"]["nft"][0]["rules"]) if role == "caddy" else []),
        ],
        "cables": {
            o["interface"]: {"netns": ROLES.index(p["role"]), "roles": {r: i for i, r in enumerate(ROLES)}}
            for o, p in own
        },
        "neighbourhood": {"seen": True, "others": 5, "strangers": []},
        "ip_forward": "0",
        "ipv6_disabled": "1",
        "pid": 10,
        "start": 5,
        "ns": {k: f"{k}:[2]" for k in probes.SEPARATE},
        "host_ns": {k: f"{k}:[1]" for k in probes.SEPARATE},
        "parent_user": "user:[9]",
        "chosen": {"pid": 10, "start": 5, "net": "net:[2]"},
        "uid_map": "0 1 1000\n1000 0 1\n1001 1001 64536\n" if role == "agent" else "0 1 65536\n",
        "status": {**{k: probes.ZERO_CAPS for k in probes.CAP_FIELDS}, "NoNewPrivs": "1", "Seccomp": "2"},
        "inspect": {
            "read_only": True,
            "privileged": False,
            "devices": [],
            "effective_caps": [],
            "bounding_caps": [],
            "labels": {"asf.session": "a.main", "asf.role": role, "asf.plan": "D"},
            "image": f"localhost/asf/{role}:1",
            "network": "slirp4netns:x" if role == "caddy" else "none",
        },
        "limits": f"{'Limit':25} Soft Limit Hard Limit Units\n{'Max core file size':25} 0 0 bytes\n",
        "cgroup": {"pids.max": "64"},
        "plan_digest": "D",
        "mountinfo": "\n".join(mounts),
        "roots": {"/workspace/repos/repo": [1, 2]},
        "sources": {"/workspace/repos/repo": [1, 2]},
        "hosts": ("198.18.0.1\tfront\n198.18.0.1\tdocs.example.com\n" if role == "agent" else "")
        + f"127.0.0.1\tlocalhost\n::1\tlocalhost\n10.0.2.100\t{role} asf-a.main-{role}\n",
        "nameservers": ["198.51.100.53"],
        "aliases": {"198.18.1.2:443": "EHOSTUNREACH"},
        "listeners": ["198.18.0.1:3128"],
    }


@pytest.fixture
def world():
    plan = make_plan()
    return plan, {role: observe(plan, role) for role in ROLES}


def verdicts(plan, seen, started=True):
    return {r["id"]: r["verdict"] for r in probes.judge(plan, seen, {role: started for role in ROLES})}


def test_what_is_as_planned_passes(world):
    plan, seen = world
    results = probes.judge(plan, seen, {r: True for r in ROLES})
    assert [r for r in results if r["verdict"] != "pass"] == []
    assert len(results) == sum(len(set(p.roles) & set(ROLES)) for p in probes.PROBES)  # every probe for its roles


def test_started_probes_wait_for_the_start(world):
    assert "agent-confined" not in verdicts(*world, started=False)


def put(path, value):
    def change(seen):
        *head, last = path
        for key in head:
            seen = seen[key]
        seen[last] = value

    return change


def swapped(seen):
    for side in ("roots", "sources"):
        seen["agent"][side]["/workspace/repos/repo"] = [1, 3]


def add(path, value):
    def change(seen):
        for key in path:
            seen = seen[key]
        seen.append(value)

    return change


BREAKS = [
    ("agent-links", add(["agent", "links"], {"ifname": "eth1", "flags": []})),
    ("agent-links", put(["agent", "links", 1, "flags"], ["UP"])),  # ARP is on
    ("agent-links", put(["agent", "links", 1, "address"], "02:00:00:00:00:99")),  # replugged
    ("agent-addresses", add(["agent", "addresses", 1, "addr_info"], {"local": "10.0.0.9", "prefixlen": 24})),
    ("agent-routes", add(["agent", "routes"], {"dst": "default", "dev": "eth0"})),
    ("agent-routes", add(["agent", "routes"], {"dst": "10.0.0.0/8", "dev": "eth0", "table": "77"})),
    ("caddy-routes", add(["caddy", "routes"], {"dst": "default", "dev": "agent0"})),  # N4
    ("agent-neighbours", put(["agent", "neighbours", 0, "state"], ["REACHABLE"])),
    ("agent-neighbours", put(["agent", "neighbours", 0, "lladdr"], "02:00:00:00:00:99")),
    ("agent-ipv6", put(["agent", "ipv6_disabled"], "0")),  # N10
    ("agent-ipv6", add(["agent", "addresses", 1, "addr_info"], {"family": "inet6", "local": "fe80::1"})),
    ("caddy-rules", put(["caddy", "nft"], [{"metainfo": {}}])),  # L7
    ("caddy-rules", add(["caddy", "nft"], {"rule": {"chain": "input", "expr": [{"accept": None}]}})),
    ("agent-rules", add(["agent", "nft"], {"table": {"name": "x"}})),
    ("agent-peers", put(["agent", "cables", "eth0", "netns"], 1)),  # N3: it leads to the broker
    ("agent-peers", put(["agent", "cables", "eth0", "netns"], 7)),  # N3: to another session's Caddy, which looks alike
    ("agent-peers", put(["agent", "cables", "eth0", "netns"], None)),  # into its own namespace
    ("agent-peers", put(["agent", "cables"], {})),
    ("caddy-peers", put(["caddy", "cables", "broker0", "roles", "broker"], -1)),  # no cable leads there at all
    ("broker-alone", put(["broker", "neighbourhood", "strangers"], ["77 net"])),  # N3
    ("caddy-forwarding", put(["caddy", "ip_forward"], "1")),
    ("agent-identity", put(["agent", "pid"], 11)),
    ("agent-identity", put(["agent", "ns", "net"], "net:[3]")),
    ("broker-namespaces", put(["broker", "ns", "pid"], "pid:[1]")),
    ("caddy-userns", put(["caddy", "uid_map"], "0 0 1\n1 1 65536\n")),
    ("agent-userns", put(["agent", "uid_map"], "0 0 1\n1 1 65536\n")),
    ("broker-userns", put(["broker", "parent_user"], "user:[2]")),
    ("agent-confined", put(["agent", "status", "CapBnd"], "0000000000002000")),  # N9
    ("agent-confined", put(["agent", "status", "Seccomp"], "0")),
    ("caddy-confined", put(["caddy", "status", "NoNewPrivs"], "0")),
    ("agent-options", put(["agent", "inspect", "read_only"], False)),
    ("agent-options", put(["agent", "inspect", "labels", "asf.plan"], "other")),
    ("caddy-options", put(["caddy", "inspect", "network"], "host")),
    ("agent-mounts", put(["agent", "mountinfo"], info_line("/run/podman/podman.sock"))),
    ("agent-mounts", put(["agent", "mountinfo"], info_line("/tmp", fstype="tmpfs", size=",size=128k"))),  # larger
    ("agent-mounts", put(["agent", "mountinfo"], info_line("/dev/mqueue"))),  # a host folder in the engine's place
    ("agent-limits", put(["agent", "cgroup", "pids.max"], "max")),
    ("caddy-limits", put(["caddy", "limits"], f"{'Max core file size':25} unlimited unlimited bytes\n")),
    ("agent-mount-roots", put(["agent", "roots", "/workspace/repos/repo"], [1, 3])),  # F2
    ("agent-mount-roots", swapped),  # F2, between plan and create: both sides show another folder
    ("agent-names", put(["agent", "hosts"], "198.18.0.1 front\n")),  # a planned name is missing
    ("agent-names", put(["agent", "hosts"], "198.18.0.1 front docs.example.com evil.test\n")),
    ("agent-names", put(["agent", "hosts"], "10.0.0.1 docs.example.com\n198.18.0.1 front docs.example.com\n")),
    ("agent-names", put(["agent", "hosts"], "198.18.0.1 front docs.example.com\n192.0.2.1 host.containers.internal\n")),
    ("caddy-names", put(["caddy", "hosts"], "127.0.0.1 localhost\n198.18.0.1 docs.example.com\n")),
    ("caddy-resolver", put(["caddy", "nameservers"], ["198.51.100.53", "192.0.2.1"])),  # N2
    ("caddy-aliases", put(["caddy", "aliases", "198.18.1.2:443"], "open")),  # N8
    ("caddy-listeners", add(["caddy", "listeners"], "0.0.0.0:2019")),
]


@pytest.mark.parametrize("probe, change", BREAKS, ids=[f"{i}-{p}" for i, (p, _) in enumerate(BREAKS)])
def test_each_probe_fails_when_what_it_guards_is_broken(world, probe, change):
    plan, seen = world
    change(seen)
    assert verdicts(plan, seen)[probe] == "fail"


@pytest.mark.parametrize(("probe", "part"), [("agent-rules", "nft"), ("agent-routes", "routes")])
def test_a_list_that_the_kernel_would_never_leave_empty_was_not_read(world, probe, part):
    """Where nothing is planned, an empty answer is no pass."""
    plan, seen = world
    seen["agent"][part] = []
    assert verdicts(plan, seen)[probe] == "inconclusive"


def test_a_planned_route_and_forwarding_are_wanted_where_they_are_planned(world):
    plan, seen = world
    plan["wiring"]["routes"] = [
        {"role": "agent", "interface": "eth1", "via": "198.18.0.9", "to": ["192.0.2.0/24", "192.0.2.9/32"]}
    ]
    plan["wiring"]["forward"] = ["caddy"]
    assert verdicts(plan, seen)["agent-routes"] == verdicts(plan, seen)["caddy-forwarding"] == "fail"
    seen["caddy"]["ip_forward"] = "1"
    seen["agent"]["routes"] += [
        {"dst": dst, "gateway": "198.18.0.9", "dev": "eth1"} for dst in ("192.0.2.0/24", "192.0.2.9")
    ]
    assert verdicts(plan, seen)["agent-routes"] == verdicts(plan, seen)["caddy-forwarding"] == "pass"


def test_without_a_way_out_caddy_has_no_link_and_no_route_for_one(world):
    plan, seen = world
    plan["wiring"]["uplinks"] = []
    found = verdicts(plan, seen)
    assert found["caddy-links"] == found["caddy-addresses"] == found["caddy-routes"] == "fail"
    assert "caddy-resolver" not in found and "caddy-aliases" not in found


def test_a_read_only_grant_that_is_writable_fails(world):
    plan, seen = world
    plan["mounts"][0]["rw"] = False
    assert verdicts(plan, seen)["agent-mounts"] == "fail"


@pytest.mark.parametrize("result", ["ECONNREFUSED", "timeout", "ENETUNREACH"])
def test_l6_an_alias_without_a_positive_sign_of_refusal_is_inconclusive(world, result):
    plan, seen = world
    seen["caddy"]["aliases"]["198.18.1.2:443"] = result
    assert verdicts(plan, seen)["caddy-aliases"] == "inconclusive"


def test_l6_not_to_have_seen_itself_is_not_to_have_looked(world):
    plan, seen = world
    seen["agent"]["neighbourhood"]["seen"] = False
    assert verdicts(plan, seen)["agent-alone"] == "inconclusive"


@pytest.mark.parametrize("role", ROLES)
def test_l6_a_reading_that_is_missing_is_inconclusive_and_blocks(world, role):
    plan, seen = world
    for key in list(seen[role]):
        broken = copy.deepcopy(seen)
        del broken[role][key]
        results = probes.judge(plan, broken, {r: True for r in ROLES})
        blocked = [r for r in probes.blocking(results) if r["id"].startswith(role)]
        read_by = {
            "roots": "agent",
            "sources": "agent",
            "nameservers": "caddy",
            "aliases": "caddy",
            "listeners": "caddy",
            "cgroup": "agent",
        }
        due = read_by.get(key, role) == role
        assert any(r["verdict"] == "inconclusive" for r in blocked) is due, key


def test_l6_nothing_observed_is_inconclusive_for_every_probe(world):
    plan, _ = world
    assert set(verdicts(plan, {}).values()) == {"inconclusive"}


def test_mountinfo_decodes_octal_escapes():
    rows = probes.parse_mountinfo(r"1 2 8:1 / /workspace/repos/a\040b\134c rw - ext4 /dev/x rw")
    assert rows[0]["target"] == r"/workspace/repos/a b\c"
