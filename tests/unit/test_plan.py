# SPDX-License-Identifier: BSD-4-Clause
"""The plan: pure, complete, and a refusal of whatever cannot be enforced."""

import dataclasses
import json

import pytest

from asf_lib.core import adapters, manifest as manifests, nftables, plan as plans
from asf_lib.core.errors import PlanError
from asf_lib.engine import yamlload

DEFAULT_PROFILE = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []}],
    "syscalls": [{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {}, "excludes": {}}],
}
HOST = plans.Host(
    uid=1001,
    gid=1001,
    podman=(4, 3, 1),
    uplink_helper="slirp4netns",
    resolver="192.0.2.53",
    addresses=["192.0.2.2", "fd00::2"],
    routes=["192.0.2.0/24"],
    controllers=["hugetlb"],
    seccomp_default=DEFAULT_PROFILE,
)
LIMITS = {
    "agent": {"memory": 4 << 30, "cpus": 2, "pids": 512, "disk": 1 << 30, "tmp": 1 << 29, "shm": 1 << 26},
    "caddy": {"memory": 1 << 28, "cpus": 1, "pids": 64},
    "broker": {"memory": 2 << 30, "cpus": 2, "pids": 128},
}
SETTINGS = plans.Settings(
    run_dir="/run/user/1001/asf",
    gate="/cache/gate-1",
    gate_digest="gate-1",
    images={
        "agent": "localhost/asf/agent-claude:1",
        "caddy": "localhost/asf/caddy:1",
        "litellm": "localhost/asf/litellm:1",
    },
    broker_files={"launch.py": "# launcher", "asf_mock.py": "# model"},
    ca_bundle=None,
    ca_digest="",
    limits=LIMITS,
)
BROKERED = """
name: a
adapter: claude
llm: {protocol: anthropic, provider: anthropic}
secrets: {files: [a.env]}
network:
  allow_domains: [docs.example.com, {name: git.example.com, ports: [443, 8443], tls: any, private: [10.1.2.0/24]}]
env: {GREETING: "{{ lookup('pipe', 'id') }}"}
"""
PLAIN = "name: a\nnetwork: {allow_domains: [docs.example.com]}\n"
REPO = plans.Repo("x", "/home/op/x", True)


def manifest(text):
    return manifests.validate(yamlload.parse(text.encode(), "runtime.yml"), "runtime.yml")


def build(text=BROKERED, host=HOST, settings=SETTINGS, request=None, repos=(REPO,)):
    return plans.build(manifest(text), list(repos), host, settings, request or plans.Request())


def args(plan, role):
    return next(c["args"] for c in plan["containers"] if c["role"] == role)


def test_the_same_inputs_give_the_same_plan_to_the_byte():
    assert plans.canonical(build()) == plans.canonical(build())
    assert plans.digest(build()) == plans.digest(json.loads(json.dumps(build())))


@pytest.mark.parametrize("role", ["agent", "caddy", "broker"])
def test_every_container_is_hardened(role):
    words = args(build(), role)
    for word in (
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--read-only-tmpfs=false",
        "--http-proxy=false",
        "--pull=never",
        "--sysctl=net.ipv6.conf.all.disable_ipv6=1",
        "--ulimit=core=0:0",
    ):
        assert word in words
    assert any(w.startswith("--security-opt=seccomp=/run/user/1001/asf/a.main/seccomp-") for w in words)
    assert any(w.startswith("--tmpfs=/dev/shm:") for w in words)
    assert not [w for w in words if "--privileged" in w or "cap-add" in w or "host" in w.split("=")[-1:]]


def test_agent_and_broker_have_no_network_and_no_resolver():
    plan = build()
    for role in ("agent", "broker"):
        assert "--network=none" in args(plan, role) and not [w for w in args(plan, role) if w.startswith("--dns")]
    assert "--dns=192.0.2.53" in args(plan, "caddy")


def test_caddy_and_broker_do_not_map_the_operator():
    assert all("--userns=nomap" in args(build(), role) for role in ("caddy", "broker"))
    assert "--userns=keep-id:uid=1000,gid=1000" in args(build(), "agent")


def test_no_secret_value_and_no_token_stands_in_the_plan():
    plan = build()
    assert [s["part"] for s in plan["secrets"]] == ["token", "master", "provider"]
    assert all(set(s) <= {"name", "part", "source", "variable"} for s in plan["secrets"])
    assert plan["gate"]["token_file"] == "/run/secrets/asf-token" and "ANTHROPIC_AUTH_TOKEN" not in plan["gate"]["env"]


UNBROKERED = """
name: a
adapter: claude
llm: {broker: false, provider: anthropic}
secrets: {files: [a.env]}
network: {allow_domains: [api.anthropic.com]}
"""
OWN = plans.Request(agent_key=True)


def test_without_a_broker_a_key_goes_to_the_agent_by_a_file_that_the_gate_reads():
    plan = build(UNBROKERED, request=OWN)
    row = {"name": "asf-a.main-key", "part": "key", "source": "file", "variable": "ANTHROPIC_API_KEY"}
    assert plan["secrets"] == [row]
    gate = plan["gate"]
    assert (gate["token_file"], gate["token_env"]) == ("/run/secrets/asf-key", ["ANTHROPIC_API_KEY"])
    assert "ANTHROPIC_API_KEY" not in gate["env"]
    mounted = "--secret=asf-a.main-key,type=mount,target=asf-key,uid=1000,gid=1000,mode=0400"
    assert mounted in args(plan, "agent") and not [w for w in args(plan, "caddy") if "asf-a.main-key" in w]
    assert [w for w in plan["warnings"] if "ANTHROPIC_API_KEY" in w and "can read it" in w]


def test_the_clients_other_variables_get_it_where_nothing_else_sets_them():
    adapter = adapters.Adapter(env={"TAKEN": "1"}, key_env=("CODEX_API_KEY", "TAKEN", "ANTHROPIC_API_KEY"))
    settings = dataclasses.replace(SETTINGS, adapter=adapter)
    names = ["ANTHROPIC_API_KEY", "CODEX_API_KEY"]
    assert build(UNBROKERED, settings=settings, request=OWN)["gate"]["token_env"] == names
    assert build(UNBROKERED, settings=settings)["gate"]["token_env"] == []
    assert "CODEX_API_KEY" not in build(settings=settings)["gate"]["token_env"]


def test_without_a_key_nothing_of_it_is_planned():
    plan = build(UNBROKERED)
    assert plan["secrets"] == [] and plan["gate"]["token_file"] == "" and plan["gate"]["token_env"] == []
    assert plan["warnings"] == build(PLAIN)["warnings"]
    assert not [w for w in build(request=OWN)["secrets"] if w["part"] == "key"], "the broker has it"


def test_a_key_never_takes_the_place_of_a_planned_variable():
    text = UNBROKERED.replace("provider: anthropic", "api_key_env: HTTPS_PROXY")
    with pytest.raises(PlanError) as caught:
        build(text, request=OWN)
    assert caught.value.key == "llm.api_key_env" and caught.value.found == "HTTPS_PROXY"


def test_the_embedded_model_needs_no_secret_and_l3_lists_nobody():
    mocked = manifests.apply_overrides(manifest(BROKERED), llm_mock=True)
    plan = plans.build(mocked, [], HOST, SETTINGS, plans.Request())
    assert [s["part"] for s in plan["secrets"]] == ["token", "master"]
    caddy = next(f["json"] for f in plan["files"] if f["path"] == "caddy/caddy.json")
    assert caddy["apps"]["http"]["servers"]["l3"]["routes"][0]["handle"][0]["policy"] == []


def test_without_a_broker_nothing_of_it_exists():
    plan = build(PLAIN)
    assert [c["role"] for c in plan["containers"]] == ["caddy", "agent"] and plan["secrets"] == []
    assert [c["name"] for c in plan["wiring"]["cables"]] == ["agent"] and plan["llm"] is None
    assert (
        plan["gate"]["probes"]["front"] is None and plan["gate"]["probes"]["allow"]["target"] == "docs.example.com:443"
    )


def test_the_workloads_environment_is_complete_and_literal():
    env = build()["gate"]["env"]
    assert env["GREETING"] == "{{ lookup('pipe', 'id') }}"  # data, never a template
    assert env["HTTPS_PROXY"] == env["https_proxy"] == "http://198.18.0.1:3128" and "front" in env["NO_PROXY"]
    assert env["NODE_USE_ENV_PROXY"] == "1" and env["ANTHROPIC_BASE_URL"] == "http://front:4000"


def test_the_hosts_own_addresses_are_denied_and_barred():
    plan = build()
    caddy = next(f["json"] for f in plan["files"] if f["path"] == "caddy/caddy.json")
    deny = caddy["apps"]["http"]["servers"]["l1"]["routes"][0]["handle"][0]["deny_cidrs"]
    assert {"198.18.0.0/24", "192.0.2.2/32"} <= set(deny)
    assert {"address": "192.0.2.2", "port": 443} in plan["network"]["aliases"]


@pytest.mark.parametrize(
    "change, key",
    [
        ({"addresses": ["198.18.0.9"]}, "asf_session_cable_range"),
        ({"routes": ["198.18.0.0/15"]}, "asf_session_cable_range"),
        ({"resolver": "198.18.0.53"}, "asf_session_cable_range"),
        ({"routes": ["198.18.1.128/25"]}, "asf_session_uplink_range"),
    ],
)
def test_a_range_that_the_host_uses_is_refused_by_key(change, key):
    with pytest.raises(PlanError) as caught:
        build(host=dataclasses.replace(HOST, **change))
    assert caught.value.key == key and caught.value.remedy


@pytest.mark.parametrize("text", ["foo", "198.18.1.0/25", "9.9.9.0/24"])
def test_an_uplink_range_that_is_none_is_refused_by_key(text):
    with pytest.raises(PlanError) as caught:
        build(settings=dataclasses.replace(SETTINGS, uplink_range=text))
    assert caught.value.key == "asf_session_uplink_range" and caught.value.found == text


def test_a_declared_range_that_covers_the_cables_is_refused():
    with pytest.raises(PlanError) as caught:
        build(BROKERED.replace("10.1.2.0/24", "198.18.0.0/16"))
    assert caught.value.key == "network.allow_domains[1]"


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a.b", "-x", "{{ x }}"])
def test_a_session_name_is_checked(name):
    with pytest.raises(PlanError):
        build(request=plans.Request(session=name))


@pytest.mark.parametrize(
    "path", ["/home/op/a,b", '/home/op/a"b', "/home/op/a b", "/home/op/--x", "/home/op/a:b", "/home/op/a=b"]
)
def test_f1_a_path_is_one_word_and_one_csv_field(path):
    plan = build(repos=[plans.Repo(path.rsplit("/", 1)[1], path, True)])
    mounts = [w for w in args(plan, "agent") if w.startswith("--mount=") and "/workspace/repos/" in w]
    import csv

    fields = next(csv.reader([mounts[0][len("--mount=") :]]))
    assert f"source={path}" in fields and len(mounts) == 1


def test_limits_that_cannot_bite_have_a_stated_fallback():
    plan = build()
    assert "--ulimit=data=4294967296:4294967296" in args(plan, "agent") and "--memory=4294967296" in args(plan, "agent")
    assert len([w for w in plan["warnings"] if "cannot be enforced" in w]) == 3
    able = build(host=dataclasses.replace(HOST, controllers=["cpu", "memory", "pids"]))
    assert not [w for w in able["warnings"] if "cannot be enforced" in w]
    assert not [w for w in args(able, "agent") if "nproc" in w or "data=" in w]


def test_interactive_has_a_terminal_and_is_not_logged():
    plan = build()
    assert "--tty" in args(plan, "agent") and "--log-driver=none" in args(plan, "agent")
    command = build(request=plans.Request(command=["claude", "-p", "x"]))
    assert "--tty" not in args(command, "agent") and "--log-driver=k8s-file" in args(command, "agent")
    assert command["gate"]["argv"] == ["claude", "-p", "x"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {"TERM": "xterm-256color"}),
        ({"TERM": "screen-256color", "COLORTERM": "truecolor"}, {"TERM": "screen-256color", "COLORTERM": "truecolor"}),
        ({"TERM": "xterm-kitty", "COLORTERM": "24bit"}, {"TERM": "xterm-256color", "COLORTERM": "24bit"}),
        ({"TERM": "x\x1b]0;t\x07", "COLORTERM": "$(id)"}, {"TERM": "xterm-256color"}),
        ({"TERM": "../../tmp/evil", "COLORTERM": ""}, {"TERM": "xterm-256color"}),
        ({"TERM": "vt100", "LD_PRELOAD": "/x.so"}, {"TERM": "vt100"}),
    ],
)
def test_of_the_users_terminal_only_known_words_pass(given, told):
    plan = build(request=plans.Request(terminal=given))
    env = plan["gate"]["env"]
    assert {name: env[name] for name in ("TERM", "COLORTERM") if name in env} == told == plan["workload"]["terminal"]
    assert "LD_PRELOAD" not in env
    without = build(request=plans.Request(command=["true"], terminal=given))
    assert without["gate"]["env"]["TERM"] == "dumb" and without["workload"]["terminal"] is None


def test_state_volumes_belong_to_agent_and_session():
    text = BROKERED + "filesystem: {state: [{key: home, target: /home/node/.claude}]}\n"
    first, second = build(text), build(text, request=plans.Request(session="two"))
    assert first["volumes"][0]["name"] != second["volumes"][0]["name"]
    assert first["volumes"][0]["labels"]["asf.policy"] == second["volumes"][0]["labels"]["asf.policy"]


MANY = """
name: a
network:
  allow_domains:
    - docs.example.com
    - {name: git.example.com, ports: [22, 443]}
    - {name: any.example.com, tls: any}
    - {name: ports.example.com, ports: [8443]}
"""


def test_p11_declared_names_on_443_with_tls_lead_clients_without_a_proxy_to_l1t():
    plan = build(MANY)
    names = ["docs.example.com", "git.example.com"]
    assert plan["network"]["hosts"] == [["198.18.0.1", name] for name in names]
    assert [w for w in args(plan, "agent") if w.startswith("--add-host=")] == [
        f"--add-host={name}:198.18.0.1" for name in names
    ]
    assert {"role": "caddy", "name": "L1t", "address": "198.18.0.1:443"} in plan["listeners"]
    assert "--sysctl=net.ipv4.ip_unprivileged_port_start=443" in args(plan, "caddy")
    caddy = next(f["json"] for f in plan["files"] if f["path"] == "caddy/caddy.json")
    assert caddy["apps"]["asf_transparent"]["listen"] == "198.18.0.1:443"
    assert "tcp dport { 443, 3128 } accept" in nftables.as_text(plan["wiring"]["nft"][0]["rules"])
    probes = plan["gate"]["probes"]
    assert probes["tls"] == {"addr": "198.18.0.1:443", "allow": "docs.example.com", "deny": "asf-denied.invalid"}
    assert "198.18.0.1:443" in probes["reach"] and "198.18.0.1:443" not in probes["closed"]


def test_l1t_is_not_there_where_no_name_is_for_it():
    other = "[{name: any.example.com, tls: any}, {name: ports.example.com, ports: [8443]}]"
    for text in (
        f"name: a\nnetwork: {{allow_domains: {other}}}\n",
        "name: a\nllm: {protocol: openai, mock: x}\nnetwork: {mode: isolated}\n",
    ):
        plan = build(text)
        assert "L1t" not in {entry["name"] for entry in plan["listeners"]}
        early = [w for w in args(plan, "caddy") if "ip_unprivileged_port_start" in w]
        assert bool(early) == (plan["session"]["mode"] == "proxy"), "a later revision may have such a name"
        assert plan["gate"]["probes"]["tls"] is None and "198.18.0.1:443" in plan["gate"]["probes"]["closed"]
        assert "asf_transparent" not in str(plan["files"])


def test_l1t_has_no_control_where_the_front_is_it_or_the_name_is_not_for_it():
    plan = build(MANY.replace("network:", "network:\n  verify_domain: any.example.com"))
    assert plan["gate"]["probes"]["tls"]["allow"] == ""
    assert build()["gate"]["probes"]["tls"]["allow"] == ""


def test_the_front_keeps_its_name_beside_the_declared_ones():
    assert build()["network"]["hosts"] == [["198.18.0.1", "front"], ["198.18.0.1", "docs.example.com"]]
