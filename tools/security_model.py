# SPDX-License-Identifier: BSD-4-Clause
"""``docs/security-model.md``: which probe looks after which invariant, and which test shows that the probe can fail.

Probes come from the tables that verification uses, mutations from the end-to-end tests' own ``MUTATIONS``. What stands
here by hand: which tests hold an invariant where no probe can, and what is not covered. ``gaps()`` says what lacks.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)] if str(ROOT) not in sys.path else []

import asf_cli  # noqa: E402, F401  gives the shared code its name, asf_lib
from asf_lib.core import controls, inside, probes  # noqa: E402

OUTSIDE, INSIDE = "tests/e2e/test_outside.py", "tests/e2e/test_gate.py"
ROUTED = "tests/e2e/test_routed_probes.py"
CADDY, GATE = "roles/egress_caddy/files/caddy", "roles/workload/files/gate"


class Row(NamedTuple):
    """One probe of the table; ``tests`` are pytest names in ``file``."""

    invariant: int
    id: str
    vantage: str
    expect: str
    file: str
    tests: tuple[str, ...]


class Invariant(NamedTuple):
    """What holds one invariant besides its probes. ``tests``: ``FILE::TEST``; ``gaps``: what is not covered."""

    title: str
    held: str
    tests: tuple[str, ...]
    gaps: tuple[str, ...] = ()


_INTRO = """# Security model

Each invariant of the architecture is held by something, looked after by probes where a probe can see it, and each probe
is shown to fail by a test that really breaks what it guards: a route is added, a rule removed, a cable replugged, a
capability, mount, namespace, resolver or filter changed. The probe itself is never touched. Separately, a probe that
cannot look is inconclusive, and inconclusive aborts as failure does; only the reach half of the positive control may
warn (`tests/unit/test_probes.py`, `tests/unit/test_inside.py`: L6).

The table is generated from the probes that `open` and `verify` judge and from the tests' own lists; a test fails when a
probe has no mutation, when a mutation names no test, or when this page is not current. [trust-model.md](trust-model.md)
says against whom all this helps.

## Probe and mutation

*Outside* probes read the kernel and the engine back from the host: each is judged for the agent's, Caddy's and the
broker's container where it applies (`agent-links`, `caddy-links`, …). *Inside* probes run in the workload's container
under its real filter, uid and capabilities; their report is data, and the host decides again from what was got.

| invariant | probe | from | what must be | shown to fail by |
|---|---|---|---|---|
"""

INVARIANTS: dict[int, Invariant] = {
    1: Invariant(
        "No privilege in any container",
        "The options stand in the plan, one list for all three containers; the seccomp profile is derived from the "
        "engine's default when the session is planned.",
        (
            "tests/unit/test_plan.py::test_every_container_is_hardened",
            "tests/unit/test_plan.py::test_caddy_and_broker_do_not_map_the_operator",
            "tests/unit/test_seccomp.py::test_every_other_family_is_refused_vsock_included",
            "tests/unit/test_seccomp.py::test_refused_in_every_container",
            "tests/unit/test_podman_backend.py::test_conf_carries_the_hosts_facts_and_nothing_that_enters_a_container",
        ),
        (
            "A limit for which the host has no cgroup controller is replaced by a weaker one; open says so.",
            "`entry-x32` proves nothing on a kernel without the x32 table: its mutation is skipped there.",
            "No security module (SELinux, AppArmor) is required, and none is probed.",
        ),
    ),
    2: Invariant(
        "No path, then one path",
        "Cables and rules are loaded by one process from outside, rules first; what L1, L1t and L3 then decide is "
        "tested in Caddy's own tests and end to end.",
        (
            "tests/unit/test_wiring.py::test_rules_come_before_every_cable",
            "tests/unit/test_policy.py::test_every_chain_drops_by_default",
            "tests/e2e/test_egress.py::test_P1_P7_undeclared_names_never_reach_dns",
            "tests/e2e/test_egress.py::test_P4_the_checked_address_is_the_dialled_one",
            "tests/e2e/test_egress.py::test_P9_no_path_to_other_addresses",
            "tests/e2e/test_several.py::test_N3_one_session_has_no_way_into_another",
            "tests/e2e/test_several.py::test_N3_nothing_of_another_session_answers_over_v4_or_v6",
            "tests/e2e/test_several.py::test_N6_closing_one_session_disturbs_no_other",
            "tests/e2e/test_transparent.py::test_what_is_not_exactly_a_declared_name_is_closed_and_logged",
            f"{CADDY}/asf/connect_test.go::TestDenied",
            f"{CADDY}/asf/transparent_test.go::TestTransparentRefused",
            f"{CADDY}/asf/authority_test.go::FuzzParseAuthority",
        ),
        (
            "No probe sends raw frames: the agent cannot make any, and Caddy's rules are compared with the plan, not "
            "tried out packet by packet. `closed` tries a handful of ports.",
            "A declared host is declared for all that it serves (trust-model.md).",
        ),
    ),
    3: Invariant(
        "Verified before it runs, from two sides",
        "The workload is started by the gate alone, after go, which needs the nonce of a report that passed.",
        (
            "tests/unit/test_gate_client.py::test_another_process_that_answers_is_refused",
            "tests/unit/test_probes.py::test_l6_nothing_observed_is_inconclusive_for_every_probe",
            "tests/unit/test_inside.py::test_denials_count_only_beside_their_control",
            "tests/e2e/test_gate_life.py::test_told_to_stop_it_starts_nothing",
            "tests/e2e/test_gate_life.py::test_without_go_it_ends_at_its_deadline",
            "tests/e2e/test_outside.py::test_l7_an_enforcement_point_that_died_aborts",
            "tests/e2e/test_bad_input.py::test_the_gate_is_silent",
            f"{GATE}/protocol_test.go::TestGoAndNothingIsLeftToTalkTo",
        ),
        (
            "Between two verifications nothing watches: what changes in a live session is found by `verify.yml`, and "
            "by `asf-play watch` while that runs.",
        ),
    ),
    4: Invariant(
        "The agent holds nothing reusable",
        "Keys are made or read when the containers are created, go to Podman by standard input, and are mounted.",
        (
            "tests/unit/test_plan.py::test_no_secret_value_and_no_token_stands_in_the_plan",
            "tests/e2e/test_canaries.py::test_S3_inspect_holds_no_secret",
            "tests/e2e/test_canaries.py::test_S3_no_process_shows_a_secret_but_the_agents_own_its_token",
            "tests/e2e/test_canaries.py::test_S4_no_file_holds_a_secret",
            "tests/e2e/test_secrets.py::test_S3_the_key_is_the_workloads_alone",
            "tests/e2e/test_secrets.py::test_no_core_dump_where_the_key_passes",
            "tests/e2e/test_broker.py::test_B5_a_provider_that_echoes_the_key",
            "tests/e2e/test_broker.py::test_z_a_closed_sessions_token_is_dead",
            f"{CADDY}/asf/inference_test.go::TestFrontFailsClosed",
        ),
        (
            "With `llm.broker: false` the client logs in by itself, and what it then holds is the user's own login, or "
            "the provider's key where the manifest and the operator give it one; open says so.",
            "While a session is open its secrets lie in Podman's secret store, readable by the operator's account.",
        ),
    ),
    5: Invariant(
        "The broker is not an exit",
        "The broker's container has no network but its cable; the front lets the declared protocol's inference routes "
        "through and nothing else.",
        (
            "tests/unit/test_policy.py::test_l3_lists_the_provider_and_nothing_else",
            "tests/unit/test_plan.py::test_agent_and_broker_have_no_network_and_no_resolver",
            "tests/e2e/test_broker.py::test_N8_the_broker_has_no_other_way_out",
            "tests/e2e/test_broker.py::test_B1_B3_only_the_protocols_own_routes_open",
            "tests/e2e/test_broker.py::test_a_provider_that_moves_out_of_llm_private_is_not_dialled",
            f"{CADDY}/asf/inference_test.go::TestRoutes",
        ),
        (
            "**Not enforced in this version:** the front does not look into request bodies. A provider that offers "
            "hosted tools (web search, remote MCP, image URLs) may fetch for the agent; LiteLLM reaches L3's one host.",
        ),
    ),
    6: Invariant(
        "Owned",
        "Everything carries labels, or a name of exact form where Podman has none; teardown goes by both.",
        (
            "tests/unit/test_teardown.py::test_everything_of_the_session_goes_and_nothing_else",
            "tests/e2e/test_teardown.py::test_close_takes_all_of_one_session_and_nothing_of_its_neighbour",
            "tests/e2e/test_teardown.py::test_L2_without_state_and_run_folder",
            "tests/e2e/test_teardown.py::test_a_foreign_container_with_the_name_stays",
            "tests/e2e/test_lifecycle.py::test_L1_open_is_killed",
            "tests/e2e/test_lifecycle.py::test_L1_close_is_killed",
            "tests/e2e/test_bad_input.py::test_an_interrupted_open_cleans_up",
            "tests/e2e/test_supervision.py::test_P15_a_detached_session_ends_by_itself_keeps_its_evidence_and_is_swept",
        ),
        ("Podman 4.3 keeps no labels of secrets: there they are told by their names.",),
    ),
    7: Invariant(
        "Planned",
        "The plan is a pure function; what is made later is read from its file, whose digest is checked by every step.",
        (
            "tests/unit/test_plan.py::test_the_same_inputs_give_the_same_plan_to_the_byte",
            "tests/unit/test_plandoc.py::test_a_plan_that_was_changed_is_refused",
            "tests/unit/test_bringup.py::test_containers_of_another_plan_are_no_session",
            "tests/e2e/test_lifecycle.py::test_S5_open_again_changes_nothing_and_an_edited_manifest_is_refused",
            "tests/unit/test_revision.py::test_another_list_is_the_next_revision_and_chained_to_the_last",
            "tests/unit/test_revision.py::test_grants_are_refused_and_so_is_every_part_that_is_no_policy",
            "tests/e2e/test_revision.py::test_a_caddy_with_another_policy_than_the_plans_is_noticed",
            "tests/unit/test_revising.py::test_a_new_policy_that_nobody_could_look_at_loses_its_way_out",
        ),
        ("Of a live session only the policy may change; a gateway's rules and everything else need close and open.",),
    ),
    8: Invariant(
        "Fail closed, and say why",
        "Inputs are judged completely before the first resource exists; later failures remove what was made.",
        (
            "tests/unit/test_manifest.py::test_every_problem_is_reported_at_its_line",
            "tests/unit/test_manifest.py::test_a_valid_key_that_is_not_enforced_yet_is_refused_by_name",
            "tests/unit/test_plan.py::test_a_declared_range_that_covers_the_cables_is_refused",
            "tests/e2e/test_bad_input.py::test_all_that_is_not_built_is_named_at_once",
            "tests/e2e/test_bad_input.py::test_caddy_does_not_start",
            "tests/e2e/test_bad_input.py::test_the_storage_is_full",
        ),
        ("A full storage is tested with Podman's own message, not with a storage that is full.",),
    ),
    9: Invariant(
        "Evidence",
        "Files are bounded, redacted before anything is cut, and chained; the head is printed and indexed elsewhere.",
        (
            "tests/unit/test_evidence.py::test_chain_tells_changed_missing_and_added_files",
            "tests/unit/test_evidence.py::test_S4_secrets_are_taken_out_before_anything_is_cut",
            "tests/e2e/test_lifecycle.py::test_close_takes_the_session_and_nothing_else_keeps_evidence_and_may_be_repeated",
            "tests/e2e/test_lifecycle.py::test_a_failed_verification_leaves_its_evidence_and_nothing_else",
        ),
        ("The chain helps against nobody who can write folder and index: not against the operator's account.",),
    ),
    10: Invariant(
        "What a workload can influence is data",
        "Such text is bounded and escaped where it is shown, and reaches modules only inside JSON files.",
        (
            "tests/unit/test_escape.py::test_no_character_at_all_gets_through_as_a_control",
            "tests/unit/test_inside.py::test_junk_never_raises_and_never_passes",
            "tests/unit/cli/test_variables.py::test_jinja_refused",
            "tests/e2e/test_files.py::test_F1_every_odd_name_is_mounted_exactly",
            "tests/e2e/test_files.py::test_F1_other_names_are_refused_by_name",
            f"{GATE}/parse_test.go::FuzzReadAnswer",
        ),
    ),
    11: Invariant(
        "The operator's side trusts no place that an agent can write",
        "Grants are judged by what the file system says without following a link; ASF runs no git at all.",
        (
            "tests/unit/test_grants.py::test_what_asf_trusts_is_neither_inside_nor_around",
            "tests/unit/test_home.py::test_the_current_directory_is_never_looked_at",
            "tests/unit/test_netns.py::test_the_helper_keeps_no_descriptor_but_its_answer",
            "tests/unit/cli/test_runner.py::test_what_an_agent_can_write_is_not_run",
            "tests/e2e/test_files.py::test_F3_F8_nothing_that_the_agent_left_is_run_and_the_repository_is_as_it_left_it",
            "tests/e2e/test_files.py::test_F2_links_that_the_agent_left_are_not_followed",
            "tests/e2e/test_files.py::test_F2_a_granted_path_that_is_swapped_between_plan_and_create_fails",
        ),
        (
            "What the operator runs by hand in a repository that an agent wrote (git, editors, builds) is not ASF's to "
            "hold: a grant `rw` includes `.git`.",
        ),
    ),
}


@cache
def _module(file: str) -> ModuleType:
    """A test module, for its data: importing it touches no Podman."""
    tests = str(ROOT / "tests")
    sys.path[:0] = [] if tests in sys.path else [tests]
    name = "asf_security_model_" + Path(file).stem
    spec = importlib.util.spec_from_file_location(name, ROOT / file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mutations() -> dict[str, Mapping[str, list[str]]]:
    """File -> probe -> names of the tests that show it failing."""
    return {file: _module(file).MUTATIONS for file in (OUTSIDE, INSIDE, ROUTED)}


def rows() -> list[Row]:
    """Every probe, by invariant, in the order in which it is judged."""
    of = mutations()
    found = [
        Row(p.invariant, p.name, "outside", p.expect, OUTSIDE, tuple(of[OUTSIDE].get(p.name, ())))
        for p in probes.PROBES
    ]
    found += [
        Row(invariant, name, "outside", expect, ROUTED, tuple(of[ROUTED].get(name, ())))
        for name, invariant, expect in controls.PROBES
    ]
    # The envelope of the report is judged with the others and has no row in the gate's table.
    report = Row(3, "gate-report", "inside", "the report is well-formed and answers for this plan", INSIDE, ())
    found.append(report._replace(tests=tuple(of[INSIDE].get(report.id, ()))))
    for p in inside.INSIDE:
        file = ROUTED if p.asked.startswith("routed.") else INSIDE
        found.append(Row(p.invariant, p.id, "inside", p.expect, file, tuple(of[file].get(p.id, ()))))
    return sorted(found, key=lambda row: row.invariant)


@cache
def _functions(path: Path) -> set[str]:
    if path.suffix == ".go":
        return set(re.findall(r"^func ((?:Test|Fuzz)\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _missing(file: str, test: str) -> bool:
    """Whether there is no such test; the part in brackets must be the name of a case of that file."""
    name, bracket, case = test.partition("[")
    path = ROOT / file
    if not path.is_file() or name not in _functions(path):
        return True
    return bool(bracket) and case[:-1] not in {one.name for one in _module(file).CASES}


def gaps() -> list[str]:
    """What the model lacks; empty when all is well."""
    table, of = rows(), mutations()
    out = [f"probe {row.id} ({row.vantage}) has no mutation" for row in table if not row.tests]
    known = {(row.file, row.id) for row in table}
    out += [
        f"{file}: mutation of an unknown probe {p}" for file, by in of.items() for p in by if (file, p) not in known
    ]
    out += [f"{row.file}: no test {t} (probe {row.id})" for row in table for t in row.tests if _missing(row.file, t)]
    for number in range(1, 12):
        held = INVARIANTS.get(number)
        if held is None or not (held.tests or any(row.invariant == number for row in table)):
            out.append(f"invariant {number} has neither probe nor test")
    named = [(number, *test.split("::")) for number, held in INVARIANTS.items() for test in held.tests]
    out += [f"invariant {number}: no test {file}::{test}" for number, file, test in named if _missing(file, test)]
    return out


def _table() -> str:
    out = []
    for row in rows():
        shown = ", ".join(f"`{test}`" for test in dict.fromkeys(row.tests))
        expect = row.expect.replace("|", "\\|")
        out.append(f"| {row.invariant} | `{row.id}` | {row.vantage} | {expect} | {shown} |\n")
    return "".join(out)


def _section(number: int, held: Invariant) -> str:
    names = [f"`{row.id}`" for row in rows() if row.invariant == number]
    probed = f"Probes: {', '.join(names)}." if names else "No probe: nothing of it can be seen from a running session."
    tests = "".join(f"- `{test}`\n" for test in held.tests)
    missing = "".join(f"- {gap}\n" for gap in held.gaps) or "- nothing that is known\n"
    return f"\n### {number}. {held.title}\n\n{held.held} {probed}\n\nTests:\n\n{tests}\nNot covered:\n\n{missing}"


def page(head: str) -> str:
    """The whole page below ``head``."""
    files = f"\nThe tests of outside probes are in `{OUTSIDE}`, those of inside probes in `{INSIDE}`.\n"
    sections = [_section(number, held) for number, held in sorted(INVARIANTS.items())]
    return "".join([head, _INTRO, _table(), files, "\n## By invariant\n", *sections])
