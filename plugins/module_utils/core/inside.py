# SPDX-License-Identifier: BSD-2-Clause
"""Inside probes: which the gate must answer, and the host's own verdict on what it answered.

The gate is a program in the workload's container: its report is data from there (invariant 10) and its verdicts are
opinions. Each row of ``INSIDE`` has a rule that decides again from ``got``, by the plan; the gate's verdict can only
make the result worse. What the gate did not say is inconclusive, never a pass (L6). A denial counts only beside an
allow control that passed (``DEPENDS``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import inside_rules as rules
from .escape import terminal
from .inside_rules import INCONCLUSIVE, ORDER, PASS, WARN, Rule, Verdict
from .probes import result

Json = Dict[str, Any]

MAX_CHECKS, MAX_GOT = 200, 32000
EVIDENCE_LIMIT = 1500


@dataclass(frozen=True)
class Inside:
    """One inside probe. ``asked`` names the list or object of the plan's ``probes`` without which it is not run;
    a dot leads into an object; ``first`` is true where only PID 1 itself can answer, at its first report."""

    id: str
    invariant: int
    expect: str
    rule: Rule
    asked: str = ""
    first: bool = False


# --- the table --------------------------------------------------------------------------------------------------------

_OPAQUE = rules.exactly("dumpable=0", "environ=EACCES mem=EACCES")


def _refused(name: str, call: str, nested: str = "") -> Inside:
    """A call that the filter refuses, with arguments for which the kernel itself gives another answer than the filter.

    ``nested`` is the kernel's own answer where ``nested_sandbox`` gives the call back.
    """
    expect = f"{call} is refused by the filter" + (" (allowed with nested_sandbox)" if nested else "")
    return Inside(name, 1, expect, rules.refused("EPERM", "ENOSYS", nested=nested))


INSIDE: Tuple[Inside, ...] = (
    Inside("pid1", 3, "the gate is PID 1 of its own pid namespace", rules.exactly("1"), first=True),
    Inside("pid1-opaque", 3, "PID 1 is not dumpable: its environment and memory cannot be read", _OPAQUE),
    Inside("seccomp-mode", 1, "a seccomp filter is in force (mode 2)", rules.exactly("2")),
    Inside("no-new-privs", 1, "no_new_privs is set", rules.exactly("1")),
    Inside("caps", 1, "all five capability sets are the planned ones", rules.caps),
    Inside("uid-gid", 1, "all four uids and gids are the planned ones, no supplementary group", rules.ids),
    Inside("namespaces", 1, "user, pid, ipc and uts namespaces are not the host's", rules.namespaces),
    Inside("fds", 11, "no descriptor beyond 0, 1 and 2", rules.exactly("more=0")),
    Inside("core-limit", 1, "core dumps are off, soft and hard limit", rules.exactly("soft=0 hard=0")),
    Inside("environ", 4, "PID 1's environment holds only the engine's few names", rules.environ),
    _refused("sys-unshare", "unshare", nested="ok"),
    _refused("sys-setns", "setns", nested="EBADF"),
    _refused("sys-mount", "mount", nested="EFAULT"),
    _refused("sys-umount", "umount2", nested="EFAULT"),
    _refused("sys-chroot", "chroot", nested="EFAULT"),
    _refused("sys-open-tree", "open_tree"),
    _refused("sys-fsconfig", "fsconfig"),
    _refused("sys-mount-attr", "mount_setattr"),
    Inside("sys-clone3", 1, "clone3 answers ENOSYS", rules.exactly("ENOSYS")),
    _refused("sys-io-uring", "io_uring_setup"),
    _refused("sys-keyctl", "keyctl"),
    _refused("sys-add-key", "add_key"),
    _refused("sys-request-key", "request_key"),
    _refused("sys-bpf", "bpf"),
    _refused("sys-userfaultfd", "userfaultfd"),
    _refused("sys-perf", "perf_event_open"),
    _refused("sys-file-handle", "name_to_handle_at"),
    _refused("clone-newuser", "clone(CLONE_NEWUSER)", nested="ran"),
    Inside("entry-int80", 1, "the 32-bit system call entry kills", rules.entry),
    Inside("entry-x32", 1, "the x32 system call entry kills", rules.entry),
    Inside("sock-control", 1, "UNIX, INET, INET6 and NETLINK_ROUTE sockets open", rules.sockets_open),
    Inside("sock-families", 1, "every other socket family is refused by the filter", rules.exactly("refused=60/60")),
    Inside("sock-vsock", 1, "AF_VSOCK is refused by the filter", rules.exactly("refused=3/3")),
    Inside("sock-highbits", 1, "high argument bits do not bypass the socket filter", rules.exactly("refused=4/4")),
    Inside("sock-netlink", 1, "every netlink protocol but 0 is refused by the filter", rules.exactly("refused=31/31")),
    Inside("sock-raw", 1, "raw sockets are refused by the filter (open with NET_RAW)", rules.raw_socket),
    Inside("sock-pair", 1, "socketpair is refused for every family but UNIX", rules.exactly("refused=4/4")),
    Inside("net-links", 2, "the only links up are lo and the planned cables", rules.links),
    Inside(
        "net-routes",
        2,
        "the only routes are to the cables' peers and to declared networks, in every table, both families",
        rules.routes,
    ),
    Inside("no-ipv6", 2, "no IPv6 address", rules.exactly("addresses=0")),
    Inside("loopback", 3, "the probes see a connection and an answer over loopback", rules.loopback),
    Inside(
        "unreach",
        2,
        "TCP, UDP and ICMP to addresses outside the plan: network unreachable",
        rules.each("unreach", ("tcp", "udp", "icmp"), rules.unreach),
        asked="unreach",
    ),
    Inside(
        "reach",
        2,
        "the planned listeners accept TCP connections",
        rules.each("reach", ("tcp",), rules.reach),
        asked="reach",
    ),
    Inside(
        "closed",
        2,
        "unplanned ports of the cable's and of other addresses are closed",
        rules.each("closed", ("tcp",), rules.closed),
        asked="closed",
    ),
    Inside("dns-silent", 2, "no DNS answer over UDP or TCP", rules.each("dns", ("udp", "tcp"), rules.dns), asked="dns"),
    Inside("proxy-allow", 3, "the control name is allowed by the proxy's decision", rules.allow, asked="allow"),
    Inside("proxy-reach", 3, "the control host is reached through the proxy", rules.allow_reach, asked="allow"),
    Inside("proxy-deny", 2, "an undeclared name is denied by policy", rules.deny, asked="deny"),
    Inside(
        "tls-allow",
        3,
        "the control name is forwarded for clients that know no proxy",
        rules.tls_allow,
        asked="tls.allow",
    ),
    Inside("tls-deny", 2, "an undeclared server name is refused by policy", rules.tls_deny, asked="tls"),
    Inside("policy-current", 3, "Caddy decides by the plan's policy", rules.policy, asked="policy"),
    Inside("front-control", 3, "the front knows the session token", rules.front, asked="front"),
    Inside("front-refuses", 4, "the front refuses no token and a wrong token", rules.front_refuses, asked="front"),
    Inside(
        "routed-allow",
        3,
        "the allowed port of the control is reached",
        rules.each("routed.allowed", ("tcp",), rules.reach),
        asked="routed.allowed",
    ),
    Inside(
        "routed-block",
        2,
        "the blocked port of the control is not reached, although it is open",
        rules.each("routed.blocked", ("tcp",), rules.blocked),
        asked="routed.blocked",
    ),
    Inside(
        "routed-udp",
        3,
        "a datagram for each UDP rule is answered",
        rules.each("routed.udp", ("udp",), rules.answered),
        asked="routed.udp",
    ),
    Inside(
        "routed-icmp",
        3,
        "an echo request for each ICMP rule is answered",
        rules.each("routed.icmp", ("icmp",), rules.answered),
        asked="routed.icmp",
    ),
    Inside("gateway-silent", 2, "the gateway itself answers nothing", rules.gateway_silent, asked="routed.silent"),
    Inside("mounts", 1, "the planned mounts and the engine's own, read-only where not planned rw", rules.mounts),
    Inside("root-readonly", 1, "the root file system is read-only", rules.exactly("EROFS")),
    Inside("proc-masked", 1, "kernel settings are read-only, and the engine's masked files are masked", rules.masked),
    Inside("dev-nodes", 1, "only the engine's harmless device nodes exist", rules.devices),
    Inside("no-sockets", 1, "no socket of an engine or of the host is in reach", rules.exactly("found=0")),
)

#: A warning lets the session start: only where a host was to be reached that may be down, or need not answer.
SILENT_OK = frozenset({"routed-udp", "routed-icmp"})
MAY_WARN = frozenset({"proxy-reach", "tls-allow"}) | SILENT_OK

#: Probe → the controls beside which alone its pass counts, the first that this plan has: what is down refuses
#: everything. Where nothing may be reached through the proxy, the front is the control, or the listeners are; where
#: nothing may be reached at all, loopback is.
DEPENDS: Dict[str, Tuple[str, ...]] = {
    "net-links": ("loopback",),
    "net-routes": ("loopback",),
    "unreach": ("reach", "routed-allow", "loopback"),
    "routed-block": ("routed-allow",),
    "gateway-silent": ("routed-allow",),
    "closed": ("reach",),
    "dns-silent": ("reach",),
    "proxy-deny": ("proxy-allow", "front-control", "reach"),
    "tls-deny": ("proxy-allow", "front-control", "reach"),  # one handler decides for both listeners
    "front-refuses": ("front-control",),
    "sock-families": ("sock-control",),
    "sock-vsock": ("sock-control",),
    "sock-highbits": ("sock-control",),
    "sock-netlink": ("sock-control",),
}


# --- judging a report -------------------------------------------------------------------------------------------------


def expected(plan: Mapping[str, Any], first: bool) -> List[Inside]:
    """The rows that a report must answer: those the plan asks for, and PID 1's own only from PID 1."""
    return [row for row in INSIDE if (first or not row.first) and (not row.asked or _asks(plan["probes"], row.asked))]


def _asks(probes: Any, path: str) -> bool:
    for key in path.split("."):
        probes = (probes or {}).get(key)
    return bool(probes)


def judge(report: Any, gate_plan: Mapping[str, Any], first: Optional[bool] = None) -> List[Json]:
    """Judge a gate's report: ``{id, invariant, vantage, expect, verdict, evidence}`` for every probe that was due.

    ``report`` is whatever JSON the gate sent; ``gate_plan`` is the session's ``gate.json`` with ``plan_digest``.
    ``first`` says whether PID 1 itself must have answered (at open) or a fresh process (on a live session); without it
    the report's pid decides, which is for callers that know the pid from elsewhere (SO_PEERCRED). Never raises for any
    ``report``.
    """
    data = report if isinstance(report, dict) else {}
    if first is None:
        first = data.get("pid") == 1
    checks, notes = _collect(data.get("checks"))
    rows = expected(gate_plan, first)
    unknown = sorted(set(checks) - {row.id for row in INSIDE})
    notes += [f"unknown probes ignored: {' '.join(unknown[:10])}"] if unknown else []
    out = [_envelope(data, gate_plan, first, notes)]
    verdicts = {row.id: _judge_row(row, checks.get(row.id), gate_plan) for row in rows}
    for row in rows:
        verdict, evidence = verdicts[row.id]
        control = next((name for name in DEPENDS.get(row.id, ()) if name in verdicts), None)
        if verdict == PASS and control and verdicts[control][0] != PASS:
            verdict, evidence = INCONCLUSIVE, f"its control {control} did not pass; {evidence}"
        out.append(result(row.id, row.invariant, "inside", row.expect, verdict, terminal(evidence, EVIDENCE_LIMIT)))
    return out


def _collect(found: Any) -> Tuple[Dict[str, Optional[Json]], List[str]]:
    """Checks by id; an id that was reported twice is kept as None, because nobody can say which one is meant."""
    if not isinstance(found, list):
        return {}, ["the report has no list of checks"]
    notes = [f"only {MAX_CHECKS} of {len(found)} checks were read"] if len(found) > MAX_CHECKS else []
    out: Dict[str, Optional[Json]] = {}
    for check in found[:MAX_CHECKS]:
        name = check.get("id") if isinstance(check, dict) else None
        if isinstance(name, str):
            out[name] = None if name in out else check
        else:
            notes.append("a check without an id was ignored")
    return out, notes


def _envelope(data: Json, plan: Mapping[str, Any], first: bool, notes: Sequence[str]) -> Json:
    """The report as a whole: it speaks this version and answers for this plan."""
    pid, nonce = data.get("pid"), data.get("nonce")
    wrong = []
    if data.get("version") != 1:
        wrong.append(f"version {data.get('version')!r}")
    if data.get("plan_digest") != plan["plan_digest"]:
        wrong.append(f"it answers for plan {data.get('plan_digest')!r}")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1 or (pid == 1) != first:
        wrong.append(f"pid {pid!r}")
    if not isinstance(nonce, str) or not re.fullmatch(r"[0-9a-f]{32}", nonce):
        wrong.append(f"nonce {nonce!r}")
    text = "; ".join([*wrong, *notes]) or f"pid {pid}, {data.get('us')} us"
    verdict = INCONCLUSIVE if wrong else PASS
    expect = "the gate's report is well-formed and answers for this plan"
    return result("gate-report", 3, "inside", expect, verdict, terminal(text, EVIDENCE_LIMIT))


def _judge_row(row: Inside, check: Optional[Json], plan: Mapping[str, Any]) -> Verdict:
    if check is None:
        return INCONCLUSIVE, "probe did not run"
    got, said, reason = check.get("got"), check.get("verdict"), check.get("reason", "")
    if not isinstance(got, str) or len(got) > MAX_GOT or said not in ORDER:
        return INCONCLUSIVE, "the gate's answer is malformed"
    if not got and said == INCONCLUSIVE:
        return INCONCLUSIVE, f"gate: {reason}"
    try:
        verdict, note = row.rule(got, plan)
    except (KeyError, ValueError, IndexError, TypeError) as exc:
        verdict, note = INCONCLUSIVE, f"cannot be judged ({type(exc).__name__}: {exc})"
    if ORDER.index(said) > ORDER.index(verdict):
        verdict, note = said, note or f"gate: {reason}"
    if verdict == WARN and row.id not in MAY_WARN:
        verdict = INCONCLUSIVE
    if verdict == WARN and row.id in SILENT_OK:
        note = f"inconclusive: nobody answered ({note})"
    return verdict, "; ".join(part for part in (note, got) if part)
