# SPDX-License-Identifier: BSD-2-Clause
"""Where keys pass, nothing leaves a core dump and nobody else of the account reads the memory.

Python cannot overwrite text. So what handles a key is a process of its own where it can be: its memory ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import traceback
from typing import Any, Callable, Dict, Iterator

from ..core import errors
from ..core.errors import AsfError, EngineError, Problem, ProblemsError
from . import netns

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4  # linux/prctl.h
_LIBC = ctypes.CDLL(None, use_errno=True)
#: Seconds. A source may take 30, and an open reads two; the rest is Podman's.
_DEADLINE = 180.0


def undumped() -> None:
    """No core dump of this process, and no other process of the account may read its memory, until it ends.

    The soft limit alone is set: children inherit it and may still raise it. ``prctl`` is lost at their ``execve``.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def end_with_parent() -> None:
    """This process ends when the one that started it does; between ``fork`` and ``execve``, nothing but one call."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def coreless() -> Iterator[None]:
    """Children started inside leave no core dump: they hold a key while they run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def apart(work: Callable[[], Any]) -> Any:
    """Run ``work`` in a forked process, undumped, and return its JSON-able answer, which must hold no secret.

    Raises what ``work`` raises of ASF's own errors. The process ends with the caller: killed in the middle, nothing
    of it goes on to make a secret that nobody would know of (L4).
    """
    caller = os.getpid()

    def inside() -> Dict[str, Any]:
        end_with_parent()
        if os.getppid() != caller:  # it ended before the kernel was told
            os._exit(1)
        undumped()
        try:
            return {"answer": work()}
        except AsfError as error:
            return {"error": error.as_dict(), "kind": type(error).__name__}
        except Exception as error:  # its text may hold a key: where it happened says enough
            place = traceback.extract_tb(error.__traceback__)[-1]
            said = f"the process that reads keys failed: {type(error).__name__} in {place.name}, line {place.lineno}"
            return {"error": EngineError(said).as_dict(), "kind": "EngineError"}

    said = netns.forked(inside, _DEADLINE, "the process that reads keys")
    if "error" in said:
        raise _error(said["kind"], said["error"])
    return said["answer"]


def _error(kind: str, fields: Dict[str, Any]) -> AsfError:
    """The error that ``as_dict`` described."""
    made = getattr(errors, kind)
    if issubclass(made, ProblemsError):
        found: AsfError = made([Problem(**one) for one in fields["problems"]], code=fields["code"])
        return found
    given = {name: value for name, value in fields.items() if name not in ("kind", "message", "line")}
    known = EngineError if issubclass(made, EngineError) else made
    out: AsfError = known(fields["message"], **given)
    return out
