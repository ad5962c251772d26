# SPDX-License-Identifier: BSD-2-Clause
"""The base image: the distribution's packages by mmdebstrap, without root; or a registry image by digest."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Any, Iterator, Sequence

from .build_host import Host, scratch
from .build_run import run_logged

#: Documentation and translations are not unpacked; licences (copyright files) are.
_UNPACKED = (
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
)
_ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8")
#: Prefix of mmdebstrap's folders; the uid and the pid of the build follow.
SCRATCH = "asf-base."


def build(host: Host, tag: str, labels: dict[str, str], log: IO[bytes]) -> dict[str, Any]:
    """Make the base image under this (temporary) tag; returns what the record says about its making."""
    if host.options.base_image:
        return _from_registry(host, tag, labels, log)
    with scratch(host, "base") as folder:
        tar = folder / "base.tar"
        host.progress("base", f"fetching and unpacking packages of {host.pins['base']['suite']}")
        with open_scratch(host) as root:
            run_logged(host, "base", _mmdebstrap(host, str(tar)), log, env={**host.build_env(), "TMPDIR": str(root)})
        host.progress("base", "importing")
        changes = [f"ENV {pair}" for pair in _ENVIRONMENT] + ['CMD ["/bin/sh"]']
        changes += [f'LABEL "{key}"="{value}"' for key, value in labels.items()]
        argv = ["podman", "import", "--quiet", *(f"--change={change}" for change in changes), str(tar), tag]
        run_logged(host, "base", argv, log, env=host.podman.env)
        return {"made_by": "mmdebstrap", "tar_bytes": os.stat(tar).st_size}


@contextlib.contextmanager
def open_scratch(host: Host) -> Iterator[Path]:
    """A folder that subordinate uids can reach (the operator's cache is 0700), for mmdebstrap's tree.

    Below ``TMPDIR``, else ``/var/tmp``, which is no memory file system on ordinary machines.
    """
    folder = scratch_root(host) / f"{SCRATCH}{os.getuid()}.{os.getpid()}"
    folder.mkdir(mode=0o755)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        remove_trees(host, [folder])


def scratch_root(host: Host) -> Path:
    """Where ``open_scratch`` makes its folders."""
    return Path(host.podman.env.get("TMPDIR") or "/var/tmp")


def remove_trees(host: Host, folders: Sequence[Path]) -> None:
    """Remove folders that hold files of subordinate uids, as the root of the operator's user namespace."""
    if folders:
        argv = ["unshare", "rm", "-rf", "--one-file-system", "--", *map(str, folders)]
        host.podman.run(argv, timeout=300, check=False)


def _mmdebstrap(host: Host, tar: str) -> list[str]:
    pins = host.pins["base"]
    hook = (host.source("base") / "customize.sh").read_text(encoding="utf-8")
    argv = ["mmdebstrap", "--mode=unshare", "--variant=minbase", f"--include={','.join(pins['packages'])}"]
    argv += [f"--dpkgopt={option}" for option in _UNPACKED]
    if host.options.ca_bundle:
        argv.append(f'--aptopt=Acquire::https::CaInfo "{host.options.ca_bundle}"')
    # As text, not as a path: the hook runs under a subordinate uid, which cannot look into the operator's folders.
    argv += [f"--customize-hook={hook}", pins["suite"], tar]
    return argv + [line for line in host.options.mirror.splitlines() if line.strip()]


def _from_registry(host: Host, tag: str, labels: dict[str, str], log: IO[bytes]) -> dict[str, Any]:
    source = host.options.base_image
    host.progress("base", f"taking {source}")
    argv = ["podman", "build", "--pull=missing", "--layers=false", "--force-rm", "--network=none", "--http-proxy=false"]
    argv += [f"--label={key}={value}" for key, value in labels.items()]
    argv += [f"--build-arg=FROM={source}", f"--tag={tag}", f"--file={host.source('base') / 'Containerfile'}"]
    with scratch(host, "base") as folder:
        run_logged(host, "base", [*argv, str(folder)], log, env={**host.build_env(), **host.podman.env})
    return {"made_by": "registry", "from": source}
