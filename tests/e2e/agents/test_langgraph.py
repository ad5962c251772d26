# SPDX-License-Identifier: BSD-4-Clause
"""A real LangGraph agent: model and tools in a graph, its checkpointer on the state volume."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.client import World
from support.course import CODING, Client, agent_py, take
from support.product import Home, SessionFactory

pytestmark = pytest.mark.slow

LANGGRAPH = Client(
    agent="langgraph",
    version=["python3", "-c", "import importlib.metadata as m; print(m.version('langgraph'))"],
    first=agent_py,
    again=agent_py,
    turns=CODING,
    example="example",
)


def test_the_course(home: Home, session: SessionFactory, world: World, tmp_path: Path) -> None:
    take(LANGGRAPH, home, session, world, tmp_path)
