# SPDX-License-Identifier: BSD-2-Clause
"""Inside probes: which the gate must answer, and the host's own verdict on what it answered.

The gate is a program in the workload's container: its report is data from there (invariant 10) and its verdicts are
opinions. Each row of ``INSIDE`` has a rule that decides again from ``got``, by the plan; the gate's verdict can only make
the result worse. What the gate did not say is inconclusive, never a pass (L6). A denial counts only beside an allow
control that passed (``DEPENDS``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .escape import terminal
from .probes import ENGINE_RO, ENGINE_RO_BELOW, ENGINE_RW, result

Json = Dict[str, Any]
Verdict = Tuple[str, str]
Rule = Callable[[str, Mapping[str, Any]], Verdict]

PASS, FAIL, INCONCLUSIVE, WARN = "pass", "fail", "inconclusive", "warn"
#: From good to bad; of two verdicts the later one counts.
_ORDER = (PASS, WARN, INCONCLUSIVE, FAIL)

MAX_CHECKS, MAX_GOT = 200, 8000
EVIDENCE_LIMIT = 1500


@dataclass(frozen=True)
class Inside:
    """One inside probe. ``asked`` names the list or object of the plan's ``probes`` without which it is not run;
    ``first`` is true where only PID 1 itself can answer, at its first report."""

    id: str
    invariant: int
    expect: str
    rule: Rule
    asked: str = ""
    first: bool = False


# --- rules ------------------------------------------------------------------------------------------------------------


def _verdict(ok: bool, note: str = "") -> Verdict:
    return (PASS if ok else FAIL), ("" if ok else note)


def _is(*values: str) -> Rule:
    """``got`` is one of the values."""
    return lambda got, plan: _verdict(got in values)


def _pairs(got: str) -> Dict[str, str]:
    """``a=1 b=2`` as a dictionary; raises ValueError for a word without ``=`` and for a key given twice."""
    out: Dict[str, str] = {}
    for word in got.split():
        key, sign, value = word.partition("=")
        if not sign or key in out:
            raise ValueError(f"not key=value: {word!r}")
        out[key] = value
    return out


def _caps(got: str, plan: Mapping[str, Any]) -> Verdict:
    return _verdict(_pairs(got) == {name: plan["caps"] for name in ("inh", "prm", "eff", "bnd", "amb")})


def _ids(got: str, plan: Mapping[str, Any]) -> Verdict:
    uid, gid = (",".join([str(plan[key])] * 4) for key in ("uid", "gid"))
    return _verdict(_pairs(got) == {"uid": uid, "gid": gid, "groups": ""})


#: Inode numbers of the kernel's initial namespaces (include/linux/proc_ns.h).
INITIAL_NAMESPACES = {"user": "4026531837", "pid": "4026531836", "ipc": "4026531839", "uts": "4026531838"}


def _namespaces(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    shared = [kind for kind, inode in INITIAL_NAMESPACES.items() if found[kind] == inode]
    return _verdict(not shared, "shared with the host: " + ", ".join(shared))


#: Variables that an engine or ASF's images set for PID 1 (S7). None of them is taken from the operator.
ENGINE_ENV = frozenset({"PATH", "HOME", "HOSTNAME", "TERM", "container", "LANG"})


def _environ(got: str, plan: Mapping[str, Any]) -> Verdict:
    unplanned = sorted(set(got.split()) - ENGINE_ENV)
    return _verdict(not unplanned, "unplanned: " + " ".join(unplanned))


def _refused(*answers: str, nested: str = "") -> Rule:
    """The filter's answer. ``nested`` is the kernel's own, which a nested sandbox must see instead."""

    def rule(got: str, plan: Mapping[str, Any]) -> Verdict:
        if nested and plan["nested_sandbox"]:
            return _verdict(got == nested, f"nested_sandbox: expected {nested}")
        return _verdict(got in answers)

    return rule


def _entry(got: str, plan: Mapping[str, Any]) -> Verdict:
    """SIGSYS is the filter; the others are a kernel or a processor without that table."""
    return _verdict(got in ("SIGSYS", "SIGSEGV", "ENOSYS", "none-on-arm64"))


def _sockets_open(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    inet6 = found.pop("inet6", "")
    open_ = found == {"unix": "ok", "inet": "ok", "netlink": "ok"} and inet6 in ("ok", "EAFNOSUPPORT")
    return _verdict(open_)  # EAFNOSUPPORT: a kernel without IPv6 (N10)


def _raw_socket(got: str, plan: Mapping[str, Any]) -> Verdict:
    return _verdict(got == ("ok" if plan["net_raw"] else "ENOSYS"))


def peers(plan: Mapping[str, Any]) -> List[str]:
    """Addresses that the workload has a route to: those of the listeners on its own cable."""
    probes = plan["probes"]
    ends = list(probes.get("reach") or [])
    ends += [probes[key]["proxy"] for key in ("allow", "deny") if probes.get(key)]
    ends += [probes["front"]["addr"]] if probes.get("front") else []
    return sorted({end.rpartition(":")[0].strip("[]") for end in ends})


def _links(got: str, plan: Mapping[str, Any]) -> Verdict:
    return _verdict(got == ("up=eth0" if peers(plan) else "up="))


def _routes(got: str, plan: Mapping[str, Any]) -> Verdict:
    count, *words = got.split()
    rows = [word.split(",") for word in words]
    strange = [word for word, row in zip(words, rows) if row[1] != "via:-" or row[0][-3:] != "/32"]
    found = sorted({row[0][:-3] for row in rows})
    ok = not strange and found == peers(plan) and count == f"routes={len(words)}"
    return _verdict(ok, f"expected routes to {', '.join(peers(plan)) or 'nothing'}")


def _each(key: str, kinds: Sequence[str], decide: Callable[[str, str, str, Mapping[str, Any]], str]) -> Rule:
    """Every address of the plan's list with every kind has an answer ``ADDRESS/KIND=WORD``; the worst verdict counts."""

    def rule(got: str, plan: Mapping[str, Any]) -> Verdict:
        answers = _pairs(got)
        worst, note = PASS, ""
        for address in plan["probes"][key]:
            for kind in kinds:
                word = answers.get(f"{address}/{kind}")
                verdict = INCONCLUSIVE if word is None else decide(address, kind, word, plan)
                if _ORDER.index(verdict) > _ORDER.index(worst):
                    worst, note = verdict, f"{address}/{kind}: {word or 'not answered'}"
        return worst, note

    return rule


#: Errors of the probing process or its host: they say nothing about a path.
LOCAL_TROUBLE = frozenset({"EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EAGAIN", "error"})


def _unreach(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    """Only the routing table's own answer counts: a timeout or a refusal means that a packet found a way out (P12)."""
    no_v6 = address.startswith("[") and word in ("EADDRNOTAVAIL", "EAFNOSUPPORT")
    no_icmp = kind == "icmp" and word == "socket-EACCES"  # ping_group_range leaves this group out: no socket at all
    if word == "ENETUNREACH" or no_v6 or no_icmp:
        return PASS
    return INCONCLUSIVE if word in LOCAL_TROUBLE or word.startswith("socket-") else FAIL


def _reach(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    """A listener that is not there is infrastructure, not policy."""
    return PASS if word == "connected" else INCONCLUSIVE


def _closed(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    dropped = word in ("timeout", "ETIMEDOUT") and plan["probes"].get("dropped_ok")
    if word in ("ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH") or dropped:
        return PASS
    return FAIL if word == "connected" else INCONCLUSIVE


def _dns(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    if word in ("answered", "connected"):
        return FAIL
    silent = ("silent", "timeout", "ETIMEDOUT", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH")
    return PASS if word in silent else INCONCLUSIVE


def _allow(got: str, plan: Mapping[str, Any]) -> Verdict:
    """The decision alone: an upstream that is down is no policy (P2)."""
    reason = got.partition(":")[2]
    if got in ("200", "200:ok") or reason.startswith("upstream-"):
        return PASS, ""
    return (FAIL, "policy denies the control") if reason.startswith("denied-") else (INCONCLUSIVE, "not ASF's proxy")


def _allow_reach(got: str, plan: Mapping[str, Any]) -> Verdict:
    reason = got.partition(":")[2]
    if got in ("200", "200:ok"):
        return PASS, ""
    return (WARN, reason) if reason.startswith("upstream-") else (INCONCLUSIVE, "not reached, and not for the upstream")


def _deny(got: str, plan: Mapping[str, Any]) -> Verdict:
    """Only the policy's own word is a denial: a dead proxy denies nothing (L6)."""
    if got == "403:denied-name":
        return PASS, ""
    passed = got.startswith("200") or got.partition(":")[2].startswith("upstream-")
    return (FAIL, "the name passed the policy") if passed else (INCONCLUSIVE, "no denial by policy")


def _front(got: str, plan: Mapping[str, Any]) -> Verdict:
    if got == "204:ok":
        return PASS, ""
    return (FAIL, "the front refuses the token") if got.startswith("401") else (INCONCLUSIVE, "no answer of the front")


def _front_refuses(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    words = [found["none"], found["wrong"]]
    if any(word.startswith("2") for word in words):
        return FAIL, "the front answers without the session token"
    return (PASS, "") if all(w.startswith("401") for w in words) else (INCONCLUSIVE, "neither refused nor let through")


_OCTAL = re.compile(r"\\([0-3][0-7]{2})")


def _unescape(word: str) -> str:
    """The gate's spelling of a path: octal for every byte that is not a printable ASCII letter (or is a comma)."""
    data = re.sub(_OCTAL, lambda m: chr(int(m.group(1), 8)), word)
    return data.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


def _mounts(got: str, plan: Mapping[str, Any]) -> Verdict:
    planned = {m["target"]: m for m in plan["probes"]["mounts"]}
    own = {"/asf/gate", "/asf/gate.json", plan["token_file"]}
    wrong, seen = [], set()
    for word in got.split():
        name, kind, mode = word.rsplit(",", 2)
        target = _unescape(name)
        seen.add(target)
        if target in planned:
            want = planned[target]
            if mode != ("rw" if want["rw"] else "ro") or want.get("type") not in ("", None, kind):
                wrong.append(f"differs: {word}")
        elif target not in ENGINE_RW and (
            mode != "ro" or not (target in ENGINE_RO or target in own or target.startswith(ENGINE_RO_BELOW))
        ):
            wrong.append(f"unplanned: {word}")
    wrong += [f"missing: {target}" for target in planned if target not in seen]
    if "/" not in seen:
        return INCONCLUSIVE, "the list has no root"
    return _verdict(not wrong, "; ".join(wrong))


def _masked(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    bad = [name for name, state in found.items() if state not in ("masked", "absent")]
    return _verdict(not bad and found["/proc/sys"] == "masked", "not masked: " + ", ".join(bad or ["/proc/sys"]))


HARMLESS_DEVICES = frozenset(
    ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm", "mqueue", "fd")
    + ("stdin", "stdout", "stderr", "core")
)


def _devices(got: str, plan: Mapping[str, Any]) -> Verdict:
    names = got.split()
    if "null" not in names:
        return INCONCLUSIVE, "the list lacks /dev/null"
    other = sorted(set(names) - HARMLESS_DEVICES)
    return _verdict(not other, "unplanned: " + " ".join(other))


# --- the table --------------------------------------------------------------------------------------------------------

_FILTER = ("EPERM", "ENOSYS")
_OPAQUE = _is("dumpable=0", "environ=EACCES mem=EACCES")

INSIDE: Tuple[Inside, ...] = (
    Inside("pid1", 3, "the gate is PID 1 of its own pid namespace", _is("1"), first=True),
    Inside("pid1-opaque", 3, "PID 1 is not dumpable: the workload's uid cannot read its environment or memory", _OPAQUE),
    Inside("seccomp-mode", 1, "a seccomp filter is in force (mode 2)", _is("2")),
    Inside("no-new-privs", 1, "no_new_privs is set", _is("1")),
    Inside("caps", 1, "all five capability sets are the planned ones", _caps),
    Inside("uid-gid", 1, "all four uids and gids are the planned ones, no supplementary group", _ids),
    Inside("namespaces", 1, "user, pid, ipc and uts namespaces are not the host's", _namespaces),
    Inside("fds", 11, "no descriptor beyond 0, 1 and 2", _is("more=0")),
    Inside("core-limit", 1, "core dumps are off, soft and hard limit", _is("soft=0 hard=0")),
    Inside("environ", 4, "PID 1's environment holds only the engine's few names", _environ),
    Inside("sys-unshare", 1, "unshare is refused by the filter (allowed with nested_sandbox)",
           _refused(*_FILTER, nested="ok")),
    Inside("sys-setns", 1, "setns is refused by the filter (allowed with nested_sandbox)",
           _refused(*_FILTER, nested="EBADF")),
    Inside("sys-mount", 1, "mount is refused by the filter (allowed with nested_sandbox)",
           _refused(*_FILTER, nested="EFAULT")),
    Inside("sys-umount", 1, "umount2 is refused by the filter (allowed with nested_sandbox)",
           _refused(*_FILTER, nested="EFAULT")),
    Inside("sys-chroot", 1, "chroot is refused by the filter (allowed with nested_sandbox)",
           _refused(*_FILTER, nested="EFAULT")),
    Inside("sys-open-tree", 1, "open_tree is refused by the filter", _refused(*_FILTER)),
    Inside("sys-fsconfig", 1, "fsconfig is refused by the filter", _refused(*_FILTER)),
    Inside("sys-mount-attr", 1, "mount_setattr is refused by the filter", _refused(*_FILTER)),
    Inside("sys-clone3", 1, "clone3 answers ENOSYS", _refused("ENOSYS")),
    Inside("sys-io-uring", 1, "io_uring_setup is refused by the filter", _refused(*_FILTER)),
    Inside("sys-keyctl", 1, "keyctl is refused by the filter", _refused(*_FILTER)),
    Inside("sys-add-key", 1, "add_key is refused by the filter", _refused(*_FILTER)),
    Inside("sys-request-key", 1, "request_key is refused by the filter", _refused(*_FILTER)),
    Inside("sys-bpf", 1, "bpf is refused by the filter", _refused(*_FILTER)),
    Inside("sys-userfaultfd", 1, "userfaultfd is refused by the filter", _refused(*_FILTER)),
    Inside("sys-perf", 1, "perf_event_open is refused by the filter", _refused(*_FILTER)),
    Inside("sys-file-handle", 1, "name_to_handle_at is refused by the filter", _refused(*_FILTER)),
    Inside("clone-newuser", 1, "clone(CLONE_NEWUSER) is refused (allowed with nested_sandbox)",
           _refused("EPERM", nested="ran")),
    Inside("entry-int80", 1, "the 32-bit system call entry kills", _entry),
    Inside("entry-x32", 1, "the x32 system call entry kills", _entry),
    Inside("sock-control", 1, "UNIX, INET, INET6 and NETLINK_ROUTE sockets open", _sockets_open),
    Inside("sock-families", 1, "every other socket family is refused by the filter", _is("refused=60/60")),
    Inside("sock-vsock", 1, "AF_VSOCK is refused by the filter", _is("refused=3/3")),
    Inside("sock-highbits", 1, "high bits of an argument do not bypass the socket filter", _is("refused=4/4")),
    Inside("sock-netlink", 1, "every netlink protocol but 0 is refused by the filter", _is("refused=31/31")),
    Inside("sock-raw", 1, "raw sockets are refused by the filter (open with NET_RAW)", _raw_socket),
    Inside("sock-pair", 1, "socketpair is refused for every family but UNIX", _is("refused=4/4")),
    Inside("net-links", 2, "the only links up are lo and the planned cable", _links),
    Inside("net-routes", 2, "the only routes are to the cable's peer, in every table, both families", _routes),
    Inside("no-ipv6", 2, "no IPv6 address", _is("addresses=0")),
    Inside("unreach", 2, "TCP, UDP and ICMP to addresses outside the plan: network unreachable",
           _each("unreach", ("tcp", "udp", "icmp"), _unreach), asked="unreach"),
    Inside("reach", 2, "the planned listeners accept TCP connections", _each("reach", ("tcp",), _reach), asked="reach"),
    Inside("closed", 2, "unplanned ports of the cable's and of other addresses are closed",
           _each("closed", ("tcp",), _closed), asked="closed"),
    Inside("dns-silent", 2, "no DNS answer over UDP or TCP", _each("dns", ("udp", "tcp"), _dns), asked="dns"),
    Inside("proxy-allow", 3, "the control name is allowed by the proxy's decision", _allow, asked="allow"),
    Inside("proxy-reach", 3, "the control host is reached through the proxy", _allow_reach, asked="allow"),
    Inside("proxy-deny", 2, "an undeclared name is denied by policy", _deny, asked="deny"),
    Inside("front-control", 3, "the front knows the session token", _front, asked="front"),
    Inside("front-refuses", 4, "the front refuses no token and a wrong token", _front_refuses, asked="front"),
    Inside("mounts", 1, "mounts are the planned ones and the engine's fixed ones, read-only where not planned rw", _mounts),
    Inside("root-readonly", 1, "the root file system is read-only", _is("EROFS")),
    Inside("proc-masked", 1, "kernel settings are read-only, and the engine's masked files are masked", _masked),
    Inside("dev-nodes", 1, "only the engine's harmless device nodes exist", _devices),
    Inside("no-sockets", 1, "no socket of an engine or of the host is in reach", _is("found=0")),
)

#: Probe → the control beside which alone its pass counts: a network that is down refuses everything.
DEPENDS = {
    "unreach": "reach", "closed": "reach", "dns-silent": "reach", "proxy-deny": "proxy-allow",
    "front-refuses": "front-control", "sock-families": "sock-control", "sock-vsock": "sock-control",
    "sock-highbits": "sock-control", "sock-netlink": "sock-control",
}


# --- judging a report -------------------------------------------------------------------------------------------------


def expected(plan: Mapping[str, Any], first: bool) -> List[Inside]:
    """The rows that a report must answer: those the plan asks for, and PID 1's own only from PID 1."""
    probes = plan["probes"]
    return [row for row in INSIDE if (first or not row.first) and (not row.asked or probes.get(row.asked))]


def judge(report: Any, gate_plan: Mapping[str, Any], first: Optional[bool] = None) -> List[Json]:
    """Judge a gate's report: ``{id, invariant, vantage, expect, verdict, evidence}`` for every probe that was due.

    ``report`` is whatever JSON the gate sent; ``gate_plan`` is the session's ``gate.json`` with ``plan_digest``. ``first``
    says whether PID 1 itself must have answered (at open) or a fresh process (on a live session); without it the
    report's pid decides, which is for callers that know the pid from elsewhere (SO_PEERCRED). Never raises for any
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
        control = DEPENDS.get(row.id)
        if verdict == PASS and control in verdicts and verdicts[control][0] != PASS:
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
    if not isinstance(got, str) or len(got) > MAX_GOT or said not in _ORDER:
        return INCONCLUSIVE, "the gate's answer is malformed"
    if not got and said == INCONCLUSIVE:
        return INCONCLUSIVE, f"gate: {reason}"
    try:
        verdict, note = row.rule(got, plan)
    except (KeyError, ValueError, IndexError, TypeError) as exc:
        verdict, note = INCONCLUSIVE, f"cannot be judged ({type(exc).__name__}: {exc})"
    if _ORDER.index(said) > _ORDER.index(verdict):
        verdict, note = said, note or f"gate: {reason}"
    if verdict == WARN and row.id != "proxy-reach":
        verdict = INCONCLUSIVE  # a warning lets the session start, which only the control's reach half may
    return verdict, "; ".join(part for part in (note, got) if part)
