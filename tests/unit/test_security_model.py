# SPDX-License-Identifier: BSD-4-Clause
"""The security model has no gap: every probe can fail, every invariant is held, every named test exists."""

import importlib.util
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model = load("security_model")


def test_there_is_no_gap():
    assert BEFORE == []


def test_the_page_is_current():
    page = Path(TOOLS.parent, "docs/security-model.md").read_text(encoding="utf-8")
    assert page == load("gen_docs").documents()["docs/security-model.md"], "run tools/gen_docs.py"


def test_every_probe_and_invariant_is_on_the_page():
    page = model.page("")
    assert all(f"| `{row.id}` |" in page for row in model.rows())
    assert all(f"### {number}. " in page for number in range(1, 12))


BEFORE = model.gaps()


def found():
    """Gaps that the test made."""
    return [gap for gap in model.gaps() if gap not in BEFORE]


def swap(monkeypatch, **changed):
    monkeypatch.setitem(model.INVARIANTS, 7, model.INVARIANTS[7]._replace(**changed))


def test_a_named_test_that_is_gone_is_a_gap(monkeypatch):
    swap(monkeypatch, tests=("tests/unit/test_plan.py::test_that_is_gone", "tests/unit/gone.py::test_x"))
    assert found() == [
        "invariant 7: no test tests/unit/test_plan.py::test_that_is_gone",
        "invariant 7: no test tests/unit/gone.py::test_x",
    ]


def test_an_invariant_that_nothing_holds_is_a_gap(monkeypatch):
    swap(monkeypatch, tests=())
    assert "invariant 7 has neither probe nor test" in found()


@pytest.mark.parametrize("tests, said", [([], "has no mutation"), (["test_mutation[no-such-case]"], "no test")])
def test_a_probe_without_a_real_mutation_is_a_gap(monkeypatch, tests, said):
    monkeypatch.setitem(model.mutations()[model.OUTSIDE], "routes", tests)
    (gap,) = found()
    assert said in gap and "routes" in gap


def test_a_mutation_of_no_probe_is_a_gap(monkeypatch):
    monkeypatch.setitem(model.mutations()[model.INSIDE], "routs", ["test_x"])
    assert found() == [f"{model.INSIDE}: mutation of an unknown probe routs"]
