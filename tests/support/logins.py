# SPDX-License-Identifier: BSD-4-Clause
"""Stand-in for the authority that a client logs in at: what it asks at its provider's hosts besides inference.

The page to sign in at is the browser's matter, that is the test's: it makes up a code. The tokens that are given for it
hold that code, so that a test finds them wherever they went. Every request becomes an event `provider`, answer `login`.
"""

from __future__ import annotations

import json
from typing import Any

from support.providers import ProviderHandler
from support.wire import send_json

Json = dict[str, Any]

_ACCESS, _REFRESH = "sk-ant-oat01-", "sk-ant-ort01-"
_ACCOUNT = "6f1d8c52-0000-4000-8000-000000000001"
_ORGANIZATION = "6f1d8c52-0000-4000-8000-000000000002"
_ACCOUNT_OF = {
    "/api/oauth/profile": {
        "account": {"uuid": _ACCOUNT, "email": "person@example.com", "full_name": "A Person", "display_name": "A"},
        "organization": {"uuid": _ORGANIZATION, "name": "Example", "organization_type": "claude_enterprise"},
    },
    "/api/oauth/claude_cli/roles": {
        "organization_role": "user",
        "workspace_role": None,
        "organization_name": "Example",
    },
}


class LoginHandler(ProviderHandler):
    """A provider that logs people in, too."""

    def do_HEAD(self) -> None:
        """Is the host there?"""
        self._record({}, "login")
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        """Is the host there, and who is it that has this token?"""
        path = self._path()
        if path.endswith("/hello"):
            self._record({}, "login")
            return send_json(self, 200, {"message": "hello"})
        if path.startswith("/api/claude_code/") and (error := self.server.scripts.next_error()):
            return self._fail({}, error)  # an organization's settings: none, or out of order
        if path not in _ACCOUNT_OF:
            return super().do_GET()
        self._record({}, "login")
        if not (self._key() or "").startswith(_ACCESS):
            return send_json(self, 401, {"error": {"type": "authentication_error", "message": "no such token"}})
        return send_json(self, 200, _ACCOUNT_OF[path])

    def do_POST(self) -> None:
        """Tokens for a code."""
        if self._path() != "/v1/oauth/token":
            return super().do_POST()
        body: Json = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        self._record(body, "login")
        code = str(body.get("code") or str(body.get("refresh_token", "")).removeprefix(_REFRESH))
        tokens = {"access_token": _ACCESS + code, "refresh_token": _REFRESH + code, "token_type": "Bearer"}
        scope = "user:inference user:profile user:sessions:claude_code"
        account = {"account": {"uuid": _ACCOUNT, "email_address": "person@example.com"}}
        organization = {"organization": {"uuid": _ORGANIZATION, "name": "Example"}}
        return send_json(self, 200, {**tokens, "expires_in": 28800, "scope": scope, **account, **organization})
