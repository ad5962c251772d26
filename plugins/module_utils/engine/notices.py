# SPDX-License-Identifier: BSD-2-Clause
"""One line to the person who waits, while a module is at work: on whom, or for what.

Under ``asf-play`` a module's standard error reaches nobody; ``ASF_NOTICES`` names the file whose lines it shows as they
come. Anywhere else the line goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

VARIABLE = "ASF_NOTICES"


def say(text: str) -> None:
    """Say it; whatever hinders that does not hinder the work."""
    path = os.environ.get(VARIABLE)
    with contextlib.suppress(OSError, ValueError):
        if not path:
            print(text, file=sys.stderr, flush=True)
            return
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(handle, (json.dumps({"notice": text}) + "\n").encode())
        finally:
            os.close(handle)
