#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""What LiteLLM adds to a request, for scale: the second part of ``make bench-front``.

A session whose broker answers by itself (the embedded model), so what an agent waits for is front and LiteLLM alone.
The front's own share is in the same file, measured without containers. Adds ``litellm`` to ``build/bench-front.json``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import Bench

FILE = Path(__file__).resolve().parent.parent / "build" / "bench-front.json"
AGENT = "bench-broker"

# Runs in the agent: one connection, requests one after the other.
_CLIENT = r"""
import http.client, json, os, statistics, time
token = os.environ["OPENAI_API_KEY"]
def ask(connection, size, stream):
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "some words " * (size // 11)}]}
    began = time.perf_counter()
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read(1)
    first = time.perf_counter() - began
    answer.read()
    assert answer.status == 200, answer.status
    return 1000 * first, 1000 * (time.perf_counter() - began)
connection, out = http.client.HTTPConnection("front", 4000), {}
for name, size, stream in (("small", 10, False), ("100_kb", 100000, False), ("small_streamed", 10, True)):
    times = [ask(connection, size, stream) for _ in range(60)][10:]
    first, whole = (round(statistics.median(column), 2) for column in zip(*times))
    out[name] = {"first_byte_ms_p50": first, "whole_ms_p50": whole}
print(json.dumps(out))
"""


def measure(bench: Bench) -> dict[str, Any]:
    """Medians in milliseconds by kind of request, through front and LiteLLM."""
    bench.play("open.yml", AGENT)
    try:
        words = [sys.executable, "-P", "-m", "asf_cli", "exec", "-e", f"agent={AGENT}", "--", "python3", "-"]
        done = subprocess.run(words, env=bench.env, input=_CLIENT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"bench: the client failed: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    finally:
        bench.play("close.yml", AGENT)


def main() -> int:
    """Measure, add to the file and print."""
    base = Path(tempfile.mkdtemp(prefix="asf-bench-", dir=Path.home()))
    try:
        found = measure(Bench(base))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    document = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    FILE.write_text(json.dumps({**document, "litellm": found}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
