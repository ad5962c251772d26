# SPDX-License-Identifier: BSD-4-Clause
"""The generic Python agent with its example, a loop of its own over the OpenAI SDK."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.client import World
from support.course import CODING, Client, agent_py, take
from support.product import Home, SessionFactory

pytestmark = pytest.mark.slow

PYTHON = Client(
    agent="python-agent",
    version=["python3", "-c", "import importlib.metadata as m; print(m.version('openai'))"],
    first=agent_py,
    again=agent_py,
    turns=CODING,
    example="example",
    secrets="openai.env",
)


def test_the_course(home: Home, session: SessionFactory, world: World, tmp_path: Path) -> None:
    take(PYTHON, home, session, world, tmp_path)
