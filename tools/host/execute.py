# SPDX-License-Identifier: BSD-4-Clause
"""The last step: this process becomes the command."""

import os
import signal

from say import say


def execute(argv, environment):
    """Execute `argv` with `environment`; returns when it cannot be executed, after saying why."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and ignored signals survive exec
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)
    except FileNotFoundError:
        say(f"{argv[0]}: no such command")
    except OSError as error:
        say(f"{argv[0]}: {error.strerror}")
        os._exit(126)
