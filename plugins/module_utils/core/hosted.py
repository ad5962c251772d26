# SPDX-License-Identifier: BSD-2-Clause
"""What a provider does by itself, by the words of the front's table (``front/rules.json``; a test compares the two)."""

from __future__ import annotations

import re
from difflib import get_close_matches

WORDS = (
    "remote_url",
    "file_id",
    "stored_response",
    "background",
    "prompt",
    "mcp",
    "web_search",
    "web_fetch",
    "code_execution",
    "code_interpreter",
    "file_search",
    "image_generation",
    "computer",
    "computer_use_preview",
)

#: Types of the table that another word grants: naming them grants nothing. Word by type.
COVERED = {
    "web_search_tool_result": "web_search",
    "web_fetch_tool_result": "web_fetch",
    "code_execution_tool_result": "code_execution",
    "bash_code_execution_tool_result": "code_execution",
    "text_editor_code_execution_tool_result": "code_execution",
    "mcp_tool_use": "mcp",
    "mcp_tool_result": "mcp",
    "container_upload": "file_id",
    "url": "remote_url",
    "file": "file_id",
    "item_reference": "stored_response",
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "image_generation_call": "image_generation",
    "code_interpreter_call": "code_interpreter",
    "computer_call": "computer_use_preview",
    "computer_call_output": "computer_use_preview",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcp",
    "mcp_approval_request": "mcp",
    "mcp_approval_response": "mcp",
}

_DATE = re.compile(r"_(?:[0-9]{8}|[0-9]{4}_[0-9]{2}_[0-9]{2})$")


def wrong(word: str) -> str | None:
    """What is wrong with an entry of ``llm.hosted_tools``, or None. What is near a word is a slip, not a new type."""
    plain = _DATE.sub("", word)
    if plain in WORDS:
        return None
    if plain in COVERED:
        return f"this grants nothing: {COVERED[plain]} is the word for it"
    near = get_close_matches(re.sub("[^a-z]+", "_", plain.lower()), WORDS, 1, 0.85)
    return f"no provider has a tool of this name; did you mean {near[0]}?" if near else None
