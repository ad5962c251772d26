# SPDX-License-Identifier: BSD-4-Clause
"""The operator's proxy: what may be written, what the plan makes of it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import nftables, plan as plans, upstream
from asf_lib.core.errors import HostError, ManifestError, PlanError, SecretError
from asf_lib.engine import home as homes, upstreamca
from asf_lib.engine.home import Home
from tests.unit.test_plan import BROKERED, HOST, SETTINGS, build, manifest
from tests.unit.test_settings import _read as settings

PLAIN = "name: a\nnetwork: {allow_domains: [docs.example.com, {name: db.example.com, ports: [5432], tls: any}]%s}\n"
URL = ", upstream_proxy: {url: 'http://proxy.example.com:3128'}"
SECRET = ", upstream_proxy: {url: 'https://proxy.example.com:3129', secret: PROXY_LOGIN}}\nsecrets: {files: [proxy.env]"


def proxied(text: str, given: dict[str, Any] | None = None, **host: Any) -> dict[str, Any]:
    read = manifest(text)
    proxy = upstream.chosen(read.network.upstream_proxy, read.secrets_files, given)
    chosen = replace(SETTINGS, upstream=proxy, upstream_ca=("/etc/ssl/ca.pem", "ab" * 32))
    return build(text, settings=chosen, host=replace(HOST, **host))


def caddy(plan: dict[str, Any]) -> dict[str, Any]:
    found = next(entry["json"] for entry in plan["files"] if entry["path"] == "caddy/caddy.json")
    return {
        name: server["routes"][0]["handle"][0].get("chain") for name, server in found["apps"]["http"]["servers"].items()
    }


def leaving(plan: dict[str, Any]) -> list[str]:
    text = nftables.as_text(plan["wiring"]["nft"][0]["rules"])
    return [line.strip() for line in text.splitlines() if "oifname tap0" in line]


def test_l1_and_l3_chain_and_nothing_else_leaves() -> None:
    plan = proxied(BROKERED, {"url": "http://proxy.example.com:3128"})
    chain = {"url": "http://proxy.example.com:3128"}
    assert caddy(plan) == {"l1": chain, "l2": None, "l3": chain}
    assert leaving(plan)[-2:] == [
        "oifname tap0 tcp dport 3128 accept",
        "oifname tap0 reject with icmpx admin-prohibited",
    ]
    assert not any("443" in line for line in leaving(plan)), "the declared ports are not open beside the proxy's"
    assert plan["network"]["upstream_proxy"] == {
        "url": "http://proxy.example.com:3128", "key": "upstream_proxy", "tls": False, "secret": None,
    }  # fmt: skip
    assert any("checked, by the proxy http://proxy.example.com:3128, not by ASF" in text for text in plan["warnings"])


def test_without_a_proxy_the_plan_is_as_before() -> None:
    plan = build(BROKERED)
    assert caddy(plan) == {"l1": None, "l2": None, "l3": None} and plan["network"]["upstream_proxy"] is None


def test_the_manifests_proxy_comes_before_the_operators() -> None:
    plan = proxied(PLAIN % URL, {"url": "http://other.example.com:8080"})
    assert plan["network"]["upstream_proxy"]["key"] == "network.upstream_proxy"
    assert caddy(plan)["l1"] == {"url": "http://proxy.example.com:3128"}


def test_an_address_is_the_only_one_that_may_be_reached() -> None:
    plan = proxied(PLAIN % ", upstream_proxy: {url: 'http://10.1.2.3:3128'}")
    assert "oifname tap0 ip daddr 10.1.2.3 tcp dport 3128 accept" in leaving(plan)


def test_credentials_are_a_secret_of_caddy_alone() -> None:
    """S3: by name in the plan, as a file in one container, never as a value."""
    plan = proxied(PLAIN % SECRET)
    (secret,) = plan["secrets"]
    assert secret == {
        "name": "asf-a.main-upstream", "part": "upstream", "source": "file", "variable": "PROXY_LOGIN",
    }  # fmt: skip
    using = [row["role"] for row in plan["containers"] if any("asf-a.main-upstream" in word for word in row["args"])]
    assert using == ["caddy"]
    assert caddy(plan)["l1"] == {
        "url": "https://proxy.example.com:3129",
        "ca_file": "/asf/caddy/proxy-ca.pem",
        "credentials_file": "/run/secrets/asf-upstream",
    }
    copied = [entry for entry in plan["files"] if entry["path"] == "caddy/proxy-ca.pem"]
    assert copied == [{"path": "caddy/proxy-ca.pem", "copy": "/etc/ssl/ca.pem", "sha256": "ab" * 32}]


def test_a_login_that_goes_in_clear_is_announced() -> None:
    for given, clear in ((SECRET, False), (SECRET.replace("https://", "http://"), True), (URL, False)):
        told = proxied(PLAIN % given)["warnings"]
        assert any("its login goes there in clear" in text for text in told) is clear, given


def test_an_isolated_broker_goes_through_the_operators_default() -> None:
    text = (
        "name: a\nadapter: claude\nllm: {provider: anthropic}\nsecrets: {files: [a.env]}\nnetwork: {mode: isolated}\n"
    )
    plan = proxied(text, {"url": "http://proxy.example.com:3128"})
    assert caddy(plan) == {"l2": None, "l3": {"url": "http://proxy.example.com:3128"}}
    bare = proxied("name: a\nnetwork: {mode: isolated}\n", {"url": "http://proxy.example.com:3128"})
    assert bare["network"]["upstream_proxy"] is None and bare["secrets"] == []


def test_a_private_range_without_effect_is_said() -> None:
    names = PLAIN.replace("tls: any}", "tls: any, private: [10.0.0.0/8]}")
    assert any("network.allow_domains[1].private has no effect" in text for text in proxied(names % URL)["warnings"])


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:3128", "loopback"),
        ("http://169.254.169.254:80", "link-local"),
        ("http://224.0.0.1:80", "multicast"),
        ("http://198.18.0.1:4000", "own ranges"),
        ("http://198.18.1.2:3128", "own ranges"),
        (f"http://{next(a for a in HOST.addresses if ':' not in a)}:3128", "this host's own"),
    ],
)
def test_where_no_proxy_may_be(url: str, words: str) -> None:
    with pytest.raises(PlanError) as caught:
        proxied(PLAIN % f", upstream_proxy: {{url: '{url}'}}")
    said = str(caught.value)
    assert "network.upstream_proxy.url" in said and words in said and "another host" in said


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://user:word@proxy.example.com:3128", "credentials do not belong in a URL"),
        ("socks5://proxy.example.com:1080", "must begin with http:// or https://"),
        ("http://proxy.example.com:3128/path", "a path does not belong"),
        ("http://proxy.example.com:3128?x=1", "a query or fragment"),
        ("http://proxy.example.com:3128#x", "a query or fragment"),
        ("http://proxy.example.com:0", "out of range"),
        ("http://proxy.example.com:65536", "out of range"),
        ("http://Proxy.example.com:3128", "lower case"),
        ("http://[fd00::1]:3128", "without brackets"),
        ("http://10.1:3128", "not an address"),
        ("http://localhost:3128", "single label"),
        ("proxy.example.com:3128", "must begin with"),
        ("http://:3128", ""),
        ("", ""),
    ],
)
def test_a_wrong_url_is_named(url: str, words: str) -> None:
    for read, key in (
        (lambda: manifest(PLAIN % f", upstream_proxy: {{url: '{url}'}}"), "network.upstream_proxy.url"),
        (lambda: settings(f"upstream_proxy: {{url: '{url}'}}\n"), "upstream_proxy.url"),
    ):
        with pytest.raises(ManifestError) as caught:
            read()
        (problem,) = caught.value.problems
        assert problem.key == key and problem.line and words in problem.text(), problem.text()
        assert "user:word" not in problem.text(), "S4: an error does not repeat credentials"


@pytest.mark.parametrize(
    "text", ["http://proxy.example.com:3128/", "https://proxy.example.com", "http://192.168.1.1:80"]
)
def test_a_right_url(text: str) -> None:
    read = manifest(PLAIN % f", upstream_proxy: {{url: '{text}'}}")
    proxy = upstream.chosen(read.network.upstream_proxy, (), None)
    assert proxy is not None and proxy.url.count("/") == 2 and proxy.port in (3128, 443, 80)


def test_a_proxy_that_nothing_could_use_is_refused() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest("name: a\nnetwork: {mode: isolated, upstream_proxy: {url: 'http://p.example.com:1'}}\n")
    (problem,) = caught.value.problems
    assert problem.key == "network.upstream_proxy" and "config.yml" in problem.text()


def test_a_secret_needs_a_file() -> None:
    with pytest.raises(ManifestError) as caught:
        manifest(PLAIN % ", upstream_proxy: {url: 'http://p.example.com:1', secret: LOGIN}")
    assert [problem.key for problem in caught.value.problems] == ["network.upstream_proxy.secret"]
    for text, key in (("secret: LOGIN", "file"), ("file: proxy.env", "secret")):
        with pytest.raises(ManifestError) as caught:
            settings(f"upstream_proxy: {{url: 'http://p.example.com:1', {text}}}\n")
        assert [problem.key for problem in caught.value.problems] == [f"upstream_proxy.{key}"]


# --- credentials ------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyed(tmp_path: Path) -> Home:
    (tmp_path / "secrets").mkdir(mode=0o700)
    return Home(tmp_path, "ASF_HOME")


def secret(home: Home, text: str, mode: int = 0o600) -> None:
    file = home.secrets_dir / "proxy.env"
    file.write_text(text)
    file.chmod(mode)


def read_secret(home: Home, given: dict[str, Any] | None = None) -> str | None:
    read = manifest(PLAIN % ("" if given else SECRET))
    proxy = upstream.chosen(read.network.upstream_proxy, read.secrets_files, given)
    found = homes.proxy_credentials(home, read, proxy)
    return found.value if found else None


def test_credentials_of_the_manifest_and_of_the_operator(keyed: Home) -> None:
    secret(keyed, "PROXY_LOGIN='me:a word:with colons'\r\nOTHER=x\n")
    assert read_secret(keyed) == "me:a word:with colons"
    theirs = {"url": "http://p.example.com:1", "secret": "PROXY_LOGIN", "file": "proxy.env"}
    assert read_secret(keyed, theirs) == "me:a word:with colons"
    assert read_secret(keyed, {"url": "http://p.example.com:1"}) is None


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("OTHER=x\n", 0o600, "network.upstream_proxy.secret"),
        ("PROXY_LOGIN=\n", 0o600, "empty"),
        ("PROXY_LOGIN=canary-no-colon\n", 0o600, "user:password"),
        ("PROXY_LOGIN=:canary\n", 0o600, "user:password"),
        ("PROXY_LOGIN=u:" + "canary" * 200 + "\n", 0o600, "user:password"),
        ("PROXY_LOGIN=u:canary-ü\n", 0o600, "printable ASCII"),
        ("PROXY_LOGIN=u:canary\n", 0o644, "0600"),
        (None, 0, "does not exist"),
    ],
)
def test_bad_credentials_are_refused_without_a_byte_of_them(
    keyed: Home, text: str | None, mode: int, words: str
) -> None:
    if text is not None:
        secret(keyed, text, mode)
    with pytest.raises(SecretError) as caught:
        read_secret(keyed)
    said = json.dumps([problem.text() for problem in caught.value.problems])
    assert words in said and "canary" not in said


def test_the_authorities_are_the_operators_else_the_systems(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    https = upstream.chosen({"url": "https://p.example.com:1"}, (), None)
    assert upstreamca.found(https, str(bundle))[0] == str(bundle)
    assert upstreamca.found(https, None, [str(tmp_path / "none"), str(bundle)])[0] == str(bundle)
    assert upstreamca.found(upstream.chosen({"url": "http://p.example.com:1"}, (), None), str(bundle)) == ("", "")
    with pytest.raises(HostError):
        upstreamca.found(https, None, [str(tmp_path / "none")])


def test_the_plan_is_a_function_of_its_inputs() -> None:
    assert plans.digest(proxied(PLAIN % SECRET)) == plans.digest(proxied(PLAIN % SECRET))
