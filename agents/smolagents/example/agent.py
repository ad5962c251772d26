# SPDX-License-Identifier: BSD-4-Clause
"""A coding agent with smolagents: `python3 agent.py "what to do"`. The answer goes to stdout, tool calls to stderr.

The endpoint and the token are in OPENAI_BASE_URL and OPENAI_API_KEY. With HISTORY set to a file the conversation is
kept there, and the next run goes on where this one ended.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rich.console import Console
from smolagents import AgentLogger, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.memory import TaskStep

from tools import edit_file, read_file, run_command


def build() -> ToolCallingAgent:
    """An agent whose model calls tools; it ends with the tool `final_answer`, which smolagents adds."""
    model = OpenAIModel(model_id=os.environ.get("OPENAI_MODEL", "gpt-5"))
    logger = AgentLogger(level=LogLevel.INFO, console=Console(stderr=True))
    tools = [tool(read_file), tool(edit_file), tool(run_command)]
    return ToolCallingAgent(tools=tools, model=model, max_steps=30, logger=logger)


def main() -> int:
    """One task; 2 when none was given. smolagents keeps a memory in a process, and no file: that is done here."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    wanted, agent = " ".join(sys.argv[1:]), build()
    file = Path(os.environ["HISTORY"]) if os.environ.get("HISTORY") else None
    history = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else []
    agent.memory.steps = [TaskStep(f"{task}\n\nYour answer was: {answer}") for task, answer in history]
    answer = str(agent.run(wanted, reset=False))
    if file:
        file.write_text(json.dumps([*history, [wanted, answer]]), encoding="utf-8")
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
