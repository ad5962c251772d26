# SPDX-License-Identifier: BSD-4-Clause
"""Stand-in for auth.openai.com and chatgpt.com: a login by device code, and the model for who has logged in.

A test is the browser: ``approve`` enters the code that the client shows, with a word that the tokens then carry, so
that a test finds them wherever they went. Requests become events `provider`, answer `login` for those of the login.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import secrets
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from support import addresses
from support.providers import ProviderHandler
from support.wire import Json, send_json

AUTHORITY, MODEL = "auth.openai.com", "chatgpt.com"
ACCOUNT = "6f1d8c52-0000-4000-8000-00000000000c"
#: Seconds that an access token is good for, unless ``approve`` says otherwise.
_GOOD_FOR = 3600
_ROUTING = {
    "accounts": [
        {
            "id": ACCOUNT,
            "plan_type": "plus",
            "structure": "personal",
            "workspace_backend_origin": f"https://{MODEL}",
            "account_routing_override": "NO_CONSTRAINT",
        }
    ],
    "account_ordering": [ACCOUNT],
    "default_account_id": ACCOUNT,
}


class _Logins:
    """Device codes on their way to a token. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_code: dict[str, Json] = {}
        self._by_grant: dict[str, Json] = {}

    def begin(self) -> Json:
        """A new code, which nobody has entered yet."""
        login = {"device_auth_id": secrets.token_hex(8), "user_code": f"TEST-{secrets.token_hex(3).upper()}"}
        with self._lock:
            self._by_code[login["user_code"]] = login
        return login

    def approve(self, body: Json) -> bool:
        """Somebody signed in and entered a code."""
        with self._lock:
            login = self._by_code.get(str(body.get("user_code")))
            if login:
                login |= {"word": str(body["word"]), "seconds": int(body.get("seconds", _GOOD_FOR))}
                login |= {"grant": secrets.token_hex(8), "verifier": secrets.token_urlsafe(32)}
                self._by_grant[login["grant"]] = login
            return login is not None

    def grant(self, body: Json) -> Json | None:
        """What the client that asks with its own half of the code gets: nothing, until somebody has approved."""
        with self._lock:
            login = self._by_code.get(str(body.get("user_code")), {})
        if login.get("device_auth_id") != body.get("device_auth_id") or "grant" not in login:
            return None
        digest = hashlib.sha256(login["verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        names = {"authorization_code": login["grant"], "code_verifier": login["verifier"]}
        return {**names, "code_challenge": challenge}

    def redeem(self, form: Json) -> Json | None:
        """Tokens for a grant, once and only with its verifier; or new ones for a refresh token."""
        if form.get("grant_type") == "refresh_token":
            return _tokens(str(form.get("refresh_token", "")).removeprefix("refresh-"), _GOOD_FOR, "renewed")
        with self._lock:
            login = self._by_grant.pop(str(form.get("code")), {})
        if not login or login["verifier"] != form.get("code_verifier"):
            return None
        return _tokens(login["word"], login["seconds"], "first")


_LOGINS = _Logins()


def _jwt(claims: Json, signature: str) -> str:
    """A token as the client reads it; the signature is a word in clear, for tests to find."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, claims)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), signature])


def _tokens(word: str, seconds: int, which: str) -> Json:
    auth = {"chatgpt_account_id": ACCOUNT, "chatgpt_user_id": "user-test", "chatgpt_plan_type": "plus"}
    claims = {"email": "person@example.com", "sub": "test", "https://api.openai.com/auth": auth}
    times = {"iat": int(time.time()), "exp": int(time.time()) + seconds}
    access = _jwt({**claims, **times, "which": which}, f"access-{word}")
    identity = _jwt({**claims, **times}, f"identity-{word}")
    return {"id_token": identity, "access_token": access, "refresh_token": f"refresh-{word}", "expires_in": seconds}


class ChatGptHandler(ProviderHandler):
    """The authority by its name; the model, as every provider here has it, by the other."""

    def do_GET(self) -> None:
        """Which host serves this account, and with which models: none that the client does not know."""
        found = {"/backend-api/wham/accounts/check": _ROUTING, "/backend-api/codex/models": {"models": []}}
        if self._path() not in found:
            return super().do_GET()
        self._record({}, "login")
        return send_json(self, 200, found[self._path()])

    def do_POST(self) -> None:
        """A step of a login, or inference."""
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "zstd":  # Codex packs what it sends to ChatGPT
            raw = subprocess.run(["zstd", "-dc"], input=raw, capture_output=True, check=True, timeout=30).stdout
        step = getattr(self, self._steps.get(self._path(), ""), None)
        if self.server.info.get("sni") != AUTHORITY or step is None:
            return self._answer(raw)
        body = _body(raw)
        self._record(body, "login")
        return step(body)

    _steps = {
        "/api/accounts/deviceauth/usercode": "_begin",
        "/codex/device": "_approve",
        "/api/accounts/deviceauth/token": "_poll",
        "/oauth/token": "_redeem",
        "/oauth/revoke": "_revoke",
    }

    def _begin(self, body: Json) -> None:
        del body
        send_json(self, 200, {**_LOGINS.begin(), "interval": "1"})

    def _approve(self, body: Json) -> None:
        send_json(self, 200 if _LOGINS.approve(body) else 404, {})

    def _poll(self, body: Json) -> None:
        granted = _LOGINS.grant(body)
        send_json(self, 200 if granted else 403, granted or {"error": "pending"})

    def _revoke(self, body: Json) -> None:
        del body
        send_json(self, 200, {})

    def _redeem(self, body: Json) -> None:
        tokens = _LOGINS.redeem(body)
        send_json(self, 200 if tokens else 400, tokens or {"error": "invalid_grant"})


def _body(raw: bytes) -> Json:
    text = raw.decode("utf-8", "replace")
    found: Json = json.loads(text) if text.startswith("{") else dict(parse_qsl(text))
    return found


def approve(ca: Path, user_code: str, word: str, **options: Any) -> int:
    """What a person does in a browser outside of the sandbox: sign in, and enter the code. Returns the status."""
    context = ssl.create_default_context(cafile=str(ca))
    connection = http.client.HTTPSConnection(AUTHORITY, timeout=30, context=context)
    connection.sock = context.wrap_socket(
        socket.create_connection((addresses.CHATGPT, 443), 30), server_hostname=AUTHORITY
    )
    connection.request("POST", "/codex/device", json.dumps({"user_code": user_code, "word": word, **options}))
    answer = connection.getresponse()
    answer.read()
    return answer.status
