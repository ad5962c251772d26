# SPDX-License-Identifier: BSD-4-Clause
"""The embedded model: a LiteLLM custom provider that answers with the turns of a file, the same way every time.

``mock.json`` beside this file is a list of turns, ``{"text": …}`` or ``{"tool": NAME, "input": {…}}``. Which one
answers is the number of assistant turns in the request; the last one repeats. No state is kept, so requests may run at
once, repeat, or be forgotten. Nothing here opens a connection.

The functions above ``provider`` need no LiteLLM. ``model`` is what LiteLLM's configuration names.
"""

import json
import os
import re

FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mock.json")
_FALLBACK = "Done."


def load(path=FILE):
    """The turns of a file. Raises ValueError naming the file and the turn that is wrong."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if not isinstance(found, list) or not found:
        raise ValueError(f"{path}: expected a list with at least one turn")
    for number, turn in enumerate(found):
        text = isinstance(turn, dict) and isinstance(turn.get("text"), str) and set(turn) == {"text"}
        tool = isinstance(turn, dict) and isinstance(turn.get("tool"), str) and set(turn) <= {"tool", "input"}
        if not text and not (tool and isinstance(turn.get("input", {}), dict)):
            raise ValueError(f"{path}: turn {number} is neither {{text}} nor {{tool, input}}")
    return found


def assistant_turns(messages):
    """How many turns the assistant has had. Neighbouring assistant messages are one turn: the Responses protocol, as
    LiteLLM translates it, gives a turn's text and each of its calls a message of its own."""
    roles = [message.get("role") for message in messages or () if isinstance(message, dict)]
    pairs = zip([None, *roles], roles, strict=False)
    return sum(1 for before, role in pairs if role == "assistant" and before != "assistant")


def tool_names(tools):
    """Names of the offered tools, in Chat Completions' form or Anthropic's."""
    found = []
    for tool in tools or ():
        if isinstance(tool, dict):
            name = (tool.get("function") or {}).get("name") or tool.get("name")
            if name:
                found.append(name)
    return found


def choose(turns, messages, tools):
    """``(text, call)`` for a request; one of them is None. ``call`` is ``{id, name, arguments}``.

    A request without tools gets text: clients ask for titles and the like on the side.
    """
    index = min(assistant_turns(messages), len(turns) - 1)
    turn, offered = turns[index], tool_names(tools)
    if "text" in turn:
        return turn["text"], None
    if not offered:
        return next((later["text"] for later in turns[index:] if "text" in later), _FALLBACK), None
    name = next((name for name in offered if name.lower() == turn["tool"].lower()), None)
    if name is None:
        names = ", ".join(offered)
        return f"The embedded model was told to call {turn['tool']}, but the tools offered are: {names}.", None
    return None, {"id": f"call_asf_{index}", "name": name, "arguments": json.dumps(turn.get("input", {}))}


def usage(messages, text, call):
    """Plausible, deterministic counts: four characters are a token."""
    prompt = 1 + len(json.dumps(messages or [], default=str)) // 4
    answer = 1 + len(text if text is not None else call["arguments"]) // 4
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def chunks(turns, messages, tools):
    """The answer as LiteLLM's ``GenericStreamingChunk`` dictionaries."""
    text, call = choose(turns, messages, tools)
    counts = usage(messages, text, call)
    if call:
        function = {"name": call["name"], "arguments": call["arguments"]}
        yield _chunk(tool_use={"id": call["id"], "type": "function", "function": function, "index": 0})
        yield _chunk(finish_reason="tool_calls", is_finished=True, usage=counts)
        return
    for piece in re.findall(r"\S*\s*", text):
        if piece:
            yield _chunk(text=piece)
    yield _chunk(finish_reason="stop", is_finished=True, usage=counts)


def _chunk(text="", tool_use=None, finish_reason="", is_finished=False, usage=None):
    return {
        "text": text,
        "tool_use": tool_use,
        "finish_reason": finish_reason,
        "is_finished": is_finished,
        "usage": usage,
        "index": 0,
    }


def provider(turns):
    """A LiteLLM custom provider that answers with these turns."""
    from litellm import CustomLLM
    from litellm.types.utils import Choices, Message, ModelResponse, Usage

    def response(kwargs):
        messages, tools = kwargs.get("messages"), (kwargs.get("optional_params") or {}).get("tools")
        text, call = choose(turns, messages, tools)
        calls = call and [
            {
                "id": call["id"],
                "type": "function",
                "index": 0,
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
        ]
        message = Message(role="assistant", content=text, tool_calls=calls)
        return ModelResponse(
            choices=[Choices(index=0, finish_reason="tool_calls" if call else "stop", message=message)],
            model=kwargs.get("model"),
            usage=Usage(**usage(messages, text, call)),
        )

    def stream(kwargs):
        return chunks(turns, kwargs.get("messages"), (kwargs.get("optional_params") or {}).get("tools"))

    class Embedded(CustomLLM):
        """The four methods that LiteLLM asks for; all of them answer at once."""

        def completion(self, *args, **kwargs):
            return response(kwargs)

        async def acompletion(self, *args, **kwargs):
            return response(kwargs)

        def streaming(self, *args, **kwargs):
            yield from stream(kwargs)

        async def astreaming(self, *args, **kwargs):
            for chunk in stream(kwargs):
                yield chunk

    return Embedded()


def __getattr__(name):
    """``model``, made when LiteLLM asks for it: the file is read then, and LiteLLM is needed only then."""
    if name == "model":
        return provider(load())
    raise AttributeError(name)
