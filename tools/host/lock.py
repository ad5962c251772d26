# SPDX-License-Identifier: BSD-4-Clause
"""One set-up at a time."""

import fcntl
import os
import time

from say import say


def take(path):
    """Lock the file `path` (made when missing) for this process; the lock ends when the process executes the command.

    It is held until exec on purpose: by then the process belongs to the account, so that the next one, looking for live
    processes of the account, sees it and does not take the run state for stale.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    started = time.monotonic()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _wait(descriptor, started)


def _wait(descriptor, started):
    told = False
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told and time.monotonic() - started > 2:
                say("waiting for another set-up on this machine")
                told = True
            time.sleep(0.02)
