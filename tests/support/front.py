# SPDX-License-Identifier: BSD-4-Clause
"""The front as an agent reaches it: raw requests from inside the agent, byte for byte as a test writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from support.product import Session, podman

L2 = 4000

# Runs in the agent on `python3 -`: one connection per request, nothing is normalised.
_SENDER = r"""
import json, os, socket, sys
def send(raw, limit):
    try:
        with socket.create_connection(("front", 4000), limit) as stream:
            stream.sendall(raw.encode("latin-1"))
            data = b""
            while block := stream.recv(65536):
                data += block
    except OSError as error:
        return {"status": 0, "headers": {}, "body": repr(error)}
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in rest)}
    if headers.get("transfer-encoding") == "chunked":
        chunks, body = body, b""
        while chunks and (size := int(chunks.partition(b"\r\n")[0] or b"0", 16)):
            chunks = chunks.partition(b"\r\n")[2]
            body, chunks = body + chunks[:size], chunks[size + 2:]
    return {"status": int((first.split(" ") + ["", "0"])[1] or 0), "headers": headers, "body": body.decode("latin-1")}
token = os.environ.get("ANTHROPIC_AUTH_TOKEN") or os.environ.get("OPENAI_API_KEY") or ""
requests, limit = json.loads(@)
json.dump([send(raw.replace("{token}", token), limit) for raw in requests], sys.stdout)
"""


@dataclass
class Request:
    """A request to the front. `{token}` in a header's value becomes the session's token inside the agent.

    `body` is a JSON value, or the body's own text.
    """

    target: str
    body: Any = None
    method: str = ""
    headers: dict[str, str] = field(default_factory=lambda: {"Authorization": "Bearer {token}"})
    raw_headers: str = ""

    def text(self) -> str:
        """The bytes on the wire."""
        body = "" if self.body is None else self.body if isinstance(self.body, str) else json.dumps(self.body)
        lines = [
            f"{self.method or ('GET' if self.body is None else 'POST')} {self.target} HTTP/1.1",
            "Host: front:4000",
        ]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "Connection: close"]) + "\r\n" + self.raw_headers + "\r\n" + body


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def reason(self) -> str:
        """The front's own reason, empty when the broker answered."""
        return self.headers.get("x-asf-inference", "")

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the protocol's shape."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


def ask(session: Session, *requests: Request, limit: float = 60) -> list[Answer]:
    """Send requests one after the other from inside the agent."""
    payload = json.dumps([[request.text() for request in requests], limit])
    done = session.exec("python3", "-", stdin=_SENDER.replace("@", repr(payload)), timeout=limit + 60)
    assert done.rc == 0, done
    return [Answer(**answer) for answer in done.json]


def message(text: str = "hello", model: str = "claude-test", stream: bool = False, **more: Any) -> Request:
    """A request of the Messages protocol."""
    chat = [{"role": "user", "content": text}]
    return Request("/v1/messages", {"model": model, "max_tokens": 64, "stream": stream, "messages": chat, **more})


def chat(text: str = "hello", model: str = "gpt-test", stream: bool = False, **more: Any) -> Request:
    """A request of the Chat Completions protocol."""
    body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}], **more}
    return Request("/v1/chat/completions", body)


def responses(text: str = "hello", model: str = "gpt-test", stream: bool = False, **more: Any) -> Request:
    """A request of the Responses protocol."""
    return Request("/v1/responses", {"model": model, "stream": stream, "input": text, **more})


def master_key(session: Session) -> str:
    """The broker's key, which no agent may ever see."""
    return podman("exec", session.container("broker"), "cat", "/run/secrets/asf-master")


def broker_connections(session: Session) -> int:
    """How many TCP connections the broker has accepted since it was made, as the kernel counts them."""

    def count() -> int:
        with open("/proc/self/net/snmp", encoding="ascii") as table:
            names, values = (line.split() for line in table if line.startswith("Tcp:"))
        return int(values[names.index("PassiveOpens")])

    return int(session.in_netns("broker", count))
