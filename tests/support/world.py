# SPDX-License-Identifier: BSD-4-Clause
"""Main program of the test world. `tools/testnet` starts it in the namespace `world`: world.py PID

Binds everything, prints `ready SOCKET` on stdout and serves the control socket until the process PID ends.

Control: one JSON object per line, one answer per line, {"ok": true, …} or {"ok": false, "error": …}.
  {"do": "ping"} · {"do": "mark"} · {"do": "reset"} · {"do": "info"}
  {"do": "log" | "wait", "kind": …, "since": N, "match": {…}, "timeout": S}
  {"do": "zone", "name": …, "entry": {…} | null} · {"do": "turns", "turns": […]} · {"do": "errors", "errors": […]}
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import socketserver
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from support.authority import Authority
from support.dns_server import DnsServer, Zones
from support.providers import Scripts
from support.recorder import Recorder
from support.sites import World

Request = dict[str, Any]


class Control:
    """The commands of the control socket."""

    def __init__(self, recorder: Recorder, zones: Zones, scripts: Scripts, info: dict[str, Any]) -> None:
        self._recorder = recorder
        self._zones = zones
        self._scripts = scripts
        self._info = info

    def answer(self, line: bytes) -> dict[str, Any]:
        """Carry out one command."""
        try:
            request = json.loads(line)
            return {"ok": True, **getattr(self, "do_" + request["do"])(request)}
        except Exception as error:  # the test must see what went wrong, whatever it is
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}

    def do_ping(self, request: Request) -> dict[str, Any]:
        """Alive?"""
        del request
        return {}

    def do_info(self, request: Request) -> dict[str, Any]:
        """Where the certificate authority lies, and so on."""
        del request
        return {"info": self._info}

    def do_mark(self, request: Request) -> dict[str, Any]:
        """The number of the last event."""
        del request
        return {"mark": self._recorder.mark()}

    def do_log(self, request: Request) -> dict[str, Any]:
        """Events that were recorded."""
        return {"events": self._recorder.select(*_selection(request))}

    def do_wait(self, request: Request) -> dict[str, Any]:
        """Events, as soon as there is one."""
        return {"events": self._recorder.wait(*_selection(request), timeout=float(request.get("timeout", 5)))}

    def do_reset(self, request: Request) -> dict[str, Any]:
        """Default names and answers, empty log."""
        del request
        self._zones.reset()
        self._scripts.reset()
        self._recorder.clear()
        return {"mark": self._recorder.mark()}

    def do_zone(self, request: Request) -> dict[str, Any]:
        """Script a name."""
        self._zones.put(request["name"], request.get("entry"))
        return {}

    def do_turns(self, request: Request) -> dict[str, Any]:
        """Script the providers' turns."""
        self._scripts.set_turns(request["turns"])
        return {}

    def do_errors(self, request: Request) -> dict[str, Any]:
        """Script the providers' errors."""
        self._scripts.set_errors(request["errors"])
        return {}


def _selection(request: Request) -> tuple[str | None, int, dict[str, Any]]:
    return request.get("kind"), int(request.get("since", 0)), request.get("match") or {}


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    control: Control


class _Lines(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            for line in self.rfile:
                self.wfile.write(json.dumps(self.server.control.answer(line)).encode() + b"\n")


def _bundle(authority: Authority) -> Path:
    """The world's root and the machine's own bundle in one file, as an operator's `ca_bundle` would be.

    The path and content are the same for every world of this boot, so that nothing that digests them changes.
    """
    system = Path(os.environ.get("SSL_CERT_FILE") or "/etc/ssl/certs/ca-certificates.crt")
    text = authority.certificate.read_text()
    if system.is_file():
        text += system.read_text()
    bundle = authority.folder / "bundle.pem"
    fresh = authority.folder / f"bundle-{os.getpid()}.pem"
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.replace(bundle)
    return bundle


def _sweep(run: Path) -> None:
    """Remove the folders of worlds that were killed: their control sockets refuse."""
    for control in run.glob("asf-testworld-*/control"):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(control))
            except ConnectionRefusedError:
                shutil.rmtree(control.parent, ignore_errors=True)
            except OSError:
                continue  # it went away by itself


def _has_ipv6() -> bool:
    table = Path("/proc/net/if_inet6")
    return table.exists() and any(line.startswith("20010db8") for line in table.read_text().splitlines())


def main(pid: int) -> None:
    """Serve until process `pid` ends."""
    ended = os.pidfd_open(pid)
    run = Path(os.environ["XDG_RUNTIME_DIR"])
    _sweep(run)
    authority = Authority(run / "asf-testworld-ca")
    folder = Path(tempfile.mkdtemp(prefix="asf-testworld-", dir=run))
    try:
        recorder, zones, scripts = Recorder(), Zones(), Scripts()
        ipv6 = _has_ipv6()
        DnsServer(recorder, zones).start()
        World(recorder, scripts, authority).start(ipv6)
        info = {"ca": str(authority.certificate), "bundle": str(_bundle(authority)), "ipv6": ipv6}
        server = _Server(str(folder / "control"), _Lines)
        server.control = Control(recorder, zones, scripts, info)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"ready {folder / 'control'}", flush=True)
        sys.stdout.close()
        select.select([ended], [], [])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
