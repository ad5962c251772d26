# SPDX-License-Identifier: BSD-4-Clause
"""What set-up tells: always on stderr, because stdout belongs to the command that is run."""

import sys


class SetupError(Exception):
    """Set-up cannot go on; the text says what is wrong and what to do."""


def say(text):
    """Print `text` on stderr, each line marked as coming from set-up."""
    for line in text.splitlines():
        print("asf set-up: " + line, file=sys.stderr, flush=True)
