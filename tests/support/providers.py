# SPDX-License-Identifier: BSD-4-Clause
"""Fake model providers: Anthropic Messages and OpenAI Chat Completions and Responses, at any path prefix.

The turn is chosen by the number of assistant turns in the request, so that retries and a client's side requests change
nothing. A request that offers tools gets the scripted tool call only when it offers that very tool.
Every request becomes an event `provider`, with its headers, the key it carried, its body and the answer's kind.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from support import wire
from support.wire import Json, Turn, send_events, send_json

DEFAULT_TURNS: list[Turn] = [{"text": "hello from the test provider"}]


class Scripts:
    """What the providers answer. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Plain text, no errors."""
        with self._lock:
            self._turns = list(DEFAULT_TURNS)
            self._errors: list[Json] = []
            self._number = 0

    def set_turns(self, turns: list[Turn]) -> None:
        """Script the turns of every conversation; the last one repeats."""
        with self._lock:
            self._turns = turns or list(DEFAULT_TURNS)

    def set_errors(self, errors: list[Json]) -> None:
        """Answer the next requests with these errors {status, message, count}; count None: for ever."""
        with self._lock:
            self._errors = [dict(error) for error in errors]

    def next_error(self) -> Json | None:
        """The error for the request at hand, if one is scripted."""
        with self._lock:
            if not self._errors:
                return None
            error = self._errors[0]
            if error.get("count") is not None:
                error["count"] -= 1
                if error["count"] <= 0:
                    self._errors.pop(0)
            return error

    def choose(self, spoken: int, offered: list[str]) -> tuple[Turn, int]:
        """The turn for a conversation with `spoken` assistant turns, and a serial number for ids."""
        with self._lock:
            self._number += 1
            turn = self._turns[min(spoken, len(self._turns) - 1)]
            if "tool" in turn and turn["tool"] not in offered:
                turn = {"text": "the request does not offer the scripted tool"}
            return turn, self._number


def _assistant_turns(body: Json) -> int:
    """Assistant turns in any of the three request forms."""
    entries = body.get("messages") or body.get("input") or []
    if not isinstance(entries, list):
        return 0
    entries = [entry for entry in entries if isinstance(entry, dict)]
    calls = ("function_call", "custom_tool_call")
    return sum(entry.get("role") == "assistant" or entry.get("type") in calls for entry in entries)


def _offered(body: Json) -> list[str]:
    """Names of the tools in any of the three request forms; those of a namespace, and those added as input, too."""
    places = [body, *(entry for entry in body.get("input") or [] if isinstance(entry, dict))]
    tools = [tool for place in places for tool in place.get("tools") or [] if isinstance(tool, dict)]
    named = [str(tool.get("name") or (tool.get("function") or {}).get("name")) for tool in tools]
    return [*named, *(name for tool in tools if tool.get("type") == "namespace" for name in _offered(tool))]


class ProviderHandler(BaseHTTPRequestHandler):
    """One connection to a provider's address."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: the recorder has it all."""

    def do_GET(self) -> None:
        """The model list, or an answer that shows that a stray request came here."""
        if self.headers.get("upgrade"):  # Codex tries a WebSocket first; after this answer it asks as everybody does
            self._record({}, "upgrade")
            return send_json(self, 426, _error_body(self._path(), 426, "no WebSocket at the test provider"))
        self._record({}, "models" if self._path().endswith("/models") else "stray")
        if not self._path().endswith("/models"):
            return send_json(self, 404, _error_body(self._path(), 404, "no such path at the test provider"))
        kind = {"object": "model", "type": "model"}
        models = [{"id": name, "display_name": name, **kind} for name in ("gpt-test", "claude-test")]
        return send_json(self, 200, {"object": "list", "data": models, "has_more": False})

    def do_POST(self) -> None:
        """Inference."""
        self._answer(self.rfile.read(int(self.headers.get("content-length") or 0)))

    def _answer(self, raw: bytes) -> None:
        """The answer to a request with this body."""
        try:
            body = json.loads(raw or b"{}")
        except ValueError:
            body = {"unreadable": raw[:200].decode("latin-1")}
        path = self._path()
        if path.endswith("/count_tokens"):
            self._record(body, "count")
            return send_json(self, 200, {"input_tokens": 10})
        if error := self.server.scripts.next_error():
            return self._fail(body, error)
        for ending, whole, stream in _FORMS:
            if path.endswith(ending):
                return self._infer(body, whole, stream)
        self._record(body, "stray")
        return send_json(self, 404, _error_body(path, 404, "no such path at the test provider"))

    def _infer(self, body: Json, whole: Callable[..., Json], stream: Callable[..., Any]) -> None:
        turn, number = self.server.scripts.choose(_assistant_turns(body), _offered(body))
        self._record(body, "tool" if "tool" in turn else "text")
        time.sleep(float(turn.get("delay", 0)))
        model = str(body.get("model", "model"))
        if body.get("stream"):
            return send_events(self, stream(model, turn, number))
        return send_json(self, 200, whole(model, turn, number))

    def _fail(self, body: Json, error: Json) -> None:
        """An error whose text, header and body carry the received key: careless providers do that (case B5)."""
        self._record(body, "error")
        key = self._key() or ""
        text = str(error.get("message", "invalid key {key}")).replace("{key}", key)
        headers = {"x-echoed-key": key} if error.get("echo_header", True) else {}
        send_json(self, int(error["status"]), _error_body(self._path(), int(error["status"]), text), headers)

    def _record(self, body: Json, answer: str) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = {"method": self.command, "path": self.path, "headers": headers, "key": self._key(), "body": body}
        digest = {"model": body.get("model"), "stream": bool(body.get("stream")), "tools": _offered(body)}
        self.server.recorder.add("provider", answer=answer, **request, **digest, **self.server.info)

    def _path(self) -> str:
        return self.path.split("?")[0]

    def _key(self) -> str | None:
        bearer = self.headers.get("authorization") or ""
        return self.headers.get("x-api-key") or (bearer[7:] if bearer.lower().startswith("bearer ") else None)


def _error_body(path: str, status: int, text: str) -> Json:
    kind = {401: "authentication_error", 404: "not_found_error"}.get(status, "api_error")
    if "/messages" in path:
        return {"type": "error", "error": {"type": kind, "message": text}}
    return {"error": {"message": text, "type": kind, "param": None, "code": str(status)}}


_FORMS: tuple[tuple[str, Callable[..., Json], Callable[..., Any]], ...] = (
    ("/messages", wire.message, wire.message_events),
    ("/chat/completions", wire.completion, wire.completion_events),
    ("/responses", wire.response, wire.response_events),
)
