# SPDX-License-Identifier: BSD-2-Clause
"""The operator's proxy through which Caddy's tunnels go: ``network.upstream_proxy``, else ``config.yml``'s default.

The list, the port and the server name are enforced before it; names are resolved, and addresses checked, by that proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .errors import PlanError
from .topology import overlaps

MANIFEST_KEY, SETTINGS_KEY = "network.upstream_proxy", "upstream_proxy"
#: The secret's part in its Podman name, the file that Caddy reads, and the authorities for TLS to the proxy.
PART = "upstream"
CREDENTIALS_FILE, CA_FILE, CA_PATH = "/run/secrets/asf-upstream", "/asf/caddy/proxy-ca.pem", "caddy/proxy-ca.pem"
#: Where no proxy may be, whoever names it: Caddy refuses the same for a name at run time (``chainRanges`` in chain.go).
_NEVER = ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Proxy:
    """``secret`` is the variable that holds ``user:password``; ``files`` are the secrets files that may set it."""

    scheme: str
    host: str
    port: int
    secret: str | None
    files: tuple[str, ...]
    key: str

    @property
    def url(self) -> str:
        """``scheme://host:port``."""
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def literal(self) -> bool:
        """Whether the host is an IPv4 address."""
        return self.host.replace(".", "").isdigit()

    def chain(self) -> dict[str, Any]:
        """Caddy's ``chain``: where the proxy is and which files it reads."""
        out = {"url": self.url}
        if self.scheme == "https":
            out["ca_file"] = CA_FILE
        if self.secret:
            out["credentials_file"] = CREDENTIALS_FILE
        return out

    def as_dict(self) -> dict[str, Any]:
        """What plan, report and ``policy`` say of it; the credentials' value is nowhere."""
        return {"url": self.url, "key": self.key, "tls": self.scheme == "https", "secret": self.secret}

    def notice(self) -> str:
        """What the operator is told at open."""
        clear = "; its login goes there in clear" if self.secret and self.scheme == "http" else ""
        return (
            f"{self.key}: names are resolved, and the addresses behind them checked, by the proxy {self.url}, not by "
            f"ASF; the list, the ports and the server names are enforced before it{clear}"
        )


def _parse(given: Mapping[str, Any], files: Sequence[str], key: str) -> Proxy:
    parts = urlsplit(given["url"])
    port = parts.port or _PORTS[parts.scheme]
    return Proxy(parts.scheme, parts.hostname or "", port, given.get("secret"), tuple(files), key)


def chosen(
    manifest: Mapping[str, Any] | None, secrets_files: Sequence[str], settings: Mapping[str, Any] | None
) -> Proxy | None:
    """The manifest's proxy, else the operator's default, else None. Both mappings are validated."""
    if manifest is not None:
        return _parse(manifest, secrets_files, MANIFEST_KEY)
    if settings is not None:
        return _parse(settings, [settings["file"]] if "file" in settings else [], SETTINGS_KEY)
    return None


def check(proxy: Proxy, cable_range: str, uplink_range: str, own: Sequence[str]) -> None:
    """Refuse an address at which no proxy may be: loopback, the session's own ranges, this host. Raises PlanError."""
    if not proxy.literal:
        return
    address = ipaddress.IPv4Address(proxy.host)
    why = ""
    if any(address in ipaddress.IPv4Network(block) for block in _NEVER):
        why = "no proxy can be there: loopback, link-local, multicast and reserved addresses do not leave a session"
    elif overlaps(cable_range, [proxy.host]) or overlaps(uplink_range, [proxy.host]):
        why = "the address lies in the session's own ranges"
    elif proxy.host in own:
        why = "the address is this host's own, which no session reaches"
    if why:
        remedy = "name a proxy on another host (a proxy on this host is not reachable from a session)"
        raise PlanError(f"the upstream proxy: {why}", key=f"{proxy.key}.url", found=proxy.url, remedy=remedy)
