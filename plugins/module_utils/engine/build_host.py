# SPDX-License-Identifier: BSD-2-Clause
"""What every build needs of this host: settings, folders, locks, scratch space.

Builds run as the operator, in the operator's own cache and container store. The CA bundle and the proxy reach pip, npm,
apt and go by files and flags of the one build, never by an image's environment, and verification is never weakened.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Optional

from ..core import images as core
from ..core.errors import HostError
from ..core.packages import Packages
from ..core.redact import Redactor
from . import dirs, locks
from .podman import Podman

#: Variables of the operator that decide where Go modules come from and who vouches for them.
_GO_VARIABLES = ("GOPROXY", "GONOPROXY", "GOPRIVATE", "GOSUMDB", "GONOSUMDB")


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
        """Options out of settings. Not set: the bundle is ``SSL_CERT_FILE``, the proxy ``ASF_BUILD_PROXY``.

        The usual proxy variables are not looked at: what a shell has for other programs changes no build (case P14).
        Raises HostError for a setting that does not exist.
        """
        env = os.environ if env is None else env
        known = [name for name in cls.__dataclass_fields__ if name != "repo"]
        for name in given:
            if name not in known:
                raise HostError(
                    "no such setting of builds",
                    key=f"asf_image_options.{name}"[:120],
                    remedy=f"use: {', '.join(known)}",
                    code="image-option",
                )
        values = {name: str(given.get(name) or "") for name in known}
        values["ca_bundle"] = values["ca_bundle"] or env.get("SSL_CERT_FILE", "")
        values["proxy"] = values["proxy"] or env.get("ASF_BUILD_PROXY", "")
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
    #: Images of agents that add packages, by name.
    packages: Mapping[str, Packages] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    redactor: Redactor = field(default_factory=Redactor)
    #: Programs of builds that run now, so that an interrupted caller can end them.
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)

    @property
    def specs(self) -> dict[str, core.Spec]:
        """Every thing to build, parents first."""
        return {**core.SPECS, **{name: packages.spec() for name, packages in self.packages.items()}}

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
            raise HostError(
                "a folder of the collection is missing", file=str(path), remedy="install it again", code="source"
            )
        return path

    def build_env(self) -> dict[str, str]:
        """Environment of programs that fetch: a scrubbed one, the proxy and the CA bundle of the options."""
        env = {name: value for name, value in self.podman.env.items() if name != "CONTAINERS_CONF"}
        env.update({name: self.env[name] for name in _GO_VARIABLES if self.env.get(name)})
        options = self.options
        pairs = {"http_proxy": options.proxy, "https_proxy": options.proxy, "no_proxy": options.no_proxy}
        for name, value in pairs.items():
            if value:
                env[name] = env[name.upper()] = value
        if options.ca_bundle:
            env["SSL_CERT_FILE"] = options.ca_bundle
        return env


#: Seconds that a build waits for another one of the same image, download or toolchain: longer than one may take.
_PATIENCE = 3900.0


@contextlib.contextmanager
def locked(host: Host, name: str, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of this name; yields False when it is taken and ``wait`` is false. The kernel frees it at death.

    Raises EngineError (``busy``) when somebody else holds it for longer than a build may take.
    """
    if wait and not shared:
        with locks.hold(name, name, host.env, _PATIENCE):
            yield True
        return
    folder = dirs.private(dirs.private(dirs.run_dir(host.env)) / "locks")
    descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if wait:
            locks.acquire(descriptor, str(folder / f"{name}.lock"), name, _PATIENCE, shared=True)
            yield True
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scratch(host: Host, name: str) -> Iterator[Path]:
    """A fresh folder (0700) for one build under ``builds/``; its name carries the pid: a dead build's is recognized."""
    folder = host.folder("builds") / f"{name}.{os.getpid()}.{time.monotonic_ns()}"
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_private(path: Path, text: str) -> Path:
    """Write a new file, 0600."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        handle.write(text)
    return path


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document atomically, 0600."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.chmod(partial, 0o600)
    os.replace(partial, path)


def sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
