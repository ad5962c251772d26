# SPDX-License-Identifier: BSD-4-Clause
"""Words of `llm.hosted_tools`: the manifest's and the front's are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import hosted

RULES = Path(__file__).resolve().parents[2] / "roles/egress_caddy/files/caddy/front/rules.json"


def _granted(table: Any) -> Iterator[tuple[str, str]]:
    """Types of the table that one grant opens, with its word."""
    for shape in table["shapes"].values():
        for name, rule in shape.get("cases", {}).items():
            if isinstance(rule, str) and rule.startswith("grant:"):
                yield name, rule.removeprefix("grant:")


def test_the_words_are_the_fronts() -> None:
    table = json.loads(RULES.read_text())
    assert tuple(table["grants"]) == hosted.WORDS
    assert {name: word for name, word in _granted(table) if name not in hosted.WORDS} == hosted.COVERED


@pytest.mark.parametrize(
    "word",
    [
        *hosted.WORDS,
        "web_search_20250305",
        "web_search_preview_2025_03_11",
        "mcp_toolset",
        "shell",
        "tool_search_tool_bm25",
    ],
)
def test_words_and_unknown_types_pass(word: str) -> None:
    assert hosted.wrong(word) is None


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("websearch", "web_search"),
        ("Web-Search", "web_search"),
        ("remote_urls", "remote_url"),
        ("mcps", "mcp"),
        ("mcp_call", "mcp"),
        ("container_upload", "file_id"),
        ("web_serch_20250305", "web_search"),
    ],
)
def test_what_is_near_a_word_is_a_slip(word: str, near: str) -> None:
    assert near in (hosted.wrong(word) or "")
