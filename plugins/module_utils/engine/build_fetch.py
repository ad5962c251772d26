# SPDX-License-Identifier: BSD-2-Clause
"""Pinned wheels that builds use, and the private files by which settings reach pip and npm."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import IO, Any, Mapping

from ..core import images as core
from ..core.errors import EngineError
from .build_host import Host, Options, locked, scratch, sha256, write_private
from .build_run import run_logged, tail


def wheel(host: Host, name: str, kind: str, log: IO[bytes]) -> Path:
    """A pinned wheel for the build of ``name``, fetched by pip when missing; its bytes are compared with the pin.

    Raises EngineError when it cannot be had or has other bytes.
    """
    pin, digest = host.pins["wheels"][kind], core.wheel_hash(host.pins, kind, platform.machine())
    target = host.folder("downloads") / f"{pin['package']}-{pin['version']}-{digest[:12]}.whl"
    with locked(host, f"download-{kind}"):
        if not target.exists() or sha256(target) != digest:
            host.progress(name, f"fetching {pin['package']} {pin['version']}")
            _fetch(host, name, pin, digest, target, log)
    return target


def _fetch(host: Host, name: str, pin: Mapping[str, Any], digest: str, target: Path, log: IO[bytes]) -> None:
    with scratch(host, f"download-{pin['package']}") as folder:
        lock = write_private(
            folder / "requirements.txt", f"{pin['package']}=={pin['version']} --hash=sha256:{digest}\n"
        )
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        argv += ["--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--dest", str(folder), "-r", str(lock)]
        conf = pip_conf(host, folder, host.options.ca_bundle)
        try:
            run_logged(host, name, argv, log, env={**host.build_env(), "PIP_CONFIG_FILE": str(conf)})
        except EngineError as error:
            if any("No module named pip" in line for line in tail(Path(log.name))):
                error.remedy = f"install pip for {sys.executable} (Debian: apt-get install python3-pip)"
            raise
        found = sorted(folder.glob("*.whl"))
        if len(found) != 1 or sha256(found[0]) != digest:
            raise EngineError(f"pip did not bring {pin['package']} {pin['version']} as pinned", cmd=argv, code="hash")
        os.replace(found[0], target)


def pip_conf(host: Host, folder: Path, ca_bundle: str) -> Path:
    """Write ``FOLDER/pip.conf``; ``ca_bundle`` as pip will see it.

    0600, and no options on a command line: a proxy's or an index' URL may hold credentials.
    """
    options = host.options
    pairs = {"cert": ca_bundle, "proxy": options.proxy, "index-url": options.pip_index}
    lines = ["[global]", "disable-pip-version-check = true", "no-input = true", "timeout = 60"]
    lines += [f"{key} = {value}" for key, value in pairs.items() if value]
    return write_private(folder / "pip.conf", "\n".join(lines) + "\n")


def npm_conf(host: Host, folder: Path, ca_bundle: str) -> Path:
    """Write ``FOLDER/npmrc``, for the same reasons."""
    options = host.options
    pairs = {
        "cafile": ca_bundle,
        "proxy": options.proxy,
        "https-proxy": options.proxy,
        "noproxy": options.no_proxy,
        "registry": options.npm_registry,
    }
    return write_private(folder / "npmrc", "".join(f"{key}={value}\n" for key, value in pairs.items() if value))


def apt_conf(host: Host, folder: Path, ca_bundle: str) -> Path:
    """Write ``FOLDER/apt.conf``, for the same reasons. apt's own user could not read it, so apt stays one user."""
    options = host.options
    pairs = {
        "APT::Sandbox::User": "root",
        "Acquire::https::CaInfo": ca_bundle,
        "Acquire::http::Proxy": options.proxy,
        "Acquire::https::Proxy": options.proxy,
        **{f"Acquire::{kind}::Proxy::{name}": "DIRECT" for kind in ("http", "https") for name in _names(options)},
    }
    return write_private(folder / "apt.conf", "".join(f'{key} "{value}";\n' for key, value in pairs.items() if value))


def _names(options: Options) -> list[str]:
    return [name.strip() for name in options.no_proxy.split(",") if name.strip()]
