# SPDX-License-Identifier: BSD-4-Clause
"""A coding agent with LangGraph: `python3 agent.py "what to do"`. The answer goes to stdout, tool calls to stderr.

The endpoint and the token are in OPENAI_BASE_URL and OPENAI_API_KEY. With HISTORY set to a file the conversation is
kept there, and the next run goes on where this one ended; THREAD names one of several conversations.
"""

from __future__ import annotations

import os
import sys

from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from tools import edit_file, read_file, run_command

TOOLS = [read_file, edit_file, run_command]


def build(saver: SqliteSaver):
    """Two nodes: the model, and the tools that it asks for, until it asks for none."""
    model = ChatOpenAI(model=os.environ.get("OPENAI_MODEL", "gpt-5"), streaming=True).bind_tools(TOOLS)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(TOOLS))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def main() -> int:
    """One task; 2 when none was given."""
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    config = {"configurable": {"thread_id": os.environ.get("THREAD", "main")}, "recursion_limit": 60}
    task = {"messages": [("user", " ".join(sys.argv[1:]))]}
    with SqliteSaver.from_conn_string(os.environ.get("HISTORY", ":memory:")) as saver:
        for step in build(saver).stream(task, config, stream_mode="values"):
            last = step["messages"][-1]
            for call in last.tool_calls if isinstance(last, AIMessage) else []:
                print(f"{call['name']} {call['args']}", file=sys.stderr)
    print(last.text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
