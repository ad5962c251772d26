#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""Traffic through a gateway beside the same user-mode network bare: what ``make bench-routed`` runs.

Both are containers that were only initialized, made and wired with the product's own code. Alternately, the same client
runs in the agent's namespace (cable, rules, masquerade, user-mode network) and in that of a container with nothing but
the user-mode network; the server is a process at an address of the closed network. Rounds are short and side by side,
and the ratio is the median of theirs, because other load on the machine comes and goes. ``build/bench-routed.json``.
Fails (exit code 1) when a ratio is under ``LEAST``.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asf_cli  # noqa: F401  (gives asf_lib its name in a checkout)
from asf_lib.core import containers, gateway
from asf_lib.core.topology import topology
from asf_lib.engine import hostfacts, netns, wiring
from asf_lib.engine.podman import Podman

ROOT = Path(__file__).resolve().parent.parent
SERVER = "198.51.100.1"
UPLINK = "198.18.1.0/24"
ROUNDS, SECONDS = 41, 0.3
LEAST = 0.9
_CHUNK = bytes(1 << 18)


# --- the server ------------------------------------------------------------------------------------------------


def _serve(conn: socket.socket) -> None:
    """The first byte says what the client wants: d(ownload), u(pload) or e(cho of one byte)."""
    with conn, contextlib.suppress(OSError):
        want = conn.recv(1)
        if want == b"d":
            while True:
                conn.sendall(_CHUNK)
        elif want == b"u":
            room = bytearray(1 << 18)
            while conn.recv_into(room):
                pass
        else:
            conn.sendall(want)


@contextlib.contextmanager
def served() -> Iterator[int]:
    """A process that serves; its port."""
    listener = socket.create_server((SERVER, 0), backlog=1024)
    child = os.fork()
    if child == 0:
        while True:
            threading.Thread(target=_serve, args=(listener.accept()[0],), daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        listener.close()


# --- the client, in a network namespace --------------------------------------------------------------------------


def download(port: int) -> float:
    """MB/s."""
    with socket.create_connection((SERVER, port), 5) as sock:
        sock.sendall(b"d")
        room, done = bytearray(1 << 18), 0
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            done += sock.recv_into(room)
    return done / SECONDS / 1e6


def upload(port: int) -> float:
    """MB/s."""
    with socket.create_connection((SERVER, port), 5) as sock:
        sock.sendall(b"u")
        done, end = 0, time.monotonic() + SECONDS
        while time.monotonic() < end:
            done += sock.send(_CHUNK)
    return done / SECONDS / 1e6


def connections(port: int) -> float:
    """Connections per second, one after the other, each with a byte there and back."""
    done, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        with socket.create_connection((SERVER, port), 5) as sock:
            sock.sendall(b"e")
            sock.recv(1)
        done += 1
    return done / SECONDS


FIGURES: dict[str, Callable[[int], float]] = {
    "download_mb_s": download,
    "upload_mb_s": upload,
    "connections_s": connections,
}


# --- the two networks --------------------------------------------------------------------------------------------


def _container(podman: Podman, stack: contextlib.ExitStack, name: str, network: str, image: str) -> int:
    """Pid of a container that was made and initialized; it goes with the stack."""
    stack.callback(podman.run, ["rm", "-f", "-t", "0", name], check=False)
    flags = [f"--network={network}", "--cap-drop=ALL", "--userns=nomap", "--user=10001:10001", "--read-only"]
    flags += ["--sysctl=net.ipv4.ip_forward=1", "--sysctl=net.ipv6.conf.all.disable_ipv6=1"]
    podman.run(["create", f"--name={name}", *flags, image])
    podman.run(["init", name])
    return int(podman.run(["inspect", "--format", "{{.State.Pid}}", name]).stdout)


def _networks(podman: Podman, stack: contextlib.ExitStack, image: str) -> dict[str, int]:
    """Pids by name: ``bare`` and ``agent``, in whose namespaces the client runs."""
    uplink = containers.uplink(hostfacts.for_plan(podman.version())["uplink_helper"], UPLINK)
    pids = {
        name: _container(podman, stack, f"asf-bench-{os.getpid()}-{name}", network, image)
        for name, network in (("bare", uplink), ("gateway", uplink), ("agent", "none"))
    }
    cable = topology("198.18.0.0/24").gateway
    rows = [{"cidr": f"{SERVER}/32", "protocol": "tcp", "ports": "any"}]
    # many rules more, as a long manifest has them: only the first packet of a flow meets them
    rows[:0] = [{"cidr": f"8.8.{number}.0/24", "protocol": "tcp", "ports": [443]} for number in range(100)]
    rules = gateway.rules(cable, "tap0", UPLINK.replace("0/24", "100"), ["198.18.0.0/24", UPLINK], rows)
    wires: dict[str, Any] = {"nft": [{"role": "gateway", "rules": rules}], "cables": [cable.as_dict()]}
    route = {"role": "agent", "interface": cable.near.interface, "via": cable.far.ip, "to": [f"{SERVER}/32"]}
    wiring.wire(pids, {**wires, "routes": [route]})
    return {"bare": pids["bare"], "agent": pids["agent"]}


def measure(podman: Podman, image: str) -> dict[str, dict[str, list[float]]]:
    """Rounds by figure and network."""
    found: dict[str, dict[str, list[float]]] = {name: {"bare": [], "agent": []} for name in FIGURES}
    with contextlib.ExitStack() as stack:
        pids, port = _networks(podman, stack, image), stack.enter_context(served())
        for turn in range(ROUNDS):
            for name, client in FIGURES.items():
                for where in ("bare", "agent") if turn % 2 else ("agent", "bare"):
                    found[name][where].append(netns.in_net(pids[where], lambda run=client: run(port)))
    return found


def main() -> int:
    """Measure, write and say it; 1 when a ratio is too small."""
    podman = Podman()
    images = podman.run(["images", "--format", "{{.Repository}}:{{.Tag}}"]).stdout.split()
    image = next((name for name in images if name.startswith("localhost/asf/caddy:")), None)
    if image is None:
        raise SystemExit(
            "bench: Caddy's image, which has a program to initialize a container with, is not built (make demo)"
        )
    found = measure(podman, image)
    figures = {}
    for name, rounds in found.items():
        bare, through = (statistics.median(rounds[where]) for where in ("bare", "agent"))
        ratio = statistics.median(mine / beside for mine, beside in zip(rounds["agent"], rounds["bare"], strict=True))
        figures[name] = {"bare": round(bare, 1), "gateway": round(through, 1), "ratio": round(ratio, 3)}
        print(f"{name:<15} bare {bare:9.1f}  gateway {through:9.1f}  ratio {ratio:.2f}")
    target = ROOT / "build" / "bench-routed.json"
    target.write_text(json.dumps({"figures": figures, "rounds": found, "least": LEAST}, indent=1) + "\n")
    return 1 if any(one["ratio"] < LEAST for one in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
