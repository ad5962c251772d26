# SPDX-License-Identifier: BSD-4-Clause
"""Record what a client sends to its model: `python3 tests/clients/record.py OUT CMD...`, from the clone's root.

CMD runs in a new home with the file a.txt, OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL lead it to the scripted
provider, which asks for the turns in the file $TURNS and ends with "all done"; with NO_STREAM it refuses to stream.
OUT gets the first and the last request to each route, in the form of the front's testdata: texts cut short, no keys,
two tools of many. All requests are told on stderr, with those that are no inference ("stray").
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import providers

#: headers that tell of the machine or hold the key
DROPPED = {"authorization", "x-api-key", "host", "content-length", "connection", "x-stainless-arch", "x-stainless-os"}
LONGEST = 80
#: what the clients' examples are asked for: read, edit, run
TURNS: list[dict[str, Any]] = [
    {"tool": "read_file", "input": {"path": "a.txt"}},
    {"tool": "edit_file", "input": {"path": "a.txt", "old": "one", "new": "two"}},
    {"tool": "run_command", "input": {"command": "cat a.txt"}},
]
Row = dict[str, Any]


class Recorder:
    """Keeps the requests in the order they came."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, kind: str, **told: Any) -> None:
        """What the provider's handler calls for each request."""
        line = f"{told['method']} {told['path']}"
        self.rows.append({"line": line, "headers": told["headers"], "body": told["body"], "answer": told["answer"]})


class Handler(providers.ProviderHandler):
    """The scripted provider, which can also be one that does not stream."""

    def _infer(self, body: Row, *forms: Any) -> None:
        if body.get("stream") and "NO_STREAM" in os.environ:
            return self._fail(body, {"status": 501, "message": "stream is not supported"})
        return super()._infer(body, *forms)


def cut(value: Any, key: str = "") -> Any:
    """The value with its texts cut short; arguments of tools stay JSON."""
    if isinstance(value, dict):
        return {name: cut(held, name) for name, held in value.items()}
    if isinstance(value, list):
        return [cut(held, key) for held in value]
    if isinstance(value, str):
        return '{"path": "a.txt"}' if key == "arguments" else value.split(tempfile.gettempdir())[0][:LONGEST]
    return value


def few(place: Row) -> None:
    """Leave two tools of many, in a namespace too, and one parameter of each."""
    if "tools" not in place:
        return
    place["tools"] = place["tools"][:2]
    for tool in place["tools"]:
        few(tool)
        function = tool.get("function", tool)
        if "parameters" in function:
            small = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
            function["parameters"] = {**function["parameters"], **small}


def trimmed(row: Row) -> Row:
    """A request fit for the repository. A tool's schema keeps its own keys, but one property only."""
    headers = {name: value for name, value in row["headers"].items() if name not in DROPPED}
    body = json.loads(json.dumps(row["body"]))
    for place in [body, *(entry for entry in body.get("input") or () if isinstance(entry, dict))]:
        few(place)
    return {"line": row["line"], "headers": headers, "body": cut(body)}


def ends(rows: list[Row]) -> list[Row]:
    """The first and the last request of each route, streamed and not; none that the provider does not know."""
    chosen: dict[tuple[str, bool, bool], list[Row]] = {}
    for row in rows:
        if row["answer"] in ("stray", "error") or not row["body"]:
            continue
        kind = (row["line"], bool(row["body"].get("stream")), "tools" in row["body"])
        chosen[kind] = [*chosen.get(kind, [])[:1], row]
    return [trimmed(row) for kept in chosen.values() for row in kept]


def record(command: list[str], turns: list[dict[str, Any]]) -> tuple[int, list[Row]]:
    """Run the client once: its exit code and its requests."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.recorder, server.info, server.scripts = Recorder(), {}, providers.Scripts()
    server.scripts.set_turns([*turns, {"text": "all done"}])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as home:
        Path(home, "a.txt").write_text("one\n", encoding="utf-8")
        where = {"OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1", "OPENAI_API_KEY": "recording"}
        env = {"OPENAI_MODEL": "gpt-test", **os.environ, **where, "HOME": home}
        words = [str(Path(word).absolute()) if Path(word).exists() else word for word in command]
        done = subprocess.run([*words, "change a.txt"], cwd=home, env=env)
        print(f"a.txt: {Path(home, 'a.txt').read_text(encoding='utf-8')!r}", file=sys.stderr)
    server.shutdown()
    return done.returncode, server.recorder.rows


def main() -> int:
    """The client's exit code; 2 without a command."""
    if len(sys.argv) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    turns = json.loads(Path(os.environ["TURNS"]).read_text(encoding="utf-8")) if "TURNS" in os.environ else TURNS
    code, rows = record(sys.argv[2:], turns)
    Path(sys.argv[1]).write_text(json.dumps(ends(rows), indent=1) + "\n", encoding="utf-8")
    for row in rows:
        entries = row["body"].get("messages") or row["body"].get("input") or []
        stream = bool(row["body"].get("stream"))
        print(f"{row['line']}: {row['answer']}, {len(entries)} entries, stream {stream}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
