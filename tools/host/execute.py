# SPDX-License-Identifier: BSD-4-Clause
"""Running commands: to their end, with what they said; or as the last step, when this process becomes the command."""

import os
import signal
import subprocess

from say import say


def captured(argv, environment=None):
    """Run `argv` without input; its CompletedProcess, with both streams together as text in `stdout`."""
    return subprocess.run(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


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
