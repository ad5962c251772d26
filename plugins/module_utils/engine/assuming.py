# SPDX-License-Identifier: BSD-2-Clause
"""Facts that a preview of a plan puts in the place of those that this host lacks, each with a sentence that says so."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, TypeVar

from ..core.errors import SecretError
from ..core.seccomp import ARCHITECTURES

Json = Dict[str, Any]
T = TypeVar("T")

VERSION = (4, 3, 0)  # the oldest Podman that sessions open on
#: Enough of a seccomp profile to derive one from; nothing ever runs under it.
_PROFILE: Json = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "archMap": [{"architecture": name} for name in sorted(ARCHITECTURES)],
    "syscalls": [],
}
_HELPER, _RESOLVER = "slirp4netns", "192.0.2.53"


def host(facts: Json, assumed: List[str]) -> Json:
    """The facts, complete; what was put in is told in ``assumed``."""
    found = dict(facts)
    for key, value, text in (
        ("uplink_helper", _HELPER, f"no slirp4netns or pasta is installed: {_HELPER} is assumed; open would refuse"),
        ("resolver", _RESOLVER, f"no resolver was found: {_RESOLVER} stands for it; open would refuse"),
        (
            "seccomp_default",
            _PROFILE,
            "no seccomp profile of the engine was found: the filter is not shown; open would refuse",
        ),
    ):
        if not found[key]:
            found[key] = value
            assumed.append(text)
    return found


def secret(read: Callable[[], Optional[T]], assumed: Optional[List[str]]) -> Optional[T]:
    """What ``read`` gives; in a preview (``assumed`` is a list) a secret that is not there is told, not an error."""
    try:
        return read()
    except SecretError as error:
        if assumed is None:
            raise
        assumed += [f"a secret is missing; open would refuse: {problem.text()}" for problem in error.problems]
        return None
