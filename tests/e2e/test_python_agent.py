# SPDX-License-Identifier: BSD-4-Clause
"""The official OpenAI SDK in its image: chat, streams, responses and an agent loop of its own with a tool call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import addresses
from support.client import World
from support.product import Home, Session, SessionFactory

pytestmark = pytest.mark.slow

# What a user would write: an agent's loop with one tool, no address and no key in it.
AGENT = r"""
import json, subprocess
from openai import OpenAI

client, model = OpenAI(max_retries=6), "gpt-test"
result = {}
hello = [{"role": "user", "content": "hello"}]
result["chat"] = client.chat.completions.create(model=model, messages=hello).choices[0].message.content
stream = client.chat.completions.create(model=model, messages=hello, stream=True)
pieces = [c.choices[0].delta.content for c in stream if c.choices and c.choices[0].delta.content]
result["pieces"], result["streamed"] = len(pieces), "".join(pieces)
result["responses"] = client.responses.create(model=model, input="hello").output_text
events = list(client.responses.create(model=model, input="hello", stream=True))
result["events"] = sorted({event.type for event in events})
result["response_stream"] = "".join(e.delta for e in events if e.type == "response.output_text.delta")

def run(arguments):
    command = json.loads(arguments)["command"]
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False).stdout

schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
tool = {"type": "function", "function": {"name": "shell", "description": "Run a command", "parameters": schema}}
messages, calls = [{"role": "user", "content": "use the tool"}], []
for _ in range(4):
    message = client.chat.completions.create(model=model, messages=messages, tools=[tool]).choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        calls.append(run(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": calls[-1]})
result["calls"], result["end"] = calls, message.content

flat = {"type": "function", "name": "shell", "description": "Run a command", "parameters": schema}
items, answers = [{"role": "user", "content": "use the tool"}], []
for _ in range(4):
    answer = client.responses.create(model=model, input=items, tools=[flat])
    wanted = [item for item in answer.output if item.type == "function_call"]
    if not wanted:
        break
    for item in wanted:
        answers.append(run(item.arguments))
        items.append({"type": "function_call", "call_id": item.call_id, "name": item.name, "arguments": item.arguments})
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": answers[-1]})
result["response_calls"], result["response_end"] = answers, answer.output_text
print(json.dumps(result))
"""
TURNS = ({"tool": "shell", "input": {"command": "echo made by the tool"}}, {"text": "all of it is done"})


@pytest.fixture(scope="module")
def embedded(module_home: Home, module_session: SessionFactory) -> Session:
    """The manifest of the shipped agent, with the embedded model and a tool call."""
    module_home.agent("py-embedded", {"llm": {"protocol": "openai", "mock": list(TURNS)}})
    return module_session.open("py-embedded")


@pytest.fixture(scope="module")
def provided(module_home: Home, module_session: SessionFactory) -> Session:
    """The shipped agent but for the provider's address, which lies in the test world's special-purpose range."""
    llm = {"protocol": "openai", "provider": "openai", "private": ["198.51.100.0/24"]}
    module_home.agent("python-agent", {"llm": llm, "secrets": {"files": ["openai.env"]}})
    return module_session.open("python-agent")


def _run(session: Session, program: str = AGENT) -> dict[str, Any]:
    done = session.exec("python3", "-", stdin=program, timeout=180)
    assert done.rc == 0, done
    found: dict[str, Any] = done.json
    return found


def _complete(result: dict[str, Any], text: str) -> None:
    assert result["chat"] == result["streamed"] == result["responses"] == result["response_stream"] == text, result
    assert result["pieces"] > 1, "streamed in pieces"
    assert {"response.created", "response.output_text.delta", "response.completed"} <= set(result["events"])
    assert result["calls"] == result["response_calls"] == ["made by the tool\n"], result
    assert result["end"] == result["response_end"] == TURNS[1]["text"]


def test_embedded_model(embedded: Session, world: World) -> None:
    """The SDK works as it is; no name is asked for and nothing is dialled."""
    mark = world.mark()
    _complete(_run(embedded), str(TURNS[1]["text"]))
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []


def test_fake_provider(provided: Session, world: World) -> None:
    """The same program against a provider: the key is the provider's, the agent has the token alone."""
    mark = world.mark()
    world.script({"text": "said by the provider"})
    plain = _run(provided, AGENT.split("def run(")[0] + "print(json.dumps(result))")
    world.script(*TURNS)
    _complete({**_run(provided), **plain}, "said by the provider")
    seen = world.provider_requests(mark)
    assert {r["key"] for r in seen} == {provided.home.secrets["OPENAI_API_KEY"]}
    assert {r["path"] for r in seen} == {"/v1/chat/completions", "/v1/responses"}
    token = provided.exec("printenv", "OPENAI_API_KEY").out.strip()
    assert token and token not in json.dumps(seen)
    world.settle()
    assert {a["address"] for a in world.accepts(mark)} == {addresses.PROVIDER}


def test_an_undeclared_host_is_refused_with_a_reason(provided: Session, world: World) -> None:
    """Python's own client, through the proxy variables."""
    mark = world.mark()
    program = r"""
import json, urllib.request
try:
    urllib.request.urlopen("https://undeclared.canary.test/", timeout=20)
    print(json.dumps({"error": None}))
except OSError as error:
    print(json.dumps({"error": str(error)}))
"""
    assert "403" in _run(provided, program)["error"]
    assert provided.decided("undeclared.canary.test") == ["denied-name"]
    world.settle()
    assert world.dns_names(mark) == set()
