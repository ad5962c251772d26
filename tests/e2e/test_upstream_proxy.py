# SPDX-License-Identifier: BSD-4-Clause
"""``upstream_proxy`` on real Podman: allowed tunnels go through the operator's proxy over TLS, with its credentials, by
name; everything else never gets that far (P1, P2, P4, P9, P10), and the credentials are nowhere else (S3, S4)."""

from __future__ import annotations

import base64
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from support import addresses, canaries, front, probe_tools
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman
from support.waiting import wait_for

from asf_lib.engine import procs

pytestmark = [pytest.mark.podman, pytest.mark.slow]

L1 = ["198.18.0.1", 3128]
PROXY = "proxy.example.com"
TROUBLE = {  # name -> (status, reason): what the operator's proxy says is never a denial of ours
    "status-407.example.com": (502, "upstream-proxy-auth"),
    "status-403.example.com": (502, "upstream-proxy-denied"),
    "status-503.example.com": (502, "upstream-proxy-failure"),
    "garbage.example.com": (502, "upstream-proxy-answer"),
    "flood.example.com": (502, "upstream-proxy-answer"),
    "hang.example.com": (504, "upstream-proxy-timeout"),
}
#: `private` has no effect behind a proxy; it is what a direct connection to the test world would need.
SITE: dict[str, Any] = {"name": "docs.example.com", "private": [f"{addresses.SITE}/32"]}
MANIFEST = {
    "llm": {"protocol": "anthropic", "provider": "anthropic"},
    "secrets": {"files": ["anthropic.env"]},
    "network": {"allow_domains": [SITE, {"name": "any.example.com", "ports": [22], "tls": "any"}, *TROUBLE]},
}


@pytest.fixture(scope="module")
def login(module_home: Home, world: World) -> str:
    """``user:password`` of the proxy, a canary, in the operator's secrets."""
    value = f"operator:canary-proxy-{secrets.token_hex(12)}"
    module_home.secret("proxy.env", PROXY_LOGIN=value)
    proxy = {"url": f"https://{PROXY}:3129", "secret": "PROXY_LOGIN", "file": "proxy.env"}
    module_home.config(ca_bundle=str(world.bundle), resolver=addresses.RESOLVER, upstream_proxy=proxy)
    module_home.agent("up", MANIFEST)
    return value


@pytest.fixture(scope="module")
def agent(login: str, module_session: SessionFactory) -> Session:
    """A brokered session whose operator has a proxy."""
    return module_session.open("up")


def _basic(login: str) -> str:
    return "Basic " + base64.b64encode(login.encode()).decode()


def _only_by_the_proxy(world: World, mark: int, name: str) -> None:
    """Since ``mark`` the site was reached, by the proxy alone, and nobody but the proxy asked where it is."""
    world.settle()
    assert world.accepts(mark, address=addresses.SITE, port=443), "the site was not reached at all"
    direct = [e for e in world.accepts(mark, port=443) if e["peer"] == addresses.HOST]
    assert not direct, f"reached without the proxy: {direct}"
    assert name not in world.dns_names(mark), "the name is the proxy's to resolve"


def _patiently(session: Session, target: str) -> dict[str, Any]:
    """CONNECT with a client that waits longer than Caddy does."""
    asked = json.dumps({"proxy": L1, "target": target, "timeout": 30})
    done = session.exec("python3", "-", "connect", asked, stdin=Path(probe_tools.__file__).read_bytes())
    assert done.rc == 0, done
    found: dict[str, Any] = json.loads(done.out)
    return found


def _line(agent: Session, host: str) -> dict[str, Any]:
    """The last decision about a host. Caddy writes a tunnel's line when it ends, conmon a moment later."""
    return wait_for(lambda: [one for one in agent.decisions() if one.get("host") == host], 60, f"one on {host}")[-1]


def test_a_declared_name_goes_through_the_proxy(agent: Session, world: World, login: str) -> None:
    mark = world.mark()
    answer = agent.probe("tls_through", proxy=L1, target="docs.example.com:443")
    assert (answer["status"], answer["tls"], answer["answer"]["status"]) == (200, "ok", 200), answer
    (asked,) = world.events("proxy", mark)
    assert (asked["line"], asked["secure"]) == ("CONNECT docs.example.com:443 HTTP/1.1", True)
    assert asked["authorization"] == _basic(login) and asked["host"] == "docs.example.com:443"
    assert world.dns_names(mark) <= {PROXY}
    _only_by_the_proxy(world, mark, "docs.example.com")
    line = _line(agent, "docs.example.com")
    assert line["decision"] == "allow" and line["addr"] == f"{addresses.SITE}:3129", "the proxy's address"


def test_a_client_without_a_proxy_goes_through_it_too(agent: Session, world: World, login: str) -> None:
    """L1t chains as L1 does: by the name of the ClientHello."""
    mark = world.mark()
    answer = agent.probe("tls_direct", host="docs.example.com")
    assert (answer["tls"], answer["answer"]["status"]) == ("ok", 200), answer
    (asked,) = world.events("proxy", mark)
    assert (asked["line"], asked["authorization"]) == ("CONNECT docs.example.com:443 HTTP/1.1", _basic(login))
    _only_by_the_proxy(world, mark, "docs.example.com")


def test_an_isolated_agents_broker_goes_through_it(
    login: str, module_home: Home, module_session: SessionFactory, world: World
) -> None:
    """There is no L1; the provider's requests leave by L3 and the proxy."""
    isolated = {**MANIFEST, "network": {"mode": "isolated"}}
    module_home.agent("up-isolated", isolated)
    opened, mark = module_session.open("up-isolated"), world.mark()
    (answer,) = front.ask(opened, front.message())
    assert answer.status == 200, answer
    asked = world.events("proxy", mark)
    assert asked and {(one["target"], one["authorization"]) for one in asked} == {
        ("api.anthropic.com:443", _basic(login))
    }


def test_any_bytes_on_another_port_go_through_it_too(agent: Session, world: World) -> None:
    mark = world.mark()
    answer = agent.probe("connect_raw", proxy=L1, data=probe_tools.connect_request("any.example.com:22"), then="hello")
    assert answer["status"] == 200 and "SSH-2.0-testworld" in json.dumps(answer), answer
    assert [event["target"] for event in world.events("proxy", mark)] == ["any.example.com:22"]


def test_the_brokers_requests_go_through_it(agent: Session, world: World) -> None:
    """L3 chains as L1 does; the provider's key is for the provider alone, the proxy's login for the proxy alone."""
    mark = world.mark()
    (answer,) = front.ask(agent, front.message())
    assert answer.status == 200, answer
    (asked, *_) = world.events("proxy", mark)
    assert asked["target"] == "api.anthropic.com:443"
    (request, *_) = world.provider_requests(mark)
    assert request["peer"] != addresses.HOST and "proxy-authorization" not in request["headers"], request
    assert "api.anthropic.com" not in world.dns_names(mark)


def test_P1_P5_P9_what_the_list_refuses_never_reaches_the_proxy(agent: Session, world: World) -> None:
    mark = world.mark()
    for target, reason in (
        (f"{secrets.token_hex(8)}.canary.test:443", "denied-name"),
        (f"{PROXY}:3129", "denied-name"),
        (f"{addresses.SITE}:443", "denied-name"),
        ("docs.example.com:22", "denied-port"),
    ):
        answer = agent.probe("connect", proxy=L1, target=target)
        assert (answer["status"], answer["phrase"]) == (403, reason), (target, answer)
    world.settle()
    assert world.events("proxy", mark) == [] and world.dns_names(mark) == set() and world.accepts(mark) == []


def test_P10_another_server_name_is_cut_before_the_proxy_gets_a_byte(agent: Session, world: World) -> None:
    mark = world.mark()
    answer = agent.probe("tls_through", proxy=L1, target="docs.example.com:443", sni="other.example.com")
    assert answer["status"] == 200 and answer["tls"] != "ok", answer
    world.settle()
    assert world.handshakes(mark, address=addresses.SITE) == []
    wait_for(lambda: agent.decisions()[-1]["reason"] == "denied-sni", 60, "the decision")


def test_P2_the_proxys_own_refusals_are_no_policy(agent: Session) -> None:
    for name, (status, reason) in TROUBLE.items():
        answer = _patiently(agent, f"{name}:443")
        assert (answer["status"], answer["phrase"]) == (status, reason), (name, answer)
        assert "x-asf-key" not in answer["headers"] and "proxy-authenticate" not in answer["headers"], answer
        line = _line(agent, name)
        assert (line["decision"], line["reason"]) == ("allow", reason), line


def test_nothing_but_resolver_and_proxy_leaves_caddy(agent: Session) -> None:
    """From Caddy's own namespace: the declared ports are closed, although the manifest opens 443."""

    def reached() -> dict[str, str]:
        return {f"{a}:{p}": probe_tools.tcp(a, p, 3) for a, p in ((addresses.SITE, 443), (addresses.SITE, 3129))}

    found = agent.in_netns("caddy", reached)
    assert found[f"{addresses.SITE}:3129"] == "open" and found[f"{addresses.SITE}:443"] == "no-host", found


def test_open_report_and_policy_say_where_the_check_moved(agent: Session, module_home: Home) -> None:
    said = f"checked, by the proxy https://{PROXY}:3129, not by ASF"
    assert any(said in json.dumps(text) for text in agent.document["warnings"]), agent.document["warnings"]
    assert any(
        "network.allow_domains[0].private has no effect" in json.dumps(text) for text in agent.document["warnings"]
    )
    done = asf_play("policy", *agent.selector(), home=module_home)
    assert done.rc == 0 and "that proxy resolves the names and checks the addresses, not ASF" in done.out, done
    plan = json.loads((agent.evidence / "plan.json").read_text())
    assert said in json.dumps(plan["plan"]["warnings"]), "the evidence says it too"


def test_S3_S4_the_credentials_are_nowhere_else(agent: Session, module_home: Home, login: str) -> None:
    texts = {"login": login, "password": login.partition(":")[2], "header": _basic(login)[6:]}
    shown = {"open": json.dumps(agent.document)}
    for role in ("agent", "caddy", "broker"):
        shown[f"inspect {role}"] = podman("container", "inspect", agent.container(role))
        shown[f"logs {role}"] = agent.logs(role)
        for number in [agent.pid(role), *procs.children(agent.pid(role))]:
            shown[f"{role} {number} cmdline"] = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace")
    shown["caddy's environment"] = agent.wire_sh("caddy", f"cat /proc/{procs.children(agent.pid('caddy'))[0]}/environ")
    shown["the workload's environment"] = agent.exec("env").out
    assert "HOME=/tmp" in shown["caddy's environment"], "it was read"
    for command in ("status", "policy", "events"):
        shown[command] = asf_play(command, *agent.selector(), home=module_home).out
    found = [f"{place}: {name}" for place, text in shown.items() for name, value in texts.items() if value in text]
    assert not found, found
    where = [str(path) for path in canaries.places(module_home)]
    left = [hit for hit in canaries.in_files(canaries.places(module_home), texts) if "secrets/proxy.env" not in hit]
    assert not left, (left, where)
    mounted = json.loads(podman("container", "inspect", agent.container("agent"), agent.container("broker")))
    assert not any("upstream" in json.dumps(one.get("Config", {}).get("Secrets") or []) for one in mounted)
    assert podman("exec", agent.container("agent"), "ls", "/run/secrets") == "asf-token"


def test_mutation_without_the_chain_the_direct_way_is_seen(
    login: str, module_session: SessionFactory, module_home: Home, world: World
) -> None:
    """Caddy without its chain: first the rules still hold; without them too the traffic goes direct, and is seen."""
    broken = module_session.open("up")
    plan = json.loads((broken.evidence / "plan.json").read_text())["plan"]
    file = Path(plan["run_dir"], "caddy", "caddy.json")
    config = json.loads(file.read_text())
    for server in config["apps"]["http"]["servers"].values():
        server["routes"][0]["handle"][0].pop("chain", None)
    file.chmod(0o644)
    file.write_text(json.dumps(config))
    (child,) = procs.children(broken.pid("caddy"))
    broken.wire_sh("caddy", f"kill -9 {child}")
    wait_for(lambda: procs.children(broken.pid("caddy")) not in ([], [child]), 30, "Caddy to start again", 0.05)

    def through() -> Any:
        return broken.probe("tls_through", proxy=L1, target="docs.example.com:443")

    wait_for(lambda: broken.probe("tcp", host=L1[0], port=L1[1]) == "open", 30, "Caddy to listen", 0.1)
    answer = through()
    assert (answer["status"], answer["phrase"]) == (502, "upstream-unreachable"), answer
    broken.wire_sh("caddy", "nft flush chain inet asf output; nft chain inet asf output '{ policy accept; }'")
    mark = world.mark()
    assert through()["status"] == 200
    with pytest.raises(AssertionError, match="reached without the proxy"):
        _only_by_the_proxy(world, mark, "docs.example.com")
    assert broken.close().rc == 0
    report = (broken.evidence / "report.html").read_text()
    assert f"by the proxy https://{PROXY}:3129, not by ASF" in report, "the report says where the check moved"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secret": "NOT_THERE", "file": "proxy.env"}, "NOT_THERE"),
        ({"secret": "PROXY_LOGIN", "file": "none.env"}, "does not exist"),
        ({"url": f"http://{addresses.HOST_PUBLIC}:3128"}, "this host's own"),
    ],
)
def test_bad_input_is_refused_before_anything_exists(
    session: SessionFactory, home: Home, world: World, change: dict[str, str], words: str
) -> None:
    home.secret("proxy.env", PROXY_LOGIN="operator:word")
    home.config(
        ca_bundle=str(world.bundle),
        resolver=addresses.RESOLVER,
        upstream_proxy={"url": f"http://{PROXY}:3128", **change},
    )
    home.agent("up", MANIFEST)
    done, tried = session.attempt("up")
    assert done.rc == 220 and words in json.dumps(done.json["error"]) + json.dumps(done.json.get("problems")), done
    assert not tried.owns()
