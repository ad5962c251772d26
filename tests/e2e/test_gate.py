# SPDX-License-Identifier: BSD-4-Clause
"""Inside probes on real Podman: what each of them guards is really broken, and verification fails by that probe.

A case names what was changed and the verdicts that must follow. `MUTATIONS` says for every inside probe which tests
show that it can fail; the security model's table is made of it. Of the published cases these probes guard N1
(`dns-silent`), N9 (`caps`), N11 (`sock-vsock`), P12 (`unreach`); L6 and L7 are mutations of Caddy.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import netns
from support.mutate import Run, added, arguments, instead, mutated, rendered, without
from support.product import Home, podman, run, sample_repo

from asf_lib.core import inside
from asf_lib.engine import verification

pytestmark = [pytest.mark.podman]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
BROKERED = {**PLAIN, "llm": {"protocol": "openai", "mock": "hello"}}

Plan = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One way to break a session. `expect` maps probes to verdicts; others may fail as well."""

    name: str
    expect: dict[str, str]
    edit: Callable[[Plan], None] | None = None
    hooks: dict[str, Callable[[dict[str, int]], None]] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=lambda: PLAIN)
    exact: bool = False  # nothing else among the inside probes may fail


def failing(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "fail")


def inconclusive(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "inconclusive")


# --- what is changed --------------------------------------------------------------------------------------------------


def no_profile(*instead_of: str) -> Callable[[Plan], None]:
    """The engine's default filter, or another security option, instead of ASF's profile."""
    return lambda plan: instead(plan, "agent", "--security-opt=seccomp=", *instead_of)


def allowing(*calls: str) -> Callable[[Plan], None]:
    """ASF's profile with some calls let through."""

    def edit(plan: Plan) -> None:
        profile = rendered(plan, "seccomp-agent.json")
        for rule in profile["syscalls"]:
            rule["names"] = [name for name in rule["names"] if name not in calls]
        profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]]
        profile["syscalls"].append({"names": list(calls), "action": "SCMP_ACT_ALLOW", "args": []})

    return edit


def no_inet_sockets(plan: Plan) -> None:
    profile = rendered(plan, "seccomp-agent.json")
    inet = {"index": 0, "value": socket.AF_INET, "valueTwo": 0, "op": "SCMP_CMP_EQ"}
    profile["syscalls"] = [rule for rule in profile["syscalls"] if inet not in rule["args"]]


def l1(plan: Plan) -> Plan:
    server: Plan = rendered(plan, "caddy/caddy.json")["apps"]["http"]["servers"]["l1"]
    return server


def listed(*policy: Plan) -> Callable[[Plan], None]:
    """Caddy gets another list than the plan's."""

    def edit(plan: Plan) -> None:
        l1(plan)["routes"][0]["handle"][0]["policy"] = list(policy)

    return edit


def other_policy(plan: Plan) -> None:
    """Caddy runs another revision than the plan's: what it says of itself is all that shows it here."""
    for server in ("l1", "l2"):
        servers = rendered(plan, "caddy/caddy.json")["apps"]["http"]["servers"]
        servers[server]["routes"][0]["handle"][0]["policy_id"] = "0" * 16


def everything_refused(plan: Plan) -> None:
    """A proxy that refuses everything is no policy: it is not ASF's word. L1t still finds its handler behind it."""
    l1(plan)["routes"][0]["handle"].insert(0, {"handler": "static_response", "status_code": 403, "close": True})


def listening_on(port: int) -> Callable[[Plan], None]:
    return lambda plan: l1(plan)["listen"].append(f"198.18.0.1:{port}")


def rules_gone(pids: dict[str, int]) -> None:
    netns.wire_sh(pids["caddy"], "nft flush ruleset")


def low_ports(pids: dict[str, int]) -> None:
    netns.wire_sh(pids["caddy"], "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start")


def front_open(plan: Plan) -> None:
    """A front that asks nobody for a token."""
    servers = rendered(plan, "caddy/caddy.json")["apps"]["http"]["servers"]
    answer = {"handler": "static_response", "status_code": 204, "headers": {"X-Asf-Front": ["ok"]}}
    servers["l2"]["routes"][0]["handle"] = [answer]


def other_token(plan: Plan) -> None:
    """The agent holds a token that is not the front's."""
    token, master = (next(s["name"] for s in plan["secrets"] if s["part"] == part) for part in ("token", "master"))
    args = arguments(plan, "agent")
    (place,) = [index for index, word in enumerate(args) if word.startswith(f"--secret={token},")]
    args[place] = args[place].replace(token, master, 1)


def in_agent(script: str) -> Callable[[dict[str, int]], None]:

    def run_there(pids: dict[str, int]) -> None:
        netns.wire_sh(pids["agent"], script)

    return run_there


def caddy_gone(pids: dict[str, int]) -> None:
    """Caddy itself ends and cannot come back; its supervisor, the namespace and the cables stay."""
    supervisor = pids["caddy"]
    tasks = Path(f"/proc/{supervisor}/task").glob("*/children")  # any thread may have started it
    children = " ".join(task.read_text().strip() for task in tasks).split()
    assert children
    netns.in_userns_root(f"kill -STOP {supervisor}; kill -KILL {' '.join(children)}")


def chosen_args(*options: str) -> Callable[[Plan], None]:
    return lambda plan: added(plan, "agent", *options)


def dropped(*options: str) -> Callable[[Plan], None]:
    return lambda plan: without(plan, "agent", *options)


def swapped(beginning: str, *replacement: str) -> Callable[[Plan], None]:
    return lambda plan: instead(plan, "agent", beginning, *replacement)


def hosts_names(plan: Plan) -> None:
    instead(plan, "agent", "--uts=private", "--uts=host")
    instead(plan, "agent", "--hostname=")


def edits(*each: Callable[[Plan], None]) -> Callable[[Plan], None]:
    """Several at once: what is independent is broken in one session, which costs seconds."""

    def edit(plan: Plan) -> None:
        for one in each:
            one(plan)

    return edit


# --- the cases --------------------------------------------------------------------------------------------------------

#: Those of routed mode are in test_routed_probes.py.
ROWS = {row.id: row for row in inside.INSIDE if not row.asked.startswith("routed.")}

#: Refused by ASF's filter alone: the engine's default lets them through.
ONLY_ASF = ("sys-unshare", "sys-mount", "sys-umount", "clone-newuser", "entry-int80", "sock-families", "sock-highbits")
FILTERED = tuple(
    row.id
    for row in inside.INSIDE
    if row.id.startswith(("sys-", "sock-", "clone-")) and row.id not in ("sock-control",)
)

CASES = (
    Case("default-filter", failing(*ONLY_ASF), no_profile()),
    Case(
        "no-filter",
        failing("seccomp-mode", "entry-int80", *FILTERED),
        no_profile("--security-opt=seccomp=unconfined"),
    ),
    Case("one-call-allowed", failing("sys-keyctl"), allowing("keyctl"), exact=True),
    Case(
        "no-inet-sockets",
        {**failing("sock-control"), **inconclusive("sock-vsock", "sock-families", "sock-highbits", "sock-netlink")},
        no_inet_sockets,
    ),
    Case(
        "privileges-kept",
        failing("no-new-privs", "caps"),
        edits(dropped("--security-opt=no-new-privileges"), dropped("--cap-drop=ALL")),
        exact=True,
    ),
    Case("capability-kept", failing("caps"), chosen_args("--cap-add=NET_RAW")),
    Case("root", failing("uid-gid"), swapped("--user=", "--user=0:0")),
    Case("host-pids", failing("pid1", "namespaces"), swapped("--pid=private", "--pid=host")),
    Case("host-names", failing("namespaces"), hosts_names),
    Case(
        "careless-options",
        failing("uid-gid", "core-limit", "environ", "mounts"),
        edits(
            chosen_args("--group-add=1234", "--env=OPERATORS_SECRET=x", "--tmpfs=/mnt:rw,size=1m"),
            swapped("--ulimit=core=", "--ulimit=core=1024:1024"),
        ),
        exact=True,
    ),
    Case("writable-root", failing("root-readonly", "mounts"), dropped("--read-only"), exact=True),
    Case(
        "parts-of-the-host",
        failing("proc-masked", "dev-nodes"),
        chosen_args("--security-opt=unmask=ALL", "--device=/dev/fuse"),
    ),
    Case(
        "default-route",
        failing("net-routes", "unreach"),
        hooks={"after_wire": in_agent("ip route add default via 198.18.0.1 dev eth0")},
        exact=True,
    ),
    Case(
        "more-network",
        failing("net-links", "net-routes", "no-ipv6"),
        hooks={
            "after_wire": in_agent(
                "ip link add x0 type veth peer name x1; ip link set x0 up; ip link set x1 up\n"
                "ip route add 203.0.113.0/24 via 198.18.0.1 dev eth0 table 77\n"
                "for i in all eth0; do echo 0 > /proc/sys/net/ipv6/conf/$i/disable_ipv6; done\n"
                "ip -6 addr add fd00::2/64 dev eth0 nodad"
            )
        },
    ),
    Case(
        "more-listeners",
        failing("closed", "dns-silent"),
        edits(listening_on(2019), listening_on(53)),
        {"after_create": low_ports, "after_wire": rules_gone},
        exact=True,
    ),
    Case(
        "no-loopback",
        {**inconclusive("loopback", "net-routes"), **failing("net-links")},
        hooks={"after_wire": in_agent("ip link set lo down")},
    ),
    Case(
        "cable-unplugged",
        {**inconclusive("reach", "proxy-allow", "proxy-deny", "dns-silent", "closed"), **failing("net-links")},
        hooks={"after_start": in_agent("ip link del eth0")},
    ),
    Case(
        "empty-list",  # L7
        {**failing("proxy-allow", "tls-allow"), **inconclusive("proxy-reach", "proxy-deny", "tls-deny")},
        listed(),
    ),
    Case(
        "wider-list",
        failing("proxy-deny", "tls-deny"),
        listed(
            {"name": "docs.example.com", "ports": [443], "tls": "required", "private": ["198.51.100.0/24"], "key": "x"},
            {"name": "asf-denied.invalid", "ports": [443], "tls": "required", "private": [], "key": "x"},
        ),
    ),
    Case(
        "everything-refused",  # L6: a denial without ASF's reason is no denial
        inconclusive("proxy-allow", "proxy-reach", "proxy-deny", "tls-deny"),
        everything_refused,
    ),
    Case(
        "caddy-gone",  # L6, L7
        inconclusive(
            "reach",
            *("proxy-allow", "proxy-reach", "proxy-deny", "tls-allow", "tls-deny"),
            *("unreach", "closed", "dns-silent"),
        ),
        hooks={"after_start": caddy_gone},
    ),
    Case(
        "other-token",
        {**failing("front-control"), **inconclusive("front-refuses")},
        other_token,
        manifest=BROKERED,
    ),
    Case("other-policy", failing("policy-current"), other_policy, manifest=BROKERED),
    Case("open-front", failing("front-refuses"), front_open, manifest=BROKERED),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mutation(home: Home, case: Case) -> None:
    """What is really broken is found, by the probe that guards it."""
    home.agent("broken", case.manifest)
    with mutated(home, "broken", edit_plan=case.edit, **case.hooks) as broken:
        assert broken.error is not None, "the broken session was verified"
        found = {probe: broken.verdict(probe) for probe in case.expect}
        assert found == case.expect, str(broken)
        if case.exact:
            others = {name for name in broken.bad() if name in ROWS} - set(case.expect)
            assert not others, str(broken)


def test_untouched_sessions_are_verified(home: Home) -> None:
    """The control of all the others: the same harness, nothing broken."""
    home.agent("whole", BROKERED)
    with mutated(home, "whole") as whole:
        assert whole.error is None, str(whole)
        # with a front, that is the control; the proxy's is asked for by `network.verify_domain`
        assert set(ROWS) - {r["id"] for r in whole.results} == {"proxy-allow", "proxy-reach", "tls-allow"}
        assert {r["verdict"] for r in whole.results} == {"pass"}


def test_upstream_that_is_down_warns(home: Home) -> None:
    """P2: only whether the control's host is reached may be a warning, and the session may start."""
    down = {**DOCS, "name": "refused.example.com"}
    home.agent("down", {**PLAIN, "network": {"allow_domains": [down]}})
    with mutated(home, "down") as run:
        assert run.error is None, str(run)
        assert run.verdict("proxy-allow") == "pass"
        assert run.verdict("proxy-reach") == run.verdict("tls-allow") == "warn"


def judged(broken: Run, report: Any, first: bool) -> dict[str, str]:
    plan = {**broken.doc.plan["gate"], "plan_digest": broken.doc.digest}
    return {r["id"]: r["verdict"] for r in inside.judge(report, plan, first)}


def test_readable_first_process(home: Home) -> None:
    """`pid1-opaque`: root with CAP_SYS_PTRACE reads PID 1's environment, dumpable or not."""
    home.agent("broken", PLAIN)
    with mutated(home, "broken", edit_plan=chosen_args("--cap-add=SYS_PTRACE")) as broken:
        report = podman("exec", "--user=0:0", broken.container("agent"), "/asf/gate", "probe")
        assert judged(broken, json.loads(report), first=False)["pid1-opaque"] == "fail"


def test_descriptor_leaked_by_the_operator(home: Home, tmp_path: Path) -> None:
    """`fds`: an open file of the host's that comes along with a process is found."""
    (tmp_path / "file").write_text("the operator's")
    home.agent("plain", PLAIN)
    with mutated(home, "plain") as whole:
        words = ["podman", "exec", "--preserve-fds=1", whole.container("agent"), "/asf/gate", "probe"]
        done = run(["sh", "-c", 'exec 3<"$0"; exec "$@"', str(tmp_path / "file"), *words])
        assert judged(whole, done.json, first=False)["fds"] == "fail", done


def test_socket_of_the_host(home: Home, tmp_path: Path) -> None:
    """`no-sockets`: an engine's socket, mounted into the container."""
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        engine.listen()
        home.agent("broken", PLAIN)
        mount = f"--volume={path}:/run/podman/podman.sock:ro"
        with mutated(home, "broken", edit_plan=chosen_args(mount)) as broken:
            assert broken.error is not None
            assert broken.verdict("no-sockets") == "fail", str(broken)


def test_read_only_grant_mounted_writable(home: Home, tmp_path: Path) -> None:
    """`mounts`: the plan says ro, the container got rw (invariant 1)."""
    repo = sample_repo(tmp_path / "library")
    home.agent("broken", PLAIN)
    home.grant("broken", {"path": str(repo), "mode": "ro"})

    def edit(plan: Plan) -> None:
        args = arguments(plan, "agent")
        (place,) = [index for index, word in enumerate(args) if "destination=/workspace/repos/library" in word]
        args[place] = args[place].replace(",readonly", "")

    with mutated(home, "broken", edit_plan=edit) as broken:
        assert broken.error is not None
        assert broken.verdict("mounts") == "fail", str(broken)
        assert "library" in broken.evidence("mounts")


def test_gate_with_another_plan(home: Home) -> None:
    """`gate-report`: a gate that answers for another plan than the session's is not believed."""
    home.agent("broken", PLAIN)
    with mutated(home, "broken", edit_plan=stale_gate_plan) as broken:
        assert broken.error is not None
        assert broken.verdict("gate-report") == "inconclusive", str(broken)


def stale_gate_plan(plan: Plan) -> None:
    """The file keeps a digest of its own only when it is no JSON that the product completes."""
    entry = next(f for f in plan["files"] if f["path"] == "gate.json")
    entry["text"] = json.dumps({**entry.pop("json"), "plan_digest": "0" * 64})


def test_x32_entry(home: Home) -> None:
    """`entry-x32`: without a filter the table is open, where the kernel has it."""
    code = "import ctypes; print(ctypes.CDLL(None).syscall(0x40000000 + 39))"
    if run(["python3", "-c", code]).out.strip() == "-1":
        pytest.skip("this kernel has no x32 table (CONFIG_X86_X32_ABI), so there is nothing to open")
    home.agent("broken", PLAIN)
    with mutated(home, "broken", edit_plan=no_profile("--security-opt=seccomp=unconfined")) as broken:
        assert broken.verdict("entry-x32") == "fail", str(broken)


def test_live_session_is_probed_by_a_fresh_process(home: Home) -> None:
    """What breaks while the session runs is found by verify on the live session, from inside as well."""
    home.agent("plain", PLAIN)
    with mutated(home, "plain", live=lambda pids: None) as whole:
        assert whole.error is None, str(whole)
        assert "pid1" not in {r["id"] for r in whole.results}
        in_agent("ip route add default via 198.18.0.1 dev eth0")(whole.pids)
        report = verification._live_report(whole.podman, whole.doc)
        found = judged(whole, report, first=False)
        assert {name for name, verdict in found.items() if verdict == "fail"} == {"net-routes", "unreach"}


#: Inside probe -> the tests that show it failing.
MUTATIONS: dict[str, list[str]] = {name: [] for name in ROWS}
for _case in CASES:
    for _probe in _case.expect:
        MUTATIONS[_probe].append(f"test_mutation[{_case.name}]")
for _probe, _test in {
    "pid1-opaque": test_readable_first_process,
    "fds": test_descriptor_leaked_by_the_operator,
    "no-sockets": test_socket_of_the_host,
    "mounts": test_read_only_grant_mounted_writable,
    "entry-x32": test_x32_entry,
}.items():
    MUTATIONS[_probe].append(_test.__name__)
MUTATIONS["gate-report"] = [test_gate_with_another_plan.__name__]


def test_every_inside_probe_has_a_mutation() -> None:
    """Architecture: a check that cannot fail is worse than none."""
    assert [name for name, tests in MUTATIONS.items() if not tests] == []
