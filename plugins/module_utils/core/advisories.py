# SPDX-License-Identifier: BSD-2-Clause
"""Versions that are known as dangerous, as data: looked up offline, and as old as :data:`DATE` says.

Only what can touch a session or an image build is listed. ASF makes no Podman network, so netavark's and
aardvark-dns's do not count; of passt none is known that does. A distribution may have repaired a version without
changing its number: hence these are warnings, except where ASF's own promises break (``breaks``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from .doctor_facts import Version

#: When the list was last compared with the projects' own advisories.
DATE = "2026-11-30"


@dataclass(frozen=True)
class Advisory:
    """``affected`` are half-open ranges of versions: first bad one, first repaired one."""

    id: str
    program: str
    affected: tuple[tuple[Version, Version], ...]
    why: str
    breaks: bool = False


_BUILD = "matters when an image is built from a Containerfile of somebody else's"
ADVISORIES: tuple[Advisory, ...] = (
    Advisory(
        "containers/crun#1335",
        "crun",
        (((1, 11), (1, 11, 1)),),
        "it ignores `noexec` on volumes",
        breaks=True,
    ),
    Advisory(
        "CVE-2025-24965",
        "crun",
        (((1, 0), (1, 20)),),
        "an image can write files of the host's through the krun handler; matters for `isolation: microvm`",
    ),
    Advisory(
        "CVE-2024-21626",
        "runc",
        (((0, 0), (1, 1, 12)),),
        "a leaked descriptor leads a container into the host's file system",
        breaks=True,
    ),
    Advisory(
        "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881",
        "runc",
        (((0, 0), (1, 2, 8)), ((1, 3), (1, 3, 3))),
        "masked paths and the console can be swapped for files of /proc, which are then written (crun is not affected)",
        breaks=True,
    ),
    Advisory(
        "CVE-2023-0778",
        "podman",
        (((0, 0), (4, 4, 2)),),
        "`podman volume export` can be led to files of the host's by a volume's owner; do not export state volumes",
    ),
    Advisory(
        "CVE-2024-1753", "podman", (((0, 0), (4, 9, 4)), ((5, 0), (5, 0, 1))), f"a build mounts the host; {_BUILD}"
    ),
    Advisory(
        "CVE-2024-9407, CVE-2024-9675",
        "podman",
        (((0, 0), (5, 2, 5)),),
        f"`RUN --mount` of a build reaches the host's files; {_BUILD}",
    ),
    Advisory("CVE-2024-11218", "podman", (((0, 0), (5, 3, 2)),), f"a build with --jobs=2 breaks out; {_BUILD}"),
    Advisory(
        "CVE-2022-0185",
        "kernel",
        (((5, 11), (5, 15, 16)), ((5, 16), (5, 16, 2))),
        "whoever may make a user namespace becomes root; workloads may only with `nested_sandbox`",
    ),
    Advisory(
        "CVE-2022-0847",
        "kernel",
        (((5, 11), (5, 15, 25)), ((5, 16), (5, 16, 11))),
        "read-only files can be overwritten (Dirty Pipe): a read-only grant is none",
        breaks=True,
    ),
    Advisory(
        "CVE-2024-1086",
        "kernel",
        (((5, 11), (5, 15, 149)), ((5, 16), (6, 1, 76)), ((6, 2), (6, 6, 15)), ((6, 7), (6, 7, 3))),
        "nf_tables gives root to whoever may make a user namespace; workloads may only with `nested_sandbox`",
    ),
)


def known(program: str, version: Optional[Version]) -> Iterator[Advisory]:
    """Advisories about this version; none for a program that is missing or whose version is not known."""
    if version and any(version):
        yield from (
            entry
            for entry in ADVISORIES
            if entry.program == program and any(first <= version < repaired for first, repaired in entry.affected)
        )
