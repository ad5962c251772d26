# SPDX-License-Identifier: BSD-2-Clause
"""The hosts of common model providers, by LiteLLM's word for the provider.

Taken from LiteLLM 1.108's own default addresses. A provider that is not here needs ``llm.direct_domain``: a guess
would be either a broken session or a hole.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

DOMAINS = {
    "anthropic": "api.anthropic.com",
    "cerebras": "api.cerebras.ai",
    "codestral": "codestral.mistral.ai",
    "cohere": "api.cohere.ai",
    "cohere_chat": "api.cohere.ai",
    "deepinfra": "api.deepinfra.com",
    "deepseek": "api.deepseek.com",
    "fireworks_ai": "api.fireworks.ai",
    "gemini": "generativelanguage.googleapis.com",
    "groq": "api.groq.com",
    "huggingface": "router.huggingface.co",
    "mistral": "api.mistral.ai",
    "moonshot": "api.moonshot.ai",
    "nvidia_nim": "integrate.api.nvidia.com",
    "openai": "api.openai.com",
    "openrouter": "openrouter.ai",
    "perplexity": "api.perplexity.ai",
    "replicate": "api.replicate.com",
    "sambanova": "api.sambanova.ai",
    "text-completion-openai": "api.openai.com",
    "together_ai": "api.together.ai",
    "xai": "api.x.ai",
}

#: What a client of an adapter speaks; ``generic`` has to say.
PROTOCOLS = {"claude": "anthropic", "codex": "openai", "hermes": "openai"}


def key_variable(provider: str) -> str:
    """The default of ``llm.api_key_env``: ``together_ai`` gives ``TOGETHER_AI_API_KEY``."""
    return re.sub("[^A-Z0-9]", "_", provider.upper()) + "_API_KEY"


#: How a provider's keys begin, where its own documentation or every key it gives out says so. A hint, never a rule.
KEY_PREFIXES = {
    "anthropic": "sk-ant-api",
    "groq": "gsk_",
    "huggingface": "hf_",
    "openai": "sk-",
    "openrouter": "sk-or-",
    "perplexity": "pplx-",
    "replicate": "r8_",
    "xai": "xai-",
}
#: Beginnings of what is pasted in place of a key: ``(beginning, what it is)``.
NOT_KEYS = (
    ("sk-ant-oat", "a login token of Claude, which expires; not an API key"),
    ("sk-ant-ort", "a login's refresh token of Claude; not an API key"),
    ("sk-ant-sid", "a browser session of Claude, which expires; not an API key"),
    ("sk-ant-admin", "an administration key, which no inference route takes"),
    ("sk-admin-", "an administration key, which no inference route takes"),
    ("eyJ", "a JSON web token, which expires; not an API key"),
    ("{", "the text of a file, such as a client's stored login; not an API key"),
)
#: What a stored login calls the moment at which it ends (seconds, or milliseconds, since 1970).
_ENDS = ("exp", "expiresAt", "expires_at", "expires")
_LONGEST = 64 * 1024


def doubt(provider: str, key: str) -> str | None:
    """What looks wrong about a key's form, without any of it; None when nothing does."""
    for beginning, what in NOT_KEYS:
        if key.startswith(beginning):
            return f"this is {what}"
    prefix = KEY_PREFIXES.get(provider)
    return f"a key of {provider} begins with {prefix}" if prefix and not key.startswith(prefix) else None


def ends(key: str) -> float | None:
    """The moment (seconds since 1970) at which a token ends by its own word, or None where it says none.

    A JSON web token (RFC 7519) says ``exp`` in its second part; the stored login of a client is JSON. Nothing is
    verified: it is a hint for the operator, who has the token anyway.
    """
    if len(key) > _LONGEST:
        return None
    if key.startswith("{"):
        return _end_in(_json(key.encode("utf-8", "replace")))
    parts = key.split(".")
    if len(parts) != 3 or not key.startswith("eyJ"):
        return None
    try:
        return _end_in(_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))))
    except ValueError:
        return None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _end_in(document: Any, depth: int = 3) -> float | None:
    """The first such moment in a document, at most ``depth`` mappings deep; a token in it counts as well."""
    if isinstance(document, str):
        return ends(document) if document.startswith("eyJ") else None
    if not isinstance(document, dict) or depth == 0:
        return None
    for name in _ENDS:
        value = document.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value / 1000 if value > 1e11 else float(value)
    found = (_end_in(value, depth - 1) for value in document.values())
    return next((moment for moment in found if moment is not None), None)
