# SPDX-License-Identifier: BSD-4-Clause
"""A crew of two with CrewAI: `python3 agent.py "what to do"`. The answer goes to stdout, tool calls to stderr.

The endpoint and the token are in OPENAI_BASE_URL and OPENAI_API_KEY. With HISTORY set to a file, a Flow keeps there
what was asked and done, and the next run knows it.
"""

from __future__ import annotations

import contextlib
import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.flow.flow import Flow, FlowState, start
from crewai.flow.persistence import SQLiteFlowPersistence, persist
from crewai.tools import tool

from tools import edit_file, read_file, run_command


class State(FlowState):
    """What outlives a run; `id` names the conversation."""

    wanted: str = ""
    done: list[str] = []


def crew(wanted: str, done: list[str]) -> Crew:
    """A developer who works, then a reviewer who looks at the result."""
    llm = LLM(model=os.environ.get("OPENAI_MODEL", "gpt-5"), provider="openai", stream=True)
    tools = [tool(read_file), tool(edit_file), tool(run_command)]
    common = {"llm": llm, "tools": tools, "verbose": False, "max_iter": 30}
    developer = Agent(role="developer", goal="Do what is asked", backstory="You change files and test.", **common)
    reviewer = Agent(role="reviewer", goal="Judge the work", backstory="You read what was changed.", **common)
    before = "".join(f"\nDone before: {line}" for line in done)
    work = Task(description=wanted + before, expected_output="What was done", agent=developer)
    review = Task(description="Review the work.", expected_output="A judgement", agent=reviewer, context=[work])
    return Crew(agents=[developer, reviewer], tasks=[work, review])


@persist(SQLiteFlowPersistence(os.environ.get("HISTORY", ":memory:")))
class Work(Flow[State]):
    """One task of a conversation."""

    @start()
    def work(self) -> str:
        """Let the crew work, and remember it."""
        answer = str(crew(self.state.wanted, self.state.done).kickoff())
        self.state.done.append(f"{self.state.wanted} {answer}")
        return answer


def main() -> int:
    """One task; 2 when none was given."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    with contextlib.redirect_stdout(sys.stderr):  # CrewAI prints its progress
        answer = Work().kickoff(inputs={"id": "main", "wanted": " ".join(sys.argv[1:])})
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
