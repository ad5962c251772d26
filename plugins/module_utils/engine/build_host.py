# SPDX-License-Identifier: BSD-2-Clause
"""What every build needs of this host: folders, settings, locks, pinned downloads, programs run with a log.

Builds run as the operator, in the operator's own cache and container store. The CA bundle and the proxy reach pip, npm,
apt and go by files and flags of the one build, never by the environment of an image, and verification is never weakened.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, IO, Iterator, Mapping, Optional, Sequence

from ..core import images as core
from ..core.errors import AsfError, EngineError, HostError
from ..core.redact import Redactor
from . import dirs
from .podman import Podman, explain

#: A build that has said nothing new is not killed; one that takes this long (seconds) is.
BUILD_TIMEOUT = 3600.0
_TAIL = 20
#: How a build's log names its steps (podman build, mmdebstrap, this module); clean-up after a failure is no step.
_STEP = re.compile(r"STEP |\+ |I: (?!removing tempdir|main\(\) received|setup)")
_CAUSE = re.compile(r"(E|ERROR|Error|error|npm error)\b")
#: Variables of the operator that decide where Go modules come from and who vouches for them.
_GO_VARIABLES = ("GOPROXY", "GONOPROXY", "GOPRIVATE", "GOSUMDB", "GONOSUMDB")

#: (words in a build's log, what it means, remedy); the first that matches wins, after Podman's own list.
_HINTS: tuple[tuple[str, str, str], ...] = (
    ("certificate verify failed", "tls", "name your CA bundle in config.yml: ca_bundle: /path/to/bundle.pem"),
    ("self-signed certificate", "tls", "name your CA bundle in config.yml: ca_bundle: /path/to/bundle.pem"),
    ("unable to get local issuer certificate", "tls", "name your CA bundle in config.yml: ca_bundle: /path/to/bundle.pem"),
    ("certificate signed by unknown authority", "tls", "name your CA bundle in config.yml: ca_bundle: /path/to/bundle.pem"),
    ("do not match the hashes", "hash", "the registry served other bytes than the lock file names: do not work around it"),
    ("eintegrity", "hash", "the registry served other bytes than the lock file names: do not work around it"),
    ("checksum mismatch", "hash", "the module served differs from go.sum: do not work around it"),
    ("temporary failure resolving", "network", "builds need the package registries: check the network, or set a proxy"),
    ("temporary failure in name resolution", "network", "builds need the package registries: check the network, or set a proxy"),
    ("could not resolve host", "network", "builds need the package registries: check the network, or set a proxy"),
    ("network is unreachable", "network", "builds need the package registries: check the network, or set a proxy"),
    ("connection refused", "network", "builds need the package registries: check the network, or set a proxy"),
    ("no such host", "network", "builds need the package registries: check the network, or set a proxy"),
)


@dataclass(frozen=True)
class Options:
    """Settings of builds. ``repo`` is the collection's root; empty texts mean "not set".

    ``ca_bundle`` is a file of PEM certificates; ``proxy`` a URL that serves http and https; ``no_proxy`` as usual;
    ``pip_index`` and ``npm_registry`` replace those tools' own defaults; ``go`` is the path of a Go program.
    """

    repo: Path
    ca_bundle: str = ""
    proxy: str = ""
    no_proxy: str = ""
    pip_index: str = ""
    npm_registry: str = ""
    base_image: str = ""
    mirror: str = ""
    go: str = ""

    @classmethod
    def of(cls, repo: Path, given: Mapping[str, Any], env: Optional[Mapping[str, str]] = None) -> Options:
        """Options out of settings; CA bundle and proxy default to the environment's usual variables."""
        env = os.environ if env is None else env
        values = {name: str(given.get(name) or "") for name in cls.__dataclass_fields__ if name != "repo"}
        values["ca_bundle"] = values["ca_bundle"] or env.get("SSL_CERT_FILE", "")
        values["proxy"] = values["proxy"] or env.get("https_proxy", "") or env.get("HTTPS_PROXY", "")
        values["no_proxy"] = values["no_proxy"] or env.get("no_proxy", "") or env.get("NO_PROXY", "")
        return cls(repo=Path(repo), **values)

    def check(self) -> None:
        """Before a build: raises HostError when the CA bundle cannot be read."""
        if self.ca_bundle and not os.access(self.ca_bundle, os.R_OK):
            raise HostError(
                "the CA bundle cannot be read",
                key="ca_bundle",
                found=self.ca_bundle,
                remedy="name a file of PEM certificates that this account can read",
                code="ca-bundle",
            )


@dataclass
class Host:
    """One account's workshop: options, folders, Podman, and who is told about progress."""

    options: Options
    podman: Podman
    pins: Mapping[str, Any]
    progress: Callable[[str, str], None] = lambda name, step: None
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    redactor: Redactor = field(default_factory=Redactor)

    @property
    def cache(self) -> Path:
        """Downloads, build folders, logs, binaries."""
        return dirs.private(dirs.cache_dir(self.env))

    @property
    def records(self) -> Path:
        """Records of what went into each image."""
        return dirs.private(dirs.private(dirs.state_dir(self.env)) / "images")

    def folder(self, *parts: str) -> Path:
        """A folder in the cache, made when missing."""
        return dirs.private(self.cache.joinpath(*parts))

    def binary(self, tag: str) -> Path:
        """Where the program with this name (``gate-DIGEST``) lies, or will lie."""
        return self.cache / "bin" / tag

    def log_path(self, name: str, tag: str) -> Path:
        """The log of the last build of this name and digest."""
        return self.folder("logs") / f"{name}-{core.digest_of(tag)}.log"

    def source(self, name: str) -> Path:
        """Folder of a source (``core.images.SOURCES``). Raises HostError when the collection lacks it."""
        path = self.options.repo / core.SOURCES[name]
        if not path.is_dir():
            raise HostError("a folder of the collection is missing", file=str(path), remedy="install it again", code="source")
        return path

    def build_env(self) -> dict[str, str]:
        """Environment of programs that fetch: a scrubbed one, the proxy and the CA bundle of the options."""
        env = {name: value for name, value in self.podman.env.items() if name != "CONTAINERS_CONF"}
        env.update({name: self.env[name] for name in _GO_VARIABLES if self.env.get(name)})
        if self.options.proxy:
            env.update({name: self.options.proxy for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")})
        if self.options.no_proxy:
            env.update({name: self.options.no_proxy for name in ("no_proxy", "NO_PROXY")})
        if self.options.ca_bundle:
            env["SSL_CERT_FILE"] = self.options.ca_bundle
        return env


@contextlib.contextmanager
def locked(host: Host, name: str, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of this name; yields False when it is taken and ``wait`` is false. The kernel frees it at death."""
    folder = dirs.private(dirs.private(dirs.run_dir(host.env)) / "locks")
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                yield False
                return
            host.progress(name, "waiting for another build")
            fcntl.flock(descriptor, mode)
        yield True
    finally:
        os.close(descriptor)


def run_logged(
    host: Host, name: str, argv: Sequence[str], log: IO[bytes], *, env: Mapping[str, str], cwd: str = "/"
) -> None:
    """Run a program with both streams appended to the log. Its process group dies with the caller's patience.

    Raises EngineError naming the image, the step, the last lines and the log's path.
    """
    shown = " ".join(word if len(word) < 300 and word.isprintable() else f"{word[:40]!r}…" for word in argv)
    log.write(f"\n+ {host.redactor.text(shown)}\n".encode())
    log.flush()
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env), cwd=cwd, start_new_session=True
        )
    except OSError as error:
        raise EngineError(
            f"building {name}: {argv[0]} cannot be run: {error.strerror}",
            cmd=list(argv),
            remedy=f"install {os.path.basename(argv[0])}; asf-play doctor lists what is missing",
            code="podman-missing" if os.path.basename(argv[0]) == "podman" else "build-tool-missing",
        ) from error
    try:
        rc = process.wait(BUILD_TIMEOUT)
    except BaseException as error:
        end_group(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise failure(host, name, argv, None, Path(log.name), "took longer than an hour and was killed") from error
        raise
    if rc:
        raise failure(host, name, argv, rc, Path(log.name))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM, a moment, then KILL, to the program and all that it started."""
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def failure(
    host: Host, name: str, argv: Sequence[str], rc: Optional[int], log: Path, what: str = ""
) -> EngineError:
    """The error for a build step that failed: step and cause from the log's tail."""
    lines = [host.redactor.text(line) for line in tail(log) if line.strip()]
    step = next((line for line in reversed(lines) if _STEP.match(line)), " ".join(argv[:3]))
    text = "\n".join(lines[-_TAIL:])
    code, meaning, remedy = explain(text)
    if code == "engine":
        code, remedy = next(((c, r) for words, c, r in _HINTS if words in text.lower()), ("build", ""))
    cause = meaning or what or (f"exit code {rc}" if rc is not None else "")
    return EngineError(
        f"building {name} failed at “{step[:200]}”: {cause}",
        cmd=[host.redactor.text(word)[:300] for word in argv],
        rc=rc,
        stderr=text,
        file=str(log),
        found=next((line[:300] for line in lines[-_TAIL:] if _CAUSE.match(line)), lines[-1][:300] if lines else None),
        remedy=remedy or "read the log; its last lines are in the error",
        code=code if code != "engine" else "build",
    )


def tail(log: Path, limit: int = 16384) -> list[str]:
    """Last lines of a log, as text."""
    with contextlib.suppress(OSError), open(log, "rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - limit))
        return handle.read().decode("utf-8", "replace").splitlines()
    return []


def wheel(host: Host, kind: str, log: IO[bytes]) -> Path:
    """A pinned wheel in the cache, fetched by pip when missing, its bytes checked against the pin every time.

    Raises EngineError when it cannot be had or has other bytes.
    """
    pin, digest = host.pins["wheels"][kind], core.wheel_hash(host.pins, kind, platform.machine())
    target = host.folder("downloads") / f"{pin['package']}-{pin['version']}-{digest[:12]}.whl"
    with locked(host, f"download-{kind}"):
        if not target.exists() or sha256(target) != digest:
            host.progress(kind, f"fetching {pin['package']} {pin['version']}")
            _fetch(host, pin, digest, target, log)
    return target


def _fetch(host: Host, pin: Mapping[str, Any], digest: str, target: Path, log: IO[bytes]) -> None:
    with scratch(host, f"download-{pin['package']}") as folder:
        lock = folder / "requirements.txt"
        lock.write_text(f"{pin['package']}=={pin['version']} --hash=sha256:{digest}\n", encoding="utf-8")
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        argv += ["--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--dest", str(folder), "-r", str(lock)]
        env = {**host.build_env(), "PIP_CONFIG_FILE": str(pip_conf(host, folder, host.options.ca_bundle))}
        try:
            run_logged(host, pin["package"], argv, log, env=env)
        except EngineError as error:
            if any("No module named pip" in line for line in tail(Path(log.name))):
                error.remedy = f"install pip for {sys.executable} (Debian: apt-get install python3-pip)"
            raise
        found = sorted(folder.glob("*.whl"))
        if len(found) != 1 or sha256(found[0]) != digest:
            raise AsfError(f"pip did not bring {pin['package']} {pin['version']} as pinned", code="hash")
        os.replace(found[0], target)


def pip_conf(host: Host, folder: Path, ca_bundle: str) -> Path:
    """Write ``FOLDER/pip.conf`` (0600: a proxy's or an index' URL may hold credentials); ``ca_bundle`` as pip sees it."""
    lines = ["[global]", "disable-pip-version-check = true", "no-input = true", "timeout = 60"]
    options = host.options
    lines += [f"{key} = {value}" for key, value in (("cert", ca_bundle), ("proxy", options.proxy), ("index-url", options.pip_index)) if value]
    return write_private(folder / "pip.conf", "\n".join(lines) + "\n")


def npm_conf(host: Host, folder: Path, ca_bundle: str) -> Path:
    """Write ``FOLDER/npmrc``, for the same reasons."""
    options = host.options
    pairs = (("cafile", ca_bundle), ("proxy", options.proxy), ("https-proxy", options.proxy), ("noproxy", options.no_proxy), ("registry", options.npm_registry))
    return write_private(folder / "npmrc", "".join(f"{key}={value}\n" for key, value in pairs if value))


def write_private(path: Path, text: str) -> Path:
    """Write a new file, 0600."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
    return path


@contextlib.contextmanager
def scratch(host: Host, name: str) -> Iterator[Path]:
    """A fresh folder (0700) for one build under ``builds/``; its name carries the pid: a dead build's is recognized."""
    folder = host.folder("builds") / f"{name}.{os.getpid()}.{time.monotonic_ns()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically, 0600."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.chmod(partial, 0o600)
    os.replace(partial, path)
