# SPDX-License-Identifier: BSD-2-Clause
"""The one small interface to Podman: argv lists to the ``podman`` command (architecture: "How the pieces talk").

Never a shell, a deadline on every call, a scrubbed environment (no proxy variables, no secrets of the operator's shell:
cases P14, S7), and a ``CONTAINERS_CONF`` of ASF's own. Secrets reach Podman on standard input only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Mapping, NamedTuple, Optional, Sequence, Union

from ..core.errors import EngineError
from ..core.redact import Redactor
from . import containersconf, dirs, recovery, trust

#: Variables of the caller that Podman needs and that cannot reach a container.
KEPT = (
    "HOME",
    "USER",
    "LOGNAME",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_STORAGE_CONF",
    "TMPDIR",
)
_STDERR_LIMIT = 4000
#: Code of the error that ``recovery`` can repair.
WEDGED = "podman-wedged"

#: (pattern in stderr, code, what it means, remedy); the first that matches wins.
_HINTS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"invalid internal status|cannot re-exec process",
        WEDGED,
        "Podman's run state is stale (every process of the account was killed, or the machine went down)",
        "log out of every session of this account, or restart the machine, and repeat; docs/failures.md says more",
    ),
    (
        r"no space left on device|disk quota exceeded|ENOSPC",
        "storage-full",
        "the container storage is full",
        "free some space, for example with: podman image prune",
    ),
    (
        r"no subuid ranges|no subgid ranges|cannot find UID/GID for user|newuidmap|newgidmap|insufficient UIDs or GIDs",
        "no-subuid",
        "the account has no usable range of subordinate uids or gids",
        "let an administrator run: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 ACCOUNT",
    ),
    (
        r"unknown (shorthand )?flag|unknown command|unrecognized command",
        "podman-old",
        "this Podman does not know an option that ASF needs",
        "install Podman 4.3 or newer",
    ),
    (
        r"cgroups in hybrid mode|cgroup v1|sd-bus call|Failed to connect to bus",
        "cgroups",
        "Podman cannot manage control groups here",
        "run asf-play doctor; it says what this host lacks",
    ),
    (
        r"image not known|no such image|unable to find .* in local storage|short-name|pinging container registry",
        "image-missing",
        "an image is missing",
        "build it with: asf-play build.yml -e agent=NAME",
    ),
    (
        r"(container )?name .* is already in use|secret name in use",
        "name-in-use",
        "the name is taken already",
        "close the session that owns it, or remove the resource when it is not one of ASF's",
    ),
    (
        r"executable file not found in \$PATH|could not find .*(slirp4netns|pasta)|unable to find .*(conmon|crun|runc)",
        "helper-missing",
        "a helper program of Podman is missing",
        "install what the message names; asf-play doctor lists the packages",
    ),
)


class Result(NamedTuple):
    """What one call gave: exit code, and both streams as text (bytes that are no UTF-8 are replaced)."""

    rc: int
    stdout: str
    stderr: str


#: One call for ``parallel``: the arguments alone, or ``(arguments, standard input)``.
Call = Union[Sequence[str], "tuple[Sequence[str], Optional[bytes]]"]


def environment(conf: Optional[str], env: Optional[Mapping[str, str]] = None) -> dict[str, str]:
    """The environment of Podman's processes: what is in ``KEPT``, a PATH of trusted folders, nothing else."""
    env = os.environ if env is None else env
    kept = {name: env[name] for name in KEPT if env.get(name)}
    kept["PATH"] = ":".join(trust.search_path(env))
    kept.setdefault("HOME", os.path.expanduser("~"))
    kept.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    kept["LC_ALL"] = "C.UTF-8"
    if conf:
        kept["CONTAINERS_CONF"] = conf
    return kept


def explain(stderr: str) -> tuple[str, str, str]:
    """``(code, meaning, remedy)`` of Podman's error text; ``("engine", "", "")`` when it is not a known one."""
    for pattern, code, meaning, remedy in _HINTS:
        if re.search(pattern, stderr, re.IGNORECASE):
            return code, meaning, remedy
    return "engine", "", ""


class Podman:
    """Podman of the calling account.

    ``redactor`` takes known secrets out of what errors show. ``extra_env`` is for builds alone (proxy, CA bundle).
    """

    def __init__(
        self,
        redactor: Optional[Redactor] = None,
        extra_env: Optional[Mapping[str, str]] = None,
        env: Optional[Mapping[str, str]] = None,
        program: str = "podman",
    ) -> None:
        self._redactor = redactor or Redactor()
        folder = dirs.private(dirs.run_dir(env) / "conf")
        base = environment(None, env)
        self.conf = containersconf.write(folder, base)
        self.env: dict[str, str] = {**base, **(extra_env or {}), "CONTAINERS_CONF": str(self.conf)}
        self._program = program
        self._repair, self._repaired = threading.Lock(), False

    def run(
        self, args: Sequence[str], *, input: Optional[bytes] = None, timeout: float = 60, check: bool = True
    ) -> Result:
        """Run ``podman ARGS``; ``timeout`` in seconds. Its process group is killed at the deadline.

        conmon leaves the group when it starts, so a container that was started lives on. Raises EngineError when the
        program is missing, misses the deadline, or (with ``check``) ends with anything but 0.
        """
        result = self._call(args, input, timeout)
        if result.rc and explain(result.stderr)[0] == WEDGED:
            self._recover()
            result = self._call(args, input, timeout)
        if check and result.rc:
            raise self.error(args, result)
        return result

    def _recover(self) -> None:
        """Repair what makes every call fail, once for all that run in parallel. Raises EngineError when not safe."""
        with self._repair:
            if self._repaired:
                return
            self._repaired = True
            aside = recovery.reset(self.env)
            rest = recovery.remove(aside) if aside else []
            if rest:
                self._call(rest, None, 60)  # it belongs to subordinate ids, which Podman can name again

    def _call(self, args: Sequence[str], input: Optional[bytes], timeout: float) -> Result:
        argv = [self._program, *args]
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise self._missing(argv, error) from error
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired as error:
            self._kill(process)
            raise self._late(argv, timeout) from error
        except BaseException:
            self._kill(process)
            raise
        return Result(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))

    def json(self, args: Sequence[str], *, timeout: float = 60, check: bool = True) -> Any:
        """Standard output of ``podman ARGS`` as JSON; an empty output is ``[]`` (4.3 prints nothing for no rows)."""
        result = self.run(args, timeout=timeout, check=check)
        text = result.stdout.strip()
        try:
            # "secret ls --format json" of 4.3 takes the word for a template and prints it.
            return json.loads(text) if text else []
        except ValueError as error:
            raise EngineError(
                "Podman answered something that is not JSON",
                cmd=self._words([self._program, *args]),
                rc=result.rc,
                stderr=self._redactor.text(result.stderr)[-_STDERR_LIMIT:],
                found=text[:80],
                code="bad-answer",
            ) from error

    def parallel(self, calls: Sequence[Call], *, timeout: float = 60, check: bool = True) -> list[Result]:
        """Run several calls at once (every call is a process of its own) and return their results in order.

        All of them end before the first error is raised, so that nothing goes on behind the caller's back.
        """
        if not calls:
            return []

        def one(call: Call) -> Result:
            # A call with input is a pair whose first part is a list; a plain call is a list of words.
            if len(call) == 2 and not isinstance(call[0], str):
                return self.run(call[0], input=call[1], timeout=timeout, check=check)  # type: ignore[arg-type]
            return self.run(call, timeout=timeout, check=check)  # type: ignore[arg-type]

        with ThreadPoolExecutor(max_workers=min(8, len(calls))) as pool:
            futures = [pool.submit(one, call) for call in calls]
        return [future.result() for future in futures]

    def error(self, args: Sequence[str], result: Result) -> EngineError:
        """The typed error for a result that the caller does not accept."""
        stderr = self._redactor.text(result.stderr).strip()
        code, meaning, remedy = explain(stderr)
        lines = stderr.splitlines() or ["no message"]
        # Podman ends some messages with a pointer to its help; the line that says what is wrong starts with Error.
        said = next((line for line in reversed(lines) if line.startswith("Error")), lines[-1])[:400]
        return EngineError(
            f"podman {args[0] if args else ''}: {meaning or 'failed'} (exit code {result.rc}): {said}",
            cmd=self._words([self._program, *args]),
            rc=result.rc,
            stderr=stderr[-_STDERR_LIMIT:],
            remedy=remedy or None,
            code=code,
        )

    def version(self) -> tuple[int, int, int]:
        """Podman's version. Raises EngineError when it is older than 4.3 or says nothing usable."""
        text = self.run(["--version"], timeout=20).stdout
        match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
        if match is None:
            raise EngineError("Podman does not tell its version", found=text[:80], code="bad-answer")
        found = (int(match.group(1)), int(match.group(2)), int(match.group(3) or 0))
        if found < (4, 3, 0):
            raise EngineError(
                "Podman is too old", found=match.group(0), remedy="install Podman 4.3 or newer", code="podman-old"
            )
        return found

    def _words(self, argv: Sequence[str]) -> list[str]:
        return [self._redactor.text(word)[:1000] for word in argv]

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> None:
        """End the call with all it started. Pipes that a stranger keeps open are not waited for."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()

    def _missing(self, argv: Sequence[str], error: OSError) -> EngineError:
        return EngineError(
            f"{self._program} cannot be run: {error.strerror}",
            cmd=self._words(argv),
            remedy="install Podman 4.3 or newer; asf-play doctor lists what is missing",
            code="podman-missing",
        )

    def _late(self, argv: Sequence[str], timeout: float) -> EngineError:
        return EngineError(
            f"podman {argv[1] if len(argv) > 1 else ''} did not end within {timeout:g} s and was killed",
            cmd=self._words(argv),
            remedy="see whether the machine is overloaded or its storage hangs, then repeat",
            code="timeout",
        )
