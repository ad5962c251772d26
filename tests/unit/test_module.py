# SPDX-License-Identifier: BSD-4-Clause
"""What a module's error is to Ansible, which prints its text as it is (invariant 10)."""

from __future__ import annotations

from asf_lib import module
from asf_lib.core.errors import EngineError


def _fails(message: str) -> dict[str, object]:
    def work() -> dict[str, object]:
        raise EngineError(message, code="x")

    return module.outcome(work)


def test_last_words_of_a_workload_are_harmless_where_ansible_prints_them() -> None:
    hostile = "its last words: \x1b]52;c;aGk=\x07\x9b21t\u202e\nsecond line"
    found = _fails(hostile)
    assert found["msg"] == "its last words: \\x1b]52;c;aGk=\\x07\\x9b21t\\u202e\nsecond line"
    assert found["asf_error"]["message"] == hostile, "data stay data"  # type: ignore[index]


def test_a_long_message_is_bounded() -> None:
    assert len(str(_fails("x" * 10**6 + "\n" * 10**4)["msg"])) < 3000
