# SPDX-License-Identifier: BSD-2-Clause
"""Rules of the inside probes: from the gate's raw answer and the plan to a verdict.

``got`` comes from the workload's side. A rule may raise KeyError, ValueError, IndexError or TypeError for an answer
that has not the expected form; its caller makes that inconclusive.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from .probes import ENGINE_RO, ENGINE_RO_BELOW, ENGINE_RW

Verdict = Tuple[str, str]
Rule = Callable[[str, Mapping[str, Any]], Verdict]

PASS, FAIL, INCONCLUSIVE, WARN = "pass", "fail", "inconclusive", "warn"
#: From good to bad; of two verdicts the later one counts.
ORDER = (PASS, WARN, INCONCLUSIVE, FAIL)


def _verdict(ok: bool, note: str = "") -> Verdict:
    return (PASS if ok else FAIL), ("" if ok else note)


def exactly(*values: str) -> Rule:
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


def caps(got: str, plan: Mapping[str, Any]) -> Verdict:
    return _verdict(_pairs(got) == {name: plan["caps"] for name in ("inh", "prm", "eff", "bnd", "amb")})


def ids(got: str, plan: Mapping[str, Any]) -> Verdict:
    uid, gid = (",".join([str(plan[key])] * 4) for key in ("uid", "gid"))
    return _verdict(_pairs(got) == {"uid": uid, "gid": gid, "groups": ""})


#: Inode numbers of the kernel's initial namespaces (include/linux/proc_ns.h).
INITIAL_NAMESPACES = {"user": "4026531837", "pid": "4026531836", "ipc": "4026531839", "uts": "4026531838"}


def namespaces(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    shared = [kind for kind, inode in INITIAL_NAMESPACES.items() if found[kind] == inode]
    return _verdict(not shared, "shared with the host: " + ", ".join(shared))


#: Variables that an engine or ASF's images set for PID 1 (S7). None of them is taken from the operator.
ENGINE_ENV = frozenset({"PATH", "HOME", "HOSTNAME", "TERM", "container", "LANG"})


def environ(got: str, plan: Mapping[str, Any]) -> Verdict:
    unplanned = sorted(set(got.split()) - ENGINE_ENV)
    return _verdict(not unplanned, "unplanned: " + " ".join(unplanned))


def refused(*answers: str, nested: str = "") -> Rule:
    """The filter's answer. ``nested`` is the kernel's own, which a nested sandbox must see instead."""

    def rule(got: str, plan: Mapping[str, Any]) -> Verdict:
        if nested and plan["nested_sandbox"]:
            return _verdict(got == nested, f"nested_sandbox: expected {nested}")
        return _verdict(got in answers)

    return rule


def entry(got: str, plan: Mapping[str, Any]) -> Verdict:
    """SIGSYS is the filter; the others are a kernel or a processor without that table."""
    return _verdict(got in ("SIGSYS", "SIGSEGV", "ENOSYS", "none-on-arm64"))


def sockets_open(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    inet6 = found.pop("inet6", "")
    open_ = found == {"unix": "ok", "inet": "ok", "netlink": "ok"} and inet6 in ("ok", "EAFNOSUPPORT")
    return _verdict(open_)  # EAFNOSUPPORT: a kernel without IPv6 (N10)


def raw_socket(got: str, plan: Mapping[str, Any]) -> Verdict:
    return _verdict(got == ("ok" if plan["net_raw"] else "ENOSYS"))


def peers(plan: Mapping[str, Any]) -> List[str]:
    """Addresses that the workload has a route to: those of the listeners on its own cable."""
    probes = plan["probes"]
    ends = list(probes.get("reach") or [])
    ends += [probes[key]["proxy"] for key in ("allow", "deny") if probes.get(key)]
    ends += [probes[key]["addr"] for key in ("tls", "front") if probes.get(key)]
    return sorted({end.rpartition(":")[0].strip("[]") for end in ends})


def _routed(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of the probes that routed mode has; empty in other modes."""
    return plan["probes"].get("routed") or {}


def links(got: str, plan: Mapping[str, Any]) -> Verdict:
    want = ["lo"] + (["eth0"] if peers(plan) else []) + (["eth1"] if _routed(plan) else [])
    return _verdict(got == "up=" + ",".join(want), "expected " + " ".join(want))


def loopback(got: str, plan: Mapping[str, Any]) -> Verdict:
    """The control of the probing itself: what fails here shows nothing about the policy."""
    return (PASS, "") if got == "tcp=connected udp=answered" else (INCONCLUSIVE, "not even loopback is seen")


def planned_routes(plan: Mapping[str, Any]) -> Dict[str, str]:
    """Destination -> what it goes through ("-": the cable itself)."""
    routed = _routed(plan)
    out = {f"{peer}/32": "-" for peer in peers(plan)}
    if routed:
        out.update({cidr: routed["via"] for cidr in routed["routes"]}, **{f"{routed['via']}/32": "-"})
    return out


def routes(got: str, plan: Mapping[str, Any]) -> Verdict:
    count, own, *words = got.split()
    rows = [word.split(",") for word in words]
    found = sorted((row[0], row[1]) for row in rows)
    want = sorted((dst, f"via:{via}") for dst, via in planned_routes(plan).items())
    differing = [" ".join(row) for row in found if row not in want] + [
        dst for dst, via in want if (dst, via) not in found
    ]
    if int(own.replace("own=", "")) < 1:
        return INCONCLUSIVE, "nothing was listed, not even loopback's own routes"
    ok = found == want and count == f"routes={len(words)}"
    return _verdict(ok, f"expected {len(want)} routes; differing: {', '.join(differing[:10]) or 'their number'}")


def _targets(key: str, plan: Mapping[str, Any]) -> List[str]:
    """The addresses of a probe: a list or a single one, in routed mode's part after a dot (``routed.udp``)."""
    part, _, name = key.partition(".")
    found = plan["probes"][part]
    found = found[name] if name else found
    return [found] if isinstance(found, str) else list(found)


def each(key: str, kinds: Sequence[str], decide: Callable[[str, str, str, Mapping[str, Any]], str]) -> Rule:
    """Every address of the plan's list has an answer ``ADDRESS/KIND=WORD`` of every kind; the worst verdict counts."""

    def rule(got: str, plan: Mapping[str, Any]) -> Verdict:
        answers = _pairs(got)
        worst, note = PASS, ""
        for address in _targets(key, plan):
            for kind in kinds:
                word = answers.get(f"{address}/{kind}")
                verdict = INCONCLUSIVE if word is None else decide(address, kind, word, plan)
                if ORDER.index(verdict) > ORDER.index(worst):
                    worst, note = verdict, f"{address}/{kind}: {word or 'not answered'}"
        return worst, note

    return rule


#: Errors of the probing process or its host: they say nothing about a path.
LOCAL_TROUBLE = frozenset({"EMFILE", "ENFILE", "ENOMEM", "ENOBUFS", "EAGAIN", "error"})


def unreach(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    """Only the routing table's own answer counts: a timeout or a refusal means that a packet found a way out (P12)."""
    no_v6 = address.startswith("[") and word in ("EADDRNOTAVAIL", "EAFNOSUPPORT")
    no_icmp = kind == "icmp" and word == "socket-EACCES"  # ping_group_range leaves this group out: no socket at all
    if word == "ENETUNREACH" or no_v6 or no_icmp:
        return PASS
    return INCONCLUSIVE if word in LOCAL_TROUBLE or word.startswith("socket-") else FAIL


def reach(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    """A listener that is not there is infrastructure, not policy."""
    return PASS if word == "connected" else INCONCLUSIVE


def closed(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    dropped = word in ("timeout", "ETIMEDOUT") and plan["probes"].get("dropped_ok")
    if word in ("ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH") or dropped:
        return PASS
    return FAIL if word == "connected" else INCONCLUSIVE


def blocked(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    """That the port is open, and that the gateway dropped the attempt, is seen from outside (``gateway-denied``)."""
    if word == "connected":
        return FAIL
    return PASS if word in ("timeout", "ETIMEDOUT", "EHOSTUNREACH", "ECONNREFUSED") else INCONCLUSIVE


def answered(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    """Silence proves nothing. A closed UDP port answers by ICMP, so the datagram got there."""
    if word in ("answered", "ECONNREFUSED"):
        return PASS
    return WARN if word == "silent" else INCONCLUSIVE


def _quiet(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    if word in ("timeout", "ETIMEDOUT", "silent"):
        return PASS
    local = word in LOCAL_TROUBLE or word.startswith("socket-") or word == "ENETUNREACH"
    return INCONCLUSIVE if local else FAIL


def gateway_silent(got: str, plan: Mapping[str, Any]) -> Verdict:
    """No answer and no refusal, of any kind that the agent can ask; ICMP only where it has sockets for that."""
    verdict, note = each("routed.silent", ("tcp", "udp"), _quiet)(got, plan)
    if verdict == PASS and _routed(plan)["icmp"]:
        return each("routed.via", ("icmp",), _quiet)(got, plan)
    return verdict, note


def dns(address: str, kind: str, word: str, plan: Mapping[str, Any]) -> str:
    if word in ("answered", "connected"):
        return FAIL
    silent = ("silent", "timeout", "ETIMEDOUT", "ECONNREFUSED", "ENETUNREACH", "EHOSTUNREACH")
    return PASS if word in silent else INCONCLUSIVE


def allow(got: str, plan: Mapping[str, Any]) -> Verdict:
    """The decision alone: an upstream that is down is no policy (P2)."""
    reason = got.partition(":")[2]
    if got in ("200", "200:ok") or reason.startswith("upstream-"):
        return PASS, ""
    return (FAIL, "policy denies the control") if reason.startswith("denied-") else (INCONCLUSIVE, "not ASF's proxy")


def allow_reach(got: str, plan: Mapping[str, Any]) -> Verdict:
    reason = got.partition(":")[2]
    if got in ("200", "200:ok"):
        return PASS, ""
    return (WARN, reason) if reason.startswith("upstream-") else (INCONCLUSIVE, "not reached, and not for the upstream")


def deny(got: str, plan: Mapping[str, Any]) -> Verdict:
    """Only the policy's own word is a denial: a dead proxy denies nothing (L6)."""
    if got == "403:denied-name":
        return PASS, ""
    passed = got.startswith("200") or got.partition(":")[2].startswith("upstream-")
    return (FAIL, "the name passed the policy") if passed else (INCONCLUSIVE, "no denial by policy")


def tls_allow(got: str, plan: Mapping[str, Any]) -> Verdict:
    """The host's first answer is enough; access_denied (49) is the policy's, internal_error (80) trouble beyond."""
    if got == "server-hello":
        return PASS, ""
    if got in ("alert:80", "closed", "silent"):
        return WARN, f"upstream-{got}"
    return (FAIL, "policy denies the control") if got == "alert:49" else (INCONCLUSIVE, "no answer of the host")


def tls_deny(got: str, plan: Mapping[str, Any]) -> Verdict:
    """Only the policy's own alert is a denial (L6)."""
    if got == "alert:49":
        return PASS, ""
    passed = got in ("server-hello", "alert:80")
    return (FAIL, "the name passed the policy") if passed else (INCONCLUSIVE, "no denial by policy")


def policy(got: str, plan: Mapping[str, Any]) -> Verdict:
    """The id that Caddy names with a refusal, or at the front's control."""
    if got == plan["probes"]["policy"]:
        return PASS, ""
    named = len(got) == len(plan["probes"]["policy"])
    return (FAIL, "Caddy decides by another policy") if named else (INCONCLUSIVE, "nobody names a policy")


def front(got: str, plan: Mapping[str, Any]) -> Verdict:
    if got == "204:ok":
        return PASS, ""
    return (FAIL, "the front refuses the token") if got.startswith("401") else (INCONCLUSIVE, "no answer of the front")


def front_refuses(got: str, plan: Mapping[str, Any]) -> Verdict:
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


def mounts(got: str, plan: Mapping[str, Any]) -> Verdict:
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


def masked(got: str, plan: Mapping[str, Any]) -> Verdict:
    found = _pairs(got)
    bad = [name for name, state in found.items() if state not in ("masked", "absent")]
    return _verdict(not bad and found["/proc/sys"] == "masked", "not masked: " + ", ".join(bad or ["/proc/sys"]))


HARMLESS_DEVICES = frozenset(
    "null zero full random urandom tty console ptmx pts shm mqueue fd stdin stdout stderr core".split()
)


def devices(got: str, plan: Mapping[str, Any]) -> Verdict:
    names = got.split()
    if "null" not in names:
        return INCONCLUSIVE, "the list lacks /dev/null"
    other = sorted(set(names) - HARMLESS_DEVICES)
    return _verdict(not other, "unplanned: " + " ".join(other))
