# SPDX-License-Identifier: BSD-4-Clause
"""What is wrong stops an open by name before anything exists; what fails later removes what was made (F1, L7, N2).

Every case is one command line with `--json`: its exit code, its error, and that nothing is left of the session.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from support import leaks, saboteur
from support.mutate import inputs
from support.product import Completed, Home, Session, SessionFactory, asf_play, sample_repo
from support.waiting import wait_for

from asf_lib.core.errors import AsfError, EngineError, GrantError, ManifestError
from asf_lib.engine import hostfacts, planning, trust
from asf_lib.engine.podman import Podman

pytestmark = [pytest.mark.podman, pytest.mark.slow]

REFUSED, VERIFY, ENGINE = 220, 221, 222
DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
BROKERED = {**PLAIN, "llm": {"protocol": "openai", "mock": "hello"}}
PROVIDED = {**PLAIN, "llm": {"provider": "openai", "protocol": "openai"}, "secrets": {"files": ["openai.env"]}}
ROUTED = {
    "mode": "routed",
    "allow": [{"cidr": "192.0.2.0/24", "protocol": "tcp", "ports": [22, 443]}],
    "verify": {"address": "192.0.2.1", "protocol": "tcp", "port": 443, "blocked_port": 8443},
}


def assert_nothing_exists(session: Session) -> None:
    """No container, secret, volume, run folder, and no record of it."""
    assert leaks.find(session.name) == []
    assert not (session.home.state / "asf" / "live" / f"{session.id}.json").exists()


def refused(session: SessionFactory, agent: str, *args: str, **options: Any) -> dict[str, Any]:
    """Try to open; it is refused at plan time and nothing was made. The document."""
    done, tried = session.attempt(agent, *args, **options)
    assert done.rc == REFUSED and done.json is not None and done.json["ok"] is False, done
    error = done.json["error"]
    assert error["message"] and (error["key"] or error["line"]) and error["remedy"], error
    assert_nothing_exists(tried)
    assert not (tried.home.state / "asf" / "evidence" / tried.id).exists(), "a plan that was refused leaves no run"
    return done.json


# --- keys that are valid and not built --------------------------------------------------------------------------------

UNBUILT: dict[str, tuple[dict[str, Any], str]] = {
    "microvm": ({"isolation": "microvm"}, "isolation"),
    "engine": ({"isolation": "microvm", "microvm": {"engine": "krun"}}, "microvm"),
}


def _planned(home: Home, agent: str, **more: Any) -> None:
    with mock.patch.dict(os.environ, home.env):
        planning.compute(Podman(), inputs(home, agent, SessionFactory.new_name(), **more))


@pytest.mark.parametrize("case", UNBUILT)
def test_a_valid_key_that_is_not_built_is_refused_by_name(home: Home, case: str) -> None:
    more, key = UNBUILT[case]
    file = home.agent("unbuilt", {**PROVIDED, **more})
    with pytest.raises(ManifestError) as caught:
        _planned(home, "unbuilt")
    problem = next(p for p in caught.value.problems if p.key == key)
    assert problem.code == "not-built" and problem.file == str(file) and problem.line and problem.remedy, problem
    assert "cannot enforce" in problem.message, problem


@pytest.mark.parametrize("grant", [{"mode": "clone"}, {"mode": "rw", "git": "guarded"}], ids=["clone", "guarded"])
def test_a_grant_that_is_not_built_is_refused_by_name(home: Home, tmp_path: Path, grant: Mapping[str, str]) -> None:
    home.agent("unbuilt", PLAIN)
    file = home.grant("unbuilt", {"path": str(sample_repo(tmp_path / "repo")), **grant})
    with pytest.raises(GrantError) as caught:
        _planned(home, "unbuilt")
    problem = caught.value.problems[0]
    key = "repos[0].git" if "git" in grant else "repos[0].mode"
    assert (problem.code, problem.key, problem.file) == ("not-built", key, str(file)) and problem.remedy, problem


def test_all_that_is_not_built_is_named_at_once(session: SessionFactory, home: Home) -> None:
    file = home.agent("unbuilt", {**PROVIDED, **UNBUILT["engine"][0]})
    document = refused(session, "unbuilt")
    keys = {problem["key"] for problem in document["problems"]}
    assert keys == {"isolation", "microvm"}
    assert document["error"]["file"] == str(file) and document["error"]["code"] == "not-built"


def test_microvm_by_extravar(session: SessionFactory, home: Home) -> None:
    home.agent("plain", PLAIN)
    error = refused(session, "plain", "-e", "isolation=microvm")["error"]
    assert error["key"] == "isolation" and error["code"] == "not-built", error


# --- routed rules -----------------------------------------------------------------------------------------------------


def _routed(*rules: Any, **verify: Any) -> dict[str, Any]:
    """A routed manifest with more rules, or another control."""
    control = {**ROUTED["verify"], **verify}
    return {**PLAIN, "network": {**ROUTED, "allow": [*ROUTED["allow"], *rules], "verify": control}}


def _tcp(cidr: str, *ports: Any) -> dict[str, Any]:
    return {"cidr": cidr, "protocol": "tcp", "ports": list(ports) or [22]}


#: Manifest, the key that is named, and a part of what is said.
CONTRADICTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a-domain-list": (
        {**PLAIN, "network": {**ROUTED, "allow_domains": [DOCS]}},
        "network.allow_domains",
        "no meaning here",
    ),
    "net-raw-elsewhere": ({**PLAIN, "capabilities": ["net_raw"]}, "capabilities", "network.mode"),
    "control-not-covered": (_routed(address="192.0.3.1"), "network.verify.port", "no entry of network.allow"),
    "control-allowed": (_routed(blocked_port=22), "network.verify.blocked_port", "covers it"),
    "one-port-for-both": (_routed(blocked_port=443), "network.verify.blocked_port", "the allowed one"),
    "overlap": (_routed(_tcp("192.0.2.7/32", 22)), "network.allow[1]", "overlaps network.allow[0]"),
    "host-bits": (_routed(_tcp("10.1.2.3/16")), "network.allow[1].cidr", "host bits are set"),
    "port-0": (_routed(_tcp("10.1.0.0/16", 0)), "network.allow[1].ports[0]", "out of range"),
    "port-65536": (_routed(_tcp("10.1.0.0/16", 65536)), "network.allow[1].ports[0]", "out of range"),
    "port-twice": (_routed(_tcp("10.1.0.0/16", 22, 22)), "network.allow[1].ports[1]", "listed twice"),
    "port-range": (_routed(_tcp("10.1.0.0/16", "1-1024")), "network.allow[1].ports[0]", "not text"),
    "ipv6": (_routed(_tcp("2001:db8::/32")), "network.allow[1].cidr", "no IPv6"),
    "ports-of-icmp": (
        _routed({"cidr": "10.1.0.0/16", "protocol": "icmp_echo", "ports": [1]}),
        "network.allow[1].ports",
        "no meaning here",
    ),
    "too-many": (_routed(*[_tcp(f"10.1.{n}.0/24") for n in range(200)]), "network.allow", "at most 200"),
    "everywhere": (_routed(_tcp("0.0.0.0/0")), "network.allow[1].cidr", "internet"),
    "loopback": (_routed(_tcp("127.0.0.0/8")), "network.allow[1].cidr", "loopback"),
    "multicast": (_routed(_tcp("224.0.0.0/24")), "network.allow[1].cidr", "multicast"),
    "broadcast": (_routed(_tcp("255.255.255.255/32")), "network.allow[1].cidr", "broadcast"),
    "special-inside": (_routed(_tcp("172.0.0.0/8")), "network.allow[1].cidr", "172.16.0.0/12"),
    "cables": (_routed(_tcp("198.18.0.0/15")), "network.allow[1].cidr", "asf_session_cable_range"),
    "uplink": (_routed(_tcp("198.18.1.2/32")), "network.allow[1].cidr", "asf_session_uplink_range"),
    "this-host": (_routed(_tcp("198.51.100.0/24")), "network.allow[1].cidr", "an address of this host"),
    "unknown-key": (_routed({**_tcp("10.1.0.0/16"), "log": True}), "network.allow[1].log", "unknown key"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_contradiction_in_a_routed_manifest_is_named(home: Home, case: str) -> None:
    manifest, key, said = CONTRADICTIONS[case]
    file = home.agent("contrary", manifest)
    with pytest.raises(ManifestError) as caught:
        _planned(home, "contrary")
    problem = next((p for p in caught.value.problems if p.key == key), None)
    assert problem is not None, [p.text() for p in caught.value.problems]
    assert said in problem.text() and problem.file == str(file) and problem.line and problem.remedy, problem.text()


def test_every_contradiction_of_a_routed_manifest_is_told_at_once(session: SessionFactory, home: Home) -> None:
    wrong = _routed(_tcp("10.1.2.3/16"), _tcp("0.0.0.0/0"), _tcp("192.0.2.0/25", 443), blocked_port=22)
    home.agent("contrary", wrong)
    keys = {problem["key"] for problem in refused(session, "contrary")["problems"]}
    expected = {f"network.allow[{n}].cidr" for n in (1, 2)} | {"network.allow[3]", "network.verify.blocked_port"}
    assert keys == expected


# --- manifests, secrets, grants, settings -----------------------------------------------------------------------------


def test_an_unknown_agent_is_told_what_it_may_have_meant(session: SessionFactory) -> None:
    error = refused(session, "python-agnet")["error"]
    assert error["key"] == "agent" and error["found"] == "python-agnet", error
    assert "python-agent" in error["remedy"], error


WRONG = """name: wrong
adaptor: generic
network:
  allow_domains:
    - "*.example.com"
    - docs.example.com:443
  mode: proxi
limits: {cpus: many}
"""


def test_every_error_of_a_manifest_is_told_with_its_line(session: SessionFactory, home: Home) -> None:
    file = home.agent("wrong", WRONG)
    document = refused(session, "wrong")
    found = {(problem["line"], problem["key"]) for problem in document["problems"]}
    assert found >= {
        (2, "adaptor"),
        (5, "network.allow_domains[0]"),
        (6, "network.allow_domains[1]"),
        (7, "network.mode"),
        (8, "limits.cpus"),
    }, found
    assert {problem["file"] for problem in document["problems"]} == {str(file)}
    told = asf_play("open.yml", "-e", "agent=wrong", home=home)
    assert told.rc == REFUSED and "Traceback" not in told.err, told
    assert all(f"{file}:{line}" in told.err for line, _ in found), told


@pytest.mark.parametrize("how", ["missing", "open-to-others", "without-the-key", "not-an-assignment"])
def test_a_secret_that_cannot_be_used(session: SessionFactory, home: Home, how: str) -> None:
    home.agent("provided", PROVIDED)
    file = home.path / "secrets" / "openai.env"
    value = home.secrets["OPENAI_API_KEY"]
    if how == "missing":
        file.unlink()
    elif how == "open-to-others":
        file.chmod(0o644)
    elif how == "without-the-key":
        file.write_text(f"ANOTHER={value}\n")
    else:
        file.write_text(f"# key\n{value}\n")
    document = refused(session, "provided")
    error = document["error"]
    assert error["file"] == str(file) and error["code"] == "secret", error
    told = {
        "missing": ("does not exist", "secrets.files[0]"),
        "open-to-others": ("0600", "secrets.files[0]"),
        "without-the-key": ("not set", "OPENAI_API_KEY"),
        "not-an-assignment": ("not KEY=VALUE", ""),
    }[how]
    assert told[0] in error["message"] and (error["key"] or "").startswith(told[1]), error
    assert value not in json.dumps(document), "S4"
    assert how != "not-an-assignment" or error["line"] == 2, error


def test_a_grant_whose_folder_is_gone(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("gone", PLAIN)
    repo = sample_repo(tmp_path / "repo")
    file = home.grant("gone", repo)
    shutil.rmtree(repo)
    error = refused(session, "gone")["error"]
    assert error["file"] == str(file) and error["key"] == "repos[0].path" and "does not exist" in error["message"], (
        error
    )


def test_N2_a_resolver_on_loopback_is_no_resolver_for_caddy(session: SessionFactory, home: Home) -> None:
    home.agent("plain", PLAIN)
    home.config(resolver="127.0.0.53")
    error = refused(session, "plain")["error"]
    assert error["key"] == "resolver" and error["file"].endswith("config.yml") and error["found"] == "127.0.0.53", error


def test_N2_the_hosts_resolver_on_loopback_is_never_a_silent_default(home: Home) -> None:
    home.agent("plain", PLAIN)
    home.config()
    with mock.patch.object(hostfacts, "resolvers", lambda: ["127.0.0.53", "::1"]), pytest.raises(AsfError) as caught:
        _planned(home, "plain")
    error = caught.value
    assert error.key == "resolver" and "config.yml" in (error.remedy or ""), error


@pytest.mark.parametrize(
    "words", [["-e", "session={{ lookup('pipe', 'id') }}"], ["-e", "session=Upper"], ["-e", "asf_hold=true"]]
)
def test_an_option_that_is_wrong_starts_nothing(home: Home, words: list[str]) -> None:
    home.agent("plain", PLAIN)
    done = asf_play("open.yml", "-e", "agent=plain", *words, "--json", home=home)
    assert done.rc == 64 and done.json["error"]["key"] and done.json["phases"] == [], done


# --- later steps ------------------------------------------------------------------------------------------------------


def failed(session: SessionFactory, tmp_path: Path, agent: str, sabotage: str, *args: str) -> dict[str, Any]:
    """Open with a podman that breaks something; what was made is gone, the evidence is there. The document."""
    path = saboteur.path_with(tmp_path / "bin", sabotage)
    done, tried = session.attempt(agent, *args, env={"ASF_PATH": path})
    assert done.json is not None and done.json["ok"] is False, done
    assert_nothing_exists(tried)
    evidence = Path(done.json["evidence"])
    assert {"plan.json", "cleanup.json"} <= {file.name for file in evidence.iterdir()}, done
    assert json.loads((evidence / "cleanup.json").read_text())["left"] == [], done
    error: dict[str, Any] = {**done.json["error"], "rc": done.rc}
    return error


def test_a_podman_that_is_too_old(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("plain", PLAIN)
    path = saboteur.path_with(tmp_path / "bin", saboteur.TOO_OLD)
    done, tried = session.attempt("plain", env={"ASF_PATH": path})
    error = done.json["error"]
    assert done.rc != 0 and "too old" in error["message"] and error["found"] == "4.2.1", done
    assert "4.3" in error["remedy"], error
    assert_nothing_exists(tried)


def test_podman_is_missing(home: Home, tmp_path: Path) -> None:
    """In this process: no PATH of an operator's hides a program that lies in /usr/bin."""
    home.agent("plain", PLAIN)
    nowhere = {"PATH": str(tmp_path)}
    tail = mock.patch.object(trust, "SYSTEM_PATH", (str(tmp_path),))
    with tail, mock.patch.dict(os.environ, nowhere), pytest.raises(EngineError) as caught:
        planning.compute(Podman(), inputs(home, "plain", SessionFactory.new_name()))
    assert caught.value.code == "podman-missing" and "install Podman" in (caught.value.remedy or "")


def test_the_storage_is_full(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    """Podman's own words for it, out of a stand-in for that one call: a storage that is really full takes minutes."""
    home.agent("plain", PLAIN)
    error = failed(session, tmp_path, "plain", saboteur.STORAGE_FULL)
    assert error["rc"] == ENGINE and error["code"] == "storage-full" and "prune" in error["remedy"], error


def test_an_image_that_cannot_be_built(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    """A pin that no download can match: the hash of the wheel that brings Node."""
    pins = yaml.safe_load(Path("inventory/group_vars/all/pins.yml").read_text())["asf_image_pins"]
    wheel = pins["wheels"]["node"]["sha256"]
    pins["wheels"]["node"]["sha256"] = dict.fromkeys(wheel, "0" * 64)
    (tmp_path / "pins.json").write_text(json.dumps({"asf_image_pins": pins}))
    home.agent("client", {**PLAIN, "adapter": "claude"})
    done, tried = session.attempt("client", "-e", f"@{tmp_path}/pins.json")
    error = done.json["error"]
    assert done.rc == ENGINE and "building" in error["message"] and error["remedy"], done
    assert_nothing_exists(tried)
    assert "cleanup.json" in {file.name for file in Path(done.json["evidence"]).iterdir()}


def test_caddy_does_not_start(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("plain", PLAIN)
    error = failed(session, tmp_path, "plain", saboteur.broken_file("caddy", "caddy/caddy.json", '{"apps": 1}'))
    assert error["rc"] == ENGINE and error["code"] == "caddy-not-started" and error["found"], error
    assert "Caddy does not listen" in error["message"], error


def test_the_gate_is_silent(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("plain", PLAIN)
    error = failed(session, tmp_path, "plain", saboteur.GATE_SILENT)
    assert error["rc"] == VERIFY and "gate did not report" in error["message"], error
    assert "not started" in error["remedy"], error


def test_a_gate_that_cannot_read_its_plan_says_so(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("plain", PLAIN)
    error = failed(session, tmp_path, "plain", saboteur.broken_file("agent", "gate.json", "{"))
    assert error["rc"] == VERIFY and "gate.json" in error["message"], error


@pytest.mark.timeout(400)
def test_the_broker_does_not_start(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("brokered", BROKERED)
    broken = saboteur.broken_file("broker", "broker/litellm.yaml", "model_list: [")
    error = failed(session, tmp_path, "brokered", broken)
    assert error["rc"] == ENGINE and error["code"] == "broker-not-started" and error["found"], error
    assert "broker" in error["message"], error


# --- an open that is interrupted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_open_cleans_up(session: SessionFactory, home: Home, number: signal.Signals) -> None:
    """As a terminal or a service manager does it, while containers are being made; the exit code is documented."""
    home.agent("plain", PLAIN)
    target = session.adopt("plain")
    argv = ["asf-play", "open.yml", *target.selector(), "--json", "--detach"]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=home.env, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        record = home.state / "asf" / "live" / f"{target.id}.json"
        wait_for(lambda: _step(record) in ("create", "created") or process.poll() is not None, 120, "a step", 0.005)
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    done = Completed(process.returncode, out.decode(), err.decode(), json.loads(out))
    assert done.rc == (130 if number == signal.SIGINT else 143) and done.json["ok"] is False, done
    assert_nothing_exists(target)
    (run,) = (home.state / "asf" / "evidence" / target.id).iterdir()
    assert {"plan.json", "cleanup.json"} <= {file.name for file in run.iterdir()}


def _step(record: Path) -> str:
    try:
        return str(json.loads(record.read_bytes()).get("step", ""))
    except (OSError, ValueError):
        return ""
