# SPDX-License-Identifier: BSD-4-Clause
"""A crew of two with CrewAI: `python3 agent.py "what to do"`. The answer goes to stdout, tool calls to stderr.

The endpoint and the token are in OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import contextlib
import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from tools import edit_file, read_file, run_command


def build(wanted: str) -> Crew:
    """A developer who works, then a reviewer who looks at the result."""
    llm = LLM(model=os.environ.get("OPENAI_MODEL", "gpt-5"), provider="openai", stream=True)
    tools = [tool(read_file), tool(edit_file), tool(run_command)]
    common = {"llm": llm, "tools": tools, "verbose": False, "max_iter": 30}
    developer = Agent(role="developer", goal="Do what is asked", backstory="You change files and test.", **common)
    reviewer = Agent(role="reviewer", goal="Judge the work", backstory="You read what was changed.", **common)
    work = Task(description=wanted, expected_output="What was done", agent=developer)
    review = Task(description="Review the work.", expected_output="A judgement", agent=reviewer, context=[work])
    return Crew(agents=[developer, reviewer], tasks=[work, review])


def main() -> int:
    """One task; 2 when none was given."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    with contextlib.redirect_stdout(sys.stderr):  # CrewAI prints its progress
        answer = build(" ".join(sys.argv[1:])).kickoff()
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
