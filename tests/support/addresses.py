# SPDX-License-Identifier: BSD-4-Clause
"""Addresses and default names of the test network. `tools/testnet` sets the same addresses up: keep the two together.

Only documentation ranges (RFC 5737, RFC 3849) and special-purpose addresses occur. Nothing here can be reached from, or
reach, a real network: both namespaces have one veth pair between them and no other link.
"""

from __future__ import annotations

from typing import Any

HOST = "198.51.100.1"  # the operator's host, `closed`
HOST_PUBLIC = "198.51.100.2"  # a second address of that host: stands for its public one
HOST_V6 = "2001:db8::1"
SITE = "198.51.100.10"
REFUSES = "198.51.100.11"  # answers every TCP connection with a reset
BLACKHOLE = "198.51.100.12"  # never answers
PROVIDER = "198.51.100.20"
CORPORATE = "198.51.100.21"  # a self-hosted or company provider
CHATGPT = "198.51.100.22"  # where Codex logs in with an account, and the model that such a login opens (chatgpt.py)
RESOLVER = "198.51.100.53"
ROUTER = "198.51.100.254"  # the world's own end, default route of `closed`
SITE_V6 = "2001:db8::10"

METADATA = "169.254.169.254"
PRIVATE = "10.9.9.9"
SHARED = "100.64.0.9"

PROVIDERS = (PROVIDER, CORPORATE)
# Addresses where traffic is expected. A TCP connection to any other address is recorded with `canary: true`.
EXPECTED = (SITE, REFUSES, BLACKHOLE, PROVIDER, CORPORATE, CHATGPT, RESOLVER, SITE_V6)

TLS_PORTS = (443, 8443)
HTTP_PORTS = (80, 8000)
PROXY_PORTS = {3128: "proxy", 3129: "secure-proxy"}  # an operator's own, proxy.example.com: plain, and over TLS
BANNER_PORTS = {22: b"SSH-2.0-testworld\r\n", 5432: b"", 25: b"220 testworld\r\n"}
CATCH_ALL_PORT = 1  # nft in `world` redirects all other TCP ports here
CATCH_ALL_UDP_PORTS = (443, 123, 1)

Zone = dict[str, Any]


def default_zones() -> dict[str, Zone]:
    """Names that every test may rely on. `*.` stands for any one or more labels; the exact name wins.

    Keys of an entry: A, AAAA (lists), CNAME, rcode (NXDOMAIN, SERVFAIL, REFUSED), silent (no answer at all), delay
    (seconds), sequence (list of entries, one per query of an address type, the last one repeats) or rotate (the same,
    starting again).
    """
    site = {"A": [SITE]}
    return {
        "*.example.com": site,
        "*.example.test": site,
        "*.canary.test": site,
        "api.anthropic.com": {"A": [PROVIDER]},
        "api.openai.com": {"A": [PROVIDER]},
        # where Claude Code logs in, and what it may ask besides (tests/support/logins.py)
        "platform.claude.com": {"A": [PROVIDER]},
        "claude.ai": {"A": [PROVIDER]},
        "claude.com": {"A": [PROVIDER]},
        "auth.openai.com": {"A": [CHATGPT]},
        "chatgpt.com": {"A": [CHATGPT]},
        "provider.example.com": {"A": [PROVIDER]},
        "selfhosted.example.com": {"A": [CORPORATE]},
        "refused.example.com": {"A": [REFUSES]},
        "blackhole.example.com": {"A": [BLACKHOLE]},
        "metadata.example.com": {"A": [METADATA]},
        "private.example.com": {"A": [PRIVATE]},
        "shared.example.com": {"A": [SHARED]},
        "loopback.example.com": {"A": ["127.0.0.1"]},
        "thishost.example.com": {"A": [HOST_PUBLIC]},
        "multicast.example.com": {"A": ["224.0.0.251"]},
        "mapped.example.com": {"AAAA": ["::ffff:10.9.9.9"]},
        "nat64.example.com": {"AAAA": ["64:ff9b::a09:909"]},
        "sixtofour.example.com": {"AAAA": ["2002:a09:909::1"]},
        "ula.example.com": {"AAAA": ["fd00::9"]},
        "dual.example.com": {"A": [SITE], "AAAA": [SITE_V6]},
        "v6only.example.com": {"AAAA": [SITE_V6]},
        "cname.example.com": {"CNAME": "docs.example.com"},
        "cname-metadata.example.com": {"CNAME": "metadata.example.com"},
        "mixed.example.com": {"A": [PRIVATE, SITE]},
        "rebind.example.com": {"rotate": [{"A": [SITE]}, {"A": [METADATA]}]},
        "nx.example.com": {"rcode": "NXDOMAIN"},
        "servfail.example.com": {"rcode": "SERVFAIL"},
        "silent.example.com": {"silent": True},
    }
