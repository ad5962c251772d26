# SPDX-License-Identifier: BSD-4-Clause
"""What the providers' services look like on the wire: JSON bodies and server-sent events of Messages, Chat Completions
and Responses. Only as much as clients need for text and for one tool call per turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

Turn = dict[str, Any]  # {"text": …} or {"tool": NAME, "input": {…}}; of Responses also a text as input, and "namespace"
Json = dict[str, Any]
ServerEvent = tuple[str | None, Json | str]  # (event name or None, data)


def send_json(handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """One complete JSON response."""
    data = json.dumps(body).encode()
    handler.send_response(status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


def send_events(handler: BaseHTTPRequestHandler, events: Iterator[ServerEvent]) -> None:
    """A text/event-stream response, flushed after every event; the connection ends with it."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("connection", "close")
    handler.end_headers()
    for name, data in events:
        head = f"event: {name}\n" if name else ""
        text = data if isinstance(data, str) else json.dumps(data)
        handler.wfile.write(f"{head}data: {text}\n\n".encode())
        handler.wfile.flush()


def words(text: str) -> list[str]:
    """The text in pieces, as a stream sends it."""
    return [piece + " " for piece in text.split(" ")[:-1]] + [text.split(" ")[-1]]


# ---- Anthropic Messages

_USAGE = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def message(model: str, turn: Turn, number: int) -> Json:
    """A complete Messages response."""
    if "tool" in turn:
        content = {"type": "tool_use", "id": f"toolu_{number:04d}", "name": turn["tool"], "input": turn["input"]}
    else:
        content = {"type": "text", "text": turn["text"]}
    reason = "tool_use" if "tool" in turn else "end_turn"
    head = {"id": f"msg_{number:04d}", "type": "message", "role": "assistant", "model": model}
    return {**head, "content": [content], "stop_reason": reason, "stop_sequence": None, "usage": _USAGE}


def message_events(model: str, turn: Turn, number: int) -> Iterator[ServerEvent]:
    """The same as a stream."""
    full = message(model, turn, number)
    content = full["content"][0]

    def event(name: str, **data: Any) -> ServerEvent:
        return name, {"type": name, **data}

    yield event("message_start", message={**full, "content": [], "stop_reason": None})
    if "tool" in turn:
        yield event("content_block_start", index=0, content_block={**content, "input": {}})
        piece = {"type": "input_json_delta", "partial_json": json.dumps(turn["input"])}
        yield event("content_block_delta", index=0, delta=piece)
    else:
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for word in words(turn["text"]):
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield event("content_block_stop", index=0)
    delta = {"stop_reason": full["stop_reason"], "stop_sequence": None}
    yield event("message_delta", delta=delta, usage={"output_tokens": 5})
    yield event("message_stop")


# ---- OpenAI Chat Completions

_CHAT_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def _call(turn: Turn, number: int) -> Json:
    function = {"name": turn["tool"], "arguments": json.dumps(turn["input"])}
    return {"id": f"call_{number:04d}", "type": "function", "function": function}


def completion(model: str, turn: Turn, number: int) -> Json:
    """A complete Chat Completions response."""
    reply: Json = {"role": "assistant", "content": turn.get("text")}
    if "tool" in turn:
        reply["tool_calls"] = [_call(turn, number)]
    choice = {"index": 0, "message": reply, "finish_reason": "tool_calls" if "tool" in turn else "stop"}
    head = {"id": f"chatcmpl-{number:04d}", "object": "chat.completion", "created": 1, "model": model}
    return {**head, "choices": [choice], "usage": _CHAT_USAGE}


def completion_events(model: str, turn: Turn, number: int) -> Iterator[ServerEvent]:
    """The same as a stream."""
    head = {"id": f"chatcmpl-{number:04d}", "object": "chat.completion.chunk", "created": 1, "model": model}

    def chunk(delta: Json, reason: str | None = None) -> ServerEvent:
        return None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": "" if "text" in turn else None})
    if "tool" in turn:
        yield chunk({"tool_calls": [{"index": 0, **_call(turn, number)}]})
    else:
        for word in words(turn["text"]):
            yield chunk({"content": word})
    yield chunk({}, "tool_calls" if "tool" in turn else "stop")
    yield None, {**head, "choices": [], "usage": _CHAT_USAGE}
    yield None, "[DONE]"


# ---- OpenAI Responses


def _item(turn: Turn, number: int) -> Json:
    if "tool" in turn and isinstance(turn["input"], str):
        call = {"type": "custom_tool_call", "id": f"ctc_{number:04d}", "call_id": f"call_{number:04d}"}
        where = {"namespace": turn["namespace"]} if "namespace" in turn else {}
        return {**call, **where, "name": turn["tool"], "input": turn["input"], "status": "completed"}
    if "tool" in turn:
        call = {"type": "function_call", "id": f"fc_{number:04d}", "call_id": f"call_{number:04d}"}
        return {**call, "name": turn["tool"], "arguments": json.dumps(turn["input"]), "status": "completed"}
    part = {"type": "output_text", "text": turn["text"], "annotations": []}
    head = {"type": "message", "id": f"out_{number:04d}", "role": "assistant", "status": "completed"}
    return {**head, "content": [part]}


def response(model: str, turn: Turn, number: int) -> Json:
    """A complete Responses response."""
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, **details}
    head = {"id": f"resp_{number:04d}", "object": "response", "created_at": 1, "status": "completed", "model": model}
    rest: Json = {"error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "tools": []}
    knobs = {"parallel_tool_calls": True, "temperature": 1.0, "tool_choice": "auto", "top_p": 1.0}
    return {**head, **rest, **knobs, "output": [_item(turn, number)], "usage": usage}


def response_events(model: str, turn: Turn, number: int) -> Iterator[ServerEvent]:
    """The same as a stream."""
    full = response(model, turn, number)
    steps = _call_steps(full["output"][0]) if "tool" in turn else _text_steps(full["output"][0])
    started = {**full, "status": "in_progress", "output": [], "usage": None}
    frames = [("response.created", {"response": started}), ("response.in_progress", {"response": started}), *steps]
    for sequence, (name, data) in enumerate([*frames, ("response.completed", {"response": full})]):
        yield name, {"type": name, "sequence_number": sequence, **data}


def _text_steps(item: Json) -> list[tuple[str, Json]]:
    text = item["content"][0]["text"]
    where = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    empty = {"type": "output_text", "text": "", "annotations": []}
    opened = {**item, "status": "in_progress", "content": []}
    return [
        ("response.output_item.added", {"output_index": 0, "item": opened}),
        ("response.content_part.added", {**where, "part": empty}),
        *[("response.output_text.delta", {**where, "delta": word, "logprobs": []}) for word in words(text)],
        ("response.output_text.done", {**where, "text": text, "logprobs": []}),
        ("response.content_part.done", {**where, "part": item["content"][0]}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
    ]


def _call_steps(item: Json) -> list[tuple[str, Json]]:
    where = {"item_id": item["id"], "output_index": 0}
    custom = item["type"] == "custom_tool_call"
    field, kind = ("input", "custom_tool_call_input") if custom else ("arguments", "function_call_arguments")
    opened = {**item, "status": "in_progress", field: ""}
    return [
        ("response.output_item.added", {"output_index": 0, "item": opened}),
        (f"response.{kind}.delta", {**where, "delta": item[field]}),
        (f"response.{kind}.done", {**where, field: item[field]}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
    ]
