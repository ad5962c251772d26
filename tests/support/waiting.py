# SPDX-License-Identifier: BSD-4-Clause
"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout: float = 60, what: str = "", interval: float = 0.02) -> T:
    """The first true value of `condition()`.

    :raises AssertionError: it did not become true within `timeout` seconds
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s for {what or condition}, last value {value!r}")
        time.sleep(interval)
    return value
