# SPDX-License-Identifier: BSD-2-Clause
"""Checks of what carries a session's network: user-mode network, nftables, resolver, IPv6."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Optional

from .doctor_facts import Facts, Verdict, Version, text

#: From Podman 5 on a container's private network is pasta's; older ones pass it options that it does not know.
PASTA_FROM: Version = (5, 0)
#: ``--map-guest-addr``, without which the host answers at an alias, is as old as this (versions of passt are dates).
PASTA_MINIMUM: Version = (2024, 8, 21)
SLIRP_MINIMUM: Version = (1, 1)


def uplink_helper(programs: Mapping[str, Optional[Version]]) -> Optional[str]:
    """What gives Caddy its way out: pasta from Podman 5 on when it is new enough, else slirp4netns, else None."""
    podman, pasta, slirp = (programs.get(name) for name in ("podman", "pasta", "slirp4netns"))
    if podman and podman >= PASTA_FROM and pasta and pasta >= PASTA_MINIMUM:
        return "pasta"
    return "slirp4netns" if slirp and slirp >= SLIRP_MINIMUM else None


def uplink(facts: Facts) -> Iterator[Verdict]:
    """Check: uplink."""
    why = "Caddy's private user-mode network; nothing of the host may answer in it"
    helper = uplink_helper(facts.programs)
    if helper:
        other = "slirp4netns" if helper == "pasta" else "pasta"
        found = f"{helper} {text(facts.programs[helper])} ({other}: {text(facts.programs.get(other))})"
        yield Verdict("uplink", "ok", found, why)
        return
    found = f"slirp4netns {text(facts.programs.get('slirp4netns'))}, pasta {text(facts.programs.get('pasta'))}"
    yield Verdict(
        "uplink",
        "fail",
        found,
        why,
        "as root: `apt-get install slirp4netns` (or, with Podman 5, a pasta of at least "
        + "-".join(f"{part:02}" for part in PASTA_MINIMUM)
        + ")",
    )


def nft(facts: Facts) -> Iterator[Verdict]:
    """Check: nft."""
    why = "it loads the rules of Caddy's namespace, as JSON"
    if facts.programs.get("nft") is None:
        yield Verdict("nft", "fail", "missing", why, "as root: `apt-get install nftables`")
    elif not facts.nft_json:
        yield Verdict(
            "nft",
            "fail",
            f"{text(facts.programs['nft'])} without JSON",
            why,
            "install an nftables that is built with JSON",
        )
    else:
        yield Verdict("nft", "ok", text(facts.programs["nft"]), why)


def resolver(facts: Facts) -> Iterator[Verdict]:
    """Check: resolver."""
    why = "Caddy resolves declared names by one explicit, recorded resolver, from its own network"
    if facts.resolver:
        yield Verdict("resolver", "ok", f"{facts.resolver} (config.yml)", why)
        return
    usable = [address for address in facts.resolvers if not loopback(address) and ":" not in address]
    if usable:
        yield Verdict("resolver", "ok", f"{usable[0]} (the system's)", why)
        return
    found = f"the system's resolver is {facts.resolvers[0]}" if facts.resolvers else "the system names no resolver"
    yield Verdict(
        "resolver",
        "warn",
        found + ", which Caddy cannot reach",
        why,
        "write `resolver: ADDRESS` (an IPv4 address outside loopback) into config.yml",
    )


def loopback(address: str) -> bool:
    """True for addresses that mean the host itself."""
    return address.startswith("127.") or address in ("::1", "0.0.0.0", "::")  # noqa: S104


def ipv6(facts: Facts) -> Iterator[Verdict]:
    """Check: ipv6."""
    found = "this host has IPv6" if facts.ipv6 else "this host has no IPv6"
    yield Verdict("ipv6", "ok", found, "either works: it is switched off inside every container, and probed")
