# SPDX-License-Identifier: BSD-2-Clause
"""The forms that text in a manifest, a grant or ``config.yml`` may have, each with a diagnosis of the usual mistakes.

The patterns are written for Python's ``re`` and ECMAScript alike: they also go into the JSON Schema.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from . import hosted
from .decisions import DENIED_NAME
from .schema import Format

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_PORT = r"(?::[1-9][0-9]{0,4})?"

#: Less than this runs no program; more is a slip of the keyboard. Bytes, and seconds.
SMALLEST_SIZE, LARGEST_SIZE = 16 << 20, 1024 << 40
LONGEST_DURATION = 3650 * 86400

#: The special-range networks that `private` may name (RFC 6890; loopback, multicast and "this host" never).
SPECIAL = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "240.0.0.0/4",
    )
)


#: Stands for every public address in a routed rule; special-purpose ranges are not among them.
INTERNET = "internet"

#: What a routed rule may not meet, and why: no user-mode network carries it, or it means the host itself.
NEVER_ROUTED = {
    "0.0.0.0/8": "this network",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local space, where the engine's aliases of the host and cloud metadata lie",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved space with the broadcast address",
}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        # Spellings that resolvers read as IPv4: 127.1, 0x7f.1, 2130706433.
        return re.fullmatch(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*", text.lower()) is not None
    return True


def diagnose_host(text: str) -> str | None:
    """Why a text is no exact host name, or None where the pattern alone decides."""
    if "://" in text:
        return "a host name belongs here, not a URL"
    if _is_address(text):
        return "a host name belongs here, not an address: addresses are never allowed by name"
    if "*" in text:
        return "wildcards are not allowed: name every host"
    if text != text.lower():
        return "a host name is written in lower case"
    if re.search(r":[0-9]*\Z", text):
        return "a port does not belong in the name: use the mapping form with `ports`"
    if "/" in text:
        return "a path does not belong in the name"
    if text.startswith(".") or text.endswith("."):
        return "a leading or trailing dot does not belong in the name"
    if len(text) > 253:
        return "a host name has at most 253 characters"
    if re.fullmatch(_LABEL, text):
        return "a single label is no host on the internet: write the full name"
    if text == DENIED_NAME or text.endswith(".localhost"):
        return "this name is reserved"
    return None


def diagnose_cidr(text: str) -> str | None:
    """Why a text is no IPv4 network, or None."""
    if ":" in text:
        return "ASF has no IPv6 path: only IPv4 networks are declared"
    try:
        ipaddress.IPv4Network(text)
    except ValueError as exc:
        if "host bits" in str(exc):
            return f"host bits are set; the network is {ipaddress.IPv4Network(text, strict=False)}"
        return "this is not an IPv4 network such as 10.1.0.0/16"
    return None if "/" in text else f"write the prefix length: {text}/32"


def _public() -> tuple[ipaddress.IPv4Network, ...]:
    """All of IPv4 without the special-purpose ranges and what is never routed: what ``internet`` stands for."""
    left = [ipaddress.IPv4Network("0.0.0.0/0")]
    for gap in [*SPECIAL, *map(ipaddress.IPv4Network, NEVER_ROUTED)]:
        parts = [list(net.address_exclude(gap)) if gap.subnet_of(net) else [net] for net in left]
        left = [net for part in parts for net in part if not net.subnet_of(gap)]
    return tuple(sorted(left))


PUBLIC = _public()


def destinations(text: str) -> tuple[ipaddress.IPv4Network, ...]:
    """The networks that a text of form DESTINATION stands for."""
    return PUBLIC if text == INTERNET else (ipaddress.IPv4Network(text),)


def never_routed(cidr: str) -> str | None:
    """Why no routed rule may meet this network, or None."""
    network = ipaddress.IPv4Network(cidr)
    for never, why in NEVER_ROUTED.items():
        if network.overlaps(ipaddress.IPv4Network(never)):
            return f"{why} ({never}) is never reached in routed mode"
    return None


def diagnose_destination(text: str) -> str | None:
    """Why a text is no destination of a routed rule, or None."""
    if text == INTERNET:
        return None
    if text == "0.0.0.0/0":
        return f"this is every address: write {INTERNET} if all public addresses are meant"
    wrong = diagnose_cidr(text)
    if wrong is not None:
        return wrong
    if (never := never_routed(text)) is not None:
        return never
    network = ipaddress.IPv4Network(text)
    covered = [str(special) for special in SPECIAL if special.subnet_of(network) and special != network]
    if covered:
        return f"it covers the special-purpose range {covered[0]} without naming it: declare that range by itself"
    return None


def is_special(network: ipaddress.IPv4Network) -> bool:
    """Whether a network lies in one special-purpose range."""
    return any(network.subnet_of(special) for special in SPECIAL)


def diagnose_private(text: str) -> str | None:
    """Why a text is no network of a special range, or None."""
    wrong = diagnose_cidr(text)
    if wrong is None and not is_special(ipaddress.IPv4Network(text)):
        wrong = "this is not inside one special-purpose range, such as 10.0.0.0/8: public addresses need no exception"
    return wrong


def _diagnose_url(text: str, schemes: tuple[str, ...], addresses: bool = False) -> str | None:
    if re.match(r"[^/?#]*(?://)?[^/?#]*@", text):
        return "credentials do not belong in a URL: use a secret"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        return "the port is out of range" if "ort" in str(exc) else "this is not a URL"
    if parts.scheme not in schemes:
        return f"the URL must begin with {' or '.join(scheme + '://' for scheme in schemes)}"
    if parts.query or parts.fragment or "?" in text or "#" in text:
        return "a query or fragment does not belong in the URL"
    if port is not None and not 0 < port < 65536:
        return "the port is out of range"
    host = parts.hostname or ""
    if host != parts.netloc.rsplit(":", 1)[0]:
        return "the host is written in lower case, without brackets"
    if addresses and re.fullmatch(_IPV4, host):
        return None
    return diagnose_host(host)


def diagnose_base_url(text: str) -> str | None:
    """Why a text is no provider URL, or None."""
    return _diagnose_url(text, ("https",))


def diagnose_proxy_url(text: str) -> str | None:
    """Why a text is no proxy URL, or None."""
    wrong = _diagnose_url(text, ("http", "https"), addresses=True)
    if wrong is None and urlsplit(text).path not in ("", "/"):
        return "a path does not belong in the URL"
    return wrong


def diagnose_target(text: str) -> str | None:
    """Why a text is no place below the agent's home, or None."""
    if any(part in (".", "..") for part in text.split("/")):
        return "`.` and `..` are not resolved: write the place itself"
    if text.rstrip("/") == "/home/node":
        return "the home itself is a fresh tmpfs in every session: name a folder or file below it"
    if not text.startswith("/home/node/"):
        return "the place must lie below the agent's home, /home/node"
    return None


def diagnose_size(text: str) -> str | None:
    """Why a size is out of bounds, or None."""
    if re.fullmatch(SIZE.pattern, text) is None or SMALLEST_SIZE <= size_bytes(text) <= LARGEST_SIZE:
        return None
    return "a size from 16m to 1024t belongs here"


def diagnose_duration(text: str) -> str | None:
    """Why a duration is out of bounds, or None."""
    if re.fullmatch(DURATION.pattern, text) is None or duration_seconds(text) <= LONGEST_DURATION:
        return None
    return "a duration of at most 3650d belongs here"


def diagnose_env_name(text: str) -> str | None:
    """Why a text is no variable name, or None."""
    return "a variable name has no `=`" if "=" in text else None


NAME = Format("name", "^[a-z0-9][a-z0-9_-]{0,62}$", "lower-case letters, digits, `-` and `_` (at most 63)")
HOST = Format(
    "host", rf"^(?=.{{1,253}}$){_HOST}$", "an exact host name in lower case, such as docs.example.com", diagnose_host
)
CIDR = Format("cidr", rf"^{_IPV4}/(?:3[0-2]|[12]?[0-9])$", "an IPv4 network such as 10.1.0.0/16", diagnose_cidr)
DESTINATION = Format(
    "destination",
    rf"^(?:{INTERNET}|{_IPV4}/(?:3[0-2]|[12]?[0-9]))$",
    f"an IPv4 network such as 10.1.0.0/16, or {INTERNET} (all public addresses)",
    diagnose_destination,
    "write the network as ADDRESS/LENGTH; special-purpose ranges each by themselves",
)
PRIVATE = Format("private", CIDR.pattern, "an IPv4 network inside one special-purpose range", diagnose_private)
ADDRESS = Format("address", f"^{_IPV4}$", "an IPv4 address")
ENV_NAME = Format("env-name", "^[A-Za-z_][A-Za-z0-9_]*$", "a variable name (letters, digits, `_`)", diagnose_env_name)
PROVIDER = Format("provider", "^[a-z][a-z0-9_-]*$", "LiteLLM's word for a provider, such as anthropic")
HOSTED = Format(
    "hosted-tool",
    "^[a-z][a-z0-9]*(?:_[a-z0-9]+)*$",
    "a word of docs/front.md, or a type as the provider's API spells it",
    hosted.wrong,
    f"the words: {', '.join(hosted.WORDS)}",
)
MODEL = Format(
    "model",
    r"^[A-Za-z0-9._:/@+~\[\]*-]+$",
    "a model's name: letters, digits and any of . _ : / @ + ~ [ ] -, and * for any characters",
)
FILE_NAME = Format("file-name", "^[A-Za-z0-9_][A-Za-z0-9._-]*$", "a file name without folders")
TARGET = Format(
    "target",
    r"^/home/node(?:/(?!\.{1,2}(?:/|$))[A-Za-z0-9._@+-]+)+$",
    "a path below /home/node of letters, digits and `._@+-`",
    diagnose_target,
)
BASE_URL = Format(
    "base-url", rf"^https://{_HOST}{_PORT}(?:/[^?#\s]*)?$", "an https URL of a named host", diagnose_base_url
)
PROXY_URL = Format(
    "proxy-url",
    rf"^https?://(?:{_HOST}|{_IPV4}){_PORT}/?$",
    "http:// or https://, a host name or IPv4 address, and a port",
    diagnose_proxy_url,
)
SIZE = Format(
    "size", "^[1-9][0-9]{0,11}[kmgtKMGT](?:i?[bB])?$", "a size such as 512m or 8g (powers of 1024)", diagnose_size
)
DURATION = Format("duration", "^[1-9][0-9]{0,8}[smhd]$", "a duration such as 90s, 30m, 8h or 2d", diagnose_duration)
# A name that ends in ``-`` would be one to remove (apt-get(8)).
APT = Format(
    "apt-package",
    "^[a-z0-9][a-z0-9+.-]*[a-z0-9+.](?:=[A-Za-z0-9.+:~-]+)?$",
    "a Debian package, `name` or `name=version`",
)
NPM = Format(
    "npm-package", r"^(?:@[a-z0-9~-][a-z0-9._~-]*/)?[a-z0-9~-][a-z0-9._~-]*$", "an npm package, `name` or `@scope/name`"
)
ANY_KEY = Format("key", "^[\\s\\S]{1,200}$", "any text")
ABSOLUTE = Format("absolute-path", "^/[^\\x00]*$", "an absolute path")


def size_bytes(text: str) -> int:
    """Bytes in a text of form SIZE."""
    digits = re.match("[0-9]+", text)
    if digits is None:
        raise ValueError(f"not a size: {text}")
    return int(digits.group()) << 10 * ("kmgt".index(text[digits.end()].lower()) + 1)


def duration_seconds(text: str) -> int:
    """Seconds in a text of form DURATION."""
    return int(text[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[text[-1]]
