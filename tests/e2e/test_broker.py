# SPDX-License-Identifier: BSD-4-Clause
"""Front and broker on real Podman: routes, keys, providers that misbehave, a broker that dies (B1, B3, B5, B7, B8).

Three sessions are shared: `anthropic` and `openai` with fake providers behind their brokers, `embedded` without any.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import addresses, front, probe_tools, schemas
from support.client import World
from support.front import Request, ask, chat, message, responses
from support.netns import in_userns_root
from support.product import Home, Session, SessionFactory, asf_play, podman
from support.waiting import wait_for

from asf_lib.engine import procs

pytestmark = pytest.mark.slow

PRIVATE = ["198.51.100.0/24"]  # the test world lies in a special-purpose range, which no name may resolve to by itself
L1, L2, L3 = ("198.18.0.1", 3128), ("198.18.0.1", 4000), ("198.18.0.5", 3129)
MODELS = ["gpt-test", "gpt-other"]
CLOSED = ("unreachable", "refused", "no-host", "no-address")  # said at once by this kernel or by Caddy's rules


@pytest.fixture(scope="module")
def anthropic(module_home: Home, module_session: SessionFactory) -> Session:
    """Messages; a public provider."""
    llm = {"protocol": "anthropic", "provider": "anthropic", "private": PRIVATE}
    module_home.agent("br-anthropic", {"llm": llm, "secrets": {"files": ["anthropic.env"]}})
    return module_session.open("br-anthropic")


@pytest.fixture(scope="module")
def openai(module_home: Home, module_session: SessionFactory) -> Session:
    """Chat Completions and Responses; a self-hosted provider on a port of its own, two models."""
    url = "https://selfhosted.example.com:8443/v1"
    llm = {"protocol": "openai", "provider": "openai", "base_url": url, "private": PRIVATE, "models": MODELS}
    llm["hosted_tools"] = ["background"]
    module_home.agent("br-openai", {"llm": llm, "secrets": {"files": ["openai.env"]}})
    return module_session.open("br-openai")


@pytest.fixture(scope="module")
def embedded(module_home: Home, module_session: SessionFactory, world: World) -> Iterator[Session]:
    """The embedded model; no provider. `document["mark"]` is where the world's log stood before it was opened."""
    module_home.agent("br-embedded", {"llm": {"protocol": "anthropic", "mock": "the embedded model speaks"}})
    mark = world.mark()
    session = module_session.open("br-embedded")
    session.document["mark"] = mark
    yield session


@pytest.fixture(autouse=True)
def _plain_provider(world: World) -> None:
    world.provider_errors()


# ---- B1, B3: what the front lets through

MANAGEMENT = (
    "/key/generate",
    "/key/info",
    "/user/new",
    "/model/new",
    "/model/info",
    "/v1/model/info",
    "/config/update",
    "/get/config/callbacks",
    "/health",
    "/health/liveliness",
    "/health/readiness",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/metrics",
    "/routes",
    "/ui",
    "/ui/",
    "/sso/key/generate",
    "/global/spend",
    "/",
    "/test",
    "/settings",
)
PASS_THROUGH = (
    "/anthropic/v1/messages",
    "/openai/v1/chat/completions",
    "/vertex_ai/v1/projects",
    "/gemini/v1beta/models/x",
    "/bedrock/model/x/invoke",
    "/cohere/v1/chat",
    "/v1/embeddings",
    "/v1/files",
    "/v1/images/generations",
    "/v1/completions",
    "/v1/batches",
    "/v1/assistants",
    "/v1/threads",
    "/v1/responses",
    "/v1/chat/completions",
    "/v1/rerank",
    "/v1/moderations",
    "/v1/audio/speech",
    "/v1/fine_tuning/jobs",
    "/mcp/",
    "/v1/mcp/server",
    "/engines/x/chat/completions",
    "/messages",
    "/v1/messages/batches",
)
# Ways to spell a path that a matcher on cleaned, decoded or lower-cased paths would take for another one.
SPELLINGS = (
    "//key/generate",
    "/./key/generate",
    "/v1/messages/../../key/generate",
    "/key/generate/../../v1/messages",
    "/v1/messages/%2e%2e/%2e%2e/key/generate",
    "/%6bey/generate",
    "/v1/messages%2f..%2f..%2fkey/generate",
    "/v1/messages;/key/generate",
    "/v1/messages/",
    "/v1//messages",
    "/V1/MESSAGES",
    "/v1/messages%00",
    "/v1/messages#x",
    "/v1/messages?beta=true&x=1",
    "/v1/messages?api_key=x",
    "/v1/messages?",
    "/v1/messages%3fbeta=true",
    "/v1/messages\\..\\..\\key\\generate",
    "http://front:4000/key/generate",
    "http://front:4000/v1/messages",
    "http://198.18.0.6:4000/v1/messages",
    "*",
    "/v1/messages ",
    "/%76%31/messages",
    "/v1/%6dessages",
)
TOKENS: tuple[dict[str, str], ...] = (
    {"Authorization": "Bearer {token}"},
    {"x-api-key": "{token}"},
    {},
    {"Authorization": "Bearer wrong"},
)


@pytest.mark.parametrize("paths", [MANAGEMENT, PASS_THROUGH, SPELLINGS], ids=["management", "pass-through", "spelling"])
def test_B1_B3_only_the_protocols_own_routes_open(paths: tuple[str, ...], anthropic: Session, world: World) -> None:
    """With the token, without and with a wrong one; the broker accepts no connection for any of them."""
    before, mark = front.broker_connections(anthropic), world.mark()
    body = message().body
    for headers in TOKENS:
        asked = [Request(path, data, headers=headers) for path in paths for data in (None, body)]
        for request, answer in zip(asked, ask(anthropic, *asked), strict=True):
            assert 400 <= answer.status < 500, (request.target, request.method, headers, answer)
    assert front.broker_connections(anthropic) == before
    world.settle()
    assert world.provider_requests(mark) == []


def test_B1_methods_and_bodies(anthropic: Session) -> None:
    """Right paths, wrong method, type, framing or header."""
    before = front.broker_connections(anthropic)
    good = message().body
    wrong = [Request("/v1/messages", good, method=m) for m in ("PUT", "PATCH", "DELETE", "OPTIONS", "post", "TRACE")]
    wrong += [Request("/v1/messages"), Request("/v1/messages", method="HEAD"), Request("/v1/models", good)]
    bearer = {"Authorization": "Bearer {token}"}
    wrong += [
        Request("/v1/messages", good, headers={**bearer, "Content-Encoding": "gzip"}),
        Request("/v1/messages", good, headers={**bearer, "content-type": "text/plain"}),  # two types
        Request("/v1/models", method="CONNECT", headers=bearer),
        Request(
            "/v1/models", method="GET", headers={**bearer, "X-HTTP-Method-Override": "POST", "Content-Length": "x"}
        ),
    ]
    for request, answer in zip(wrong, ask(anthropic, *wrong), strict=True):
        assert 400 <= answer.status < 500, (request, answer)
    assert front.broker_connections(anthropic) == before
    wait_for(lambda: _asked(anthropic) > before, 30, "the counter counts", 3)  # Caddy keeps idle connections for 2 s


def _asked(session: Session) -> int:
    """How many connections the broker has after one good request."""
    assert ask(session, message())[0].status == 200
    return front.broker_connections(session)


URL = "https://docs.example.com/x.png"
HOSTED: tuple[dict[str, Any], ...] = (
    {"mcp_servers": [{"type": "url", "url": "https://docs.example.com/mcp", "name": "x"}]},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": URL}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": "f"}}]}]},
    {"container": "c1"},
)
CHAT_HOSTED: tuple[dict[str, Any], ...] = (
    {"web_search_options": {"search_context_size": "low"}},
    {"tools": [{"type": "mcp", "server_label": "x", "server_url": "litellm_proxy"}]},
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]}]},
    {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}]},
)


def test_B4_what_the_provider_would_fetch_is_refused(anthropic: Session, openai: Session, world: World) -> None:
    """Before the broker sees it, in the protocol's shape, with the manifest's key; nothing is fetched."""
    mark, before = world.mark(), [front.broker_connections(session) for session in (anthropic, openai)]
    for answer in [
        *ask(anthropic, *[message(**more) for more in HOSTED]),
        *ask(openai, *[chat(**more) for more in CHAT_HOSTED]),
    ]:
        assert (answer.status, answer.reason) == (400, "denied-hosted"), answer
        assert answer.headers["x-asf-key"] == "llm.hosted_tools" and "llm.hosted_tools" in answer.error["message"]
    world.settle()
    assert world.provider_requests(mark) == [] and world.accepts(mark, address=addresses.SITE) == []
    assert [front.broker_connections(session) for session in (anthropic, openai)] == before


# Other spellings of what is refused: escapes in keys and values, letters' case, a key twice, another order.
SPELLED = (
    (r'"mcp\u005fservers":[{"type":"url","url":"https://docs.example.com/mcp","name":"x"}]', "denied-hosted"),
    (r'"MCP_Servers":[{"type":"url","url":"https://docs.example.com/mcp","name":"x"}]', "denied-parameter"),
    (r'"tools":[{"name":"web_search","\u0074ype":"web\u005fsearch_20250305"}]', "denied-hosted"),
    (r'"tools":[{"name":"x","input_schema":{},"Type":"web_search_20250305"}]', "denied-parameter"),
    (r'"tools":[],"tools":[{"type":"web_search_20250305","name":"web_search"}]', "denied-json"),
    (r'"tools":[],"t\u006fols":[{"type":"web_search_20250305","name":"web_search"}]', "denied-json"),
    (r'"system":[{"source":{"url":"https://docs.example.com/x","type":"\u0075rl"},"type":"image"}]', "denied-hosted"),
    (r'"system":[{"type":"text","type":"image","source":{"type":"url"}}]', "denied-json"),
    (r'"api\u005fbase":"https://docs.example.com"', "denied-parameter"),
    (r'"metadata":{"user_id":"u","tags":["x"]}', "denied-parameter"),
)


def test_B4_in_every_spelling(anthropic: Session, openai: Session, world: World) -> None:
    """What two JSON readers could read differently is refused whatever it asks for; escapes hide nothing."""
    mark = world.mark()
    least = '"model":"claude-test","max_tokens":64,"messages":[{"role":"user","content":"x"}]'
    asked = [Request("/v1/messages", "{" + least + "," + more + "}") for more, _ in SPELLED]
    for (more, reason), answer in zip(SPELLED, ask(anthropic, *asked), strict=True):
        assert (answer.status, answer.reason) == (400, reason), (more, answer)
    address = r'{"type":"image_url","image_url":{"url":"\u0068ttps://docs.example.com/x.png"}}'
    image = '{"model":"gpt-test","messages":[{"role":"user","content":[' + address + "]}]}"
    assert ask(openai, Request("/v1/chat/completions", image))[0].status == 400
    world.settle()
    assert world.provider_requests(mark) == [] and world.accepts(mark, address=addresses.SITE) == []


def test_B4_a_grant_opens_what_it_names(openai: Session, world: World) -> None:
    """`background` is granted and arrives; what is not granted is refused in the same session."""
    mark = world.mark()
    granted, other, stored = ask(
        openai, responses(background=True), responses(previous_response_id="r"), responses(store=True)
    )
    assert granted.status == 200 and (other.reason, stored.reason) == ("denied-hosted", "denied-hosted")
    assert [request["body"].get("background") for request in world.provider_requests(mark)] == [True]


STEERING = {
    "Cookie": "a=b",
    "X-Forwarded-For": "192.0.2.1",
    "X-Forwarded-Host": "docs.example.com",
    "X-LiteLLM-Api-Base": "https://docs.example.com/v1",
    "X-LiteLLM-Tags": "x",
    "X-LiteLLM-Timeout": "1",
    "Anthropic-Beta": "effort-2025-11-24,mcp-client-2025-04-04,files-api-2025-04-14",
    "OpenAI-Organization": "org-x",
    "OpenAI-Project": "proj-x",
    "X-Provider-Key": "x",
}


def test_B4_what_arrives_at_the_provider(anthropic: Session, openai: Session, world: World) -> None:
    """Of the headers none that steers the broker or the provider; of the body, the agent's own fields as they were."""
    tool = {"name": "look", "description": "d", "input_schema": {"type": "object", "properties": {"url": {}}}}
    asked = message("see https://docs.example.com/", temperature=0.5, system="s", tools=[tool], stop_sequences=["x"])
    also = chat(temperature=0.5, user="u", tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}])
    for session, request in ((anthropic, asked), (openai, also), (openai, responses(instructions="i", store=False))):
        request.headers.update(STEERING)
        mark = world.mark()
        assert ask(session, request)[0].status == 200
        (seen,) = world.provider_requests(mark)
        names = set(seen["headers"])
        assert not names & {name.lower() for name in STEERING if name != "Anthropic-Beta"}, names
        assert not [name for name in names if name.startswith(("x-litellm", "x-forwarded", "via"))], names
        betas = seen["headers"].get("anthropic-beta", "")
        assert "mcp-client" not in betas and "files-api" not in betas
        assert set(seen["body"]) <= set(request.body), seen["body"]
        for name in set(seen["body"]) - {"model", "messages", "system"}:
            assert seen["body"][name] == request.body[name], (name, seen["body"])
    world.settle()
    assert world.accepts(mark, address=addresses.SITE) == []


def test_no_answer_is_had_by_making_the_broker_refuse_it(openai: Session, world: World) -> None:
    """LiteLLM validates answers when a request says so, and puts what does not fit into its error: the provider was
    paid, the agent had its words, and nothing was counted."""
    mark = world.mark()
    form = {"type": "json_object", "response_schema": {"type": "object", "required": ["q"]}, "enforce_validation": True}
    (answer,) = ask(openai, chat(response_format=form))
    assert (answer.status, answer.reason) == (400, "denied-parameter"), answer
    world.settle()
    assert world.provider_requests(mark) == []


def test_broken_requests_get_no_trace_of_the_broker(anthropic: Session) -> None:
    """A model's name with line ends and malformed messages are refused by the front, in words of its own."""
    wrong = [
        message(model="claude-test\r\nX-Key: 1"),
        message(messages=[7]),
        message(messages="x"),
        message(messages=None),
    ]
    for answer in ask(anthropic, *wrong):
        assert answer.status in (400, 404) and answer.reason.startswith("denied-"), answer
        assert "Traceback" not in answer.body and "litellm" not in answer.body.lower(), answer


def test_the_token_in_either_header(anthropic: Session) -> None:
    """One of the two forms, or both alike; nothing else opens."""
    good: list[dict[str, str]] = [
        {"Authorization": "Bearer {token}"},
        {"x-api-key": "{token}"},
        {"authorization": "bearer {token}"},
        {"Authorization": "Bearer {token}", "X-Api-Key": "{token}"},
    ]
    bad: list[dict[str, str]] = [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"x-api-key": ""},
        {"Authorization": "{token}"},
        {"Authorization": "Basic {token}"},
        {"Authorization": "Bearer {token}x"},
        {"Authorization": "Bearer {token}", "x-api-key": "other"},
        {"api-key": "{token}"},
        {"Cookie": "token={token}"},
        {"Authorization": "Bearer {token}", "authorization": "Bearer {token}"},
    ]
    control = "/asf/control"
    answers = ask(anthropic, *[Request(control, headers=headers) for headers in [*good, *bad]])
    assert [answer.status for answer in answers] == [204] * len(good) + [401] * len(bad)
    assert {answer.reason for answer in answers[len(good) :]} == {"denied-token"}
    shape = json.loads(answers[-1].body)
    assert shape["type"] == "error" and shape["error"]["type"] == "authentication_error"
    master = front.master_key(anthropic)
    assert ask(anthropic, Request("/v1/models", headers={"x-api-key": master}))[0].status == 401


def test_B3_models_that_are_not_declared(openai: Session, world: World) -> None:
    """`llm.models` is the whole list; the provider is never asked for another model."""
    mark = world.mark()
    asked = [chat(model=m) for m in ("gpt-secret", "openai/gpt-secret", "openai/*", "*", "asfmock/embedded", "")]
    asked += [responses(model="gpt-secret"), chat(model="gpt-secret", stream=True)]
    for request, answer in zip(asked, ask(openai, *asked), strict=True):
        assert 400 <= answer.status < 500, (request.body, answer)
    # LiteLLM takes these from a body as a way to another host or provider.
    extra: list[dict[str, Any]] = [
        {"api_base": "https://docs.example.com/v1"},
        {"base_url": "https://docs.example.com/v1"},
        {"custom_llm_provider": "anthropic"},
        {"fallbacks": ["gpt-secret"]},
    ]
    ask(openai, *[chat(**more) for more in extra])
    world.settle()
    seen = world.provider_requests(mark)
    assert {request["model"].removeprefix("openai/") for request in seen} <= {"gpt-test"}
    assert {request["address"] for request in seen} <= {addresses.CORPORATE}
    assert {request["key"] for request in seen} <= {openai.home.secrets["OPENAI_API_KEY"]}
    assert world.accepts(mark, address=addresses.SITE) == []


# ---- both protocols, a provider on its own host


def test_messages_reach_the_provider_with_the_providers_key(anthropic: Session, world: World) -> None:
    """Whole, streamed, counted; only the provider sees the key, and it sees no token."""
    mark = world.mark()
    count = Request(
        "/v1/messages/count_tokens?beta=true", {"model": "claude-test", "messages": message().body["messages"]}
    )
    whole, stream, counted, models = ask(anthropic, message(), message(stream=True), count, Request("/v1/models"))
    assert whole.status == stream.status == models.status == 200, (whole, stream, models)
    assert "hello from the test provider" in whole.body
    assert "message_start" in stream.body and "message_stop" in stream.body
    assert counted.status == 200 and "input_tokens" in counted.body
    seen = world.provider_requests(mark)
    assert {request["key"] for request in seen} == {anthropic.home.secrets["ANTHROPIC_API_KEY"]}
    assert {request["address"] for request in seen} == {addresses.PROVIDER}
    token = anthropic.exec("printenv", "ANTHROPIC_AUTH_TOKEN").out.strip()
    for secret in (token, front.master_key(anthropic)):
        assert secret and secret not in json.dumps(seen)


def test_chat_and_responses_reach_base_url(openai: Session, world: World) -> None:
    """`llm.base_url` names host and port, `llm.private` lets it lie in a special-purpose range."""
    mark = world.mark()
    asked = [chat(), chat(stream=True), responses(), responses(stream=True), Request("/v1/models")]
    answers = ask(openai, *asked)
    assert [answer.status for answer in answers] == [200] * 5, answers
    assert "[DONE]" in answers[1].body and "response.completed" in answers[3].body
    assert sorted(model["id"] for model in json.loads(answers[4].body)["data"]) == sorted(MODELS)
    seen = world.provider_requests(mark)
    assert {(r["address"], r["port"], r["key"]) for r in seen} == {
        (addresses.CORPORATE, 8443, openai.home.secrets["OPENAI_API_KEY"])
    }
    assert {request["path"] for request in seen} == {"/v1/chat/completions", "/v1/responses"}


def test_a_provider_that_moves_out_of_llm_private_is_not_dialled(anthropic: Session, world: World) -> None:
    """The address is judged at every connection of the broker's way out (P4)."""
    for moved in (addresses.PRIVATE, addresses.METADATA, addresses.SHARED, addresses.HOST_PUBLIC):
        world.zone("api.anthropic.com", A=[moved])
        mark = world.mark()
        refused = anthropic.in_netns("broker", lambda: probe_tools.connect(L3, "api.anthropic.com:443"))
        assert (refused["status"], refused["headers"].get("x-asf-proxy")) == (403, "denied-address"), (moved, refused)
        assert world.canaries(mark) == []
    world.zone("api.anthropic.com", A=[addresses.PROVIDER])
    assert ask(anthropic, message())[0].status == 200


# ---- the broker reaches its provider and nothing else


def test_N8_the_broker_has_no_other_way_out(anthropic: Session, world: World) -> None:
    """By itself nothing but L3; through L3 the provider's name on its port, decided before DNS."""
    mark = world.mark()
    elsewhere = [
        (addresses.SITE, 443),
        (addresses.PROVIDER, 443),
        (addresses.HOST, 22),
        (addresses.HOST_PUBLIC, 443),
        (addresses.RESOLVER, 53),
        (addresses.METADATA, 80),
        ("169.254.1.2", 443),
        ("10.0.2.2", 443),
        ("10.0.2.3", 53),
        L1,
        L2,
        ("198.18.0.2", 4000),
        ("198.18.0.5", 22),
        ("198.18.0.5", 4000),
        ("2001:db8::10", 443),
    ]
    tried = anthropic.in_netns("broker", lambda: [probe_tools.tcp(host, port, 2) for host, port in elsewhere], 60)
    wrong = {where: how for where, how in zip(elsewhere, tried, strict=True) if how not in CLOSED}
    assert wrong == {}
    targets = {
        "docs.example.com:443": "denied-name",
        "api.openai.com:443": "denied-name",
        "api.anthropic.com:22": "denied-port",
        "api.anthropic.com.example.com:443": "denied-name",
        f"{addresses.PROVIDER}:443": "denied-name",
    }
    asked = anthropic.in_netns("broker", lambda: [probe_tools.connect(L3, target) for target in targets], 60)
    found = {target: (a["status"], a["headers"].get("x-asf-proxy")) for target, a in zip(targets, asked, strict=True)}
    assert {status for status, _ in found.values()} == {403}, found
    for target, expected in targets.items():
        assert found[target][1] in (expected, "denied-address"), found
    world.settle()
    assert world.dns_names(mark) == set() and world.accepts(mark) == []
    through = anthropic.in_netns(
        "broker", lambda: probe_tools.tls_through(L3, "api.anthropic.com:443", path="/v1/models")
    )
    assert through["tls"] == "ok", through


# ---- B5: keys in a provider's errors


def _forms(secret: str) -> set[str]:
    """How a secret may be written down."""
    quoted = base64.b64encode(secret.encode()).decode().rstrip("=")
    return {secret, secret.lower(), urllib.parse.quote(secret, safe=""), json.dumps(secret)[1:-1], quoted}


def _hits(secrets: set[str], texts: dict[str, str]) -> list[str]:
    return [where for where, text in texts.items() for s in secrets for form in _forms(s) if form in text]


def _files(folder: Path) -> dict[str, str]:
    return {str(p): p.read_bytes().decode("latin-1") for p in folder.rglob("*") if p.is_file()}


def test_B5_a_provider_that_echoes_the_key(anthropic: Session, openai: Session, world: World) -> None:
    """401, 404, 500 and others, streamed or not: no key in any answer, log, or file of the running sessions."""
    texts: dict[str, str] = {}
    for session, asked in (
        (anthropic, [message(), message(stream=True)]),
        (openai, [chat(), chat(stream=True), responses(), responses(stream=True)]),
    ):
        for status in (400, 401, 403, 404, 429, 500, 503):
            world.provider_errors({"status": status, "message": "the key {key} was used: 'Bearer {key}'"})
            mark = world.mark()
            answers = ask(session, *asked)
            assert world.provider_requests(mark, answer="error"), "the provider was asked"
            for number, answer in enumerate(answers):
                assert answer.status >= 400 or "error" in answer.body, (session.id, status, answer)
                texts[f"answer {session.id} {status} {number}"] = json.dumps(vars(answer))
        for role in ("agent", "caddy", "broker"):
            texts[f"log of {session.container(role)}"] = session.logs(role)
        texts |= _files(session.home.state)
    secrets = {anthropic.home.secrets["ANTHROPIC_API_KEY"], openai.home.secrets["OPENAI_API_KEY"]}
    masters = {front.master_key(anthropic), front.master_key(openai)}
    assert _hits(secrets | masters, texts) == []


def test_errors_keep_their_status_and_shape(anthropic: Session, openai: Session, world: World) -> None:
    """A client tells a rate limit from a wrong key by status and shape."""
    for status in (401, 404, 429):
        world.provider_errors({"status": status, "message": "no"})
        assert [answer.status for answer in ask(anthropic, message()) + ask(openai, chat(), responses())] == [
            status
        ] * 3
    answer = ask(anthropic, message())[0]
    assert json.loads(answer.body)["type"] == "error" and answer.error["type"] == "rate_limit_error"
    assert set(ask(openai, chat())[0].error) >= {"message", "type", "code"}


# ---- B7, B8: the embedded model, a broker that dies


def test_B7_a_broker_with_no_way_out(embedded: Session, world: World) -> None:
    """It boots without trying any connection: nothing was asked of L3, no name left, and L3's list is empty."""
    assert "the embedded model speaks" in ask(embedded, message())[0].body
    boot = [json.loads(line) for line in embedded.logs("broker").splitlines() if line.startswith("{")]
    ready = next(line for line in boot if line.get("event") == "ready")
    assert [status for status, _ in ready["warm"].values()] == [200, 200, 200], ready
    count = {"model": "claude-test", "messages": [{"role": "user", "content": "how long is this?"}]}
    counted = ask(embedded, Request("/v1/messages/count_tokens?beta=true", count))[0]
    assert counted.status == 200 and json.loads(counted.body)["input_tokens"] > 0, counted
    assert [d for d in embedded.decisions() if d["listener"] == "L3"] == []
    world.settle()
    assert world.dns_names(embedded.document["mark"]) == set() and world.accepts(embedded.document["mark"]) == []
    assert "asf-provider" not in json.dumps(embedded.inspect("broker"))
    for target in ("api.anthropic.com:443", "docs.example.com:443"):
        refused = embedded.in_netns("broker", lambda target=target: probe_tools.connect(L3, target))
        assert (refused["status"], refused["headers"]["x-asf-proxy"]) == (403, "denied-name")


def _supervised(session: Session) -> list[dict[str, Any]]:
    lines = [line for line in session.logs("broker").splitlines() if line.startswith('{"asf":"supervisor"')]
    return [json.loads(line) for line in lines]


def test_a_budget_is_kept_while_the_broker_restarts(home: Home, session: SessionFactory) -> None:
    """`llm.limits`: 429 in the protocol's shape, with the key, and in the evidence. A new broker is no new budget."""
    limits = {"tokens_per_session": 1, "concurrent_requests": 2}
    home.agent("br-limited", {"llm": {"protocol": "anthropic", "mock": "words", "limits": limits}})
    opened = session.open("br-limited")
    assert ask(opened, message())[0].status == 200
    answer = ask(opened, message())[0]
    assert (answer.status, answer.reason) == (429, "limit-tokens") and answer.error["type"] == "rate_limit_error"
    assert answer.headers["x-asf-key"] == "llm.limits.tokens_per_session" and "0 are left" in answer.error["message"]
    kill = f"import os; os.kill({_supervised(opened)[-1]['pid']}, 9)"
    podman("exec", opened.container("broker"), "python3", "-c", kill)
    assert ask(opened, message())[0].status == 429
    opened.close()
    counted = json.loads((opened.evidence / "usage.json").read_text())["front"]["counted"]
    assert counted["requests"] == 1 and counted["input_tokens"] + counted["output_tokens"] > 0


def _spent(opened: Session) -> dict[str, Any]:
    """The model's part of `status`."""
    found: dict[str, Any] = asf_play("status", *opened.selector(), "--json", home=opened.home).json["status"]
    return found


def test_money_is_counted_told_and_kept_when_caddys_program_is_killed(home: Home, session: SessionFactory) -> None:
    """`usd_per_session`: 10 tokens in and 5 out of a model of the price list cost $0.00035; three are too many."""
    llm = {"protocol": "anthropic", "provider": "anthropic", "private": PRIVATE, "limits": {"usd_per_session": 0.001}}
    home.agent("br-money", {"llm": llm, "secrets": {"files": ["anthropic.env"]}})
    opened, model = session.open("br-money"), "claude-fable-5"
    assert _spent(opened)["inference"] == {"limits": llm["limits"], "left": llm["limits"]}
    answers = ask(opened, message(model=model), message(model=model, stream=True), message())
    assert [answer.status for answer in answers] == [200, 200, 400], answers
    assert (answers[2].reason, answers[2].headers["x-asf-key"]) == ("denied-price", "llm.limits.usd_per_session")
    told = wait_for(lambda: (one := _spent(opened))["tokens"] == 30 and one, what="both requests in Caddy's log")
    assert told["cost_usd"] == 0.0007 and told["inference"]["left"] == {"usd_per_session": 0.0003}, told
    listed = next(one for one in asf_play("ls", "--json", home=home).json if one["session"] == opened.id)
    assert (listed["tokens"], listed["cost_usd"]) == (30, 0.0007)
    assert (
        "2 requests, 20 tokens in, 10 tokens out, $0.0007, $0.0003 left" in asf_play("status", opened.id, home=home).out
    )

    (child,) = procs.children(opened.pid("caddy"))
    in_userns_root(f"kill -9 {child}")
    wait_for(lambda: procs.children(opened.pid("caddy")) not in ([], [child]), 60, "another start of Caddy")
    last = wait_for(lambda: (one := ask(opened, message(model=model))[0]).status != 0 and one, 60, "the front")
    assert last.status == 200, last
    over = ask(opened, message(model=model))[0]
    assert (over.status, over.reason) == (429, "limit-usd") and "nothing is left" in over.error["message"], over
    opened.close()
    counted = json.loads((opened.evidence / "usage.json").read_text())["front"]["counted"]
    assert (counted["requests"], counted["cost_usd"], counted["unpriced_requests"]) == (3, 0.00105, 0), counted
    lines = [json.loads(line) for line in (opened.evidence / "requests.jsonl").read_text().splitlines()]
    assert [(one["model"], one["cost_usd"], one["outcome"]) for one in lines] == [(model, 0.00035, "ok")] * 3
    assert "tokens, $0.001" in (opened.evidence / "report.html").read_text()
    assert schemas.evidence_problems(opened.evidence) == []


def test_B8_a_killed_broker_comes_back(embedded: Session) -> None:
    """The supervisor restarts it; until then the front asks clients to wait; the same token works afterwards."""
    start = _supervised(embedded)[-1]
    assert start["event"] == "start"
    kill = f"import os; os.kill({start['pid']}, 9)"
    podman("exec", embedded.container("broker"), "python3", "-c", kill)
    wait_for(lambda: _supervised(embedded)[-1]["pid"] != start["pid"], what="the supervisor's restart")
    waiting = ask(embedded, message())[0]
    assert (waiting.status, waiting.reason) == (503, "broker-starting"), waiting
    assert waiting.headers["retry-after"] == "1" and waiting.error["type"] == "overloaded_error"
    answer = wait_for(lambda: _served(embedded), 120, "the broker's return", 0.5)
    assert "the embedded model speaks" in answer.body
    events = _supervised(embedded)
    assert [event["event"] for event in events] == ["start", "exit", "start"] and events[-1]["start"] == 2


def _served(session: Session) -> front.Answer | None:
    answer = ask(session, message())[0]
    assert answer.status in (200, 503), answer
    return answer if answer.status == 200 else None


# ---- errors before anything exists


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        (None, 0o600, "secrets.files[0]"),
        ("ANTHROPIC_API_KEY=\n", 0o600, "ANTHROPIC_API_KEY"),
        ("ANTHROPIC_API_KEY=abcdefgh\n", 0o644, "0600"),
    ],
    ids=["missing", "empty", "readable by all"],
)
def test_a_wrong_secrets_file_stops_before_anything_exists(
    text: str | None, mode: int, named: str, module_home: Home, module_session: SessionFactory
) -> None:
    """The error names the file and what is wrong with it, and never its content."""
    path = module_home.path / "secrets" / "wrong.env"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    llm = {"protocol": "anthropic", "provider": "anthropic"}
    module_home.agent("br-wrong", {"llm": llm, "secrets": {"files": ["wrong.env"]}})
    done, session = module_session.attempt("br-wrong")
    assert done.rc != 0 and done.json is not None, done
    assert "wrong.env" in json.dumps(done.json["error"]) and named in json.dumps(done.json), done
    assert done.json["error"]["remedy"] and "abcdefgh" not in done.out + done.err
    assert {phase["name"] for phase in done.json["phases"]} <= {"start", "plan"}
    assert podman("ps", "-aq", "--filter", f"label=asf.session={session.id}") == ""


# ---- the end: these close the shared sessions


def test_z_a_closed_sessions_token_is_dead(embedded: Session, anthropic: Session) -> None:
    """It opens no other session's front while it lives, and nothing once its session is closed."""
    token = embedded.exec("printenv", "ANTHROPIC_AUTH_TOKEN").out.strip()
    foreign = Request("/v1/models", headers={"x-api-key": token})
    assert token and ask(anthropic, foreign)[0].status == 401
    assert embedded.close().rc == 0
    assert podman("secret", "ls", "--format", "{{.Name}}").count(embedded.id) == 0
    assert ask(anthropic, foreign)[0].status == 401


def test_z_B5_B8_evidence_of_closed_sessions(anthropic: Session, openai: Session, embedded: Session) -> None:
    """No key in what is kept, and the broker's restart is there to be read."""
    secrets = {anthropic.home.secrets["ANTHROPIC_API_KEY"], openai.home.secrets["OPENAI_API_KEY"]}
    secrets |= {front.master_key(anthropic), front.master_key(openai)}
    assert ask(anthropic, Request("/key/generate"))[0].reason == "denied-path"
    for session in (anthropic, openai):
        assert session.close().rc == 0
    kept = _files(anthropic.home.state)
    assert any("denied-path" in text for text in kept.values()), "the decisions are kept"
    assert _hits(secrets, kept) == []
    assert any('"exit"' in text for text in _files(embedded.evidence).values()), "B8 is recorded"
