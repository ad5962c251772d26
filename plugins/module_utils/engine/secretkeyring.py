# SPDX-License-Identifier: BSD-2-Clause
"""A key out of the desktop's keyring (`secrets.VARIABLE.keyring` in config.yml), by the library ``keyring``."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Callable, Dict, Tuple

from ..core.errors import Problem, SecretError
from ..core.sources import Source
from . import askkeyring, secretcommand

#: state -> what it means, what to do
_WORDS: Dict[str, Tuple[str, str]] = {
    "no-library": ("the Python library `keyring` is not installed beside ASF", "pip install 'asf-play[keyring]'"),
    "no-backend": (
        "this session of yours has no keyring that can be asked",
        "log in to a desktop whose keyring runs (GNOME Keyring, KWallet), or give the variable another source",
    ),
    "locked": ("the keyring is locked", "unlock it (log in to the desktop, or open its password manager) and repeat"),
    "failed": ("the keyring did not answer the question", "ask it by hand: keyring get SERVICE USERNAME"),
    "absent": ("the keyring has no entry of this service and user name", "keyring set SERVICE USERNAME"),
    "open": (
        "the keyring keeps its entries unencrypted, where every program of this account reads them",
        "use the desktop's own keyring, or a secrets file with mode 0600",
    ),
}


def value(source: Source, file: str) -> str:
    """The entry's value. Raises SecretError, which names the backend and never holds any of it."""

    def refuse(message: str, remedy: str, backend: str = "") -> SecretError:
        remedy = remedy.replace("SERVICE", source.service).replace("USERNAME", source.username)
        return SecretError([Problem(message, file, key=source.path, found=backend or None, remedy=remedy)])

    said = _asked(source, lambda message: refuse(message, _WORDS["failed"][1]))
    state, backend = str(said.get("state")), str(said.get("backend", ""))[:200]
    if state != "ok":
        message, remedy = _WORDS.get(state, _WORDS["failed"])
        raise refuse(message, remedy, backend)
    bytes_of = str(said["value"]).encode("utf-8", "surrogateescape")
    return secretcommand.one_line(bytes_of, lambda what: refuse(f"the entry holds {what}", _WORDS["absent"][1]))


def _asked(source: Source, refuse: Callable[[str], SecretError]) -> Dict[str, str]:
    request = json.dumps({"service": source.service, "username": source.username}).encode()
    argv = [sys.executable, "-P", "-c", inspect.getsource(askkeyring)]
    try:
        code, data = secretcommand.run(argv, request)
        if code == 0:
            answer: Dict[str, str] = json.loads(data)
            return answer
    except secretcommand.Unanswered:
        raise refuse("the keyring did not answer in time (does it wait for its password?)") from None
    except (OSError, ValueError):
        pass
    raise refuse("the keyring's library failed")
