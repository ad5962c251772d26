# SPDX-License-Identifier: BSD-2-Clause
"""Outside probes: definition and verdict, apart from how anything is observed.

An observation is plain data read back from the kernel and the engine (``engine/observe.py``). A probe looks at plan and
observation and says pass, fail or inconclusive, with evidence. What was not observed is inconclusive, never a pass:
a probe that did not look must not reassure anybody (invariant 3).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from .escape import clip
from .nftables import canonical
from .roles import CREATE

Json = Dict[str, Any]
Verdict = Tuple[bool, str]
Judge = Callable[[Json, Json, str], Verdict]

ZERO_CAPS = "0000000000000000"
CAP_FIELDS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
SEPARATE = ("user", "mnt", "net", "pid", "ipc", "uts")


class Probe(NamedTuple):
    """One check from outside. ``when`` says from which stage on it can be judged: ``wired`` or ``started``."""

    name: str
    invariant: int
    expect: str
    judge: Judge
    roles: Sequence[str] = CREATE
    when: str = "wired"
    #: Whether it is due for a role of this plan at all.
    due: Callable[[Json, str], bool] = lambda plan, role: True


def ends(plan: Json, role: str) -> List[Tuple[Json, Json]]:
    """The (own, peer) ends of every cable that role ``role`` holds."""
    pairs = []
    for cable in plan["wiring"]["cables"]:
        for own, peer in ((cable["near"], cable["far"]), (cable["far"], cable["near"])):
            if own["role"] == role:
                pairs.append((own, peer))
    return pairs


def uplink(plan: Json, role: str) -> str:
    """The interface of the role's private way out; empty without one."""
    return next((str(one["interface"]) for one in plan["wiring"]["uplinks"] if one["role"] == role), "")


def _same(want: Iterable[Any], got: Iterable[Any], noun: str) -> Verdict:
    wanted, found = sorted(map(str, want)), sorted(map(str, got))
    if wanted == found:
        return True, f"{noun}: {', '.join(found) or 'none'}"
    return False, f"{noun}: expected {', '.join(wanted) or 'none'}; found {', '.join(found) or 'none'}"


# --- links, addresses, routes, neighbours ---------------------------------------------------------------------


def _links(plan: Json, seen: Json, role: str) -> Verdict:
    want = ["lo"] + [own["interface"] for own, _ in ends(plan, role)]
    want += [name] if (name := uplink(plan, role)) else []
    by_name = {link["ifname"]: link for link in seen["links"]}
    ok, text = _same(want, by_name, "links")
    for own, _ in ends(plan, role):
        link = by_name.get(own["interface"], {})
        if "NOARP" not in link.get("flags", []) or link.get("address") != own["mac"]:
            return False, f"{own['interface']} is not the planned cable: {link.get('flags')} {link.get('address')}"
    return ok, text


def _addresses(plan: Json, seen: Json, role: str) -> Verdict:
    out = uplink(plan, role)
    want = [f"{own['interface']} {own['ip']}/32 peer {peer['ip']}" for own, peer in ends(plan, role)]
    got = []
    for link in seen["addresses"]:
        name = link["ifname"]
        if name in ("lo", out):
            continue
        for info in link.get("addr_info", []):
            # iproute2 shows a peer address as {"local": own, "address": peer}
            got.append(f"{name} {info.get('local')}/{info.get('prefixlen')} peer {info.get('address')}")
    return _same(want, got, "addresses")


def _routes(plan: Json, seen: Json, role: str) -> Verdict:
    """The cables' peers, the planned static routes, and one default route by the uplink where there is one."""
    out = uplink(plan, role)
    want = [f"{peer['ip']} {own['interface']}" for own, peer in ends(plan, role)]
    want += [f"default {out}"] if out else []
    for planned in plan["wiring"]["routes"]:
        if planned["role"] == role:
            want += [f"{_bare(cidr)} via {planned['via']} {planned['interface']}" for cidr in planned["to"]]
    got, own_addresses = [], 0
    for route in seen["routes"]:
        table, dst, dev = route.get("table", "main"), route.get("dst"), route.get("dev")
        if table == "local":
            own_addresses += 1
            continue
        via = f" via {route['gateway']}" if "gateway" in route and not (dev == out and dst == "default") else ""
        if table != "main":
            got.append(f"{dst}{via} {dev} table {table}")
        elif not out or dev != out or dst == "default":
            got.append(f"{dst}{via} {dev}")
    if not own_addresses:
        raise ValueError("not even loopback's own routes were listed")
    return _same(want, got, "routes")


def _bare(cidr: str) -> str:
    """A destination as ip(8) shows it: without the length of a single address."""
    return cidr[: -len("/32")] if cidr.endswith("/32") else cidr


def _neighbours(plan: Json, seen: Json, role: str) -> Verdict:
    out = uplink(plan, role)
    want = [f"{own['interface']} {peer['ip']} {peer['mac']} PERMANENT" for own, peer in ends(plan, role)]
    got = [
        f"{n.get('dev')} {n.get('dst')} {n.get('lladdr')} {'/'.join(n.get('state', []))}"
        for n in seen["neighbours"]
        if n.get("dev") not in ("lo", out)
    ]
    return _same(want, got, "neighbours")


def _no_ipv6(plan: Json, seen: Json, role: str) -> Verdict:
    found = [
        f"{link['ifname']} {info.get('local')}"
        for link in seen["addresses"]
        for info in link.get("addr_info", [])
        if info.get("family") == "inet6"
    ]
    found += [f"route {r.get('dst')}" for r in seen["routes6"] if r.get("type") not in ("unreachable", "prohibit")]
    if found or seen["ipv6_disabled"] != "1":
        return False, f"IPv6 is on: disable_ipv6={seen['ipv6_disabled']} {' '.join(found)}"
    return True, "disable_ipv6=1, no address, no route"


def _rules(plan: Json, seen: Json, role: str) -> Verdict:
    want: List[Json] = []
    for item in plan["wiring"]["nft"]:
        if item["role"] == role:
            want = canonical(item["rules"])
    if not any("metainfo" in o for o in seen["nft"]):
        raise ValueError("nft listed nothing, not even its own version")
    got = canonical(seen["nft"])
    if want == got:
        return True, f"{sum('rule' in o for o in got)} rules, as planned"
    missing = [o for o in want if o not in got]
    extra = [o for o in got if o not in want]
    return False, clip(f"ruleset differs: missing {missing} unplanned {extra}", 1500)


def _forwarding(plan: Json, seen: Json, role: str) -> Verdict:
    want = "1" if role in plan["wiring"]["forward"] else "0"
    return seen["ip_forward"] == want, f"ip_forward={seen['ip_forward']}"


# --- apart from other sessions ---------------------------------------------------------------------------------


def _peers(plan: Json, seen: Json, role: str) -> Verdict:
    """Every session has the same addresses and MACs: which namespace a cable ends in tells whose it is."""
    wrong, cables = [], seen["cables"]
    for own, peer in ends(plan, role):
        found = cables.get(own["interface"], {"netns": None, "roles": {}})
        number = found["roles"].get(peer["role"], -1)
        if found["netns"] is None or found["netns"] != number or number < 0:
            wrong.append(f"{own['interface']} does not end in this session's {peer['role']}")
    count = len(ends(plan, role))
    return not wrong, "; ".join(wrong) or f"{count} cable{'s' * (count != 1)}, each to this session's own container"


def _alone(plan: Json, seen: Json, role: str) -> Verdict:
    found = seen["neighbourhood"]
    if not found["seen"]:
        raise ValueError("its own process was not among those that were looked at")
    if found["strangers"]:
        return False, "processes of other containers in its namespaces: " + clip("; ".join(found["strangers"]), 500)
    return True, f"shares nothing with the {found['others']} other containers of this account"


# --- processes, user namespaces, mounts -----------------------------------------------------------------------


def _identity(plan: Json, seen: Json, role: str) -> Verdict:
    chosen, now = seen["chosen"], {"pid": seen["pid"], "start": seen["start"], "net": seen["ns"]["net"]}
    differing = [k for k in now if chosen[k] != now[k]]
    if differing:
        return False, "not the process chosen at init: " + ", ".join(f"{k} {chosen[k]} -> {now[k]}" for k in differing)
    return True, f"pid {now['pid']}, {now['net']}"


def _namespaces(plan: Json, seen: Json, role: str) -> Verdict:
    shared = [kind for kind in SEPARATE if seen["ns"][kind] == seen["host_ns"][kind]]
    if shared:
        return False, "shared with the host: " + ", ".join(shared)
    return True, "own " + ", ".join(SEPARATE)


def _userns(plan: Json, seen: Json, role: str) -> Verdict:
    """The outer column is relative to the reader, who reads in the parent namespace, whose 0 is the operator."""
    if seen["ns"]["user"] == seen["parent_user"]:
        return False, "it runs in the parent user namespace itself, whose root is the operator"
    rows = [[int(n) for n in line.split()] for line in seen["uid_map"].splitlines()]
    appears = [inner for inner, outer, count in rows if outer == 0 and count > 0]
    want = [plan["workload"]["uid"]] if role == "agent" else []
    return bool(rows) and appears == want, f"the operator's uid appears as {appears or 'nobody'}"


def _confined(plan: Json, seen: Json, role: str) -> Verdict:
    status, want = seen["status"], plan["gate"]["caps"] if role == "agent" else ZERO_CAPS
    wrong = [f"{k}={status[k]}" for k in CAP_FIELDS if status[k] != want]
    wrong += [f"{k}={status[k]}" for k, v in (("NoNewPrivs", "1"), ("Seccomp", "2")) if status[k] != v]
    held = "no capability" if want == ZERO_CAPS else "NET_RAW alone"
    return not wrong, ", ".join(wrong) or f"{held}, no_new_privs, seccomp filter"


def _options(plan: Json, seen: Json, role: str) -> Verdict:
    """What the engine says it was asked for: weaker than the kernel's word, but it catches a swapped container."""
    got = seen["inspect"]
    spec = next(c for c in plan["containers"] if c["role"] == role)
    caps = ["CAP_NET_RAW"] if role == "agent" and plan["gate"]["net_raw"] else []
    wrong = []
    for what, ok in (
        ("read-only root", got["read_only"]),
        ("not privileged", not got["privileged"]),
        ("no device", not got["devices"]),
        ("capabilities", got["effective_caps"] == caps and got["bounding_caps"] == caps),
        ("labels", got["labels"].get("asf.session") == plan["session"]["id"] and got["labels"].get("asf.role") == role),
        ("plan", got["labels"].get("asf.plan") == seen["plan_digest"]),
        ("image", got["image"] == spec["image"]),
        ("network", got["network"].split(":")[0] == spec["network"].split(":")[0]),
    ):
        if not ok:
            wrong.append(what)
    return not wrong, "differs: " + ", ".join(
        wrong
    ) if wrong else "read-only root, planned capabilities, no device, as labelled"


_RLIMITS = {
    "core": "Max core file size",
    "nofile": "Max open files",
    "nproc": "Max processes",
    "data": "Max data size",
}


def _limits(plan: Json, seen: Json, role: str) -> Verdict:
    want, wrong = plan["limits"][role], []
    rows = {line[:25].strip(): line[25:].split()[:2] for line in seen["limits"].splitlines()}
    for text in want["ulimits"]:
        name, _, values = text.partition("=")
        if rows[_RLIMITS[name]] != values.split(":"):
            wrong.append(f"{name} is {':'.join(rows[_RLIMITS[name]])}, not {values}")
    for name, value in want["cgroup"].items():
        if seen["cgroup"][name] != value:
            wrong.append(f"{name} is {seen['cgroup'][name]}, not {value}")
    return not wrong, "; ".join(wrong) or f"{len(want['ulimits'])} ulimits, {len(want['cgroup'])} of the control group"


# Mounts that the engine makes by itself; what it leaves writable there belongs to the container alone.
ENGINE_RW = (
    "/proc",
    "/dev",
    "/dev/pts",
    "/dev/mqueue",
    "/dev/shm",
    "/dev/console",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/tty",
    "/dev/random",
    "/dev/urandom",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/timer_stats",
)
ENGINE_RO = (
    "/",
    "/sys",
    "/sys/fs/cgroup",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/run/.containerenv",
    "/run/secrets",
    "/etc/passwd",
    "/etc/group",
)
ENGINE_RO_BELOW = ("/proc/", "/sys/")


def parse_mountinfo(text: str) -> List[Json]:
    """Rows of proc_pid_mountinfo(5) by target, escapes decoded; a later mount hides an earlier."""
    rows = {}
    for line in text.splitlines():
        fields = line.split(" ")
        dash = fields.index("-")
        target = _unescape(fields[4])
        own, whole = fields[5].split(","), fields[dash + 3].split(",")
        size = next((word[len("size=") :] for word in whole if word.startswith("size=")), "")
        rows[target] = {
            "target": target,
            "fstype": fields[dash + 1],
            "rw": "rw" in own and "ro" not in whole,
            "size": int(size[:-1]) * 1024 if size.endswith("k") else 0,
            "options": own,
        }
    return list(rows.values())


def _unescape(text: str) -> str:
    for code in ("040", "011", "012"):
        text = text.replace("\\" + code, chr(int(code, 8)))
    return text.replace("\\134", "\\")


# File systems of what the engine leaves writable; a host folder in such a place would have another.
ENGINE_FS = {"/proc": ("proc",), "/dev": ("tmpfs",), "/dev/pts": ("devpts",), "/dev/mqueue": ("mqueue",)}


def _planned_mount(want: Json, row: Json) -> List[str]:
    """What of a mount is not as planned."""
    target, wrong = row["target"], []
    if row["rw"] != want["rw"]:
        wrong.append(f"{target} is {'rw' if row['rw'] else 'ro'}")
    if want["kind"] == "tmpfs":
        if row["fstype"] != "tmpfs" or row["size"] != want["size"]:
            wrong.append(f"{target} is {row['fstype']} of {row['size']} bytes, not a tmpfs of {want['size']}")
        wrong += [f"{target} lacks {word}" for word in ("nosuid", "nodev") if word not in row["options"]]
    return wrong


def _mounts(plan: Json, seen: Json, role: str) -> Verdict:
    planned = {m["target"]: m for m in plan["mounts"] if m["role"] == role}
    found = {row["target"]: row for row in parse_mountinfo(seen["mountinfo"])}
    wrong = [f"missing {target}" for target in planned if target not in found]
    for target, row in found.items():
        if target in planned:
            wrong += _planned_mount(planned[target], row)
        elif row["rw"] and target not in ENGINE_RW:
            wrong.append(f"unplanned writable {target}")
        elif not (target in ENGINE_RW or target in ENGINE_RO or target.startswith(ENGINE_RO_BELOW)):
            wrong.append(f"unplanned {target}")
        elif row["fstype"] not in ENGINE_FS.get(target, (row["fstype"],)):
            wrong.append(f"{target} is {row['fstype']}")
    return not wrong, clip("; ".join(wrong), 800) or f"{len(planned)} planned mounts, none besides"


def _mount_roots(plan: Json, seen: Json, role: str) -> Verdict:
    """Device and inode of every bind mount, seen through the container's root, equal the source's on the host.

    A grant's must also be those of the folder that was judged when the session was planned: a path that leads
    elsewhere by the time of the mount leads elsewhere on both sides.
    """
    planned = {repo["target"]: list(repo["root"]) for repo in plan["repos"] if "root" in repo}
    wrong, count = [], 0
    for mount in plan["mounts"]:
        if mount["role"] != role or not mount.get("source"):
            continue
        count += 1
        target = mount["target"]
        root, source = seen["roots"][target], seen["sources"][target]
        if root != source:
            wrong.append(f"{target}: {root} is not {mount['source']} {source}")
        elif root != planned.get(target, root):
            wrong.append(f"{target}: {root} is not the folder that was planned, {planned[target]}")
    return not wrong, clip("; ".join(wrong), 800) or f"{count} mount roots are their sources"


# --- names ------------------------------------------------------------------------------------------------------

# Lines of the engine's own: the container's names, by which it finds itself, and loopback.
_LOOPBACK = (("127.0.0.1", "localhost"), ("::1", "localhost"))


def host_names(text: str) -> List[Tuple[str, str]]:
    """Pairs of address and name of a hosts(5) text, in order."""
    rows = (line.partition("#")[0].split() for line in text.splitlines())
    return [(row[0], name) for row in rows for name in row[1:]]


def _names(plan: Json, seen: Json, role: str) -> Verdict:
    """Planned names lead to Caddy, for the agent alone; nothing else has a name but the container itself."""
    planned = [(a, name) for a, name in plan["network"]["hosts"]] if role == "agent" else []
    found = host_names(seen["hosts"])
    spec = next(c for c in plan["containers"] if c["role"] == role)
    hostname = next((word.partition("=")[2] for word in spec["args"] if word.startswith("--hostname=")), "")
    own = {spec["name"], hostname}
    first: Dict[str, str] = {}
    for address, name in found:
        first.setdefault(name, address)  # of several addresses resolvers try all, the first one first
    wrong = [
        f"{name} is {first.get(name, 'missing')}, not {address}"
        for address, name in planned
        if first.get(name) != address
    ]
    wrong += [
        f"unplanned {name} {a}" for a, name in found if (a, name) not in [*planned, *_LOOPBACK] and name not in own
    ]
    return not wrong, clip("; ".join(wrong), 800) or f"{len(planned)} planned names, none besides"


# --- Caddy ----------------------------------------------------------------------------------------------------


def _resolver(plan: Json, seen: Json, role: str) -> Verdict:
    return _same([plan["network"]["resolver"]], seen["nameservers"], "nameservers")


def _listeners(plan: Json, seen: Json, role: str) -> Verdict:
    return _same(
        [entry["address"] for entry in plan["listeners"] if entry["role"] == role], seen["listeners"], "listeners"
    )


def _aliases(plan: Json, seen: Json, role: str) -> Verdict:
    """A TCP connect that the output chain rejects ends with EHOSTUNREACH at once; anything else is no proof."""
    open_ = [t for t, r in seen["aliases"].items() if r == "open"]
    other = [f"{t} {r}" for t, r in seen["aliases"].items() if r not in ("open", "EHOSTUNREACH")]
    if open_:
        return False, "reachable: " + ", ".join(open_)
    if other or not seen["aliases"]:
        raise ValueError("no positive sign of refusal: " + (", ".join(other) or "nothing was tried"))
    return True, "rejected by the output rules: " + ", ".join(seen["aliases"])


def _leaves(plan: Json, role: str) -> bool:
    """Where Caddy has no way out, links and routes show it, and nothing is left to ask."""
    return bool(uplink(plan, role))


PROBES: Tuple[Probe, ...] = (
    Probe("links", 2, "lo and the planned cables only, ARP off", _links),
    Probe("addresses", 2, "the planned /32 addresses and no other", _addresses),
    Probe(
        "routes", 2, "the cables' peers, planned routes, and one default route where there is an uplink (N4)", _routes
    ),
    Probe("neighbours", 2, "the planned permanent entries only", _neighbours),
    Probe("ipv6", 2, "IPv6 off, no address, no route (N10)", _no_ipv6),
    Probe("rules", 2, "the kernel lists exactly the planned ruleset", _rules),
    Probe("peers", 2, "each cable ends in this session's own container (N3)", _peers),
    Probe("alone", 2, "no process of another container or session is in its namespaces (N3)", _alone),
    Probe("forwarding", 2, "ip_forward is 0, and 1 in a gateway", _forwarding),
    Probe("identity", 3, "pid, start time and network namespace are those chosen at init", _identity),
    Probe("namespaces", 1, "no namespace is the host's", _namespaces),
    Probe("userns", 1, "agent: operator's uid is its own; Caddy, broker and gateway do not map it", _userns),
    Probe("options", 1, "read-only root, planned capabilities, no device, planned image and labels", _options),
    Probe("mounts", 1, "the planned mounts, read-only where planned, and none besides", _mounts),
    Probe("mount-roots", 11, "device and inode of each mount root equal the plan's source", _mount_roots),
    Probe("names", 2, "the agent's /etc/hosts holds the planned names, nobody's any other", _names),
    Probe("resolver", 2, "Caddy's only nameserver is the planned one (N2)", _resolver, ("caddy",), due=_leaves),
    Probe(
        "aliases",
        2,
        "host aliases and the host's addresses are rejected behind Caddy (N8)",
        _aliases,
        ("caddy",),
        due=_leaves,
    ),
    Probe("listeners", 2, "the planned listeners and no other", _listeners, ("caddy",), "started"),
    Probe("limits", 1, "the planned limits are set on the process and its control group", _limits, when="started"),
    Probe(
        "confined",
        1,
        "all capability sets zero, or NET_RAW alone where granted; no_new_privs, seccomp filter loaded",
        _confined,
        when="started",
    ),
)


def result(name: str, invariant: int, vantage: str, expect: str, verdict: str, evidence: str) -> Json:
    """A probe's result, in the shape of every report."""
    return {
        "id": name,
        "invariant": invariant,
        "vantage": vantage,
        "expect": expect,
        "verdict": verdict,
        "evidence": clip(evidence, 2000),
    }


def judge(plan: Json, observed: Mapping[str, Json], started: Mapping[str, bool]) -> List[Json]:
    """Judge every outside probe for every role of the plan.

    ``observed`` maps roles to observations; ``started`` says whose process runs, which decides the probes that are due.
    """
    results = []
    for role in (c["role"] for c in plan["containers"]):
        for probe in PROBES:
            early = probe.when == "started" and not started.get(role)
            if role not in probe.roles or early or not probe.due(plan, role):
                continue
            verdict, evidence = _verdict(probe, plan, observed.get(role), role)
            results.append(result(f"{role}-{probe.name}", probe.invariant, "outside", probe.expect, verdict, evidence))
    return results


def _verdict(probe: Probe, plan: Json, seen: Optional[Json], role: str) -> Tuple[str, str]:
    if seen is None:
        return "inconclusive", "nothing was observed"
    try:
        ok, evidence = probe.judge(plan, seen, role)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as exc:
        return "inconclusive", f"the observation is incomplete: {type(exc).__name__}: {exc}"
    return ("pass" if ok else "fail"), evidence


def blocking(results: Sequence[Json]) -> List[Json]:
    """The results that stop an open: everything but pass and warn."""
    return [r for r in results if r["verdict"] not in ("pass", "warn")]
