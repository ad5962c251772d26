# SPDX-License-Identifier: BSD-2-Clause
"""A key out of a program of the operator's (`secrets` in config.yml): no shell, a deadline, a bounded answer."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Callable, List, Sequence

from ..core.errors import Problem, SecretError
from . import podman, trust

DEADLINE = 30  # seconds; a program that asks a person is not for an unattended open
LIMIT = 16 * 1024  # bytes


def value(argv: Sequence[str], file: str, variable: str) -> str:
    """What the program prints, without the newline at its end. Raises SecretError, which never holds any of it.

    Its standard error goes nowhere: what it says there may be the key.
    """
    key = f"secrets.{variable}.command"

    def refuse(message: str) -> SecretError:
        return SecretError([Problem(message, file, key=key, found=argv[0], remedy="run it by hand to see why")])

    if not trust.searched(os.path.dirname(argv[0])):
        raise refuse("the program lies in a folder that is missing or that another account may write")
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=podman.environment(None),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise refuse(f"the program cannot be run: {error.strerror}") from None
    try:
        data = _read(process, time.monotonic() + DEADLINE)
    except TimeoutError:
        raise refuse(f"the program did not end within {DEADLINE} s, and was killed") from None
    finally:
        _end(process)
    if len(data) > LIMIT:
        raise refuse(f"the program printed more than {LIMIT} bytes, and was killed")
    if process.returncode != 0:
        raise refuse(f"the program ended with {process.returncode}")
    return _text(data, refuse)


def _text(data: bytes, refuse: Callable[[str], SecretError]) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise refuse("the program printed something that is not UTF-8") from None
    text = text[:-1] if text.endswith("\n") else text
    text = text[:-1] if text.endswith("\r") else text
    if not text or "\n" in text or "\r" in text:
        raise refuse("the program printed nothing, or more than one line")
    return text


def _read(process: subprocess.Popen[bytes], until: float) -> bytes:
    """At most LIMIT + 1 bytes; returns when the program has ended or said too much. Raises TimeoutError."""
    assert process.stdout is not None
    parts: List[bytes] = []
    size = 0
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while size <= LIMIT:
            if not ready.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
            part = os.read(process.stdout.fileno(), LIMIT + 1 - size)
            if not part:
                try:
                    process.wait(max(0.0, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise TimeoutError from None
                break
            parts.append(part)
            size += len(part)
    return b"".join(parts)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it stays: its process group is its own, and is killed while its leader is not yet reaped."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
