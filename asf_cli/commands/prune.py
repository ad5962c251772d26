# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play prune``: remove images, caches and run folders that nothing needs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import asking, document, errors, paths, render

if TYPE_CHECKING:
    from asf_lib.core.pruning import Item
    from asf_lib.engine.build_host import Host
    from asf_lib.engine.home import Home

EXAMPLES = """\
  asf-play prune --dry-run
  asf-play prune                       shows it, asks, removes it
  asf-play prune --only images --yes
  asf-play prune --yes --json
"""
_PINS = "inventory/group_vars/all/pins.yml"
_KINDS = ("images", "binaries", "downloads", "builds", "environments", "runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "--only", action="append", choices=_KINDS, default=[], metavar="KIND", help=f"only these: {', '.join(_KINDS)}"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="show what would be removed")
    parser.add_argument("-y", "--yes", action="store_true", help="remove it without asking")
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Show what nothing needs, ask, remove it. 224 when something could not be removed."""
    from asf_lib.engine import pruning

    host = _workshop(paths.content())
    others = [repo for repo in pruning.clones(host.cache) if repo.resolve() != paths.content().resolve()]
    others = [repo for repo in others if (repo / _PINS).is_file()]  # what set-up mounted may be gone from its place
    found = pruning.find([host, *map(_workshop, others)], request.only or _KINDS)
    style = render.style(sys.stdout, os.environ)
    if not request.json:
        print("\n".join(_table(found, style)))
    wanted = bool(found) and not request.dry_run
    if wanted and not request.yes:
        asking.terminal(request.json, "removes images and caches", "--yes, or --dry-run to look")
        wanted = asking.yes(f"remove these {len(found)}?")
    gone, kept = pruning.remove(host, found) if wanted else ([], [])
    if request.json:
        print(document.dump(_document(found, gone, kept)))
    elif wanted:
        print("\n".join([*(render.safe(line, 400) for line in kept), f"removed {len(gone)} of {len(found)}"]))
    return errors.CLEANUP if kept else errors.OK


def _workshop(content: Path) -> Host:
    """The workshop of a collection: its sources, pins and build settings say which images are current."""
    import yaml

    from asf_lib.engine import home as homes, images

    with open(content / _PINS, encoding="utf-8") as handle:
        known = yaml.safe_load(handle)
    options = images.Options.of(content.resolve(), known.get("asf_image_options") or {})
    return images.workshop(options, known["asf_image_pins"], packages=homes.all_packages(_home(content)))


def _home(content: Path) -> Home:
    """The root whose agents this collection opens."""
    from asf_lib.engine import home as homes

    own = content if (content / "pyproject.toml").is_file() else None
    return homes.resolve(own_checkout=own, shipped=content / "agents")


def _table(found: Sequence[Item], style: render.Style) -> list[str]:
    from asf_lib.core.statevolumes import size

    if not found:
        return ["nothing to remove: all of it is needed"]
    rows = [(item.kind, size(item.bytes), item.name, item.why) for item in found]
    total = size(sum(item.bytes or 0 for item in found))
    shared = " (images count layers that they share)" if any(item.kind == "images" for item in found) else ""
    return [*render.table(("kind", "size", "name", "why"), rows, style), f"{len(found)} things, up to {total}{shared}"]


def _document(found: Sequence[Item], gone: Sequence[Item], kept: Sequence[str]) -> dict[str, Any]:
    return {
        "ok": not kept,
        "found": [item.as_dict() for item in found],
        "removed": [item.name for item in gone],
        "kept": list(kept),
    }
