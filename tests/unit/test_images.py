# SPDX-License-Identifier: BSD-4-Clause
"""Names of images follow from their inputs; what must be built; how a failed build is told; shipped pins and locks."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
import yaml

from asf_lib.core import images as core
from asf_lib.core.errors import PlanError
from asf_lib.engine import build_base, build_fetch, build_go, build_host, build_image, build_run, images

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "roles/image/files"
PINS = yaml.safe_load((ROOT / "inventory/group_vars/all/pins.yml").read_text())["asf_image_pins"]
AGENTS = {"agent-claude", "agent-codex", "agent-generic", "agent-hermes"}
SOURCES = {name: f"{number:064x}" for number, name in enumerate(core.SOURCES)}


def tags(pins=PINS, sources=SOURCES, **settings):
    return core.tags(pins, sources, **settings)


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


def pinned(path, value):
    """The shipped pins with one value changed."""
    pins = copy.deepcopy(PINS)
    *parents, last = path.split(".")
    place = pins
    for key in parents:
        place = place[key]
    place[last] = value
    return pins


# --- names ---


def test_same_inputs_same_names():
    assert tags() == tags(copy.deepcopy(PINS), dict(SOURCES))


def test_names_have_the_form_that_the_plan_and_the_store_use():
    found = tags()
    assert re.fullmatch(r"localhost/asf/agent-claude:[0-9a-f]{12}", found["agent-claude"])
    assert re.fullmatch(r"gate-[0-9a-f]{12}", found["gate"])
    assert re.fullmatch(r"caddy-[0-9a-f]{12}", found["caddy-binary"])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("gate", {"gate"}),
        ("caddy-module", {"caddy-binary", "caddy"}),
        ("caddy", {"caddy"}),
        ("litellm", {"litellm"}),
        ("agent", AGENTS),
        ("base", {"base", "litellm", *AGENTS}),
    ],
)
def test_a_changed_source_renames_what_is_made_of_it_and_nothing_else(source, expected):
    assert changed(tags(), tags(sources={**SOURCES, source: "f" * 64})) == expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("base.revision", 99, {"base", "litellm", *AGENTS}),
        ("base.suite", "trixie", {"base", "litellm", *AGENTS}),
        ("litellm", "1.109.0", {"litellm"}),
        ("claude", "9.9.9", {"agent-claude"}),
        ("codex", "9.9.9", {"agent-codex"}),
        ("hermes", "9.9.9", {"agent-hermes"}),
        ("wheels.node.sha256.x86_64", "a" * 64, {"agent-claude", "agent-codex"}),
        ("wheels.pip.version", "99", {"litellm", "agent-generic", "agent-hermes"}),
        ("wheels.go.version", "9.9", set()),
    ],
)
def test_a_changed_pin_renames_what_uses_it(path, value, expected):
    assert changed(tags(), tags(pinned(path, value))) == expected


def test_a_registry_base_replaces_the_distributions_pins():
    image = "registry.example.com/debian@sha256:" + "a" * 64
    assert changed(tags(), tags(base_image=image)) == {"base", "litellm", *AGENTS}
    assert not changed(tags(base_image=image), tags(pinned("base.revision", 99), base_image=image))


@pytest.mark.parametrize(
    "image",
    [
        "debian",
        "debian:12",
        "debian@sha256:abc",
        "--help@sha256:" + "a" * 64,
        "a b@sha256:" + "a" * 64,
        "x@sha256:" + "a" * 64 + "\n",
    ],
)
def test_a_base_image_that_is_not_named_by_digest_is_refused(image):
    with pytest.raises(PlanError) as caught:
        tags(base_image=image)
    assert caught.value.code == "base-image" and "DIGEST" in caught.value.remedy


def test_a_mirror_is_an_input():
    assert "base" in changed(tags(), tags(mirror="deb [x] file:/mirror bookworm main"))


# --- pins ---


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("base.suite", None, "base.suite"),
        ("base.suite", "--variant=x", "base.suite"),
        ("base.revision", "1", "base.revision"),
        ("base.revision", True, "base.revision"),
        ("base.packages", [], "base.packages"),
        ("base.packages", ["git-"], "base.packages"),
        ("base.packages", ["git,curl"], "base.packages"),
        ("litellm", 1.1, "litellm"),
        ("wheels", {}, "wheels"),
        ("wheels.pip.sha256.any", "A" * 64, "wheels.pip.sha256.any"),
        ("wheels.pip.version", "1 --index-url=x", "wheels.pip.version"),
    ],
)
def test_wrong_pins_are_refused_by_key(path, value, key):
    with pytest.raises(PlanError) as caught:
        tags(pinned(path, value))
    assert caught.value.key == f"asf_image_pins.{key}" and caught.value.file.endswith("pins.yml")


def test_no_pins_at_all_name_the_first_missing_key():
    with pytest.raises(PlanError) as caught:
        tags({})
    assert caught.value.key == "asf_image_pins.base" and caught.value.message == "missing"


def test_a_machine_without_a_pinned_hash_is_told_which_key_to_fill():
    assert core.wheel_hash(PINS, "pip", "riscv64") == PINS["wheels"]["pip"]["sha256"]["any"]
    with pytest.raises(PlanError) as caught:
        core.wheel_hash(PINS, "node", "riscv64")
    assert caught.value.key == "asf_image_pins.wheels.node.sha256"


# --- what is needed, and in which order ---


def test_names_of_a_session():
    assert core.names_for("claude", ("caddy", "broker", "agent")) == ("gate", "agent-claude", "caddy", "litellm")
    assert core.names_for("generic", ("caddy", "agent")) == ("gate", "agent-generic", "caddy")
    assert core.names_for("generic", ("agent",)) == ("gate", "agent-generic")
    assert core.names_for("generic", ("gateway", "agent")) == ("gate", "agent-generic", "gateway")
    with pytest.raises(PlanError):
        core.names_for("nobody", ())


def test_parents_come_first():
    found = core.order(["agent-claude", "caddy", "litellm"])
    assert found.index("base") < found.index("litellm") and found.index("caddy-binary") < found.index("caddy")
    with pytest.raises(PlanError):
        core.order(["nothing"])


def test_a_parent_is_built_only_where_its_child_is_missing():
    state = images.State(tags(), frozenset({"agent-claude", "caddy"}))
    assert state.missing(["agent-claude", "caddy"]) == ()
    assert state.missing(["agent-claude", "litellm"]) == ("base", "litellm")
    assert images.State(tags(), frozenset({"base"})).missing(["litellm", "gate"]) == ("gate", "litellm")


# --- digests of folders ---


def test_a_folders_digest_ignores_tests_and_caches_and_sees_everything_else(tmp_path):
    for folder in core.SOURCES.values():
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    gate = tmp_path / core.SOURCES["gate"]
    (gate / "main.go").write_text("package main")
    first = images.source_digests(tmp_path)
    (gate / "main_test.go").write_text("x")
    (gate / "testdata").mkdir()
    (gate / "testdata" / "a").write_text("x")
    assert images.source_digests(tmp_path) == first
    (gate / "main.go").chmod(0o755)
    second = images.source_digests(tmp_path)
    (gate / "more.go").write_text("package main")
    third = images.source_digests(tmp_path)
    assert len({first["gate"], second["gate"], third["gate"]}) == 3 and first["caddy"] == third["caddy"]


# --- recipes ---


class _Podman:
    env = {"PATH": "/bin", "CONTAINERS_CONF": "/x"}


def host(tmp_path, **options):
    return build_host.Host(
        build_host.Options.of(ROOT, {"ca_bundle": "/ca.pem", **options}, {}),
        _Podman(),
        PINS,
        env={"HOME": str(tmp_path)},
    )


def test_a_build_gets_no_proxy_variable_no_environment_and_pulls_nothing(tmp_path):
    work = host(tmp_path, proxy="http://user:secret@proxy.example.com:1")
    folders = (tmp_path / "in", tmp_path / "ctx", tmp_path / "cache")
    argv = build_image.command(work, "litellm", tags(), "T", {"asf.image": "litellm"}, folders)
    assert {"--http-proxy=false", "--pull=never", "--layers=false", f"--build-arg=BASE={tags()['base']}"} <= set(argv)
    assert not [word for word in argv if word.startswith("--env") or "proxy.example.com" in word]
    assert {f"--volume={tmp_path / 'in'}:/mnt:ro", f"--volume={tmp_path / 'cache'}:/srv:rw"} <= set(argv)


def test_settings_reach_the_package_tools_in_private_files(tmp_path):
    work = host(
        tmp_path,
        proxy="http://proxy.example.com:1",
        pip_index="https://pip.example.com",
        npm_registry="https://npm.example.com",
    )
    pip, npm = build_fetch.pip_conf(work, tmp_path, "/mnt/ca.pem"), build_fetch.npm_conf(work, tmp_path, "/mnt/ca.pem")
    apt = build_fetch.apt_conf(work, tmp_path, "/mnt/ca.pem").read_text()
    assert (
        'Acquire::https::CaInfo "/mnt/ca.pem";' in apt and 'Acquire::http::Proxy "http://proxy.example.com:1";' in apt
    )
    assert "cert = /mnt/ca.pem" in pip.read_text() and "proxy = http://proxy.example.com:1" in pip.read_text()
    assert "cafile=/mnt/ca.pem" in npm.read_text() and "registry=https://npm.example.com" in npm.read_text()
    assert pip.stat().st_mode & 0o077 == 0 and npm.stat().st_mode & 0o077 == 0


def test_programs_that_fetch_get_bundle_and_proxy_and_nothing_else_of_the_operators_shell(tmp_path):
    work = host(tmp_path, proxy="http://proxy.example.com:1")
    work.env = {"HOME": str(tmp_path), "GOPROXY": "off", "AWS_SECRET": "x", "GOFLAGS": "-mod=mod"}
    env = work.build_env()
    assert env["SSL_CERT_FILE"] == "/ca.pem" and env["https_proxy"] == env["HTTP_PROXY"] == "http://proxy.example.com:1"
    assert env["GOPROXY"] == "off" and not {"AWS_SECRET", "GOFLAGS", "CONTAINERS_CONF"} & set(env)


def test_p14_proxy_variables_of_the_shell_change_no_build():
    shell = {f"{kind}_proxy": "http://p" for kind in ("http", "https", "all", "no")}
    shell.update({name.upper(): value for name, value in shell.items()})
    assert build_host.Options.of(ROOT, {}, shell) == build_host.Options.of(ROOT, {}, {})


def test_bundle_and_proxy_default_to_their_own_variables():
    found = build_host.Options.of(ROOT, {}, {"SSL_CERT_FILE": "/e.pem", "ASF_BUILD_PROXY": "http://p"})
    assert (found.ca_bundle, found.proxy, found.no_proxy) == ("/e.pem", "http://p", "")
    assert build_host.Options.of(ROOT, {"proxy": "http://own"}, {"ASF_BUILD_PROXY": "http://p"}).proxy == "http://own"
    assert build_host.Options.of(ROOT, {"ca_bundle": "/own.pem"}, {"SSL_CERT_FILE": "/e.pem"}).ca_bundle == "/own.pem"


def test_mmdebstrap_is_given_words_and_its_hook_as_text(tmp_path):
    work = host(tmp_path, mirror="deb http://a bookworm main\n\ndeb http://b bookworm-security main\n")
    argv = build_base._mmdebstrap(work, "/x/base.tar")
    assert argv[-4:] == ["bookworm", "/x/base.tar", "deb http://a bookworm main", "deb http://b bookworm-security main"]
    assert any(word.startswith("--customize-hook=#!/bin/sh\n") for word in argv)


def test_no_containerfile_bakes_a_setting_or_fetches_by_itself():
    """Builds reach a registry through pip and npm alone, with locked inputs, and verification stays on."""
    for path in FILES.rglob("Containerfile"):
        text = path.read_text()
        steps = re.sub(r"(?m)^#.*", "", text).replace("git curl ps less", "")
        assert not re.search(r"https?://|trusted-host|strict-ssl|ADD |curl |wget |--no-verify", steps), path
        assert not re.search(r"(?mi)^ENV .*(proxy|cert|token|key)", text), path
        for run in re.findall(r"(?m)^RUN (.*)", text):
            assert run.startswith("set -eu;"), path
        if "pip install" in text:
            assert "--require-hashes" in text and "--only-binary :all:" in text and "--no-deps" in text
        if "npm-cli.js" in text:
            assert " ci " in text and "--ignore-scripts" in text


# --- Go ---


def test_the_minimum_comes_from_go_mod(tmp_path):
    mod = tmp_path / "go.mod"
    mod.write_text("module x\n\ngo 1.26.1\n\nrequire (\n)\n")
    assert build_go.minimum(mod) == (1, 26, 1)
    mod.write_text("module x\n")
    with pytest.raises(Exception, match="no usable Go module"):
        build_go.minimum(mod)


def test_the_pinned_go_is_new_enough_for_every_module():
    pinned_go = tuple(map(int, PINS["wheels"]["go"]["version"].split(".")))
    for source in ("gate", "caddy-module"):
        assert build_go.minimum(ROOT / core.SOURCES[source] / "go.mod") <= pinned_go


# --- failures ---


def failing(tmp_path, log_text, argv=("podman", "build", "--x")):
    log = tmp_path / "log"
    log.write_text(log_text)
    return build_run.failure(host(tmp_path), "agent-claude", argv, 1, log)


def test_a_failed_build_names_image_step_last_lines_and_log(tmp_path):
    error = failing(
        tmp_path, "STEP 1/3: FROM x\nSTEP 2/3: RUN set -eu; npm ci\nnpm error code E404\nnpm error 404 not found\n"
    )
    assert "agent-claude" in error.message and "STEP 2/3: RUN set -eu; npm ci" in error.message
    assert error.file == str(tmp_path / "log") and "npm error 404 not found" in error.stderr
    assert error.found == "npm error code E404" and error.code == "package" and error.remedy


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("write /x: no space left on device", "storage-full", "space"),
        ("SSLCertVerificationError: certificate verify failed: self-signed certificate", "tls", "ca_bundle"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "hash", "do not work around"),
        ("npm error code EINTEGRITY", "hash", "do not work around"),
        ("verifying module: checksum mismatch", "hash", "do not work around"),
        ("Temporary failure in name resolution", "network", "registries"),
        ("ERROR: No matching distribution found for openai==99", "package", "wheels"),
        ("ERROR: b 1 requires a, which is not installed.", "package", "pip freeze"),
        ("npm error code ETARGET", "package", "packages.npm"),
        ("E: Unable to locate package jqq", "package", "packages.apt"),
        ("E: Version '9' for 'jq' was not found", "package", "packages.apt"),
        ("something else", "build", "log"),
    ],
)
def test_known_causes_get_their_own_remedy(tmp_path, line, code, word):
    error = failing(tmp_path, f"STEP 2/3: RUN x\n{line}\n")
    assert error.code == code and word in error.remedy


def test_clean_up_after_a_failed_mmdebstrap_is_not_taken_for_the_step(tmp_path):
    error = failing(
        tmp_path, "I: installing packages\nE: unable to fetch\nI: main() received signal PIPE\nI: removing tempdir /x\n"
    )
    assert "installing packages" in error.message and error.found == "E: unable to fetch"


def test_the_log_and_the_error_show_no_password(tmp_path):
    work = host(tmp_path)
    work.redactor = images.Redactor(images._credentials(build_host.Options(ROOT, proxy="http://u:hunter2hunter2@p:1")))
    log = tmp_path / "log"
    log.write_text("+ pip\nproxy http://u:hunter2hunter2@p:1 refused\n")
    assert "hunter2hunter2" not in str(build_run.failure(work, "base", ["pip"], 1, log).as_dict())


# --- shipped locks ---


def _locks(name):
    return [*FILES.rglob(name), *(ROOT / "agents").rglob(name)]


def _locked(folder, name):
    text = (ROOT / core.SOURCES[folder] / "requirements.txt").read_text()
    return re.search(rf"(?m)^{re.escape(name)}==(\S+)", text).group(1)


def test_pins_and_locks_agree():
    assert _locked("litellm", "litellm") == PINS["litellm"] and _locked("agent-generic", "openai") == PINS["openai"]
    assert _locked("agent-hermes", "hermes-agent") == PINS["hermes"]


@pytest.mark.parametrize(("agent", "name"), [("claude", "@anthropic-ai/claude-code"), ("codex", "@openai/codex")])
def test_pins_and_npm_locks_agree(agent, name):
    package = json.loads((ROOT / f"agents/{agent}/image/package.json").read_text())
    lock = json.loads((ROOT / f"agents/{agent}/image/package-lock.json").read_text())["packages"]
    assert package["dependencies"][name] == lock[f"node_modules/{name}"]["version"] == PINS[agent]
    assert all(entry["integrity"].startswith("sha512-") for key, entry in lock.items() if key)


def test_no_poisoned_or_old_litellm():
    version = tuple(map(int, PINS["litellm"].split(".")))
    assert version >= (1, 83, 7) and _locked("litellm", "pynacl")


def test_locks_hold_hashes_and_no_hosts():
    for path in (*_locks("requirements.txt"), *_locks("package-lock.json")):
        text = re.sub(r"(?m)^#.*", "", path.read_text())
        assert "://" not in text and '"resolved"' not in text and "index-url" not in text, path
    for path in _locks("requirements.txt"):
        entries = re.split(r"(?m)^(?=[A-Za-z0-9])", path.read_text())[1:]
        assert entries and all("--hash=sha256:" in entry for entry in entries), path


def test_every_source_folder_exists():
    assert [folder for folder in core.SOURCES.values() if not (ROOT / folder).is_dir()] == []
