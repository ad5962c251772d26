# SPDX-License-Identifier: BSD-4-Clause
"""The embedded model's decisions, and the launcher's handling of secrets. LiteLLM is not needed and not imported."""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import io
import json
import logging
import sys
import types
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "roles/litellm_broker/files"
BASH = {"type": "function", "function": {"name": "bash"}}
TURNS = [{"tool": "Bash", "input": {"command": "ls"}}, {"text": "done now"}]
USER = {"role": "user", "content": "go"}
CALLED = {"role": "assistant", "tool_calls": [{"id": "call_asf_0"}]}
RESULT = {"role": "tool", "tool_call_id": "call_asf_0", "content": "ok"}


def _load(name):
    spec = importlib.util.spec_from_file_location(name, FILES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mock, launch = _load("asf_mock"), _load("launch")


def test_neither_file_needs_litellm_to_be_imported():
    assert "litellm" not in sys.modules


# --- turns ---


def test_the_turn_is_the_number_of_assistant_turns_and_the_last_one_repeats():
    assert mock.choose(TURNS, [USER], [BASH])[1]["name"] == "bash"
    assert mock.choose(TURNS, [USER, CALLED, RESULT], [BASH]) == ("done now", None)
    assert mock.choose(TURNS, [USER, CALLED, RESULT, {"role": "assistant"}, USER] * 3, [BASH]) == ("done now", None)


def test_same_request_same_answer():
    assert list(mock.chunks(TURNS, [USER], [BASH])) == list(mock.chunks(TURNS, [USER], [BASH]))


def test_neighbouring_assistant_messages_are_one_turn():
    """Responses items become one message each: a text and two calls are still one turn."""
    assert mock.assistant_turns([USER, {"role": "assistant"}, CALLED, CALLED, RESULT, RESULT]) == 1
    assert mock.assistant_turns(None) == 0 and mock.assistant_turns([{"role": "system"}, "odd"]) == 0


def test_a_request_without_tools_gets_the_next_text():
    assert mock.choose(TURNS, [USER], None) == ("done now", None)
    assert mock.choose([{"tool": "x"}], [USER], []) == ("Done.", None)


def test_a_tool_that_is_not_offered_is_said_and_not_called():
    text, call = mock.choose(TURNS, [USER], [{"name": "read"}, {"type": "function", "function": {"name": "write"}}])
    assert call is None and "Bash" in text and "read, write" in text


def test_tools_are_found_in_both_forms_and_by_any_case():
    assert mock.choose(TURNS, [USER], [{"name": "BASH", "input_schema": {}}])[1]["name"] == "BASH"


# --- streams ---


def test_text_is_streamed_in_pieces_that_add_up():
    found = list(mock.chunks([{"text": "  two words\nand a line "}], [USER], None))
    assert "".join(chunk["text"] for chunk in found) == "  two words\nand a line " and len(found) > 3
    assert [chunk["is_finished"] for chunk in found].count(True) == 1 and found[-1]["finish_reason"] == "stop"
    assert found[-1]["usage"]["total_tokens"] > 0


def test_an_empty_text_still_ends():
    assert [chunk["is_finished"] for chunk in mock.chunks([{"text": ""}], [USER], None)] == [True]


def test_a_call_is_streamed_whole_and_ends_with_its_own_reason():
    call, end = mock.chunks(TURNS, [USER], [BASH])
    assert json.loads(call["tool_use"]["function"]["arguments"]) == {"command": "ls"}
    assert end["finish_reason"] == "tool_calls" and end["is_finished"]


# --- the file ---


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        "[1]",
        '[{"text": 1}]',
        '[{"tool": "x", "input": []}]',
        '[{"text": "a", "tool": "b"}]',
        '[{"tool": "x", "more": 1}]',
        "nonsense",
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content):
    path = tmp_path / "mock.json"
    path.write_text(content)
    with pytest.raises(ValueError):
        mock.load(path)


def test_a_right_file_is_read_and_a_missing_one_is_named(tmp_path):
    path = tmp_path / "mock.json"
    path.write_text(json.dumps(TURNS))
    assert mock.load(path) == TURNS
    with pytest.raises(ValueError, match="absent"):
        mock.load(tmp_path / "absent")


def test_only_model_is_made_on_demand():
    with pytest.raises(AttributeError):
        mock.anything  # noqa: B018


# --- the launcher ---


def files(tmp_path, monkeypatch, **contents):
    paths = {}
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        paths[str(path)] = name.upper()
    monkeypatch.setattr(launch, "REQUIRED", str(tmp_path / "master"))
    return {str(tmp_path / "master"): "MASTER", **paths}


def test_a_final_newline_is_no_part_of_a_key(tmp_path, monkeypatch):
    """Case S2."""
    paths = files(tmp_path, monkeypatch, master=b"sk-abc\r\n", provider=b" key \n")
    assert launch.secrets(paths) == {"MASTER": "sk-abc", "PROVIDER": "key"}


def test_the_providers_key_may_be_absent_and_the_master_key_may_not(tmp_path, monkeypatch):
    paths = files(tmp_path, monkeypatch, master=b"sk-abc")
    assert launch.secrets({**paths, str(tmp_path / "none"): "X"}) == {"MASTER": "sk-abc"}
    (tmp_path / "master").unlink()
    with pytest.raises(ValueError, match="missing"):
        launch.secrets(paths)


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", b"a\0b"])
def test_an_unusable_secret_is_named_and_not_shown(tmp_path, monkeypatch, content):
    """Case S3: the error names the file alone."""
    paths = files(tmp_path, monkeypatch, master=content)
    with pytest.raises(ValueError) as caught:
        launch.secrets(paths)
    assert "master" in str(caught.value) and "lines" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "4000", ":4000", "1.2.3.4:", "1.2.3.4:0", "1.2.3.4:99999", "1.2.3.4:http"])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(ValueError):
        launch.bind(text)


def test_a_right_address():
    assert launch.bind("198.18.0.6:4000") == ("198.18.0.6", 4000)


def test_logs_hold_no_key_in_any_usual_form():
    """Case B5: a provider's answer that quotes the key ends up in LiteLLM's traceback."""
    out, key = io.StringIO(), 'sk-"odd/key+1'
    stream = launch.Scrubbed(out, [key])
    stream.write(f"a {key} b {json.dumps(key)} c sk-%22odd%2Fkey%2B1 d")
    assert "odd" not in out.getvalue() and out.getvalue().count("[redacted]") == 3


def test_a_usage_line_has_the_sums_so_far():
    sums = {}
    first = launch.summed(sums, {"input_tokens": 2, "output_tokens": 3})
    second = launch.summed(sums, {"input_tokens": 5, "output_tokens": 7, "cost_usd": 0.5})
    assert first["so_far"] == {"requests": 1, "input_tokens": 2, "output_tokens": 3}
    assert second["so_far"] == {"requests": 2, "input_tokens": 7, "output_tokens": 10, "cost_usd": 0.5}
    assert second["input_tokens"] == 5


def test_a_usage_line_holds_numbers_and_names_only():
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    end = start + datetime.timedelta(seconds=1.5)
    kwargs = {"model": "m", "messages": [{"content": "private"}], "response_cost": 0.25}
    line = launch.usage_line(
        kwargs, {"usage": {"input_tokens": 3, "output_tokens": 4}, "content": "private"}, start, end, 200
    )
    assert (line["input_tokens"], line["output_tokens"], line["ms"], line["cost_usd"]) == (3, 4, 1500, 0.25)
    assert "private" not in json.dumps(line)
    failed = launch.usage_line({"model": None}, None, start, end, 401)
    assert failed["status"] == 401 and failed["output_tokens"] == 0 and "cost_usd" not in failed


def test_refusals_have_exit_codes_of_their_own(monkeypatch, capsys):
    monkeypatch.delenv("ASF_BIND", raising=False)
    assert launch.main([]) == launch.USAGE_ERROR
    monkeypatch.setenv("ASF_BIND", "127.0.0.1:4000")
    monkeypatch.setattr(launch, "SECRETS", {"/nonexistent/master": "X"})
    monkeypatch.setattr(launch, "REQUIRED", "/nonexistent/master")
    assert launch.main([]) == launch.BAD_SECRET
    assert [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()] == ["refused", "refused"]


# --- what the broker serves ---


class Route:
    def __init__(self, path=None, inner=None):
        self.path = path
        if inner is not None:
            self.original_router = types.SimpleNamespace(routes=inner)


def test_only_wanted_routes_stay_also_inside_of_included_routers():
    """Case B1."""
    inner = [Route("/v1/models"), Route("/key/generate")]
    routes = [Route("/docs"), Route(inner=inner), Route("/v1/messages"), Route(inner=[Route("/config/update")])]
    assert launch.keep(routes, {"/v1/models", "/v1/messages"}) == {"/v1/models", "/v1/messages"}
    assert len(routes) == 2 and [route.path for route in inner] == ["/v1/models"]


def answers(app, path, raw=None, kind="http"):
    """Status and body that an ASGI application gives."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, **({"raw_path": raw} if raw is not None else {})}
    asyncio.run(app(scope, None, send))
    return sent


async def echo(scope, receive, send):
    await send({"type": "http.response.start", "status": 401, "headers": [(b"x-echo", b"key sk-secret-1")]})
    await send({"type": "http.response.body", "body": b'{"error": "sk-secret-1 is wrong"}', "more_body": False})


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/key/generate", b"/key/generate"),
        ("/v1/models/", b"/v1/models/"),
        ("//v1/models", b"//v1/models"),
        ("/v1/models", b"/v1/%6dodels"),
        ("/v1/messages/../models", b"/v1/messages/../models"),
    ],
)
def test_other_paths_and_odd_spellings_never_reach_litellm(path, raw):
    """Case B1."""
    sent = answers(launch.Narrow(echo, launch.PATHS), path, raw)
    assert sent[0]["status"] == 404 and int(dict(sent[0]["headers"])[b"content-length"]) == len(sent[1]["body"])


def test_websockets_are_closed_and_wanted_paths_pass():
    app = launch.Narrow(echo, launch.PATHS)
    assert answers(app, "/v1/responses", kind="websocket")[0]["type"] == "websocket.close"
    assert answers(app, "/v1/models", b"/v1/models")[0]["status"] == 401


def test_an_answer_that_quotes_a_key_is_masked_without_changing_its_length():
    """Case B5."""
    start, body = answers(launch.Masked(echo, ["sk-secret-1"]), "/v1/models")
    assert start["headers"] == [(b"x-echo", b"key ***********")]
    assert body["body"] == b'{"error": "*********** is wrong"}'


def test_start_up_is_complete_only_after_the_warm_up():
    order = []

    async def app(scope, receive, send):
        await send({"type": "lifespan.startup.complete"})

    async def warm():
        order.append("warm")

    async def send(message):
        order.append(message["type"])

    asyncio.run(launch.Warmed(app, warm)({"type": "lifespan"}, None, send))
    assert order == ["warm", "lifespan.startup.complete"]


def test_log_lines_are_one_bounded_json_line_without_traceback(capsys):
    try:
        raise ValueError("inner")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "f", 1, "bad\x1b[31m\n%s", ("y" * 2000,), sys.exc_info())
    launch.OneLine().emit(record)
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and len(out) < 800 and "\x1b" not in out and json.loads(out)["event"] == "log"
