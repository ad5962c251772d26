# SPDX-License-Identifier: BSD-2-Clause
"""The authorities that TLS to the operator's proxy is checked with: Caddy's image has none of its own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Optional, Sequence, Tuple

from ..core.errors import HostError
from ..core.upstream import Proxy

#: Bundles of Debian and Alpine, Red Hat, SUSE.
PLACES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")


def found(proxy: Optional[Proxy], ca_bundle: Optional[str], places: Sequence[str] = PLACES) -> Tuple[str, str]:
    """``(file, SHA-256)`` of the operator's bundle, else of the system's; empty without TLS to a proxy.

    Raises HostError where there is none that can be read.
    """
    if proxy is None or proxy.scheme != "https":
        return "", ""
    for place in [ca_bundle] if ca_bundle else places:
        try:
            return place, hashlib.sha256(Path(place).read_bytes()).hexdigest()
        except OSError:
            continue
    raise HostError(
        "no bundle of certification authorities can be read, so TLS to the upstream proxy cannot be checked",
        file=ca_bundle or places[0],
        key="ca_bundle",
        remedy="name a PEM file that this account can read in config.yml: ca_bundle",
    )
