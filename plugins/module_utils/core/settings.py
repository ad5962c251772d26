# SPDX-License-Identifier: BSD-2-Clause
"""``config.yml`` in ASF's root: the operator's own choices, as strict as a manifest. An absent file means defaults."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import formats as form
from .errors import ManifestError
from .manifest import Limits, limits
from .manifest_schema import LIMITS
from .marked import NULL, Node
from .schema import Key, Section, Text, check

SETTINGS = Section(
    {
        "ca_bundle": Key(
            Text(form.ABSOLUTE, max_length=4096),
            "PEM file of certification authorities for builds, the broker and the workload, instead of the system's "
            "own (a network that inspects TLS needs it).",
            default_words="the system's bundle",
        ),
        "resolver": Key(
            Text(form.ADDRESS),
            "IPv4 address of the DNS resolver that Caddy asks; recorded in the plan.",
            default_words="the host's own, when it is reachable from Caddy's network",
        ),
        "limits": Key(LIMITS, "Default limits of workloads; a manifest's own come first."),
    }
)


@dataclass(frozen=True)
class Settings:
    """The operator's settings; None and empty limits where the defaults of the inventory hold."""

    file: str | None = None
    ca_bundle: str | None = None
    resolver: str | None = None
    limits: Limits = field(default_factory=Limits)


def validate(tree: Node | None, file: str) -> Settings:
    """The settings in a marked tree; an empty file is fine. Raises ManifestError with every problem."""
    if tree is None or tree.kind == NULL:
        return Settings(file)
    checked = check(SETTINGS, tree, file)
    if checked.data is not None and checked.data.get("resolver", "").startswith("127."):
        remedy = "Caddy has a network of its own: name an address that is reachable from there"
        checked.at("resolver", "a loopback address", found=checked.data["resolver"], remedy=remedy)
    if checked.problems:
        raise ManifestError(checked.problems)
    data = checked.data
    return Settings(file, data.get("ca_bundle"), data.get("resolver"), limits(data.get("limits", {})))
