# SPDX-License-Identifier: BSD-2-Clause
"""Images from a Containerfile on a parent that is there already: nothing is pulled, nothing of the host stays inside.

Inputs are mounted read-only at /mnt for the build's own steps, the package tools' cache at /srv; both folders exist in
the base and stay empty in the image. ``podman build --env`` would bake (4.3), so settings travel as files in /mnt.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO, Any, Mapping

from .build_fetch import apt_conf, npm_conf, pip_conf, wheel
from .build_host import Host, scratch
from .build_run import end_steps, run_logged


def build(
    host: Host, name: str, tags: dict[str, str], tag: str, labels: dict[str, str], log: IO[bytes]
) -> dict[str, Any]:
    """Build the image of this name under a (temporary) tag; returns what the record says about its making."""
    spec = host.specs[name]
    with scratch(host, name) as folder:
        inputs, context, cache = folder / "inputs", folder / "context", folder / "cache"
        for place in (inputs, context, cache):
            place.mkdir()
        if name not in host.packages:  # an agent's packages may run code in the build: what it leaves is for nobody
            cache = host.folder("packages")
        for source in spec.sources:
            if source in host.packages:
                _write(host.packages[source].inputs, inputs)
            else:
                _copy(host.source(source), inputs)
        if spec.parent == "caddy-binary":
            shutil.copyfile(host.binary(tags["caddy-binary"]), context / "caddy")
        _settings(host, name, inputs, log)
        host.progress(name, "installing" if spec.wheels else "assembling")
        argv = command(host, name, tags, tag, labels, (inputs, context, cache))
        try:
            run_logged(host, name, argv, log, env=host.podman.env)
        finally:
            end_steps(folder)  # an interrupted podman build may even say that all went well (4.3)
    return {"made_by": "podman build"}


def command(
    host: Host, name: str, tags: dict[str, str], tag: str, labels: dict[str, str], folders: tuple[Path, Path, Path]
) -> list[str]:
    """The argv of ``podman build``. One layer, the host's network (pinned inputs only), no proxy variables.

    ``folders`` are its inputs, its context, and the package tools' cache.
    """
    inputs, context, cache = folders
    argv = ["podman", "build", "--pull=never", "--layers=false", "--force-rm", "--network=host", "--http-proxy=false"]
    argv += ["--no-hosts", "--security-opt=label=disable"]
    argv += [f"--label={key}={value}" for key, value in labels.items()]
    argv += [f"--volume={inputs}:/mnt:ro", f"--volume={cache}:/srv:rw"]
    if os.path.exists("/etc/hosts"):
        argv.append("--volume=/etc/hosts:/etc/hosts:ro")
    spec = host.specs[name]
    if not spec.bare:
        argv.append(f"--build-arg=BASE={tags[spec.parent]}")
    return [*argv, f"--tag={tag}", f"--file={inputs / 'Containerfile'}", str(context)]


def _settings(host: Host, name: str, inputs: Path, log: IO[bytes]) -> None:
    """Put wheels, the CA bundle and the tools' configuration where the Containerfile expects them."""
    bundle = ""
    if host.options.ca_bundle:
        shutil.copyfile(host.options.ca_bundle, inputs / "ca.pem")
        bundle = "/mnt/ca.pem"
    for kind in host.specs[name].wheels:
        _link(wheel(host, name, kind, log), inputs / f"{kind}.whl")
    pip_conf(host, inputs, bundle)
    npm_conf(host, inputs, bundle)
    apt_conf(host, inputs, bundle)


def _copy(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        if path.is_file():
            shutil.copyfile(path, target / path.name)


def _write(texts: Mapping[str, str], target: Path) -> None:
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
