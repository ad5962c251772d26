# SPDX-License-Identifier: BSD-2-Clause
"""From what a play asks for to a ``Host`` and names: the manifest's images, ``config.yml``'s bundle, progress."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Sequence

from ..core import images as core
from . import home as homes, images, planning
from .build_host import Host, Options


def prepare(
    collection: str,
    pins: Mapping[str, Any],
    names: Sequence[str] = (),
    agent: Optional[str] = None,
    home: Optional[str] = None,
    options: Optional[Mapping[str, Any]] = None,
    progress: Optional[str] = None,
    everything: bool = False,
) -> tuple[Host, tuple[str, ...]]:
    """The host and the names to have; ``agent`` adds what its manifest needs, and with ``everything`` the host knows
    the images of all agents.

    Raises ManifestError for a wrong manifest or ``config.yml``, PlanError for wrong names or pins.
    """
    root = planning.home_of(home or None, collection)
    wanted, own = list(names), {}
    if agent:
        manifest = homes.load_manifest(root, agent)
        if packages := homes.load_packages(root, manifest):
            own[packages.name] = packages
        wanted += core.names_for(manifest.adapter, manifest.roles, next(iter(own), ""))
    if everything:
        own = {**homes.all_packages(root), **own}
    given = dict(options or {})
    given["ca_bundle"] = given.get("ca_bundle") or homes.load_settings(root).ca_bundle or ""
    chosen = Options.of(Path(os.path.realpath(collection)), given)
    host = images.workshop(chosen, pins, progress=_reporter(progress), packages=own)
    core.order(wanted, host.specs)
    return host, tuple(dict.fromkeys(wanted))


def _reporter(path: Optional[str]) -> Callable[[str, str], None]:
    """Appends ``{image, step, seconds}`` to the file; each line is one write, so a reader never sees half of one."""
    begun = time.monotonic()
    if not path:
        return lambda name, step: None

    def report(name: str, step: str) -> None:
        line = json.dumps({"image": name, "step": step, "seconds": round(time.monotonic() - begun, 1)}) + "\n"
        descriptor = os.open(str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    return report
