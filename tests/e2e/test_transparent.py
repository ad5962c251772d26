# SPDX-License-Identifier: BSD-4-Clause
"""Clients that know no proxy, on real Podman (P11, and P1, P2, P4 to P7, P9, P10, P15 for them): declared names lead to
L1t, which decides by the server name as L1 does by a CONNECT's target; everything else is closed with an alert.

Clients are real ones, without any proxy variable: Node's `fetch`, a Go program, curl, Python and `openssl s_client`.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import addresses, probe_tools
from support.client import World
from support.product import Completed, Home, Session, SessionFactory, asf_play, run, sample_repo
from support.waiting import wait_for

pytestmark = pytest.mark.slow

L1, L1T = ["198.18.0.1", 3128], ["198.18.0.1", 443]
LIST = "network.allow_domains"
DECODE_ERROR, ACCESS_DENIED, INTERNAL_ERROR, UNRECOGNIZED_NAME = 50, 49, 80, 112
TOOLS = "/workspace/repos/tools"

#: declared, and resolving to where nothing may be dialled
BARRED = """private metadata shared loopback multicast mapped nat64 sixtofour ula v6only cname-metadata""".split()
#: declared, allowed, and broken
TROUBLE = {
    "refused.example.com": "upstream-refused",
    "nx.example.com": "upstream-dns-notfound",
    "servfail.example.com": "upstream-dns-failure",
    "silent.example.com": "upstream-dns-timeout",
}


def _entry(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "private": [f"{addresses.SITE}/32"], **more}


DOMAINS: list[Any] = [
    _entry("docs.example.com"),
    _entry("any.example.com", ports=[443, 22], tls="any"),
    _entry("ports.example.com", ports=[8443]),
    _entry("refused.example.com", private=[f"{addresses.REFUSES}/32"]),
    *("nx.example.com", "servfail.example.com", "silent.example.com"),
    *(f"{name}.example.com" for name in BARRED),
]
GO_PROGRAM = """
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	r, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	body, _ := io.ReadAll(r.Body)
	fmt.Println(r.StatusCode, len(body) > 0)
}
"""
NODE_PROGRAM = """fetch(process.argv[1]).then(
  async (r) => console.log(r.status, (await r.text()).length > 0),
  (e) => { console.log(e.message, e.cause.code, e.cause.message); process.exit(1) })"""
PYTHON_PROGRAM = """import sys, urllib.request
r = urllib.request.urlopen(sys.argv[1], timeout=20)
print(r.status, len(r.read()) > 0)"""


def _key(name: str, part: str = "") -> str:
    names = [entry if isinstance(entry, str) else entry["name"] for entry in DOMAINS]
    return f"{LIST}[{names.index(name)}]{part}"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the client programs that the image lacks."""
    folder = sample_repo(
        tmp_path_factory.mktemp("tools") / "tools", {"go.mod": "module client\n", "main.go": GO_PROGRAM}
    )
    if node := shutil.which("node"):
        shutil.copy(node, folder / "node")
    if go := shutil.which("go"):
        env = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-buildvcs=false"}
        done = run([go, "build", "-trimpath", "-o", "client", "."], env=env, cwd=folder, timeout=600)
        assert done.rc == 0, done
    return folder


@pytest.fixture(scope="module")
def agent(module_home: Home, module_session: SessionFactory, world: World, tools: Path) -> Session:
    module_home.agent("tp", {"network": {"allow_domains": DOMAINS}})
    module_home.grant("tp", {"path": str(tools), "mode": "ro"})
    return module_session.open("tp")


def _client(session: Session, *argv: str, stdin: str | None = None) -> Completed:
    """Run a client without any proxy variable; the CA variables stay."""
    proxies = [v for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for v in (name, name.upper())]
    unset = [word for name in proxies for word in ("-u", name)]
    return session.exec("env", *unset, *argv, stdin=stdin, timeout=60)


def _alerts(session: Session, flights: Sequence[str], timeout: float = 15) -> list[dict[str, Any]]:
    """What L1t answers to each."""
    return session.probe_all([("alert", {"address": L1T, "data": data, "timeout": timeout}) for data in flights])


def _by_host(session: Session, before: int, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """L1t's decision about each name since."""

    def found() -> dict[str, dict[str, Any]]:
        new = session.decisions()[before:]
        return {line["host"]: line for line in new if line["listener"] == "L1t" and line.get("host") in names}

    return wait_for(lambda: found() if len(found()) == len(names) else None, 30, "the decisions")


def _lines(session: Session, before: int, count: int) -> list[dict[str, Any]]:
    """The decisions that came since."""
    return wait_for(
        lambda: session.decisions()[before + count - 1 :] and session.decisions()[before:], 30, f"{count} decisions"
    )


CLIENTS = {
    "node-fetch": (f"{TOOLS}/node", "-e", NODE_PROGRAM, "URL"),
    "go": (f"{TOOLS}/client", "URL"),
    "curl": ("curl", "-sS", "--noproxy", "*", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code} true", "URL"),
    "python": ("python3", "-c", PYTHON_PROGRAM, "URL"),
}


def _argv(client: str, name: str) -> list[str]:
    if client == "node-fetch" and not shutil.which("node"):
        pytest.skip("no Node on this host to lend to the agent")
    if client == "go" and not shutil.which("go"):
        pytest.skip("no Go on this host to compile the client with")
    return [f"https://{name}/" if word == "URL" else word for word in CLIENTS[client]]


@pytest.mark.parametrize("client", CLIENTS)
def test_P11_a_client_without_a_proxy(client: str, agent: Session, world: World) -> None:
    """The declared name works, its certificate checked; one that resolves inwards and an undeclared one fail."""
    mark, before = world.mark(), len(agent.decisions())
    done = _client(agent, *_argv(client, "docs.example.com"))
    assert done.rc == 0 and done.out.strip() in ("200 true", "200 True"), done
    assert {(e["address"], e["sni"]) for e in world.handshakes(mark)} == {(addresses.SITE, "docs.example.com")}
    line = _lines(agent, before, 1)[-1]
    assert (line["listener"], line["method"], line["host"], line["port"]) == ("L1t", "TLS", "docs.example.com", "443")
    assert (line["decision"], line["reason"], line["key"]) == ("allow", "ok", _key("docs.example.com")), line
    assert line["up"] > 0 and line["down"] > 0

    refused = _client(agent, *_argv(client, "private.example.com"))
    told = (refused.out + refused.err).lower()
    assert refused.rc != 0 and ("access_denied" in told or "access denied" in told), refused
    mark = world.mark()
    undeclared = _client(agent, *_argv(client, "undeclared.example.com"))
    assert undeclared.rc != 0 and (undeclared.out + undeclared.err).strip(), undeclared
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []


def test_P11_openssl_s_client(agent: Session, world: World) -> None:
    """By name, and by another server name at the listener itself: the alert has a name."""
    mark = world.mark()
    words = ["openssl", "s_client", "-verify_return_error", "-CAfile", "/asf/ca.pem", "-connect"]
    fine = _client(agent, *words, "docs.example.com:443", "-servername", "docs.example.com", stdin="")
    assert fine.rc == 0 and "Verify return code: 0 (ok)" in fine.out, fine
    world.settle()
    assert world.dns_names(mark) == {"docs.example.com"}
    mark = world.mark()
    for name, said in (("evil.example.com", "alert access denied"), (None, "unrecognized name")):
        sni = ["-servername", name] if name else ["-noservername"]
        refused = _client(agent, *words, "198.18.0.1:443", *sni, stdin="")
        assert refused.rc != 0 and said in refused.err, refused
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []


def test_P11_other_forms_of_a_declaration_work_by_connect_alone(agent: Session) -> None:
    """`tls: any` and other ports: no name in the hosts file, and no way by the server name either."""
    before = len(agent.decisions())
    names = ("any.example.com", "ports.example.com")
    assert [agent.exec("getent", "ahostsv4", name).rc for name in names] == [2, 2]
    answers = _alerts(agent, [_hello(name) for name in names])
    assert [a["alert"] for a in answers] == [ACCESS_DENIED, ACCESS_DENIED]
    lines = _by_host(agent, before, names)
    assert {name: (line["reason"], line["key"]) for name, line in lines.items()} == {
        "any.example.com": ("denied-sni", _key("any.example.com", ".tls")),
        "ports.example.com": ("denied-port", _key("ports.example.com", ".ports")),
    }
    through = agent.probe("tls_through", proxy=L1, target="any.example.com:443")
    assert (through["status"], through["tls"]) == (200, "ok"), through


def test_the_hosts_file_holds_the_planned_names(agent: Session) -> None:
    plan = json.loads((agent.evidence / "plan.json").read_text())["plan"]
    text = agent.exec("cat", "/etc/hosts").out
    rows = [line.split() for line in text.splitlines()]
    names = {row[1] for row in rows if row and row[0] == "198.18.0.1"}
    assert names == {name for _, name in plan["network"]["hosts"]} and "docs.example.com" in names
    assert {"any.example.com", "ports.example.com"} & names == set()
    assert agent.exec("sh", "-c", "echo 198.18.0.1 x >> /etc/hosts").rc != 0


def _hello(name: str | None) -> str:
    """A ClientHello as latin-1 text."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read().decode("latin-1")


RECORD = "\x16\x03\x01\x40\x00"  # the head of a handshake record of 16384 bytes
REFUSED: dict[str, tuple[str, int, str, str]] = {  # what is sent, alert, reason, key
    "P1 undeclared": (_hello("x7f3.canary.test"), ACCESS_DENIED, "denied-name", LIST),
    "P7 prefix": (_hello("notdocs.example.com"), ACCESS_DENIED, "denied-name", LIST),
    "P7 child": (_hello("a.docs.example.com"), ACCESS_DENIED, "denied-name", LIST),
    "P7 suffix": (_hello("docs.example.com.evil.test"), ACCESS_DENIED, "denied-name", LIST),
    "P7 parent": (_hello("example.com"), ACCESS_DENIED, "denied-name", LIST),
    "P6 NUL": (_hello("docs.example.com").replace("docs.example", "docs\0example"), ACCESS_DENIED, "denied-name", ""),
    "P6 trailing dot": (_hello("docs.example.comx").replace("comx", "com."), DECODE_ERROR, "bad-request", ""),
    "P5 literal": (_hello("198.51.100.1x").replace("100.1x", "100.10"), ACCESS_DENIED, "denied-name", ""),
    "P10 no name": (_hello(None), UNRECOGNIZED_NAME, "denied-sni", ""),
    "P10 http": ("GET / HTTP/1.1\r\nHost: docs.example.com\r\n\r\n", DECODE_ERROR, "bad-request", ""),
    "P10 ssh": ("SSH-2.0-x\r\n", DECODE_ERROR, "bad-request", ""),
    "P10 connect": (probe_tools.connect_request("docs.example.com:443"), DECODE_ERROR, "bad-request", ""),
    "P10 oversized": (
        f"{RECORD}\x01\x00\xff\xff{'A' * 16380}" + f"{RECORD}{'A' * 16384}" * 2,
        *(DECODE_ERROR, "bad-request", ""),
    ),
}


def test_what_is_not_exactly_a_declared_name_is_closed_and_logged(agent: Session, world: World) -> None:
    """Each with its alert, its reason and the key that would change it; no query and no connection."""
    mark, before = world.mark(), len(agent.decisions())
    answers = _alerts(agent, [data for data, _, _, _ in REFUSED.values()])
    for (what, (_, number, _, _)), answer in zip(REFUSED.items(), answers, strict=True):
        assert answer["alert"] == number and answer["end"] == "closed", (what, answer)
    lines = _lines(agent, before, len(REFUSED))
    for (what, (_, _, reason, key)), line in zip(REFUSED.items(), lines, strict=True):
        assert (line["listener"], line["decision"], line["reason"]) == ("L1t", "deny", reason), (what, line)
        assert line.get("key", "") == key and line["up"] == 0 and line["detail"], (what, line)
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []


def test_P6_upper_case_and_many_records_are_the_same_name(agent: Session, world: World) -> None:
    mark = world.mark()
    answer = agent.probe("tls_direct", host="198.18.0.1", sni="DOCS.Example.COM")
    assert answer["tls"] == "ok" and answer["answer"]["status"] == 200, answer
    hello = _hello("docs.example.com")
    body, records = hello[5:], ""
    for at in range(0, len(body), 7):
        part = body[at : at + 7]
        records += hello[:3] + "\0" + chr(len(part)) + part
    (answer,) = _alerts(agent, [records], timeout=3)
    assert answer["got"].startswith("\x16\x03\x03"), answer  # the host's own ServerHello
    world.settle()
    assert world.dns_names(mark) == {"docs.example.com"}
    assert {event["address"] for event in world.accepts(mark)} == {addresses.SITE}


def test_P2_P4_trouble_and_barred_addresses(agent: Session, world: World) -> None:
    """As through L1: trouble is allowed and says internal_error, a barred address is denied and nothing dials it."""
    mark, before = world.mark(), len(agent.decisions())
    names = [*TROUBLE, *(f"{name}.example.com" for name in BARRED)]
    for name, answer in zip(names, _alerts(agent, [_hello(name) for name in names]), strict=True):
        assert answer["alert"] == (INTERNAL_ERROR if name in TROUBLE else ACCESS_DENIED), (name, answer)
    for name, line in _by_host(agent, before, names).items():
        if name in TROUBLE:
            assert (line["decision"], line["reason"]) == ("allow", TROUBLE[name]), line
        else:
            assert (line["decision"], line["reason"]) == ("deny", "denied-address"), line
            assert line["key"] in ("", _key(name), _key(name, ".private")), line
    world.settle()
    assert {event["address"] for event in world.accepts(mark)} <= {addresses.REFUSES}


def test_decisions_are_shown_with_their_listener(agent: Session) -> None:
    """`logs decisions` and `status` tell what came without a proxy."""
    _alerts(agent, [_hello("shown.canary.test")])
    shown = wait_for(
        lambda: [line for line in _logged(agent).splitlines() if "shown.canary.test" in line], 60, "the decision"
    )
    assert " deny  L1t TLS shown.canary.test:443 denied-name network.allow_domains" in shown[-1], shown


def _logged(session: Session) -> str:
    return asf_play("logs", "decisions", *session.selector(), home=session.home).out


@pytest.fixture
def held(home: Home, session: SessionFactory, world: World) -> Iterator[tuple[Session, subprocess.Popen[bytes]]]:
    """A session whose agent reads an endless stream without a proxy."""
    home.agent("tp-cut", {"network": {"allow_domains": [_entry("docs.example.com")]}})
    opened, mark = session.open("tp-cut"), world.mark()
    argv = ["asf-play", "exec", *opened.selector(), "--", "curl", "-sS", "--noproxy", "*", "-o", "/dev/null"]
    with subprocess.Popen(
        [*argv, "https://docs.example.com/stream"], env=opened.home.env, stdin=subprocess.DEVNULL
    ) as reader:
        try:
            assert world.http_requests(mark, timeout=30, path="/stream"), "no stream began"
            yield opened, reader
        finally:
            reader.kill()


def test_P15_a_transparent_tunnel_ends_with_its_session(
    held: tuple[Session, subprocess.Popen[bytes]], world: World
) -> None:
    session, _ = held
    mark = world.mark()
    assert session.close().rc == 0
    assert world.events("closed", mark, timeout=60, address=addresses.SITE), "the site's connection is still open"
    lines = [json.loads(line) for line in (session.evidence / "decisions.jsonl").read_text().splitlines()]
    ended = [line for line in lines if line["listener"] == "L1t" and line["detail"] == "cut at the session's end"]
    assert [(line["host"], line["decision"], line["port"]) for line in ended] == [("docs.example.com", "allow", 443)]
    assert ended[0]["down"] > 0


def test_many_names_stand_in_the_hosts_file(home: Home, session: SessionFactory) -> None:
    """As many as a manifest may have."""
    domains = [_entry("docs.example.com"), *(f"a-rather-long-name-{n:03}.sub.domain.example.com" for n in range(499))]
    home.agent("tp-many", {"network": {"allow_domains": domains}})
    opened = session.open("tp-many")
    text = opened.exec("cat", "/etc/hosts").out
    assert sum(line.startswith("198.18.0.1") for line in text.splitlines()) == 500
    assert opened.exec("getent", "ahostsv4", "a-rather-long-name-498.sub.domain.example.com").out.startswith(
        "198.18.0.1 "
    )
