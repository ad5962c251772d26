# SPDX-License-Identifier: BSD-4-Clause
"""A real smolagents agent: it calls tools until it calls the one that gives the answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.client import World
from support.course import CODING, Client, agent_py, take
from support.product import Home, SessionFactory

pytestmark = pytest.mark.slow

SMOLAGENTS = Client(
    agent="smolagents",
    version=["python3", "-c", "import importlib.metadata as m; print(m.version('smolagents'))"],
    first=agent_py,
    again=agent_py,
    turns=CODING,
    example="example",
    ending="final_answer",
)


def test_the_course(home: Home, session: SessionFactory, world: World, tmp_path: Path) -> None:
    take(SMOLAGENTS, home, session, world, tmp_path)
