# SPDX-License-Identifier: BSD-4-Clause
"""What a live session's plan may become: policy, chained, and nothing else (invariant 7)."""

import copy
import dataclasses

import pytest

from asf_lib.core import plan as plans, revision
from asf_lib.core.errors import PlanError
from tests.unit.test_plan import BROKERED, LIMITS, PLAIN, SETTINGS, build as build_with

ROOMY = dataclasses.replace(
    SETTINGS,
    images={**SETTINGS.images, "gateway": "localhost/asf/gateway:1"},
    limits={**LIMITS, "gateway": {"memory": 1 << 26, "cpus": 1, "pids": 32}},
)

ROUTED = """
name: a
network:
  mode: routed
  allow: [{cidr: 192.0.2.128/25, protocol: tcp, ports: [443]}]
  verify: {address: 192.0.2.130, protocol: tcp, port: 443, blocked_port: 80}
"""
STATEFUL = "filesystem: {state: [{key: k, target: /home/node/.k}]}\n"


def build(text=BROKERED, **more):
    return build_with(text, settings=ROOMY, **more)


def names(plan):
    return [one["name"] for one in plan["network"]["domains"]]


def caddy(plan):
    return next(f["json"] for f in plan["files"] if f["path"] == "caddy/caddy.json")


def test_the_same_inputs_are_no_revision():
    for text in (PLAIN, BROKERED, ROUTED):
        assert revision.same(build(text), build(text))


def test_another_list_is_the_next_revision_and_chained_to_the_last():
    old = build(PLAIN)
    first = revision.revised(old, build(PLAIN.replace("docs.", "wiki.")), "a.main")
    assert (first["revision"], first["previous"], first["origin"]) == (1, plans.digest(old), plans.digest(old))
    assert names(first) == ["wiki.example.com"] and revision.same(first, build(PLAIN.replace("docs.", "wiki.")))
    second = revision.revised(first, build(PLAIN), "a.main")
    assert (second["revision"], second["previous"], second["origin"]) == (2, plans.digest(first), plans.digest(old))
    assert names(second) == ["docs.example.com"]


def test_what_was_built_stays_and_what_decides_follows():
    old = build(PLAIN)
    new = revision.revised(
        old, build(PLAIN.replace("[docs.example.com]", "[docs.example.com, more.example.com]")), "a.main"
    )
    assert new["containers"] == old["containers"] and new["network"]["hosts"] == old["network"]["hosts"]
    assert caddy(new) != caddy(old) and new["gate"]["probes"]["policy"] != old["gate"]["probes"]["policy"]
    assert plans.differences(old["wiring"], new["wiring"]) == []


def test_a_first_name_for_clients_without_a_proxy_needs_no_new_container():
    other = "{name: any.example.com, tls: any}"
    old, new = build(PLAIN.replace("docs.example.com", other)), build(PLAIN.replace("docs", f"{other}, docs"))
    found = revision.revised(old, new, "a.main")
    assert "asf_transparent" in caddy(found)["apps"] and found["containers"] == old["containers"]


@pytest.mark.parametrize(
    "text",
    [
        BROKERED.replace("provider: anthropic}", "provider: anthropic, models: [claude-x]}"),
        BROKERED.replace("provider: anthropic}", "provider: anthropic, hosted_tools: [web_search]}"),
        BROKERED.replace("provider: anthropic}", "provider: anthropic, limits: {usd_per_session: 5}}"),
    ],
)
def test_the_fronts_policy_may_change_and_the_brokers_files_do_not(text):
    old = build(BROKERED)
    new = revision.revised(old, build(text), "a.main")
    changed = [f["path"] for f, g in zip(old["files"], new["files"], strict=True) if f != g]
    assert changed == ["gate.json", "caddy/caddy.json"]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        (PLAIN, PLAIN + "env: {A: b}\n", "env.A"),
        (PLAIN, PLAIN + "limits: {memory: 1g}\n", "limits.memory"),
        (PLAIN, PLAIN + STATEFUL, "state"),
        (PLAIN, BROKERED, "adapter"),
        (BROKERED, BROKERED.replace("provider: anthropic", "provider: openrouter"), "llm.api_key_env"),
        (ROUTED, ROUTED.replace("[443]", "[443, 22]"), "network.allow"),
        (PLAIN, "name: a\nllm: {protocol: openai, mock: x}\nnetwork: {mode: isolated}\n", "llm"),
    ],
)
def test_anything_else_is_refused_by_name(old, new, key):
    with pytest.raises(PlanError, match="is open with another plan") as caught:
        revision.revised(build(old), build(new), "a.main")
    assert caught.value.key == key and "close it and open it again" in (caught.value.remedy or "")


def test_grants_are_refused_and_so_is_every_part_that_is_no_policy():
    with pytest.raises(PlanError, match="repos"):
        revision.revised(build(), build(repos=[]), "a.main")
    old = build(PLAIN)
    for part in sorted(
        set(old) - {"manifest", "llm", "listeners", "network", "wiring", "files", "gate", "revision", "warnings"}
    ):
        new = copy.deepcopy(build(PLAIN))
        new[part] = ["another"] if part != "containers" else [{**c, "args": [*c["args"], "x"]} for c in new[part]]
        if part == "volumes":
            new[part] = [{"name": "another", "target": "/x"}]
        with pytest.raises(PlanError, match=part):
            revision.revised(old, new, "a.main")
    for part, key in (("gate", "argv"), ("wiring", "routes")):
        new = copy.deepcopy(old)
        new[part][key] = ["another"]
        with pytest.raises(PlanError, match=f"{part}.{key}"):
            revision.revised(old, new, "a.main")


def test_a_state_volume_keeps_the_label_it_was_made_with():
    old = build(PLAIN + STATEFUL)
    new = revision.revised(old, build(PLAIN.replace("docs.", "x.") + STATEFUL), "a.main")
    assert new["volumes"] == old["volumes"]


def test_the_text_for_diff_names_what_may_change():
    text = revision.policy_text(build(BROKERED))
    assert "docs.example.com" in text and "llm.models []" in text
