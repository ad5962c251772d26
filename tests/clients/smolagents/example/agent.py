# SPDX-License-Identifier: BSD-4-Clause
"""A coding agent with smolagents: `python3 agent.py "what to do"`. The answer goes to stdout, tool calls to stderr.

The endpoint and the token are in OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console
from smolagents import AgentLogger, LogLevel, OpenAIModel, ToolCallingAgent, tool

from tools import edit_file, read_file, run_command


def build() -> ToolCallingAgent:
    """An agent whose model calls tools; it ends with the tool `final_answer`, which smolagents adds."""
    model = OpenAIModel(model_id=os.environ.get("OPENAI_MODEL", "gpt-5"))
    logger = AgentLogger(level=LogLevel.INFO, console=Console(stderr=True))
    tools = [tool(read_file), tool(edit_file), tool(run_command)]
    return ToolCallingAgent(tools=tools, model=model, max_steps=30, logger=logger)


def main() -> int:
    """One task; 2 when none was given."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(build().run(" ".join(sys.argv[1:])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
