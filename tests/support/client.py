# SPDX-License-Identifier: BSD-4-Clause
"""The tests' end of the test world: what it saw, and what it shall answer."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

from support import addresses, probe_tools

VARIABLE = "ASF_TEST_WORLD"
Event = dict[str, Any]


class WorldError(RuntimeError):
    """The world refused a command, or is gone."""


class World:
    """One test world. Events are dicts; their fields are described in dns_server, sites and providers.

    All readers take `since`, a number from `mark()`, and field values to match. With `timeout` (seconds) they wait
    until there is at least one matching event, and return an empty list when none came.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        answer = self._ask(do="info")["info"]
        self.ca = Path(answer["ca"])
        #: the world's root and the machine's own authorities: what an operator would name as `ca_bundle`
        self.bundle = Path(answer["bundle"])
        self.ipv6: bool = answer["ipv6"]

    @classmethod
    def from_environment(cls) -> World | None:
        """The world of this testnet, or None outside of one."""
        path = os.environ.get(VARIABLE)
        return cls(path) if path else None

    def _ask(self, patience: float = 10, **request: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(patience)
            try:
                control.connect(self._path)
                control.sendall(json.dumps(request).encode() + b"\n")
                line = control.makefile("rb").readline()
            except OSError as error:
                raise WorldError(f"the test world at {self._path} does not answer: {error}") from error
        answer: dict[str, Any] = json.loads(line or b'{"ok": false, "error": "no answer"}')
        if not answer["ok"]:
            raise WorldError(answer["error"])
        return answer

    # ---- what was seen

    def settle(self) -> None:
        """Return when everything that was dialled or asked before this call is recorded: call it before claiming that
        nothing was. It knocks at every listener itself and waits until that is seen.
        """
        mark = self.mark()
        ports = [*addresses.TLS_PORTS, *addresses.HTTP_PORTS, *addresses.BANNER_PORTS, 7]  # 7: the catch-all
        for port in ports:
            with socket.create_connection((addresses.ROUTER, port), 30):
                pass
            assert self.events("barrier", mark, timeout=30, port=port), f"the listener for port {port} is stuck"
        name = f"settle-{mark}.invalid"
        probe_tools.dns(addresses.RESOLVER, name)
        assert self.dns_queries(mark, timeout=30, name=name), "the resolver is stuck"

    def mark(self) -> int:
        """Number of the last event so far."""
        return int(self._ask(do="mark")["mark"])

    def events(
        self, kind: str | None = None, since: int = 0, timeout: float | None = None, **match: Any
    ) -> list[Event]:
        """Events of one kind, or of all."""
        request: dict[str, Any] = {"kind": kind, "since": since, "match": match}
        if timeout is None:
            return list(self._ask(do="log", **request)["events"])
        return list(self._ask(patience=timeout + 10, do="wait", timeout=timeout, **request)["events"])

    def dns_queries(self, since: int = 0, timeout: float | None = None, **match: Any) -> list[Event]:
        """DNS queries, whichever server address was asked: name, type, server, transport, peer, rcode."""
        return self.events("dns", since, timeout, **match)

    def dns_names(self, since: int = 0) -> set[str]:
        """All names that were asked for."""
        names = {str(event["name"]) for event in self.dns_queries(since)}
        return {name for name in names if not name.startswith("settle-")}

    def accepts(self, since: int = 0, timeout: float | None = None, **match: Any) -> list[Event]:
        """TCP connections: address and port that were dialled, peer, canary (nobody may ever dial that address)."""
        return self.events("accept", since, timeout, **match)

    def canaries(self, since: int = 0) -> list[Event]:
        """Connections and datagrams to addresses that no test expects to be dialled. Settles first."""
        self.settle()
        return self.events(None, since, canary=True)

    def handshakes(self, since: int = 0, timeout: float | None = None, **match: Any) -> list[Event]:
        """Completed TLS handshakes: address, port, sni."""
        return self.events("tls", since, timeout, **match)

    def http_requests(self, since: int = 0, timeout: float | None = None, **match: Any) -> list[Event]:
        """HTTP requests to sites: method, host, path, headers."""
        return self.events("http", since, timeout, **match)

    def provider_requests(self, since: int = 0, timeout: float | None = None, **match: Any) -> list[Event]:
        """Requests to providers: method, path, headers, key, body, model, stream, tools, answer."""
        return self.events("provider", since, timeout, **match)

    # ---- what it shall answer

    def reset(self) -> None:
        """Default names and answers, empty log."""
        self._ask(do="reset")

    def zone(self, name: str, **entry: Any) -> None:
        """Script a name: A=[…], AAAA=[…], CNAME=…, rcode=…, silent=True, delay=S, rotate=[…], sequence=[…]."""
        self._ask(do="zone", name=name, entry=entry)

    def forget(self, name: str) -> None:
        """Remove a name."""
        self._ask(do="zone", name=name, entry=None)

    def script(self, *turns: dict[str, Any]) -> None:
        """Script the providers: turns {"text": …} or {"tool": NAME, "input": {…}}; the last one repeats."""
        self._ask(do="turns", turns=list(turns))

    def provider_errors(self, *errors: dict[str, Any]) -> None:
        """Errors for the next requests: {"status": 401, "message": "… {key} …", "count": N}; no count: for ever."""
        self._ask(do="errors", errors=list(errors))
