# SPDX-License-Identifier: BSD-2-Clause
"""What images ASF has, what each is made of, and the name that follows from that (pure).

An image's tag is a digest over its inputs: the pins, the files of its recipe, the settings that change its content, and
its parent's digest. Same inputs, same tag; so a tag that exists in the store needs no build, and the plan can name
every image before any exists (invariant 7). Settings that do not change an image's content (proxy, CA bundle, indexes
whose answers are checked by hash) are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .adapters import FOLDERS
from .errors import PlanError
from .roles import BROKER, CADDY, GATEWAY

PREFIX = "localhost/asf/"
#: First word of the images that manifests' ``packages`` make (``core/packages.py``), and their common recipe's source.
PACKAGES = "packages"
#: Raised when the code that builds changes what it makes from the same files.
RECIPE = 1
DIGEST_LENGTH = 12

#: Mappings of the session's containers. The first create with one copies the image (paid at build time).
KEEP_ID = "keep-id:uid=1000,gid=1000"
NOMAP = "nomap"


@dataclass(frozen=True)
class Spec:
    """One thing to build. ``kind``: ``base``, ``binary`` (a Go module's program) or ``image`` (a Containerfile).

    ``parent`` is built before; ``sources`` name folders of ``SOURCES``; ``wheels`` and ``pins`` are keys of the pins;
    ``mapping`` is the user namespace its containers get; ``check`` is run in the finished image and must end with 0.
    """

    name: str
    kind: str
    sources: tuple[str, ...]
    parent: str = ""
    wheels: tuple[str, ...] = ()
    pins: tuple[str, ...] = ()
    mapping: str = ""
    check: tuple[str, ...] = ()

    @property
    def bare(self) -> bool:
        """Whether the image is made from nothing, and so holds no program that could list what is in it."""
        return self.kind == "image" and self.parent in ("", "caddy-binary")


#: Every thing to build, parents first, in an order in which two builds at once wait little for each other.
SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec("base", "base", ("base",), pins=("base",)),
        Spec("gate", "binary", ("gate",)),
        Spec("caddy-binary", "binary", ("caddy-module",)),
        Spec(
            "litellm",
            "image",
            ("litellm",),
            parent="base",
            wheels=("pip",),
            pins=("litellm",),
            mapping=NOMAP,
            check=("python3", "-c", "import litellm.proxy.proxy_server, nacl.signing"),
        ),
        Spec(
            "agent-generic",
            "image",
            ("agent-generic", "agent"),
            parent="base",
            mapping=KEEP_ID,
            wheels=("pip",),
            pins=("openai",),
            check=("/usr/bin/python3", "-c", "import openai; print(openai.__version__)"),
        ),
        Spec(
            "agent-claude",
            "image",
            ("agent-claude", "agent"),
            parent="base",
            mapping=KEEP_ID,
            wheels=("node",),
            pins=("claude",),
            check=("claude", "--version"),
        ),
        Spec(
            "agent-codex",
            "image",
            ("agent-codex", "agent"),
            parent="base",
            mapping=KEEP_ID,
            wheels=("node",),
            pins=("codex",),
            check=("codex", "--version"),
        ),
        Spec(
            "agent-hermes",
            "image",
            ("agent-hermes", "agent"),
            parent="base",
            mapping=KEEP_ID,
            wheels=("pip",),
            pins=("hermes",),
            check=("hermes", "--version"),
        ),
        Spec("caddy", "image", ("caddy",), parent="caddy-binary", mapping=NOMAP),
        Spec("gateway", "image", ("gateway",), mapping=NOMAP),
    )
}
#: Source name -> folder below the collection's root.
SOURCES: dict[str, str] = {
    "gate": "roles/workload/files/gate",
    "caddy-module": "roles/egress_caddy/files/caddy",
    **{name: f"roles/image/files/{name}" for name in ("base", "caddy", "gateway", "litellm", "agent", PACKAGES)},
    **{f"agent-{adapter}": f"agents/{folder}/image" for adapter, folder in FOLDERS.items()},
}
ADAPTERS: tuple[str, ...] = tuple(name[len("agent-") :] for name in SPECS if name.startswith("agent-"))

_PINNED_IMAGE = re.compile(r"[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_PINS_FILE = "inventory/group_vars/all/pins.yml"


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no blanks: the form that digests are made of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


#: Image of each role but the agent's, which its adapter decides.
OF_ROLE = {CADDY: "caddy", BROKER: "litellm", GATEWAY: "gateway"}


def names_for(adapter: str, roles: Iterable[str], own: str = "") -> tuple[str, ...]:
    """What a session of this adapter and these containers runs: gate, agent image, and the image of every service.

    ``own`` is the name of the agent's own image, where it has one. Raises PlanError for an adapter without image.
    """
    if adapter not in ADAPTERS:
        raise PlanError(
            "no image exists for this adapter",
            key="adapter",
            found=str(adapter)[:80],
            remedy=f"use one of: {', '.join(ADAPTERS)}",
            code="adapter",
        )
    return ("gate", own or f"agent-{adapter}", *(OF_ROLE[role] for role in roles if role in OF_ROLE))


def agent_image(names: Iterable[str]) -> str:
    """The agent's among the images of a session."""
    return next(name for name in names if name.startswith(("agent-", f"{PACKAGES}-")))


def order(names: Iterable[str], specs: Mapping[str, Spec] = SPECS) -> tuple[str, ...]:
    """The names with all they are built on, parents first. Raises PlanError for an unknown name."""
    wanted: set[str] = set()
    for name in names:
        while name:
            if name not in specs:
                raise PlanError(
                    "no such image",
                    key="images",
                    found=str(name)[:80],
                    remedy=f"use: {', '.join(specs)}",
                    code="image-unknown",
                )
            wanted.add(name)
            name = specs[name].parent
    return tuple(name for name in specs if name in wanted)


def tags(
    pins: Mapping[str, Any],
    sources: Mapping[str, str],
    *,
    base_image: str = "",
    mirror: str = "",
    specs: Mapping[str, Spec] = SPECS,
) -> dict[str, str]:
    """Name of every thing to build: ``localhost/asf/NAME:DIGEST`` for images, ``NAME-DIGEST`` for binaries.

    ``sources`` holds a hex digest per source (``engine.images.source_digests``). ``base_image`` (a
    registry image by digest) replaces the distribution's packages; ``mirror`` is where those come from (empty: the
    tool's default). Raises PlanError when the pins are wrong.
    """
    checked(pins)
    if base_image and not _PINNED_IMAGE.match(base_image):
        raise PlanError(
            "the base image is not named by digest",
            key="asf_image_base_image",
            found=base_image[:200],
            remedy="write it as HOST/NAME@sha256:DIGEST",
            code="base-image",
        )
    digests: dict[str, str] = {}
    for spec in specs.values():
        digests[spec.name] = _digest(spec, pins, sources, digests, base_image, mirror)
    return {
        name: f"{_file_name(name)}-{digest}" if specs[name].kind == "binary" else f"{repository(name)}:{digest}"
        for name, digest in digests.items()
    }


def repository(name: str) -> str:
    """Where images of this name are tagged. An agent's name may hold what a reference may not (a ``-`` at its end)."""
    return PREFIX + re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _file_name(name: str) -> str:
    return name[: -len("-binary")] if name.endswith("-binary") else name


def _digest(
    spec: Spec,
    pins: Mapping[str, Any],
    sources: Mapping[str, str],
    parents: Mapping[str, str],
    base_image: str,
    mirror: str,
) -> str:
    inputs: dict[str, Any] = {
        "recipe": RECIPE,
        "name": spec.name,
        "sources": {name: sources[name] for name in spec.sources},
        "parent": parents.get(spec.parent, ""),
        "pins": {name: pins[name] for name in spec.pins},
        "wheels": {name: pins["wheels"][name] for name in spec.wheels},
    }
    if spec.kind == "base":
        inputs["pins"] = {} if base_image else inputs["pins"]
        inputs["from"] = base_image or mirror
    return hashlib.sha256(canonical(inputs)).hexdigest()[:DIGEST_LENGTH]


def digest_of(tag: str) -> str:
    """The digest at the end of a tag or a binary's name."""
    return re.split(r"[:-]", tag)[-1]


def record_name(name: str, tag: str) -> str:
    """File name of the record of what went into it."""
    return f"{name}-{digest_of(tag)}.json"


def wheel_hash(pins: Mapping[str, Any], wheel: str, machine: str) -> str:
    """sha256 (hex) of a pinned wheel for this kind of machine. Raises PlanError when there is none."""
    hashes = pins["wheels"][wheel]["sha256"]
    found = hashes.get("any") or hashes.get(machine)
    if not found:
        raise PlanError(
            f"no hash is pinned for {machine}",
            file=_PINS_FILE,
            key=f"asf_image_pins.wheels.{wheel}.sha256",
            remedy=f"add one for {machine}, from a source that you trust",
            code="pins",
        )
    return str(found)


def checked(pins: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pins, when they have the shape that builds need. Raises PlanError naming the first key that is wrong."""
    base = _mapping(pins, "", "base")
    _text(base, "base", "suite")
    if not isinstance(base.get("revision"), int) or isinstance(base.get("revision"), bool):
        raise _wrong("base.revision", base.get("revision"), "write a whole number")
    packages = base.get("packages")
    if not isinstance(packages, list) or not packages or not all(_plain(word) for word in packages):
        raise _wrong("base.packages", packages, "write a list of package names")
    for name in ("litellm", "claude", "codex", "hermes", "openai"):
        _text(pins, "", name)
    wheels = _mapping(pins, "", "wheels")
    for name in ("pip", "node", "go"):
        wheel = _mapping(wheels, "wheels", name)
        _text(wheel, f"wheels.{name}", "package")
        _text(wheel, f"wheels.{name}", "version")
        for machine, value in _mapping(wheel, f"wheels.{name}", "sha256").items():
            if not isinstance(value, str) or not _SHA256.match(value):
                raise _wrong(f"wheels.{name}.sha256.{machine}", value, "write 64 lower-case hexadecimal digits")
    return pins


def _plain(word: Any) -> bool:
    """A word for a command line: no option, no blank, no list separator, no trailing ``-`` (apt would remove it)."""
    return isinstance(word, str) and re.match(r"[A-Za-z0-9](?:[A-Za-z0-9.+:~_-]*[A-Za-z0-9.+])?\Z", word) is not None


def _path(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _mapping(parent: Mapping[str, Any], prefix: str, key: str) -> Mapping[str, Any]:
    value = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(value, Mapping) or not value:
        raise _wrong(_path(prefix, key), value, "write a mapping")
    return value


def _text(parent: Mapping[str, Any], prefix: str, key: str) -> str:
    value = parent.get(key)
    if not _plain(value):
        raise _wrong(_path(prefix, key), value, "write one plain word, in quotes when it looks like a number")
    return str(value)


def _wrong(key: str, found: Any, remedy: str) -> PlanError:
    return PlanError(
        "missing" if found is None else "not usable",
        file=_PINS_FILE,
        key=f"asf_image_pins.{key}",
        found=None if found is None else repr(found)[:120],
        remedy=remedy,
        code="pins",
    )
