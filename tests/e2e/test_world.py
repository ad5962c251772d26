# SPDX-License-Identifier: BSD-4-Clause
"""The test world itself: a check that rests on it is worth what these tests show."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import addresses, leaks, netns, probe_tools, product
from support.client import World
from support.dns_server import DnsServer, Zones
from support.listeners import canary
from support.recorder import Recorder
from support.waiting import wait_for

IMAGE = f"localhost/asf-testworld:{product.RUN}"


def _post(world: World, url: str, body: dict[str, Any], **headers: str) -> str:
    """POST to a provider through its address; the names resolve in the world only, so dial by hand."""
    host = url.split("/")[2]
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    handler = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(world.ca)))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handler)
    with _resolved(host), opener.open(request, timeout=10) as response:
        return str(response.read().decode())


@contextlib.contextmanager
def _resolved(name: str) -> Iterator[None]:
    """Makes one name resolve to the provider's address in this process."""
    original = socket.getaddrinfo

    def find(host: str, *args: Any, **kwargs: Any) -> Any:
        return original(addresses.PROVIDER if host == name else host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", find)
        yield


# ---- closed


def test_the_only_links_are_loopback_and_the_cable_to_the_world(world: World) -> None:
    network = probe_tools.network()
    assert sorted(network["links"]) == ["lo", "net0"]
    assert network["default_routes"] == ["net0"]


def test_what_leaves_for_the_internet_ends_in_the_world(world: World) -> None:
    """The default route leads to a machine that knows no other: any dial whatever is seen, and reaches nothing real."""
    mark = world.mark()
    assert probe_tools.tcp("198.18.7.7", 7777) == "open"
    (event,) = world.accepts(mark, timeout=30)
    assert (event["address"], event["port"], event["canary"]) == ("198.18.7.7", 7777, True)


def test_the_real_machines_own_services_are_not_there(world: World) -> None:
    """A listener of the machine outside cannot be what answers: the world records the same connection."""
    outside = Path("/proc/1/net/fib_trie")
    if not os.access(outside, os.R_OK):
        pytest.skip("another process's network tables cannot be read on this machine")
    lines = outside.read_text().split("\n")
    hosts = {lines[at - 1].split()[-1] for at, line in enumerate(lines) if "/32 host LOCAL" in line}
    for host in sorted(hosts - {"127.0.0.1"}):
        mark = world.mark()
        probe_tools.tcp(host, 22)
        assert [event["address"] for event in world.accepts(mark, timeout=30)] == [host]


@pytest.mark.parametrize("host", [addresses.METADATA, addresses.PRIVATE, addresses.SHARED, "203.0.113.9", "8.8.8.8"])
def test_canaries_record(world: World, host: str) -> None:
    mark = world.mark()
    assert probe_tools.tcp(host, 443) == "open"
    (event,) = world.accepts(mark, timeout=30, address=host)
    assert event["canary"] and event["peer"] == addresses.HOST
    assert event in world.canaries(mark)


def test_settled_means_that_nothing_more_comes(world: World) -> None:
    for _ in range(5):
        mark = world.mark()
        probe_tools.tcp(addresses.PRIVATE, 443)
        probe_tools.tcp(addresses.PRIVATE, 9999)
        assert sorted(event["port"] for event in world.canaries(mark)) == [443, 9999]
    mark = world.mark()
    assert world.canaries(mark) == [] and world.dns_names(mark) == set()


def test_udp_canary(world: World) -> None:
    mark = world.mark()
    probe_tools.udp("203.0.113.9", 443, timeout=0.1)
    (event,) = world.events("datagram", mark, timeout=30)
    assert event["port"] == 443


def test_refused_and_blackhole(world: World) -> None:
    assert probe_tools.tcp(addresses.REFUSES, 443) == "refused"
    assert probe_tools.tcp(addresses.BLACKHOLE, 443, timeout=0.5) == "timeout"


def test_low_ports_may_be_bound(world: World) -> None:
    """Tests put listeners on the host's own addresses (a resolver on loopback, a service on 443)."""
    for host in ("127.0.0.1", addresses.HOST_PUBLIC):
        socket.create_server((host, 443)).close()


@pytest.mark.parametrize("host", [addresses.HOST_PUBLIC, "127.0.0.1", addresses.HOST_V6])
def test_a_canary_on_the_operators_own_host(world: World, host: str) -> None:
    """What a session would hit if it reached the host's own services."""
    if host == addresses.HOST_V6 and not world.ipv6:
        pytest.skip("this testnet was made without IPv6 (ASF_TESTNET_IPV6=off)")
    with canary(host) as listener:
        assert probe_tools.tcp(host, listener.port) == "open"
        probe_tools.udp(host, listener.port, timeout=0.1)
        wait_for(lambda: len(listener.peers) == 2, 60, "both to be recorded")
    assert probe_tools.tcp(host, listener.port) == "refused"


def test_ipv6(world: World) -> None:
    if not world.ipv6:
        pytest.skip("this testnet was made without IPv6 (ASF_TESTNET_IPV6=off)")
    assert probe_tools.tcp(addresses.SITE_V6, 443) == "open"
    mark = world.mark()
    assert probe_tools.tcp("2001:db8:ffff::1", 443) == "open"
    (event,) = world.accepts(mark, timeout=30, address="2001:db8:ffff::1")
    assert event["canary"]


# ---- resolver


def test_dns_answers_and_logs(world: World) -> None:
    mark = world.mark()
    for over in ("udp", "tcp"):
        answer = probe_tools.dns(addresses.RESOLVER, "Docs.Example.com", over=over)
        assert answer == {"outcome": "answered", "rcode": 0, "answers": 1}
    seen = [(event["name"], event["raw"], event["transport"]) for event in world.dns_queries(mark)]
    assert seen == [("docs.example.com", "Docs.Example.com", over) for over in ("udp", "tcp")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nx.example.com", {"outcome": "answered", "rcode": 3, "answers": 0}),
        ("servfail.example.com", {"outcome": "answered", "rcode": 2, "answers": 0}),
        ("silent.example.com", {"outcome": "silent"}),
        ("mixed.example.com", {"outcome": "answered", "rcode": 0, "answers": 2}),
        ("cname-metadata.example.com", {"outcome": "answered", "rcode": 0, "answers": 2}),
        ("unknown.invalid", {"outcome": "answered", "rcode": 3, "answers": 0}),
        ("v6only.example.com", {"outcome": "answered", "rcode": 0, "answers": 0}),
    ],
)
def test_dns_fates(world: World, name: str, expected: dict[str, Any]) -> None:
    assert probe_tools.dns(addresses.RESOLVER, name, timeout=0.5) == expected


def test_dns_at_another_server_is_seen(world: World) -> None:
    mark = world.mark()
    probe_tools.dns("8.8.8.8", "leak.example.com")
    assert [(event["server"], event["name"]) for event in world.dns_queries(mark)] == [("8.8.8.8", "leak.example.com")]


def test_dns_can_be_scripted_and_alternates(world: World) -> None:
    world.zone("flip.example.test", rotate=[{"A": ["198.51.100.10"]}, {"rcode": "NXDOMAIN"}])
    codes = [probe_tools.dns(addresses.RESOLVER, "flip.example.test")["rcode"] for _ in range(4)]
    assert codes == [0, 3, 0, 3]
    world.forget("flip.example.test")


def test_a_resolver_of_the_tests_own_on_loopback() -> None:
    """For case N2; port 0 so that it can run anywhere."""
    recorder = Recorder()
    server = DnsServer(recorder, Zones(), "127.0.0.1", 5399).start()
    try:
        assert probe_tools.dns("127.0.0.1", "docs.example.com", port=5399)["outcome"] == "answered"
        assert [event["server"] for event in recorder.select("dns", 0, {})] == ["127.0.0.1"]
    finally:
        server.stop()


# ---- sites


def test_site_has_a_certificate_for_the_name_that_is_asked(world: World) -> None:
    context = ssl.create_default_context(cafile=str(world.ca))
    mark = world.mark()
    for name in ("docs.example.com", "a.b.canary.test"):
        raw = socket.create_connection((addresses.SITE, 443), 5)
        with context.wrap_socket(raw, server_hostname=name) as tls:
            tls.sendall(f"GET /x HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
            assert f'"site": "{name}"'.encode() in tls.makefile("rb").read()
    assert [event["sni"] for event in world.handshakes(mark)] == ["docs.example.com", "a.b.canary.test"]
    assert [event["path"] for event in world.http_requests(mark)] == ["/x", "/x"]


def test_an_idle_connection_leaves_no_data_event(world: World) -> None:
    """`accept` without `data` means that not one byte arrived: what a cut tunnel must look like (case P10)."""
    mark = world.mark()
    probe_tools.tcp(addresses.SITE, 443)
    assert world.events("closed", mark, timeout=30)
    assert not world.events("data", mark)


def test_banner_ports(world: World) -> None:
    for port in (22, 5432):
        mark = world.mark()
        assert probe_tools.tcp(addresses.SITE, port) == "open"
        assert world.accepts(mark, timeout=30)[0]["port"] == port


# ---- providers

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
TOOL = {"tool": "Bash", "input": {"command": "true"}}


def test_provider_messages(world: World) -> None:
    world.script(TOOL, {"text": "all done"})
    url, mark = "https://api.anthropic.com/v1/messages", world.mark()
    offer = {"tools": [{"name": "Bash", "input_schema": {}}]}
    first = json.loads(_post(world, url, {**ASK, **offer}, **{"x-api-key": "k1"}))
    assert first["content"][0]["name"] == "Bash"
    turns = [*ASK["messages"], {"role": "assistant", "content": first["content"]}, {"role": "user", "content": []}]  # type: ignore[misc]
    streamed = _post(world, url, {**ASK, **offer, "messages": turns, "stream": True}, **{"x-api-key": "k1"})
    assert "event: message_stop" in streamed and '"done"' in streamed
    assert json.loads(_post(world, url + "/count_tokens", ASK)) == {"input_tokens": 10}
    seen = world.provider_requests(mark)
    assert [(event["answer"], event["key"]) for event in seen] == [("tool", "k1"), ("text", "k1"), ("count", None)]


@pytest.mark.parametrize(("path", "end"), [("/v1/chat/completions", "[DONE]"), ("/v1/responses", "response.completed")])
def test_provider_openai(world: World, path: str, end: str) -> None:
    world.script({"text": "good morning"})
    url = "https://api.openai.com" + path
    assert "good morning" in _post(world, url, ASK, authorization="Bearer k2")
    assert end in _post(world, url, {**ASK, "stream": True}, authorization="Bearer k2")
    assert {event["key"] for event in world.provider_requests(path=path)} == {"k2"}


def test_provider_errors_echo_the_key(world: World) -> None:
    """Case B5 needs a provider that is as careless as that."""
    world.provider_errors({"status": 401, "message": "bad key {key}", "count": 1})
    with pytest.raises(urllib.error.HTTPError) as caught:
        _post(world, "https://api.anthropic.com/v1/messages", ASK, **{"x-api-key": "canary-7"})
    assert caught.value.code == 401 and "canary-7" in caught.value.read().decode()
    world.script({"text": "fine again"})
    assert "fine again" in _post(world, "https://api.anthropic.com/v1/messages", ASK)


# ---- containers


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image of nothing but mount points: the host's /usr, mounted read-only, is all the software it needs."""
    if shutil.which("podman") is None:
        pytest.skip("no podman on this machine")
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    with tarfile.open(archive, "w") as tar:
        for folder in ("usr", "etc", "tmp", "proc", "sys", "dev", "run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name in ("bin", "lib", "lib64", "sbin"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
            tar.addfile(entry, io.BytesIO())
    product.podman("import", str(archive), IMAGE)
    yield IMAGE
    product.podman("rmi", "-f", IMAGE, check=False)


def _network() -> str:
    if shutil.which("slirp4netns"):
        return "slirp4netns:enable_ipv6=false,allow_host_loopback=false"
    return "pasta:--ipv4-only,-a,10.0.2.100,-n,24,-g,10.0.2.2,--ns-ifname,tap0,--map-guest-addr,none"


def _podman_run(image: str, *argv: str, network: str, detach: bool = False, stdin: str | None = None) -> str:
    options = ["--rm", "-i", f"--network={network}", "-v", "/usr:/usr:ro", f"--label=asf.test={product.RUN}"]
    if network != "none":
        options.append(f"--dns={addresses.RESOLVER}")
    return product.podman("run", *options, *(["-d"] if detach else []), image, *argv, stdin=stdin)


def test_a_containers_user_mode_network_ends_in_the_closed_network(world: World, image: str) -> None:
    """Resolves by the world's resolver and reaches the site: what Caddy will do. The pause process holds no network."""
    mark = world.mark()
    code = "import socket; s = socket.create_connection(('docs.example.com', 443), 5); print(s.getpeername()[0])"
    assert _podman_run(image, "/usr/bin/python3", "-c", code, network=_network()) == addresses.SITE
    assert "docs.example.com" in world.dns_names(mark)
    assert world.accepts(mark, address=addresses.SITE)[0]["peer"] == addresses.HOST


def test_in_netns_and_wire_sh(world: World, image: str) -> None:
    """A Python function, and a script with `ip`, in a container's network namespace."""
    container = _podman_run(image, "/usr/bin/sleep", "60", network="none", detach=True)
    try:
        pid = int(product.podman("container", "inspect", "-f", "{{.State.Pid}}", container))
        assert netns.in_netns(pid, probe_tools.network)["links"] == ["lo"]
        assert netns.in_netns(pid, lambda: probe_tools.tcp(addresses.SITE, 443)) == "unreachable"
        assert "lo" in netns.wire_sh(pid, "ip link add test0 type veth peer name test1; ip -br link show lo")
        assert sorted(netns.in_netns(pid, probe_tools.network)["links"]) == ["lo", "test0", "test1"]
        with pytest.raises(netns.NamespaceError, match="ZeroDivisionError"):
            netns.in_netns(pid, lambda: 1 // 0)
    finally:
        product.remove(container)


def test_probe_tools_run_on_standard_input(world: World) -> None:
    """As inside an agent, where nothing of ours is installed."""
    source = Path(probe_tools.__file__).read_bytes()
    arguments = json.dumps({"host": addresses.REFUSES, "port": 443})
    argv = ["python3", "-", "tcp", arguments]
    assert json.loads(subprocess.run(argv, input=source, capture_output=True, check=True).stdout) == "refused"


def test_leak_check_sees_a_leak(world: World) -> None:
    """A check that cannot fail is worse than none."""
    product.podman("secret", "create", f"asf-x.{product.RUN}-token", "-", stdin="x")
    try:
        assert leaks.find() == [f"secret asf-x.{product.RUN}-token"]
    finally:
        product.podman("secret", "rm", f"asf-x.{product.RUN}-token")
