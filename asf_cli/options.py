# SPDX-License-Identifier: BSD-4-Clause
"""Options that several commands take."""

from __future__ import annotations

import argparse


def raw_terminal(parser: argparse.ArgumentParser) -> None:
    """For whatever gives the user's terminal to a workload."""
    parser.add_argument(
        "--raw-terminal",
        action="store_true",
        help="do not filter what is written to the terminal (clipboard, titles, files, …)",
    )
