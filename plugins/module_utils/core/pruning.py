# SPDX-License-Identifier: BSD-2-Clause
"""What ``asf-play prune`` may remove: decided from lists, so that nothing foreign can be on it.

An image of ASF's carries the label *and* a name below ``localhost/asf/``: an image that somebody built on one of ASF's
inherits the label, and a name alone can be given to anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from . import images

#: What can be asked for alone, in the order in which it is removed.
KINDS = ("images", "binaries", "downloads", "builds", "environments", "runs")
_BUILDING = ":building-"


@dataclass(frozen=True)
class Item:
    """One thing that nothing needs. ``name`` is a tag or a path; an image's ``bytes`` hold layers that others share."""

    kind: str
    name: str
    bytes: int | None
    why: str

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dict(vars(self))


def needed(
    current: Mapping[str, str],
    sources: Mapping[str, str],
    pins: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    specs: Mapping[str, images.Spec] = images.SPECS,
) -> frozenset[str]:
    """Names of images and binaries that some build of these sources and pins gives.

    ``current`` are the names under the settings known here. A build with another mirror or base image
    (settings that a play may have been given) has another name; its record (``records``) says that the rest is equal.
    """
    keep = set(current.values())
    known = sorted(records, key=lambda record: list(specs).index(record["name"]))
    for record in known:  # parents first
        spec = specs[record["name"]]
        same = (
            record.get("sources") == {name: sources[name] for name in spec.sources}
            and record.get("pins") == {name: pins[name] for name in spec.pins}
            and record.get("wheels") == {name: pins["wheels"][name] for name in spec.wheels}
            and (not spec.parent or record.get("parent") in keep)
        )
        if same:
            keep.add(str(record["tag"]))
    return frozenset(keep)


def old_images(rows: Iterable[Mapping[str, Any]], keep: Collection[str]) -> list[Item]:
    """Images out of ``podman images --format json`` that no build names and no container uses; those others stand on
    come last."""
    found = []
    for row in rows:
        if not (row.get("Labels") or {}).get("asf.image") or row.get("Containers"):
            continue
        for name in row.get("Names") or ():
            if str(name).startswith(images.PREFIX) and name not in keep and _BUILDING not in str(name):
                found.append(Item("images", str(name), row.get("Size"), "no current build has this name"))
    return sorted(found, key=lambda item: (item.name.startswith(f"{images.PREFIX}base:"), item.name))


def old_downloads(names: Iterable[str], pins: Mapping[str, Any]) -> list[str]:
    """File names of wheels (``NAME-VERSION-DIGEST.whl``) whose digest is not pinned."""
    pinned = {digest[:12] for wheel in pins["wheels"].values() for digest in wheel["sha256"].values()}
    return sorted(n for n in names if n.endswith(".whl") and n[: -len(".whl")].rpartition("-")[2] not in pinned)
