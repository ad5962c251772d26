# SPDX-License-Identifier: BSD-4-Clause
"""Fixtures of the end-to-end tests: the test world, an operator's home, sessions that are always closed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import leaks
from support.client import VARIABLE, World
from support.product import Home, SessionFactory, operator_home


@pytest.fixture(scope="session")
def world() -> World:
    """The test world; skips outside of the closed network."""
    found = World.from_environment()
    if found is None:
        pytest.skip(f"needs the closed test network, which root makes: tools/testnet pytest ({VARIABLE} is not set)")
    return found


@pytest.fixture(scope="module", autouse=True)
def _fresh_world() -> None:
    """Every module starts with the default names and answers."""
    if found := World.from_environment():
        found.reset()


@pytest.fixture(scope="module", autouse=True)
def _nothing_left() -> Iterator[None]:
    """No module leaves a container, secret, volume or run folder of its sessions."""
    yield
    left = leaks.find() if SessionFactory.used() else []
    assert not left, "left behind: " + ", ".join(left)


def _sessions(home: Home) -> Iterator[SessionFactory]:
    factory = SessionFactory(home)
    yield factory
    problems = factory.close_all()
    assert not problems, "\n".join(problems)


@pytest.fixture
def home(tmp_path: Path, world: World) -> Home:
    """An operator's home of this test's own."""
    return operator_home(tmp_path, world)


@pytest.fixture
def session(home: Home) -> Iterator[SessionFactory]:
    """Opens sessions in `home` (session.open("agent", …)); all are closed after the test."""
    yield from _sessions(home)


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory, world: World) -> Home:
    """As `home`, shared by a module's tests."""
    return operator_home(tmp_path_factory.mktemp("operator"), world)


@pytest.fixture(scope="module")
def module_session(module_home: Home) -> Iterator[SessionFactory]:
    """As `session`, for sessions that a module's tests share: opening costs seconds."""
    yield from _sessions(module_home)
