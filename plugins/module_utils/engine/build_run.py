# SPDX-License-Identifier: BSD-2-Clause
"""Programs of builds, run with a log; a failure is told with image, step, cause and remedy (invariant 8)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import IO, Mapping, Optional, Sequence

from ..core.errors import EngineError
from .build_host import Host
from .podman import explain

#: A build that takes longer (seconds) is killed.
BUILD_TIMEOUT = 3600.0
#: A build must not go on when the caller is killed: nobody would give its image a name (cases L1, L3).
_DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")
_TAIL, _LINE = 20, 400  # lines, and characters of a line, that an error shows
#: How a build's log names its steps (podman build, mmdebstrap, this module); clean-up after a failure is no step.
_STEP = re.compile(r"STEP |\+ |I: (?!removing tempdir|main\(\) received|setup)")
_CAUSE = re.compile(r"(E|ERROR|Error|error|npm error)\b")

_TLS = "name your CA bundle in config.yml: ca_bundle: /path/to/bundle.pem"
_BYTES = "the registry served other bytes than the lock file or the pin names: do not work around it"
_NETWORK = "builds need the package registries: check the network, or set asf_image_options.proxy"
_PIP = "check name and version; only wheels are taken, and one for this Python and machine must exist"
_APT = "check names and versions in packages.apt against the distribution's suite"
#: (pattern in a build's log, code, remedy); the first that matches wins, after Podman's own list.
_HINTS: tuple[tuple[str, str, str], ...] = (
    (
        r"certificate verify failed|self-signed certificate|unable to get local issuer|signed by unknown authority",
        "tls",
        _TLS,
    ),
    (r"do not match the hashes|eintegrity|checksum mismatch|security error", "hash", _BYTES),
    (
        r"temporary failure (in name )?resol|could not resolve|network is unreachable|connection refused|no such host"
        r"|name or service not known|eai_again|enotfound|econnrefused|connection timed out",
        "network",
        _NETWORK,
    ),
    (r"no matching distribution found", "package", _PIP),
    (r"which is not installed|but you have", "package", "name all that they need, each with its version: pip freeze"),
    (r"code etarget|code e404|code enoversions", "package", "check names and versions in packages.npm's lock file"),
    (r"unable to locate package|no installation candidate|version '.*' for '.*' was not found", "package", _APT),
)


def run_logged(
    host: Host, name: str, argv: Sequence[str], log: IO[bytes], *, env: Mapping[str, str], cwd: str = "/"
) -> None:
    """Run a program with both streams appended to the log; it ends when this process does.

    Raises EngineError naming the image, the step, the last lines and the log's path.
    """
    shown = " ".join(word if len(word) < 300 and word.isprintable() else f"{word[:40]!r}…" for word in argv)
    log.write(f"\n+ {host.redactor.text(shown)}\n".encode())
    log.flush()
    process = subprocess.Popen(
        [*_DIES_WITH_US, _program(name, argv[0], env), *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    host.running.add(process)
    try:
        rc = process.wait(BUILD_TIMEOUT)
    except BaseException as error:
        end_group(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise failure(host, name, argv, None, Path(log.name), "took longer than an hour and was killed") from error
        raise
    finally:
        host.running.discard(process)
    if rc:
        raise failure(host, name, argv, rc, Path(log.name))


def _program(name: str, program: str, env: Mapping[str, str]) -> str:
    """The program's path. Raises EngineError when it is not there: setpriv's own complaint would name no image."""
    found = shutil.which(program, path=env.get("PATH"))
    if found is None:
        raise EngineError(
            f"building {name}: {os.path.basename(program)} is not installed",
            cmd=[program],
            remedy=f"install {os.path.basename(program)}; asf-play doctor lists what is missing",
            code="podman-missing" if program == "podman" else "build-tool-missing",
        )
    return found


def end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM, a moment, then KILL, to the program and all that it started."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def end_steps(folder: Path) -> None:
    """Kill the processes that have a build's scratch folder mounted.

    A step of ``podman build`` is a container of its own that outlives its Podman, whatever signal ends that (4.3). The
    folder's name is unique, and only a step of that build has it in its mounts.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"/{folder.name}/" in (entry / "mountinfo").read_text(encoding="utf-8", errors="replace"):
                os.kill(int(entry.name), signal.SIGKILL)


def failure(host: Host, name: str, argv: Sequence[str], rc: Optional[int], log: Path, what: str = "") -> EngineError:
    """The error for a build step that failed: step and cause from the log's tail."""
    lines = [host.redactor.text(line) for line in tail(log) if line.strip()]
    step = next((line for line in reversed(lines) if _STEP.match(line)), " ".join(argv[:3]))
    text = "\n".join(line[:_LINE] for line in lines[-_TAIL:])
    code, meaning, remedy = explain(text)
    if code == "engine":
        code, remedy = next(((c, r) for pattern, c, r in _HINTS if re.search(pattern, text.lower())), ("build", ""))
    cause = meaning or what or f"exit code {rc}"
    return EngineError(
        f"building {name} failed at “{' '.join(step.split())[:120]}”: {cause}",
        cmd=[host.redactor.text(word)[:300] for word in argv],
        rc=rc,
        stderr=text,
        file=str(log),
        found=next((line[:300] for line in lines[-_TAIL:] if _CAUSE.match(line)), lines[-1][:300] if lines else None),
        remedy=remedy or "read the log; its last lines are in the error",
        code=code,
    )


def tail(log: Path, limit: int = 16384) -> list[str]:
    """Last lines of a log, as text."""
    with contextlib.suppress(OSError), open(log, "rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
        return handle.read().decode("utf-8", "replace").splitlines()
    return []
