# SPDX-License-Identifier: BSD-4-Clause
"""The broker's server: reads mounted secrets, imports LiteLLM with the collector off, warms itself, then listens.

Child of ``gate supervise broker`` (case B8). Environment: ``ASF_BIND`` = ADDRESS:PORT. Nobody can connect before
everything is warm, so "accepts a connection" means "ready", and the front's first request does not pay LiteLLM's lazy
imports.

Keys are read from mounted files into this process alone: what is put into ``os.environ`` after the start does not show
in ``/proc/PID/environ``, and no child process is ever started here (case S3). Errors name files, never contents.
"""

import asyncio
import base64
import contextlib
import gc
import io
import json
import logging
import os
import sys
import time
import urllib.parse

CONFIG = "/asf/broker/litellm.yaml"
SECRETS = {"/run/secrets/asf-master": "LITELLM_MASTER_KEY", "/run/secrets/asf-provider": "ASF_PROVIDER_KEY"}
REQUIRED = "/run/secrets/asf-master"
#: All that the broker serves: what the front lets through, and the sign of life.
PATHS = frozenset(
    "/v1/messages /v1/messages/count_tokens /v1/chat/completions /v1/responses /v1/models /health/liveliness".split()
)
USAGE_ERROR, BAD_SECRET = 64, 78
LINE_LIMIT = 600  # characters of a log line
WARM_LIMIT = 10.0  # seconds; a broker that could not warm itself still serves
QUOTED = "| "  # before each line that a library prints


def say(event, **facts):
    """One JSON line on stdout, for the log of the session."""
    line({"asf": "broker", "event": event, **facts})


def line(facts):
    """Write a line of the launcher's own, past ``Quoted``."""
    write = sys.stdout.own if isinstance(sys.stdout, Quoted) else sys.stdout.write
    write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def secrets(files=None):
    """``{variable: value}`` of the mounted secrets; a final newline is no part of a key (case S2).

    Raises ValueError naming the file when a required one is missing, or any is empty, not text, or has inner line ends.
    """
    found = {}
    for path, variable in (SECRETS if files is None else files).items():
        try:
            with open(path, "rb") as handle:
                raw = handle.read(65536)
        except FileNotFoundError:
            if path == REQUIRED:
                raise ValueError(f"{path} is missing") from None
            continue
        try:
            value = raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8 text") from None
        if not value or not value.isprintable():
            raise ValueError(f"{path} is empty or holds characters that no key has")
        found[variable] = value
    return found


def bind(text):
    """``(address, port)`` of ``ASF_BIND``. Raises ValueError when it is anything else."""
    address, colon, port = text.rpartition(":")
    if not colon or not address or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("ASF_BIND must be ADDRESS:PORT")
    return address, int(port)


class Scrubbed(io.TextIOBase):
    """A text stream in which known secrets are replaced: LiteLLM's tracebacks quote providers' answers (case B5)."""

    def __init__(self, stream, values):
        super().__init__()
        self._stream = stream
        self._values = sorted({form for value in values for form in forms(value)}, key=len, reverse=True)

    def write(self, text):
        for value in self._values:
            text = text.replace(value, "[redacted]")
        self._stream.write(text)
        return len(text)

    def flush(self):
        self._stream.flush()

    def fileno(self):
        return self._stream.fileno()

    def isatty(self):
        return False


class Quoted(Scrubbed):
    """For what libraries print, tracebacks above all: no line of it looks like one of the launcher's or supervisor's,
    although a client's own text may stand in it, with any line ends (invariant 10).
    """

    def __init__(self, stream, values):
        super().__init__(stream, values)
        self._inside = False  # a line that has not ended

    def write(self, text):
        if text:
            quoted = ("" if self._inside else QUOTED) + text.replace("\n", "\n" + QUOTED)
            self._inside = not text.endswith("\n")
            super().write(quoted if self._inside else quoted[: -len(QUOTED)])
        return len(text)

    def own(self, text):
        """Write a line of the launcher's own, which begins a line."""
        super().write("\n" + text if self._inside else text)
        self._inside = False


def forms(value):
    """A secret as it may stand in a log: as it is, URL-encoded, JSON-escaped, in Base64."""
    quoted = urllib.parse.quote(value, safe="")
    return {value, quoted, json.dumps(value)[1:-1], base64.b64encode(value.encode()).decode()}


async def warm_request(app, path, body, key):
    """Send one request into the application itself, without a socket; returns the status that it answered."""
    raw = json.dumps(body).encode()
    head = [(b"content-type", b"application/json"), (b"authorization", b"Bearer " + key.encode()), (b"host", b"warm")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*head, (b"content-length", str(len(raw)).encode())],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
    }
    sent, status = [{"type": "http.request", "body": raw, "more_body": False}], []

    async def receive():
        return sent.pop() if sent else await asyncio.sleep(WARM_LIMIT, {"type": "http.disconnect"})

    async def send(message):
        if message["type"] == "http.response.start":
            status.append(message["status"])

    await app(scope, receive, send)
    return status[0] if status else 0


def warm_bodies(model):
    """One small streamed request per protocol that the front lets through."""
    chat = [{"role": "user", "content": "warm"}]
    yield "/v1/messages", {"model": model, "max_tokens": 1, "stream": True, "messages": chat}
    yield "/v1/chat/completions", {"model": model, "stream": True, "messages": chat}
    yield "/v1/responses", {"model": model, "stream": True, "input": "warm"}


class Narrow:
    """The application for exact paths only; anything else never reaches it (case B1, behind the front's own list)."""

    def __init__(self, app, paths):
        self._app, self._paths = app, paths

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._allowed(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            head = [(b"content-type", b"application/json"), (b"content-length", b"21")]
            await send({"type": "http.response.start", "status": 404, "headers": head})
            await send({"type": "http.response.body", "body": b'{"error":"not-found"}'})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _allowed(self, scope):
        return scope["path"] in self._paths and scope.get("raw_path", scope["path"].encode()) == scope["path"].encode()


class Masked:
    """The application without the given secrets in what it answers (case B5): providers echo keys in their errors.

    Each is overwritten by as many asterisks, so that no length changes. One that two pieces of a stream tear apart is
    left to the front, which looks at whole error bodies.
    """

    def __init__(self, app, values):
        self._app, self._values = app, [value.encode() for value in values]

    def _clean(self, data):
        for value in self._values:
            if value in data:
                data = data.replace(value, b"*" * len(value))
        return data

    async def __call__(self, scope, receive, send):
        async def masked(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [(name, self._clean(value)) for name, value in message["headers"]]}
            elif message["type"] == "http.response.body":
                message = {**message, "body": self._clean(message.get("body", b""))}
            await send(message)

        await self._app(scope, receive, masked)


class OneLine(logging.Handler):
    """Everything that LiteLLM and its libraries log, as one bounded JSON line without the traceback."""

    def emit(self, record):
        try:
            text = record.getMessage()[:LINE_LIMIT]
        except (TypeError, ValueError):
            text = str(record.msg)[:LINE_LIMIT]
        say("log", level=record.levelname, logger=record.name[:60], text=text)


def quiet():
    """Send every logger to ``OneLine``; only errors pass. Called after the import, which sets up LiteLLM's own."""
    logging.root.handlers[:] = [OneLine()]
    logging.root.setLevel(logging.ERROR)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (logger.handlers or name.startswith(("LiteLLM", "uvicorn"))):
            logger.handlers[:], logger.propagate = [], True
            logger.setLevel(logging.ERROR)


class Warmed:
    """The application, warmed after its start-up and before the server listens: uvicorn binds when that is complete."""

    def __init__(self, app, warm):
        self._app, self._warm = app, warm

    async def __call__(self, scope, receive, send):
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def held(message):
            if message["type"] == "lifespan.startup.complete":
                await self._warm()
            await send(message)

        await self._app(scope, receive, held)


async def warm(app, key, started):
    """Send each protocol's first request to a model that answers by itself: nothing goes upstream (case B7)."""
    begun, answers = time.monotonic(), {}
    try:
        with _warm_model() as model:
            for path, body in warm_bodies(model):
                sent = time.monotonic()
                status = await asyncio.wait_for(warm_request(app, path, body, key), WARM_LIMIT)
                answers[path] = [status, round((time.monotonic() - sent) * 1000)]
    except Exception as error:  # the broker serves all the same, only its first answer is slower
        answers["error"] = type(error).__name__
    gc.freeze()  # without a collection first: it takes as long as a tenth of the import and frees little
    gc.enable()
    now = time.monotonic()
    say("ready", warm_ms=round((now - begun) * 1000), after_ms=round((now - started) * 1000), warm=answers)


@contextlib.contextmanager
def _warm_model():
    """Name of a model that answers "warm" and that exists, under a random name, for the warm-up only.

    LiteLLM's start-up replaces the map of custom providers by the configuration's, so this comes after it.
    """
    import asf_mock
    import litellm
    from litellm.proxy import proxy_server
    from litellm.types.router import Deployment, LiteLLM_Params

    name, known = "asf-warm-" + os.urandom(8).hex(), list(litellm.custom_provider_map)
    own = {"provider": "asfwarm", "custom_handler": asf_mock.provider([{"text": "warm"}])}
    litellm.custom_provider_map = [*known, own]
    litellm.utils.custom_llm_setup()
    params = LiteLLM_Params(model="asfwarm/warm", api_key="none")
    made = proxy_server.llm_router.add_deployment(Deployment(model_name=name, litellm_params=params))
    try:
        yield name
    finally:
        proxy_server.llm_router.delete_deployment(made.model_info.id)
        litellm.custom_provider_map = known


def usage_line(kwargs, response, start, end, status):
    """One finished request as the evidence wants it: names and numbers, nothing of its text.

    Tokens are what the provider reported; ``cost_usd`` is LiteLLM's estimate, absent for a model that it does not know.
    """
    tokens = getattr(response, "usage", None) or (response.get("usage") if isinstance(response, dict) else None) or {}
    read = tokens.get if isinstance(tokens, dict) else lambda name, default=None: getattr(tokens, name, default)
    found = {
        "asf": "usage",
        "ts": end.astimezone().isoformat(timespec="milliseconds"),
        "model": str(kwargs.get("model") or "")[:120],
        "status": status,
        "input_tokens": read("prompt_tokens", None) or read("input_tokens", None) or 0,
        "output_tokens": read("completion_tokens", None) or read("output_tokens", None) or 0,
        "ms": round((end - start).total_seconds() * 1000),
    }
    if kwargs.get("response_cost"):
        found["cost_usd"] = kwargs["response_cost"]
    return found


def summed(sums, line):
    """The line with the sums of this process so far: the last line tells them when a full log lost the first."""
    sums["requests"] = sums.get("requests", 0) + 1
    for name in ("input_tokens", "output_tokens", "cost_usd"):
        if name in line:
            sums[name] = sums.get(name, 0) + line[name]
    return {**line, "so_far": dict(sums)}


def _usage_log():
    from litellm.integrations.custom_logger import CustomLogger

    sums = {}

    class UsageLog(CustomLogger):
        """Prints ``usage_line`` for every request that reached a provider; the warm-up's are left out."""

        async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
            self._print(kwargs, response_obj, start_time, end_time, 200)

        async def async_log_failure_event(self, kwargs, response_obj, start_time, end_time):
            status = getattr(kwargs.get("exception"), "status_code", None)
            self._print(kwargs, response_obj, start_time, end_time, status if isinstance(status, int) else 0)

        @staticmethod
        def _print(kwargs, response, start, end, status):
            if kwargs.get("custom_llm_provider") != "asfwarm":
                line(summed(sums, usage_line(kwargs, response, start, end, status)))

    return UsageLog()


def keep(routes, wanted):
    """Take every route but the wanted paths out of a list of routes, in place; returns the paths that stay.

    LiteLLM has 600 more, and its web framework prepares every one at the first request: most of what that one costs.
    Routes that LiteLLM registers later, on demand, are not in the list yet; ``Narrow`` is what refuses the others.
    """
    found, kept = set(), []
    for route in routes:
        inner = getattr(route, "original_router", None)
        paths = keep(inner.routes, wanted) if inner is not None else {getattr(route, "path", None)} & wanted
        if paths:
            kept.append(route)
            found |= paths
    routes[:] = kept
    return found


def install(server):
    """The application with the usage log, and without the routes that no agent uses.

    ``server`` is the imported ``litellm.proxy.proxy_server``.
    """
    import litellm

    litellm.callbacks.append(_usage_log())
    keep(server.app.router.routes, PATHS)
    return server.app


def main(argv):
    """Serve until TERM. Exit codes: 64 usage, 78 an unusable secret."""
    started = time.monotonic()
    try:
        address, port = bind(os.environ.get("ASF_BIND", ""))
    except ValueError as error:
        say("refused", error=str(error))
        return USAGE_ERROR
    try:
        keys = secrets()
    except ValueError as error:
        say("refused", error=str(error))
        return BAD_SECRET
    sys.stdout, sys.stderr = (Quoted(stream, keys.values()) for stream in (sys.stdout, sys.stderr))
    os.environ.update(keys)
    os.environ.setdefault("CONFIG_FILE_PATH", CONFIG)
    os.environ.setdefault("LITELLM_LOG", "ERROR")
    gc.disable()  # the import makes millions of objects that stay; a third of the boot went into looking at them
    import uvicorn
    from litellm.proxy import proxy_server

    quiet()
    app = install(proxy_server)
    say("imported", after_ms=round((time.monotonic() - started) * 1000))
    served = Masked(Narrow(app, PATHS), keys.values())
    served = Warmed(served, lambda: warm(app, keys["LITELLM_MASTER_KEY"], started))
    uvicorn.run(served, host=address, port=port, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
