# SPDX-License-Identifier: BSD-4-Clause
"""A coding agent with the OpenAI SDK alone: `python3 agent.py "what to do"`. The answer goes to stdout, tool calls to
stderr.

The endpoint and the token are in OPENAI_BASE_URL and OPENAI_API_KEY. With HISTORY set to a file the conversation is
kept there, and the next run goes on where this one ended.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai import OpenAI

from tools import edit_file, read_file, run_command

TOOLS = {tool.__name__: tool for tool in (read_file, edit_file, run_command)}
TURNS = 60


def described(tool: Callable[..., str]) -> Any:
    """What the model is told of a tool: every parameter of ours is a text."""
    words = {name: {"type": "string"} for name in inspect.signature(tool).parameters}
    schema = {"type": "object", "properties": words, "required": list(words)}
    return {
        "type": "function",
        "function": {"name": tool.__name__, "description": inspect.getdoc(tool), "parameters": schema},
    }


def work(history: list[Any]) -> str:
    """Ask and do what is asked for, until the model asks for nothing more."""
    client, tools = OpenAI(), [described(tool) for tool in TOOLS.values()]
    for _ in range(TURNS):
        model = os.environ.get("OPENAI_MODEL", "gpt-5")
        answer = client.chat.completions.create(model=model, messages=history, tools=tools).choices[0].message
        history.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            return answer.content or ""
        for call in answer.tool_calls:
            print(call.function.name, call.function.arguments, file=sys.stderr)
            done = TOOLS[call.function.name](**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": done})
    return "I did not come to an end."


def main() -> int:
    """One task; 2 when none was given."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    file = Path(os.environ["HISTORY"]) if os.environ.get("HISTORY") else None
    history = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else []
    history.append({"role": "user", "content": " ".join(sys.argv[1:])})
    print(work(history))
    if file:
        file.write_text(json.dumps(history), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
