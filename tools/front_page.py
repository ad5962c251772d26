# SPDX-License-Identifier: BSD-4-Clause
"""The page docs/front.md: what may pass to the model, from the front's own table (front/rules.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLE = Path(__file__).resolve().parent.parent / "roles/egress_caddy/files/caddy/front/rules.json"

_INTRO = """# The inference front

The agent reaches its model through the front alone: a listener of the session's Caddy that takes the session's token,
judges the request, and passes it to the broker with the broker's own key. What follows is the front's own table.

- A request that may not pass is answered by the front, in the error shape of the protocol, before the broker sees a
  byte of its body. `X-Asf-Inference` holds the reason, `X-Asf-Key` the manifest's key that would allow it, and the
  message says where in the body the trouble is and what would allow it. Every refusal is a line of the decisions.
- A body is one JSON document in UTF-8, not compressed, of at most 32 MiB (`llm.limits.request_bytes` lowers that), 100
  levels and 10000 keys in one object. What two JSON readers could read differently is refused: a key that stands
  twice, half a surrogate pair, a number beyond 64 bits or a double. It may come in chunks, and who sends
  `Expect: 100-continue` gets the refusal or the leave first.
- A body is judged as a whole before a byte of it goes on, so it is held in memory; the reader goes over it once and
  builds nothing. All bodies that are held share 64 MiB, which is also the bound of how many run at once: who does not
  fit gets 503 `limit-memory` with `Retry-After`. A body has two minutes to come. Answers go on as they come; one that
  is no stream is held up to 256 KiB. Caddy's container has 256 MiB.
- Where a field decides what is done, only what the table lists passes: an unknown field, or an unknown type of a tool
  or a content, is refused. So is every parameter that steers LiteLLM (`api_base`, `custom_llm_provider`, `fallbacks`,
  `mock_response`, `metadata.tags` and all others).
- What the agent says to its model is not looked at: texts, images in Base64, the schemas of its own tools, their inputs
  and results pass untouched, whatever words or addresses stand in them. In them two keys that differ in case alone are
  two keys.
- `llm.models` lists the models that may be asked for; `*` stands for any characters. `GET /v1/models` is answered from
  it, and is an empty list without it.
- Of headers, only those that the protocols need go on, and of beta features only those below. Of the answer's headers
  none that tells of keys, costs or the broker comes back.

## Hosted tools, and what a grant means

Whatever the provider would do or fetch on the agent's behalf is a way out of the sandbox that Caddy's list does not
see, so nothing of it passes by default (case B4). `llm.hosted_tools` grants it by the word below, or any other type by
its own name, with or without its date (`web_search`, `web_search_20250305`). **A grant lets the provider reach hosts
that `network.allow_domains` does not name**, with what the agent tells it: whoever answers there can learn it. Prefer a
declared host and a tool of the agent's own.

```yaml
llm:
  provider: anthropic
  hosted_tools: [web_search, remote_url]
```

A word that is nearly one of the list, or a type that another word covers, is an error of the manifest. `asf-play
policy` shows what is granted. A grant is for the whole session and for every model of it.

A request of the Responses API that does not say `store` passes, although the provider then keeps the answer (OpenAI:
30 days): the openai SDK by default and LangGraph do not say it, Codex sends `"store": false`, and the front changes no
body. What is kept is of no use to the agent, because whatever would read it again (`previous_response_id`,
`conversation`, item references) needs the grant `stored_response`, and so does `"store": true`. Who wants nothing kept
sets that at the provider.

| word | grants |
|---|---|
"""

_LIMITS = """
## Limits and usage

| key | counts | past it |
|---|---|---|
| `llm.limits.requests_per_minute` | requests passed on in the last 60 seconds | 429 `limit-requests`, `Retry-After` |
| `llm.limits.concurrent_requests` | requests that run | 429 `limit-concurrency`, `Retry-After: 1` |
| `llm.limits.tokens_per_session` | tokens, cached ones too, as reported | 429 `limit-tokens`, `X-Should-Retry: false` |
| `llm.limits.usd_per_session` | cost: tokens at prices of `prices.json` | 429 `limit-usd`, `X-Should-Retry: false` |
| `llm.limits.request_bytes` | bytes of one body | 413 `denied-size` |

A request that begins below a budget is finished, so the last ones can pass it. Where an answer broke off, the
client hung up or the provider reports nothing, tokens are estimated: a token for four bytes of the request or of an
answer that is no stream, and one for each event of a stream (more for an event beyond 512 bytes). Who hangs up ends a
stream, and the provider its work; an answer that comes as a whole is waited for and counted, whoever is there to read
it. `count_tokens` and refused requests use none. The count outlives a changed configuration, a restart of Caddy's
program (what runs, or ended in the last tenth of a second, may be lost when it is killed) and of the broker; it ends
with the session.

Prices are the list prices of the pinned LiteLLM's own map (`tools/gen_prices.py`), found by `llm.provider` and the
model's name, with or without its date; tokens from and into a cache have prices of their own. They are not your
contract's. Under `usd_per_session` a model without a known price is refused (400 `denied-price`), and so are
`service_tier`, `speed` and `inference_geo` where they cost more; without it such requests pass, and are told as
"without a known price" instead of as free. What hosted tools cost beside tokens is not counted.

Each request that was passed on leaves a line `usage` in Caddy's log: `model`, `status`, `outcome`, `input_tokens`,
`cached_tokens`, `cache_write_tokens`, `output_tokens`, `estimated`, `ms`, `first_ms` (until the first piece of the
answer went to the client) and `so_far`, the session's sums. No content. Past 20000 lines there is one every 10 seconds.
The sums are `front.counted` of `usage.json`.

## Routes

A method and target pass in this spelling alone.

| route | protocol | query | body |
|---|---|---|---|
"""

_CLIENTS = """
## Clients

Recorded and tested: Claude Code 2.1.197, Codex 0.171.0, hermes-agent 0.19.0 (Chat Completions streamed and not,
Responses, Messages), the SDKs anthropic 2.14.0 and openai 3.57.0, langgraph 1.2.24 and crewai 1.15.30 (both with Chat
Completions and Responses) and smolagents 1.26.0. Codex offers the provider's web search by itself: without the grant
its `/etc/codex/requirements.toml` needs `allowed_web_search_modes = ["disabled"]`, which, unlike `web_search` in
`/etc/codex/config.toml`, neither `~/.codex/config.toml` nor `-c` undoes. Hermes and the Python frameworks need no
grant.

Hermes takes its endpoint from `config.yaml` alone: `model: {provider: custom, default, base_url, api_key}`. That speaks
Chat Completions, or Messages with `api_mode: anthropic_messages` and its extra `anthropic`; it ignores
`api_mode: codex_responses` there unless the endpoint is OpenAI's own. An entry of `custom_providers` with that
`api_mode`, chosen as `provider: custom:NAME`, speaks Responses. Hermes asks for `/api/v1/models`, `/api/show` and
`/v1/models/NAME` before its first request; a 403 to these does not stop it. `security.allow_lazy_installs: false` and
`HERMES_DISABLE_LAZY_INSTALLS=1` keep it from installing packages as it runs.

CrewAI 1.15.30 does not understand a tool call in streamed Responses from the scripted provider of the tests: use Chat
Completions, streamed or not.

## What clients see

Each refusal is an error of the protocol, so clients show its text. Measured with the SDKs anthropic 2.14.0 and openai
3.57.0 (Chat Completions and Responses):

| refused | status, reason | anthropic raises | openai raises | tries again |
|---|---|---|---|---|
| the token | 401 `denied-token` | AuthenticationError | AuthenticationError | no |
| a method or path | 403 `denied-path` | PermissionDeniedError | PermissionDeniedError | no |
| a body's content | 400 `denied-hosted`, `-parameter`, `-shape`, `-json` | BadRequestError | BadRequestError | no |
| a model | 404 `denied-model` | NotFoundError | NotFoundError | no |
| a body's size | 413 `denied-size` | ContentTooLargeError | APIStatusError | no |
| a rate of requests | 429 `limit-requests`, `-concurrency` | RateLimitError | the same | as `Retry-After` says |
| tokens of the session | 429 `limit-tokens` | RateLimitError | the same | no: `X-Should-Retry: false` |
| the broker starts | 503 `broker-starting` | ServiceUnavailableError | InternalServerError | after a second |

An error of the provider keeps its status and its message, without keys, addresses, traces and the broker's own words;
401 and 403 say only that the credentials were refused, and are not tried again. Codex tries five times more on 403,
so a body is refused with 400.

## Cost

`make bench-front` measures the front against Caddy's own `reverse_proxy`, bare, in one process, in turns that change
places, and writes `build/bench-front.json`. On 2 cores (x86-64, shared), Linux 6.18:

| | |
|---|---|
| added to a request of 100 kB, one connection, median | 0.1 to 0.2 ms |
| added to the first byte of a stream, median | below 0.05 ms |
| loss of throughput, answers of 100 kB, one connection, three runs (quartiles: 8 to 14 % apart) | -13, +2, +2 % |
| the same, 16 and 64 connections: the front passes more than the bare proxy | -8 to -25 % |
| reading a body, per MB: an agent's conversation, Base64, other scripts | 0.4 to 1.4 ms |
| reading a body of nothing but small tokens, per MB: by kind | 3 to 8 ms |
| LiteLLM with the embedded model, front included: small request | 14 to 18 ms |
| the same: 100 kB; the first byte of a stream | 16 to 20 ms; 13 to 15 ms |

## Bodies

`text`, `word` (a string of at most 512 bytes), `number`, `bool`: a value of that kind, or null. `any`: whatever has the
form of JSON. `inline`: data in the request itself. `data_url`: a `data:` URL. `empty`: null or `{}`. `list:x`: a list
of x. `a/b`: a scalar by a, else b. `grant:w`: refused unless the word w is granted.
"""


def _fields(shape: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in sorted(shape["fields"].items())) or "nothing else"


def _shape(name: str, shape: Mapping[str, Any]) -> str:
    needs = f" It needs {', '.join(f'`{need}`' for need in shape['needs'])}." if shape.get("needs") else ""
    lines = [f"\n### {name}: {shape['what']}\n"]
    if "fields" in shape:
        return "\n".join([*lines, f"{_fields(shape)}.{needs}\n"])
    absent = f" (without it: {shape['absent']})" if shape.get("absent") else ""
    lines += [f"| `{shape['by']}`{absent} | with |", "|---|---|"]
    for case, held in sorted(shape["cases"].items()):
        lines.append(f"| `{case}` | {held if isinstance(held, str) else _fields(held)} |")
    return "\n".join(lines) + "\n"


def page(head: str) -> str:
    """The page; `head` is the licence and who made it."""
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    out = head + _INTRO
    out += "".join(f"| `{word}` | {what} |\n" for word, what in table["grants"].items())
    out += _LIMITS
    for route, told in table["endpoints"].items():
        query = ", ".join(f"`{text}`" for text in told.get("queries", [])) or "none"
        body = told.get("body") or f"none; the front answers with {told['answer']}"
        out += f"| `{route}` | {told['protocol']} | {query} | {body} |\n"
    out += "\n## Beta features\n\n| grant | names, without their dates |\n|---|---|\n"
    for grant, names in table["betas"].items():
        out += f"| {f'`{grant}`' if grant else 'none is needed'} | {', '.join(f'`{name}`' for name in names)} |\n"
    out += _CLIENTS
    return out + "".join(_shape(name, shape) for name, shape in table["shapes"].items())
