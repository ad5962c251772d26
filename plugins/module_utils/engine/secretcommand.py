# SPDX-License-Identifier: BSD-2-Clause
"""A key out of a program of the operator's (`secrets` in config.yml): no shell, a deadline, a bounded answer."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import Callable, List, Optional, Sequence, Tuple

from ..core.errors import Problem, SecretError
from . import hidden, podman, trust

DEADLINE = 30  # seconds; a program that asks a person is not for an unattended open
LIMIT = 16 * 1024  # bytes


def value(argv: Sequence[str], file: str, key: str) -> str:
    """What the program prints, without the newline at its end. Raises SecretError, which never holds any of it.

    ``key`` is where config.yml (``file``) names it. Its standard error goes nowhere: what it says there may be the key.
    """

    def refuse(message: str) -> SecretError:
        return SecretError([Problem(message, file, key=key, found=argv[0], remedy="run it by hand to see why")])

    if not trust.searched(os.path.dirname(argv[0])):
        raise refuse("the program lies in a folder that is missing or that another account may write")
    try:
        code, data = run(argv)
    except OSError as error:
        raise refuse(f"the program cannot be run: {error.strerror}") from None
    except Unanswered as error:
        raise refuse(f"the program {error}") from None
    if code != 0:
        raise refuse(f"the program ended with {code}")
    return one_line(data, lambda what: refuse(f"the program printed {what}"))


class Unanswered(Exception):
    """The program said too much, or nothing in time; it was killed."""


def run(argv: Sequence[str], data: Optional[bytes] = None, limit: int = 0) -> Tuple[int, bytes]:
    """Exit code and standard output; ``data`` is on its standard input. Raises OSError, Unanswered.

    The program gets the environment that Podman gets, a session of its own and no terminal, and leaves no core dump.
    """
    source = _memory(data) if data is not None else subprocess.DEVNULL
    try:
        with hidden.coreless():
            process = subprocess.Popen(
                list(argv),
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=podman.environment(None),
                cwd="/",
                start_new_session=True,
                preexec_fn=hidden.end_with_parent,
            )
    finally:
        if data is not None:
            os.close(source)
    limit = limit or LIMIT
    try:
        said = _read(process, time.monotonic() + DEADLINE, limit)
    except TimeoutError:
        raise Unanswered(f"did not end within {DEADLINE} s, and was killed") from None
    finally:
        _end(process)
    if len(said) > limit:
        raise Unanswered(f"printed more than {limit} bytes, and was killed")
    return process.returncode, said


def one_line(data: bytes, refuse: Callable[[str], SecretError]) -> str:
    """The one line that stands there, without its end; ``refuse`` makes the error of what stands there instead."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise refuse("something that is not UTF-8") from None
    text = text[:-1] if text.endswith("\n") else text
    text = text[:-1] if text.endswith("\r") else text
    if not text or "\n" in text or "\r" in text:
        raise refuse("nothing, or more than one line")
    return text


def _memory(data: bytes) -> int:
    """A descriptor from which ``data`` can be read: never a file, and no pipe that a dead reader would block."""
    handle = os.memfd_create("asf", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(handle), "wb") as stream:
        stream.write(data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _read(process: subprocess.Popen[bytes], until: float, limit: int) -> bytes:
    """At most ``limit`` + 1 bytes; returns when the program has ended or said too much. Raises TimeoutError."""
    assert process.stdout is not None
    parts: List[bytes] = []
    size = 0
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while size <= limit:
            if not ready.select(max(0.0, until - time.monotonic())):
                raise TimeoutError
            part = os.read(process.stdout.fileno(), limit + 1 - size)
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
