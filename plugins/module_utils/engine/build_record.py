# SPDX-License-Identifier: BSD-2-Clause
"""A finished image is looked at before it gets its name: its mapped copy is paid, its check run, its contents listed.

This happens in throw-away containers that carry ``asf.build=NAME``, without network, capabilities or a writable root.
"""

from __future__ import annotations

import json
from typing import Any

from ..core import images as core
from ..core.errors import EngineError
from .build_host import Host

LABEL = "asf.build"
_USERS = {core.KEEP_ID: "1000:1000", core.NOMAP: "10001:10001", "": "0:0"}
_CHECK_TIMEOUT = 180.0


def flags(name: str, mapping: str) -> list[str]:
    """Options of a throw-away container of this image's build."""
    hard = ["--pull=never", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--read-only"]
    return [f"--label={LABEL}={name}", "--http-proxy=false", *hard, *([f"--userns={mapping}"] if mapping else [])]


def examine(host: Host, name: str, tag: str) -> dict[str, Any]:
    """Pay the mapped copy, run the image's check and list its contents. Raises EngineError when the check fails."""
    spec = host.specs[name]
    if spec.bare:
        _create_once(host, name, tag, spec.mapping)
        return {}
    host.progress(name, "copying for its user mapping, listing contents")
    contents = _contents(host, name, tag, spec.mapping)
    if contents.get("setuid"):
        raise EngineError(
            f"the image {name} holds set-uid programs",
            found=", ".join(contents["setuid"][:5]),
            remedy="clear the bits in its Containerfile",
            code="build-check",
        )
    if spec.check:
        host.progress(name, "checking")
        contents["check"] = _check(host, name, tag)
    return contents


def _create_once(host: Host, name: str, tag: str, mapping: str) -> None:
    made = host.podman.run(["create", *flags(name, mapping), tag, "true"], timeout=600).stdout.strip()
    host.podman.run(["rm", "--force", made], timeout=60, check=False)


def _contents(host: Host, name: str, tag: str, mapping: str) -> dict[str, Any]:
    script = (host.options.repo / "roles/image/files/contents.py").read_bytes()
    argv = ["run", "--rm", "--interactive", *flags(name, mapping), "--user=0:0", "--entrypoint="]
    answer = host.podman.run([*argv, tag, "python3", "-I", "-"], input=script, timeout=900).stdout
    try:
        return dict(json.loads(answer))
    except ValueError as error:
        message = f"the image {name} cannot list its contents"
        raise EngineError(message, found=answer[:200], code="build-check") from error


def _check(host: Host, name: str, tag: str) -> str:
    spec = host.specs[name]
    argv = ["run", "--rm", *flags(name, spec.mapping), f"--user={_USERS[spec.mapping]}", "--tmpfs=/tmp:rw,mode=1777"]
    argv += ["--env=HOME=/tmp", "--entrypoint=", tag, *spec.check]
    done = host.podman.run(argv, timeout=_CHECK_TIMEOUT, check=False)
    if done.rc:
        error = host.podman.error(argv, done)
        command = " ".join(spec.check)[:120]
        error.message = f"the image {name} was built but does not work: {command} ended with {done.rc}"
        error.code = "build-check"
        raise error
    return done.stdout.strip()[:500]


def reclaim(host: Host, name: str) -> None:
    """Remove throw-away containers that a killed build of this image left; the caller holds its lock."""
    for _ in range(3):  # one that ends by itself meanwhile makes Podman 4.3 fail, or remove none of them
        rows = host.podman.json(["ps", "--all", "--format=json", f"--filter=label={LABEL}={name}"])
        if not rows:
            break
        host.podman.run(["rm", "--force", "--time=0", *(str(row["Id"]) for row in rows)], check=False)
