# SPDX-License-Identifier: BSD-4-Clause
"""Errors name file, key, what was found and what to do (invariant 8)."""

from __future__ import annotations

import json

import pytest

from asf_lib.core import errors
from asf_lib.core.errors import Problem


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem("wrong"), "wrong"),
        (Problem("wrong", "f.yml", 3, 7, "a.b", "x", "y, z", "use y"),
         "f.yml:3:7: a.b: wrong (found: x; allowed: y, z). use y."),
        (Problem("wrong", "f.yml", 3), "f.yml:3: wrong"),
        (Problem("wrong", key="a", remedy="did you mean b?"), "a: wrong. did you mean b?"),
    ],
)  # fmt: skip
def test_a_problem_is_one_line(problem: Problem, text: str) -> None:
    assert problem.text() == text


def test_every_error_has_the_fields_of_the_document() -> None:
    error = errors.PlanError("no", file="f", key="k", found="x", remedy="r", line=2)
    assert error.as_dict() == {
        "file": "f", "key": "k", "message": "no", "remedy": "r", "line": 2, "found": "x",
        "code": "plan", "kind": "plan",
    }  # fmt: skip
    assert str(error) == "f:2: k: no (found: x). r."


def test_an_engine_error_carries_the_command() -> None:
    error = errors.EngineError("failed", cmd=("podman", "create"), rc=125, stderr="no space")
    assert error.as_dict()["cmd"] == ["podman", "create"]
    assert (error.as_dict()["rc"], error.as_dict()["stderr"], error.code) == (125, "no space", "engine")


def test_all_problems_are_kept_and_the_first_fills_the_fields() -> None:
    error = errors.ManifestError([Problem("one", "f", 1, 1, "a"), Problem("two", "f", 2, 1, "b")])
    assert (error.message, error.key, error.line, error.code) == ("one", "a", 1, "manifest")
    assert [problem["key"] for problem in error.as_dict()["problems"]] == ["a", "b"]
    assert str(error).splitlines() == ["f:1:1: a: one", "f:2:1: b: two"]
    json.dumps(error.as_dict())


def test_an_error_without_a_problem_is_a_bug() -> None:
    with pytest.raises(ValueError, match="at least one"):
        errors.GrantError([])


@pytest.mark.parametrize("name", ["HostError", "VerifyError", "GateError", "GrantError", "SecretError", "EngineError"])
def test_every_class_has_its_own_code(name: str) -> None:
    cls = getattr(errors, name)
    assert issubclass(cls, errors.AsfError)
    assert cls.default_code == name[: -len("Error")].lower()
