# SPDX-License-Identifier: BSD-4-Clause
"""Rules for all tests: markers, order (fast ones first), time limits, and a count of what was skipped and why."""

from __future__ import annotations

import collections
import signal
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]  # `support` is shared by all folders below; the checkout's own code

import asf_cli  # noqa: E402, F401  gives the shared code its name, asf_lib

#: kind of test -> seconds after which it is hung, in the order in which they run
_LIMITS = {"unit": 60, "lint": 600, "go": 600, "roles": 900, "e2e": 600}


def pytest_configure(config: pytest.Config) -> None:
    """Markers that the folders give. What `&` and nohup(1) start ignores SIGINT and SIGHUP, which tests send."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.addinivalue_line("markers", "e2e: real Podman, in the closed network that tools/testnet makes")
    config.addinivalue_line("markers", "slow: takes more than ten seconds")


def _kind(item: pytest.Item) -> str:
    parts = item.path.relative_to(_HERE).parts if item.path.is_relative_to(_HERE) else ()
    return parts[0] if len(parts) > 1 else "unit"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder, limit the time, and run what is fast first."""
    order = list(_LIMITS)
    for item in items:
        kind = _kind(item)
        if kind == "e2e":
            item.add_marker("e2e")
        if config.pluginmanager.hasplugin("timeout") and item.get_closest_marker("timeout") is None:
            factor = 3 if item.get_closest_marker("slow") else 1
            item.add_marker(pytest.mark.timeout(_LIMITS.get(kind, 300) * factor))
    items.sort(key=lambda item: order.index(_kind(item)) if _kind(item) in order else len(order))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per reason: a skipped test is a statement about this machine, and must not go unseen."""
    reasons: collections.Counter[str] = collections.Counter()
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    if reasons:
        terminalreporter.section("skipped, by reason")
        for reason, count in reasons.most_common():
            terminalreporter.write_line(f"{count:4d}  {reason}")
