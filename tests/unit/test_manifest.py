# SPDX-License-Identifier: BSD-4-Clause
"""The manifest: compatible ones open unchanged, and every problem of a wrong one is reported at its line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from asf_lib.core import jsonschema, manifest, manifest_schema
from asf_lib.core.errors import ManifestError, Problem
from asf_lib.core.manifest import Manifest
from asf_lib.engine import yamlload

HERE = Path(__file__).resolve().parent / "manifests"
GOOD = sorted(path.stem for path in (HERE / "good").glob("*.yml"))
BAD = sorted(path.stem for path in (HERE / "bad").glob("*.txt"))
_EXPECT = re.compile(r"# ([0-9]+) (\S+): (.*)")
_PROXY = "network: {allow_domains: [a.example.com]}\n"


def _read(text: str) -> Manifest:
    return manifest.validate(yamlload.parse(text.encode(), "t.yml"), "t.yml")


def _good(name: str) -> Manifest:
    path = str(HERE / "good" / f"{name}.yml")
    return manifest.validate(yamlload.load(path), path, name)


def _problems(text: str) -> list[Problem]:
    with pytest.raises(ManifestError) as caught:
        _read(text)
    return caught.value.problems


@pytest.mark.parametrize("name", GOOD)
def test_a_compatible_manifest_opens_unchanged(name: str) -> None:
    assert _good(name).name == name


@pytest.mark.parametrize("name", BAD)
def test_every_problem_is_reported_at_its_line(name: str) -> None:
    """The first lines of each file say what is expected: line, key, and a part of the message or remedy."""
    path = HERE / "bad" / f"{name}.txt"
    expected = [match.groups() for match in map(_EXPECT.match, path.read_text().splitlines()) if match]
    with pytest.raises(ManifestError) as caught:
        manifest.validate(yamlload.load(str(path)), str(path))
    problems = caught.value.problems
    assert all(problem.file == str(path) for problem in problems)
    found = sorted((str(problem.line), problem.key) for problem in problems)
    assert found == sorted((line, key) for line, key, _ in expected), caught.value
    for line, key, words in expected:
        texts = [problem.text() for problem in problems if (str(problem.line), problem.key) == (line, key)]
        assert any(words in text for text in texts), (words, texts)


def test_defaults() -> None:
    """Each default of the reference."""
    read = _read("name: a\n" + _PROXY)
    assert (read.description, read.adapter, read.isolation, read.microvm_engine) == ("", "generic", "container", "auto")
    assert (read.mode, read.command, read.nested_sandbox, read.state) == ("interactive", (), False, ())
    assert (read.llm, read.brokered, read.secrets_files, read.env, read.capabilities) == (None, False, (), {}, ())
    assert (read.network.mode, read.limits.given(), read.packages, read.warnings) == ("proxy", {}, None, ())
    (domain,) = read.effective_domains()
    assert (domain.name, domain.ports, domain.tls, domain.private) == ("a.example.com", (443,), "required", ())
    assert domain.key == "network.allow_domains[0]"
    assert read.verify_target() == "a.example.com:443"


@pytest.mark.parametrize(
    ("provider", "variable", "host"),
    [
        ("anthropic", "ANTHROPIC_API_KEY", "api.anthropic.com"),
        ("openai", "OPENAI_API_KEY", "api.openai.com"),
        ("gemini", "GEMINI_API_KEY", "generativelanguage.googleapis.com"),
        ("openrouter", "OPENROUTER_API_KEY", "openrouter.ai"),
        ("mistral", "MISTRAL_API_KEY", "api.mistral.ai"),
        ("groq", "GROQ_API_KEY", "api.groq.com"),
        ("deepseek", "DEEPSEEK_API_KEY", "api.deepseek.com"),
        ("xai", "XAI_API_KEY", "api.x.ai"),
        ("together_ai", "TOGETHER_AI_API_KEY", "api.together.ai"),
        ("text-completion-openai", "TEXT_COMPLETION_OPENAI_API_KEY", "api.openai.com"),
    ],
)
def test_known_providers(provider: str, variable: str, host: str) -> None:
    llm = _read(f"name: a\nllm: {{protocol: openai, provider: {provider}}}\n").llm
    assert llm is not None and llm.broker and llm.key_required
    assert (llm.api_key_env, llm.direct_domain, llm.upstream_host, llm.upstream_port) == (variable, host, host, 443)


def test_the_provider_is_dropped_from_the_agents_list_while_brokered() -> None:
    read = _good("anthropic-agent")
    assert [domain.name for domain in read.effective_domains()] == ["docs.example.com", "packages.example.org"]
    assert read.effective_domains()[0].key == "network.allow_domains[1]"
    assert read.verify_target() == "docs.example.com:443"
    assert [domain.name for domain in _good("own-login").effective_domains()] == [
        "api.anthropic.com",
        "login.example.com",
    ]


def test_the_control_is_the_front_when_brokered_else_the_first_name() -> None:
    assert _good("gateway").verify_target() is None
    assert _good("no-model").verify_target() == "example.com:443"
    assert _good("added-keys").verify_target() == "docs.example.com:443"
    text = "name: a\nnetwork: {allow_domains: [{name: a.example.com, ports: [8443, 443]}]}\n"
    assert _read(text).verify_target() == "a.example.com:8443"


def test_a_provider_on_another_host() -> None:
    llm = _good("added-keys").llm
    assert llm is not None
    assert (llm.upstream_host, llm.upstream_port, llm.private) == ("llm.corp.example.com", 8443, ("10.20.0.0/16",))
    assert not llm.key_required, "no key is named for it"
    named = _read(
        "name: a\nsecrets: {files: [x.env]}\nllm: {protocol: openai, provider: openai, base_url: 'https://a.example.com'}"
    )
    assert named.llm is not None and named.llm.key_required


def test_limits_come_in_base_units() -> None:
    limits = _good("added-keys").limits
    assert limits.given() == {"memory": 4 << 30, "cpus": 1.5, "pids": 512, "disk": 2 << 30, "time": 28800}


def test_the_protocol_is_the_adapters_own() -> None:
    for adapter, protocol in (("claude", "anthropic"), ("codex", "openai"), ("hermes", "openai")):
        llm = _read(f"name: a\nadapter: {adapter}\nllm: {{provider: anthropic}}").llm
        assert llm is not None and llm.protocol == protocol


def test_mock() -> None:
    llm = _good("mock").llm
    assert llm is not None and not llm.key_required and llm.upstream_host == ""
    first, second = llm.mock_turns()
    assert first["input"]["deep"] == {"list": [1, 2.5, True, "x"], "empty": {}}
    assert second == {"text": "Two lines,\nas they are.\n"}
    text = _read("name: a\nllm: {protocol: openai, mock: hello}").llm
    assert text is not None and text.mock_turns() == [{"text": "hello"}]


def test_the_name_equals_the_folders() -> None:
    with pytest.raises(ManifestError, match="differs from the folder's"):
        manifest.validate(yamlload.parse(b"name: a\n" + _PROXY.encode(), "t"), "t", "b")


def test_what_has_no_effect_is_said() -> None:
    read = _read("name: a\nsecrets: {files: [a.env]}\nllm: {broker: false, models: [x]}\n" + _PROXY)
    assert [warning.key for warning in read.warnings] == ["secrets.files", "llm.models"]
    assert read.warnings[0].line == 2


@pytest.mark.parametrize(
    ("llm", "secrets", "to_agent"),
    [
        ("{broker: false, provider: anthropic}", "{files: [a.env]}", True),
        ("{broker: false, api_key_env: MY_KEY}", "{files: []}", True),
        ("{broker: false, provider: anthropic}", "{files: []}", False),
        ("{broker: false}", "{files: [a.env]}", False),
        ("{provider: anthropic, protocol: anthropic}", "{files: [a.env]}", False),
    ],
)
def test_a_key_goes_to_the_agent_only_where_the_manifest_says_so(llm: str, secrets: str, to_agent: bool) -> None:
    read = _read(f"name: a\nllm: {llm}\nsecrets: {secrets}\n" + _PROXY)
    assert read.llm is not None and read.llm.key_to_agent is to_agent
    assert "secrets.files" not in [warning.key for warning in read.warnings] or "provider" not in llm
    mocked = manifest.apply_overrides(read, llm_mock=True)
    assert mocked.llm is not None and not mocked.llm.key_to_agent


def test_a_key_of_the_manifests_own_env_is_not_read_from_elsewhere() -> None:
    """It was valid before: the variable that the manifest sets stays what it sets."""
    text = "name: a\nllm: {broker: false, provider: anthropic}\nsecrets: {files: [a.env]}\n"
    read = _read(text + "env: {ANTHROPIC_API_KEY: canary-0123456789}\n" + _PROXY)
    assert read.llm is not None and not read.llm.key_to_agent


def test_a_variable_that_looks_like_a_secret_is_said() -> None:
    """S5: the workload reads its own environment."""
    read = _read("name: a\nenv: {MY_API_TOKEN: canary-0123456789, MAX_TOKENS: '5'}\n" + _PROXY)
    assert [warning.key for warning in read.warnings] == ["env.MY_API_TOKEN"]
    assert "canary" not in read.warnings[0].text()


def test_a_wrong_value_causes_no_second_error() -> None:
    (problem,) = _problems("name: a\nadapter: cluade\nllm: {provider: anthropic}\n")
    assert problem.key == "adapter"
    (problem,) = _problems("name: a\nnetwork: {allow_domains: ['*.a.example.com'], verify_domain: a.example.com}\n")
    assert problem.key == "network.allow_domains[0]"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file(text: str) -> None:
    (problem,) = _problems(text)
    assert problem.message == "the file is empty"


@pytest.mark.parametrize("text", ["- a\n", "just text\n", "1\n", "true\n"])
def test_a_document_that_is_no_mapping(text: str) -> None:
    assert "a mapping belongs here" in _problems(text)[0].message


# --- overrides -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "protocol"),
    [
        ("name: a\nadapter: claude\nllm: {provider: anthropic}\nsecrets: {files: [x.env]}\n", "anthropic"),
        ("name: a\nadapter: claude\nllm: {broker: false}\n" + _PROXY, "anthropic"),
        ("name: a\nadapter: claude\n" + _PROXY, "anthropic"),
        ("name: a\nadapter: codex\n" + _PROXY, "openai"),
        ("name: a\n" + _PROXY, "openai"),
        ("name: a\nllm: {protocol: anthropic, provider: openai}\n", "anthropic"),
    ],
)
def test_llm_mock_opens_any_agent_without_a_secret(text: str, protocol: str) -> None:
    changed = manifest.apply_overrides(_read(text), llm_mock=True)
    llm = changed.llm
    assert llm is not None and changed.brokered and llm.broker
    assert (llm.protocol, llm.key_required, llm.upstream_host, llm.base_url) == (protocol, False, "", None)
    assert llm.mock_turns() == [{"text": manifest.MOCK_TEXT}]
    assert changed.verify_target() is None


def test_llm_mock_keeps_the_manifests_own_turns_and_its_list() -> None:
    assert manifest.apply_overrides(_good("mock"), llm_mock=True).llm.mock_turns()[0]["tool"] == "Bash"  # type: ignore[union-attr]
    changed = manifest.apply_overrides(_good("own-login"), llm_mock=True)
    assert [domain.name for domain in changed.effective_domains()] == ["login.example.com"]
    assert changed.verify_target() is None


@pytest.mark.parametrize("mock", [None, False])
def test_without_an_override_nothing_changes(mock: bool | None) -> None:
    read = _good("anthropic-agent")
    assert manifest.apply_overrides(read, llm_mock=mock) == read


def test_isolation_override() -> None:
    assert manifest.apply_overrides(_good("batch"), isolation="microvm").isolation == "microvm"
    with pytest.raises(ManifestError, match="isolation"):
        manifest.apply_overrides(_good("batch"), isolation="{{ x }}")


# --- what is not built -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("isolation: microvm\n" + _PROXY, "isolation", 2),
        ("microvm: {engine: krun}\n" + _PROXY, "microvm", 2),
    ],
)  # fmt: skip
def test_a_valid_key_that_is_not_enforced_yet_is_refused_by_name(text: str, key: str, line: int) -> None:
    (problem,) = manifest.unbuilt(_read("name: a\n" + text))
    assert (problem.key, problem.line, problem.code) == (key, line, "not-built")


@pytest.mark.parametrize(
    "name",
    ["anthropic-agent", "added-keys", "own-login", "no-model", "batch", "gateway", "self-hosted", "mock", "scanner"],
)
def test_what_is_built_is_not_refused(name: str) -> None:
    assert manifest.unbuilt(_good(name)) == []


# --- the JSON Schema -------------------------------------------------------------------------------------------


def _plain(path: Path) -> object:
    import yaml

    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def schema():
    package = pytest.importorskip("jsonschema")
    document = json.loads(json.dumps(jsonschema.document(manifest_schema.MANIFEST, "t")))
    package.Draft202012Validator.check_schema(document)
    return package.Draft202012Validator(document)


@pytest.mark.parametrize("name", GOOD)
def test_the_json_schema_accepts_what_the_validator_accepts(schema, name: str) -> None:
    assert [error.message for error in schema.iter_errors(_plain(HERE / "good" / f"{name}.yml"))] == []


@pytest.mark.parametrize(
    "name", [name for name in BAD if "# schema: refuses" in (HERE / "bad" / f"{name}.txt").read_text()]
)
def test_the_json_schema_refuses_as_well(schema, name: str) -> None:
    assert not schema.is_valid(_plain(HERE / "bad" / f"{name}.txt"))


@pytest.mark.parametrize("name", ["claude", "python-agent", "demo", "routed-scanner", "isolated-worker"])
def test_the_shipped_agents_are_valid_and_built(schema, name: str) -> None:
    path = HERE.parents[2] / "agents" / name / "runtime.yml"
    read = manifest.validate(yamlload.load(str(path)), str(path), name)
    assert manifest.unbuilt(read) == [] and read.warnings == ()
    assert schema.is_valid(_plain(path))


def test_the_generated_documents_are_current() -> None:
    import importlib.util

    path = HERE.parents[2] / "tools" / "gen_docs.py"
    spec = importlib.util.spec_from_file_location("gen_docs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.stale() == [], "run tools/gen_docs.py"


def test_one_port_without_a_list_is_answered_with_the_list() -> None:
    rule = "{cidr: 10.1.0.0/16, protocol: tcp, ports: 22}"
    found = [one for one in _problems(f"name: a\nnetwork: {{mode: routed, allow: [{rule}]}}\n") if "ports" in one.key]
    assert [(one.key, one.remedy) for one in found] == [("network.allow[0].ports", "write it as a list: [22]")]
