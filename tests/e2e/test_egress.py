# SPDX-License-Identifier: BSD-4-Clause
"""Egress on real Podman, asked from inside an agent: what is declared works, everything else is refused (P1-P10, P14,
P15, N2), and every refusal says why in status, phrase, header and body.

One session serves most cases. The test world lies in a documentation range, so a name that shall be reachable there
declares it as `private`; names that shall not, do not.
"""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import addresses, probe_tools
from support.client import World
from support.product import Home, Session, SessionFactory, operator_home, podman
from support.waiting import wait_for

pytestmark = pytest.mark.slow

L1 = ["198.18.0.1", 3128]
LIST = "network.allow_domains"
#: a proxy that nobody may ever use, in the operator's environment while the session is opened (P14)
OPERATORS_PROXY = "203.0.113.77"

BARRED = (  # declared, and resolving to where nothing may be dialled
    "private.example.com",
    "metadata.example.com",
    "shared.example.com",
    "loopback.example.com",
    "multicast.example.com",
    "mapped.example.com",
    "nat64.example.com",
    "sixtofour.example.com",
    "ula.example.com",
    "v6only.example.com",
    "cname-metadata.example.com",
    "cable.example.com",
    "zero.example.com",
    "alias.example.com",
)
TROUBLE = {  # declared, allowed, and broken: name -> (status, reason)
    "refused.example.com": (502, "upstream-refused"),
    "blackhole.example.com": (504, "upstream-timeout"),
    "nx.example.com": (502, "upstream-dns-notfound"),
    "servfail.example.com": (502, "upstream-dns-failure"),
    "silent.example.com": (504, "upstream-dns-timeout"),
}


NEIGHBOURS = """notdocs.example.com docs.example.com.evil.test a.docs.example.com example.com com localhost front
    xn--dcs-0na.example.com docs-example.com host.containers.internal host.docker.internal""".split()
LITERALS = """198.51.100.10 127.1 127.0.0.1 0x7f.1 0X7F.0.0.1 2130706433 0x7f000001 017700000001 0177.0.0.1 0 10.0.0.1.
    [::1] [::ffff:10.0.0.1] [fe80::1%25eth0] [::ffff:198.51.100.10] [::] 169.254.169.254 198.18.0.1 198.18.0.5
    198.18.0.6 198.51.100.1 169.254.1.2 1.2.3.0x4 3325256714""".split()
ODD = (
    *(f"NAME{blank}:443" for blank in "\0\r\n\t "),
    *(" NAME:443", "NAME:443\t", "NAME:4 43", "d\u00f6cs.example.com:443", f"{'a.' * 130}com:443", "a" * 9000),
    f"{'a' * 64}.example.com:443",
    *"""a@NAME:443 a:b@NAME:443 .NAME:443 NAME..:443 docs..example.com:443 NAME NAME: NAME:0443 NAME:99999 NAME:65979
    NAME:+443 NAME:0x1bb NAME:443/x NAME:443?x NAME:443#x NAME%00:443 %64ocs.example.com:443 http://NAME:443 //NAME:443
    NAME,evil.test:443 [NAME]:443 docs_.example.com:443 :443 *:443 NAME:443:443 NAME\\:443 NAME;x:443""".split(),
)
ABSOLUTE = (
    *(
        f"{m} http://docs.example.com/ HTTP/1.1\r\nHost: docs.example.com\r\n\r\n"
        for m in "GET POST TRACE OPTIONS".split()
    ),
    "GET https://docs.example.com/ HTTP/1.1\r\nHost: docs.example.com\r\n\r\n",
    "GET ftp://docs.example.com/ HTTP/1.0\r\n\r\n",
)
OWN = (
    *(f"{m} / HTTP/1.1\r\nHost: docs.example.com\r\n\r\n" for m in "GET TRACE OPTIONS DELETE connect".split()),
    "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    "GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: docs.example.com\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n",
)
#: Caddy's other addresses, the broker's, the host's own and its aliases
ELSEWHERE = """198.18.0.5 198.18.0.6 198.18.1.2 198.18.1.3 198.18.1.100 169.254.1.2 169.254.169.254
    198.51.100.1 198.51.100.2 198.51.100.10""".split()


def _entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "private": [f"{addresses.SITE}/32"], **more}  # a list of its own: YAML aliases are refused


DOMAINS: list[Any] = [
    _entry("docs.example.com"),
    _entry("ports.example.com", ports=[8443]),
    _entry("any.example.com", ports=[443, 22, 8000], tls="any"),
    *(_entry(name) for name in ("cname.example.com", "mixed.example.com", "rebind.example.com", "dual.example.com")),
    _entry("thishost.example.com", private=["198.51.100.0/24"]),
    _entry("refused.example.com", private=[f"{addresses.REFUSES}/32"]),
    _entry("blackhole.example.com", private=[f"{addresses.BLACKHOLE}/32"]),
    "nx.example.com",
    "servfail.example.com",
    "silent.example.com",
    *BARRED,
]


def _key(name: str, part: str = "") -> str:
    names = [entry if isinstance(entry, str) else entry["name"] for entry in DOMAINS]
    return f"{LIST}[{names.index(name)}]{part}"


@pytest.fixture(scope="module")
def agent(module_home: Home, module_session: SessionFactory, world: World) -> Session:
    """A session without broker, opened from a shell that is full of proxy variables."""
    world.zone("cable.example.com", A=["198.18.0.5"])
    world.zone("zero.example.com", A=["0.0.0.0"])
    world.zone("alias.example.com", A=["169.254.1.2"])
    module_home.agent("eg", {"network": {"allow_domains": DOMAINS}})
    proxy = f"http://user:password@{OPERATORS_PROXY}:3128"
    names = [v for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy") for v in (name, name.upper())]
    return module_session.open("eg", env={**dict.fromkeys(names, proxy), "NO_PROXY": "*", "no_proxy": "*"})


Call = tuple[str, dict[str, Any]]


def _inside(session: Session, calls: Sequence[Call], timeout: float = 120) -> list[Any]:
    """What several functions of probe_tools say inside the agent."""
    return session.probe_all(calls, timeout)


def _connects(session: Session, targets: Sequence[str], **more: Any) -> list[dict[str, Any]]:
    """CONNECT to each target; a Host header that the parser has no objection to, so that the target is judged."""
    requests = [probe_tools.connect_request(target, host="docs.example.com") for target in targets]
    return _inside(session, [("connect_raw", {"proxy": L1, "data": request, **more}) for request in requests])


def _assert_refused(answer: dict[str, Any], status: int, reason: str, key: str | None = None) -> dict[str, Any]:
    """Status, phrase, header and body agree; `key` None: not checked, "": none is named. Returns the body."""
    assert (answer["status"], answer["phrase"]) == (status, reason), answer
    headers, body = answer["headers"], json.loads(answer["body"])
    assert headers["x-asf-proxy"] == body["error"] == reason, answer  # and no second response behind it
    assert headers["content-type"] == "application/json" and "server" not in headers, answer
    assert headers.get("x-asf-key", "") == body["key"] and body["remedy"], answer
    assert key is None or body["key"] == key, answer
    found: dict[str, Any] = body
    return found


def _nothing_left(world: World, mark: int) -> None:
    """Since `mark`: no DNS query, no connection."""
    world.settle()
    assert world.dns_names(mark) == set()
    assert world.accepts(mark) == []


# ---- P1, P3, P5-P9: judged by the request alone


def test_a_declared_name_works(agent: Session, world: World) -> None:
    """The positive control of everything below: tunnel, TLS end to end, one DNS query to the resolver of config.yml."""
    mark = world.mark()
    mixed = ("DOCS.Example.COM:443", "docs.example.com.:443")
    calls: list[Call] = [("tls_through", {"proxy": L1, "target": "docs.example.com:443"})]
    calls += [("tls_through", {"proxy": L1, "target": target, "sni": "docs.example.com"}) for target in mixed]
    for answer in _inside(agent, calls):
        assert (answer["status"], answer["tls"], answer["answer"]["status"]) == (200, "ok", 200), answer
    assert {(e["address"], e["sni"]) for e in world.handshakes(mark)} == {(addresses.SITE, "docs.example.com")}
    assert world.dns_names(mark) == {"docs.example.com"}, "one canonical name is asked for, without search domains"


def test_P1_P7_undeclared_names_never_reach_dns(agent: Session, world: World) -> None:
    """Random canaries, and neighbours of a declared name."""
    mark = world.mark()
    names = [*(f"{secrets.token_hex(8)}.canary.test" for _ in range(3)), *NEIGHBOURS]
    for name, answer in zip(names, _connects(agent, [f"{name}:443" for name in names]), strict=True):
        body = _assert_refused(answer, 403, "denied-name", LIST)
        assert body["host"] == name and LIST in body["remedy"] and name in body["remedy"]
    _nothing_left(world, mark)


def test_P5_ip_literals_in_every_spelling(agent: Session, world: World) -> None:
    """Also of addresses that a declared name has."""
    mark = world.mark()
    for literal, answer in zip(LITERALS, _connects(agent, [f"{x}:443" for x in LITERALS]), strict=True):
        assert _assert_refused(answer, 403, "denied-name", "")["detail"] == "ip-literal", literal
    _nothing_left(world, mark)


def test_P6_authorities_that_are_not_one_canonical_name(agent: Session, world: World) -> None:
    """400 or a denial, whoever notices: the parser, Caddy or the policy."""
    mark = world.mark()
    odd = [target.replace("NAME", "docs.example.com") for target in ODD]
    for target, answer in zip(odd, _connects(agent, odd), strict=True):
        assert answer["status"] in (400, 403), (target, answer)
    _nothing_left(world, mark)


def test_P6_the_target_counts_and_one_request_is_answered(agent: Session, world: World) -> None:
    """Not the Host header, no ambiguous framing, nothing that was pipelined behind a refusal."""
    mark, request = world.mark(), probe_tools.connect_request
    name = "docs.example.com:443"
    other = request("evil.test:443", host=name)
    bodies = [request(name, extra=extra) for extra in ("Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n")]
    raw = [other, *bodies, other + request(name)]
    host, length, chunked, pipelined = _inside(agent, [("connect_raw", {"proxy": L1, "data": data}) for data in raw])
    for answer in (host, pipelined):
        _assert_refused(answer, 403, "denied-name", LIST)
    for answer in (length, chunked):
        _assert_refused(answer, 400, "bad-request")
    _nothing_left(world, mark)


def test_P6_what_the_parser_refuses_is_logged(agent: Session) -> None:
    """net/http answers these by itself; the guard still leaves a line, without what may be a credential."""
    before = len(agent.decisions())
    _connects(agent, ["docs.example.com\0:443", "user:hunter2@docs.example.com:4 43"])
    lines = wait_for(lambda: agent.decisions()[before + 1 :], 60, "the guard's lines")
    assert {line["reason"] for line in lines} <= {"bad-request", "denied-name"} and "hunter2" not in json.dumps(lines)


def test_P8_only_connect_is_served(agent: Session, world: World) -> None:
    """Plain proxying, and methods on the proxy itself: an explicit denial, each with its own reason."""
    mark = world.mark()
    calls: list[Call] = [("connect_raw", {"proxy": L1, "data": raw}) for raw in (*ABSOLUTE, *OWN)]
    answers = _inside(agent, calls)
    for answer in answers[: len(ABSOLUTE)]:
        _assert_refused(answer, 403, "denied-absolute-form")
    for answer in answers[len(ABSOLUTE) :]:
        _assert_refused(answer, 405, "denied-method")
        assert answer["headers"]["allow"] == "CONNECT"
    _nothing_left(world, mark)


def test_P9_ports(agent: Session, world: World) -> None:
    """A declared name opens the ports that its entry lists: 443 alone unless it says so."""
    mark = world.mark()
    denied = {"docs.example.com": (22, 80, 5432, 8443), "ports.example.com": (443, 22), "any.example.com": (5432, 8443)}
    targets = [(name, port) for name, ports in denied.items() for port in ports]
    for (name, port), answer in zip(targets, _connects(agent, [f"{n}:{p}" for n, p in targets]), strict=True):
        body = _assert_refused(answer, 403, "denied-port", _key(name, ".ports"))
        assert (body["host"], body["port"]) == (name, str(port))
    _nothing_left(world, mark)
    answer = _inside(agent, [("tls_through", {"proxy": L1, "target": "ports.example.com:8443"})])[0]
    assert (answer["status"], answer["tls"]) == (200, "ok"), answer


def test_P9_no_path_to_other_addresses(agent: Session, world: World) -> None:
    """Caddy's addresses on other cables and on its uplink, the broker, the host, its aliases, the metadata service."""
    mark = world.mark()
    calls: list[Call] = [
        ("tcp", {"host": host, "port": port, "timeout": 2}) for host in ELSEWHERE for port in (22, 443, 4000)
    ]
    calls += [
        ("tcp", {"host": "198.18.0.5", "port": 3129, "timeout": 2}),
        ("tcp", {"host": "198.18.1.3", "port": 53, "timeout": 2}),
    ]
    own: list[Call] = [
        ("tcp", {"host": L1[0], "port": port, "timeout": 2}) for port in (22, 53, 80, 444, 3129, 4000, 2019)
    ]
    reached = _inside(agent, [*calls, *own])
    assert set(reached[: len(calls)]) <= {"unreachable", "no-host"}, reached
    assert "open" not in reached[len(calls) :]
    _nothing_left(world, mark)


# ---- P2, P4: judged by what the resolver and the network say


def test_P2_trouble_of_a_declared_host_is_no_denial(agent: Session) -> None:
    """Refused, silent, unresolvable: a gateway's status, no key to change, and an allowing decision."""
    before = len(agent.decisions())
    for (name, (status, reason)), answer in zip(
        TROUBLE.items(), _connects(agent, [f"{n}:443" for n in TROUBLE], timeout=30), strict=True
    ):
        body = _assert_refused(answer, status, reason, "")
        assert body["host"] == name and "policy allows" in body["remedy"]
    lines = wait_for(
        lambda: agent.decisions()[before + len(TROUBLE) - 1 :] and agent.decisions()[before:], 60, "the decisions"
    )
    assert {(line["host"], line["decision"], line["reason"]) for line in lines} == {
        (n, "allow", r) for n, (_, r) in TROUBLE.items()
    }


def test_P4_declared_names_that_resolve_inwards(agent: Session, world: World) -> None:
    """Private, metadata, shared, loopback, IPv6 disguises, CNAMEs, the cables: refused, and nothing dials there."""
    mark = world.mark()
    for name, answer in zip(BARRED, _connects(agent, [f"{name}:443" for name in BARRED]), strict=True):
        body = _assert_refused(answer, 403, "denied-address")
        assert body["key"] in ("", _key(name, ".private")) and body["detail"], (name, body)
    # The host itself stays closed although the entry's `private` covers it.
    host = _connects(agent, ["thishost.example.com:443"])[0]
    _assert_refused(host, 403, "denied-address", "")
    world.settle()
    assert world.accepts(mark) == []


def test_P4_the_checked_address_is_the_dialled_one(agent: Session, world: World) -> None:
    """CNAME, mixed answer, both families, and an answer that changes with every query."""
    mark = world.mark()
    names = ["cname.example.com", "mixed.example.com", "dual.example.com", *["rebind.example.com"] * 8]
    answers = _inside(agent, [("tls_through", {"proxy": L1, "target": f"{name}:443"}) for name in names])
    for name, answer in zip(names, answers, strict=True):
        if name != "rebind.example.com":
            assert (answer["status"], answer.get("tls")) == (200, "ok"), (name, answer)
        elif answer["status"] != 200:
            _assert_refused(answer, 403, "denied-address", _key(name, ".private"))
    statuses = {answer["status"] for answer in answers[3:]}
    assert statuses == {200, 403}, "the answer changes, so both are seen"
    world.settle()
    assert {event["address"] for event in world.accepts(mark)} == {addresses.SITE}


# ---- P10: what is inside the tunnel


def _hello(name: str) -> bytes:
    """A ClientHello for `name`."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_P10_another_server_name_or_no_tls_is_cut(agent: Session, world: World) -> None:
    """200 came first; then the tunnel ends, the host has not got a byte, and the log says why."""
    mark, before = world.mark(), len(agent.decisions())
    first = [_hello(name) for name in ("evil.example.com", "example.com", "a.docs.example.com")]
    first += [b"GET / HTTP/1.1\r\nHost: docs.example.com\r\n\r\n", b"SSH-2.0-x\r\n", b"\0" * 64]
    first += [b"\x16\x03\x01\x00\x05hello" * 20]
    request = probe_tools.connect_request("docs.example.com:443")
    calls: list[Call] = [
        ("connect_raw", {"proxy": L1, "data": request, "then": data.decode("latin-1")}) for data in first
    ]
    calls += [("tls_through", {"proxy": L1, "target": "docs.example.com:443", "sni": None})]
    answers = _inside(agent, calls)
    for what, answer in zip(first, answers, strict=False):
        assert (answer["status"], answer["tunnel"]) == (200, "") and answer["end"] in ("closed", "reset"), (
            what,
            answer,
        )
    assert answers[-1]["status"] == 200 and answers[-1]["tls"] != "ok", answers[-1]
    lines = wait_for(
        lambda: agent.decisions()[before + len(calls) - 1 :] and agent.decisions()[before:], 60, "the decisions"
    )
    assert {(line["decision"], line["reason"], line["key"]) for line in lines} == {
        ("deny", "denied-sni", _key("docs.example.com", ".tls"))
    }
    assert any("evil.example.com" in line["detail"] for line in lines)
    world.settle()
    assert world.events("data", mark) == [] and world.handshakes(mark) == []


def test_P10_tls_any(agent: Session, world: World) -> None:
    """The entry's own ports with any bytes, and another name inside; addresses are judged all the same."""
    mark = world.mark()
    request = probe_tools.connect_request
    ssh, http, other = _inside(
        agent,
        [
            (
                "connect_raw",
                {"proxy": L1, "data": request("any.example.com:22"), "then": "SSH-2.0-x\r\n", "timeout": 3},
            ),
            (
                "connect_raw",
                {
                    "proxy": L1,
                    "data": request("any.example.com:8000"),
                    "then": "GET / HTTP/1.0\r\nHost: any.example.com\r\n\r\n",
                    "timeout": 3,
                },
            ),
            ("tls_through", {"proxy": L1, "target": "any.example.com:443", "sni": "docs.example.com"}),
        ],
    )
    assert ssh["status"] == 200 and ssh["tunnel"].startswith("SSH-2.0-testworld"), ssh
    assert http["status"] == 200 and " 200 " in http["tunnel"].splitlines()[0], http
    assert (other["status"], other["tls"]) == (200, "ok"), other
    assert {event["address"] for event in world.accepts(mark)} == {addresses.SITE}


# ---- P14, N2, P3: the operator's side


def test_P14_proxy_variables_of_the_operator_change_nothing(agent: Session, world: World) -> None:
    """Not for Caddy, not in the agent, and never dialled."""
    told = agent.exec("env").out
    assert OPERATORS_PROXY not in told
    variables = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    for name in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        assert variables[name].rstrip("/") == f"http://{L1[0]}:{L1[1]}", name
    for name in ("NO_PROXY", "no_proxy"):
        assert "*" not in variables[name]
    assert OPERATORS_PROXY not in json.dumps(agent.inspect("caddy")) + json.dumps(agent.inspect("agent"))
    assert world.accepts(address=OPERATORS_PROXY) == []


def test_N2_the_resolver_is_explicit_and_recorded(agent: Session, world: World) -> None:
    """Only the address of config.yml is asked, and it stands in the plan."""
    plan = json.loads((agent.evidence / "plan.json").read_text())["plan"]
    assert plan["network"]["resolver"] == addresses.RESOLVER
    servers = {event["server"] for event in world.dns_queries() if not event["name"].startswith("settle-")}
    assert servers == {addresses.RESOLVER}, servers
    # inside the agent there is none to ask
    query = {"server": addresses.RESOLVER, "name": "docs.example.com"}
    asked = _inside(agent, [("dns", {**query, "over": over}) for over in ("udp", "tcp")])
    assert {answer["outcome"] for answer in asked} <= {"unreachable", "no-host"}


@pytest.fixture
def deaf(tmp_path: Path, world: World) -> Iterator[Session]:
    """A session whose resolver never answers."""
    home = operator_home(tmp_path, world, resolver=addresses.BLACKHOLE)
    home.agent("eg-deaf", {"network": {"allow_domains": [_entry("docs.example.com")]}})
    factory = SessionFactory(home)
    try:
        yield factory.open("eg-deaf")
    finally:
        assert factory.close_all() == []


def test_P3_policy_is_policy_without_dns(deaf: Session, world: World) -> None:
    """An undeclared name is a denial; a declared one is upstream trouble, there and in the verification."""
    mark = world.mark()
    undeclared, declared = _connects(deaf, ["undeclared.example.com:443", "docs.example.com:443"], timeout=30)
    _assert_refused(undeclared, 403, "denied-name", LIST)
    _assert_refused(declared, 504, "upstream-dns-timeout", "")
    world.settle()
    assert world.accepts(mark, address=addresses.SITE) == []
    again = deaf.play("verify.yml")
    assert again.rc == 0 and again.json["ok"], again
    assert {probe["verdict"] for probe in again.json["probes"]} <= {"pass", "warn"}


# ---- P15: tunnels end with their session


@pytest.fixture
def tunnel(home: Home, session: SessionFactory) -> Iterator[tuple[Session, subprocess.Popen[bytes]]]:
    """A session whose agent holds a tunnel in which a stream runs."""
    home.agent("eg-cut", {"network": {"allow_domains": [_entry("docs.example.com")]}})
    held = session.open("eg-cut")
    env = held.home.env
    argv = ["asf-play", "exec", *held.selector(), "--", "python3", "-", "hold_tunnel"]
    argv += [json.dumps({"proxy": L1, "target": "docs.example.com:443", "seconds": 120})]
    with (
        Path(probe_tools.__file__).open("rb") as source,
        subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as holder,
    ):
        try:
            said = holder.stderr.readline() if holder.stderr else b""
            assert said == b"receiving\n", said
            yield held, holder
        finally:
            holder.kill()


Tunnel = tuple[Session, "subprocess.Popen[bytes]"]


def _ended(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of tunnels through L1 that carried something: verification's own TLS goes through L1t."""
    return [line for line in lines if line["listener"] == "L1" and line.get("down")]


def test_P15_an_open_tunnel_is_cut_at_close(tunnel: Tunnel, world: World) -> None:
    """The other end sees it, and the evidence has the session's decisions."""
    held, _ = tunnel
    mark = world.mark()
    assert held.close().rc == 0
    assert world.events("closed", mark, timeout=60, address=addresses.SITE), "the site's connection is still open"
    lines = [json.loads(line) for line in (held.evidence / "decisions.jsonl").read_text().splitlines()]
    denied = [line for line in lines if line["decision"] == "deny"]
    assert ("asf-denied.invalid", "denied-name") in {(line["host"], line["reason"]) for line in denied}, "the probe's"


def test_P15_a_tunnel_that_close_cuts_is_in_the_evidence(tunnel: Tunnel) -> None:
    held, _ = tunnel
    assert held.close().rc == 0
    lines = [json.loads(line) for line in (held.evidence / "decisions.jsonl").read_text().splitlines()]
    ended = [line for line in _ended(lines) if line["host"] == "docs.example.com"]
    assert [(line["decision"], line["port"], line["key"]) for line in ended] == [("allow", 443, f"{LIST}[0]")], (
        lines,
        (held.evidence / "cleanup.json").read_text(),
        (held.evidence / "supervisor.jsonl").read_text(),
    )


def test_P15_caddy_cuts_tunnels_when_it_stops(tunnel: Tunnel, world: World) -> None:
    """The agent lives on: it is Caddy that cuts, at once, and says so."""
    held, holder = tunnel
    mark = world.mark()
    podman("stop", "-t", "10", held.container("caddy"))
    out, _ = holder.communicate(timeout=60)
    seen = json.loads(out)
    assert seen["status"] == 200 and seen["received"] > 0 and seen["end"] in ("closed", "reset"), seen
    assert world.events("closed", mark, timeout=60, address=addresses.SITE)
    wait_for(lambda: [line["reason"] for line in _ended(held.decisions())] == ["closed"], 60, "its line")
    again = held.probe("connect", proxy=L1, target="docs.example.com:443", timeout=5)
    assert again["status"] == 0, "there is no way around a dead proxy"
