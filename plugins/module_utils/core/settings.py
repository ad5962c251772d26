# SPDX-License-Identifier: BSD-2-Clause
"""``config.yml`` in ASF's root: the operator's own choices, as strict as a manifest. An absent file means defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import formats as form, sources
from .errors import ManifestError
from .manifest import Limits, limits
from .manifest_schema import LIMITS, PROXY_URL_WORDS
from .marked import NULL, Node
from .retention import Retention
from .schema import Checked, Key, MapOf, Number, Section, Text, check
from .sources import Source

EVIDENCE = Section(
    {
        "runs": Key(Number(0, 1_000_000), "Most runs, of all sessions together; 0: no bound.", default_words="500"),
        "days": Key(Number(0, 36_500), "Oldest, in days; 0: no bound.", default_words="180"),
        "size": Key(Text(form.SIZE), "Size of all together, such as `500m`.", default_words="4g"),
    }
)
UPSTREAM_PROXY = Section(
    {
        "url": Key(Text(form.PROXY_URL), PROXY_URL_WORDS, required=True),
        "secret": Key(Text(form.ENV_NAME), "The variable of `file` that holds its `user:password`."),
        "file": Key(Text(form.FILE_NAME, max_length=255), "The file under the secrets folder that sets it, mode 0600."),
    }
)
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
        "upstream_proxy": Key(
            UPSTREAM_PROXY, "The proxy that Caddy goes through where a manifest names none (`network.upstream_proxy`)."
        ),
        "secrets": Key(
            MapOf(form.ENV_NAME, sources.SOURCE),
            "Where a provider key comes from, by its variable, instead of a secrets file; each has one source "
            "(docs/secrets.md).",
        ),
        "limits": Key(LIMITS, "Default limits of workloads; a manifest's own come first."),
        "evidence": Key(
            EVIDENCE, "How much evidence of closed sessions is kept; the oldest goes first, at close and by prune."
        ),
    }
)


@dataclass(frozen=True)
class Settings:
    """The operator's settings; None and empty limits where the defaults of the inventory hold."""

    file: str | None = None
    ca_bundle: str | None = None
    resolver: str | None = None
    limits: Limits = field(default_factory=Limits)
    evidence: Retention = field(default_factory=Retention)
    upstream_proxy: Mapping[str, str] | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)


def validate(tree: Node | None, file: str) -> Settings:
    """The settings in a marked tree; an empty file is fine. Raises ManifestError with every problem."""
    if tree is None or tree.kind == NULL:
        return Settings(file)
    checked = check(SETTINGS, tree, file)
    if checked.data is not None and checked.data.get("resolver", "").startswith("127."):
        remedy = "Caddy has a network of its own: name an address that is reachable from there"
        checked.at("resolver", "a loopback address", found=checked.data["resolver"], remedy=remedy)
    _proxy_secret(checked)
    sources.check(checked)
    if checked.problems:
        raise ManifestError(checked.problems)
    data = checked.data
    given = data.get("evidence", {})
    return Settings(
        file,
        data.get("ca_bundle"),
        data.get("resolver"),
        limits(data.get("limits", {})),
        _retention(given),
        data.get("upstream_proxy"),
        {name: sources.of(name, source) for name, source in data.get("secrets", {}).items()},
    )


def _proxy_secret(checked: Checked) -> None:
    """A secret and the file that sets it come together."""
    proxy = (checked.data or {}).get("upstream_proxy") or {}
    for there, missing in (("secret", "file"), ("file", "secret")):
        if there in proxy and missing not in proxy and not checked.wrong(f"upstream_proxy.{missing}"):
            message = f"the key is missing: it belongs to upstream_proxy.{there}"
            checked.at(f"upstream_proxy.{missing}", message, remedy="name both, or neither")


def _retention(given: Mapping[str, Any]) -> Retention:
    usual = Retention()
    size = form.size_bytes(given["size"]) if "size" in given else usual.size
    return Retention(int(given.get("runs", usual.runs)), int(given.get("days", usual.days)), size)
