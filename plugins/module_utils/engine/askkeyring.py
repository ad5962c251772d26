# SPDX-License-Identifier: BSD-2-Clause
"""The program that asks the desktop's keyring: a process of its own, because a locked one may wait for its owner.

Standard input is JSON: ``{"service", "username"}``. Standard output is JSON: ``{"state", "backend"}`` and, where
``state`` is ``ok``, ``value``. It imports nothing of ASF: ``secretkeyring`` gives its text to an interpreter.
"""

import json
import sys

#: Backends that keep what they are given where any program of the account reads it, by their own word.
_OPEN_MODULES = ("keyrings.alt",)
_OPEN_WORDS = ("plaintext", "insecure")


def is_open(name: str) -> bool:
    """Whether a backend, named MODULE.CLASS, keeps its entries unencrypted."""
    return name.startswith(_OPEN_MODULES) or any(word in name.lower() for word in _OPEN_WORDS)


def name_of(backend: object) -> str:
    """MODULE.CLASS of a backend."""
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def asked(service: str, username: str) -> "dict[str, str]":
    """The answer."""
    try:
        import keyring
        from keyring import errors
        from keyring.backends import chainer
    except ImportError:
        return {"state": "no-library", "backend": ""}
    chosen = keyring.get_keyring()
    backends = list(chosen.backends) if isinstance(chosen, chainer.ChainerBackend) else [chosen]
    if not backends or name_of(backends[0]).startswith(("keyring.backends.fail.", "keyring.backends.null.")):
        return {"state": "no-backend", "backend": name_of(chosen)}
    for backend in backends:
        name = name_of(backend)
        try:
            value = None if is_open(name) else backend.get_password(service, username)
        except errors.KeyringLocked:
            return {"state": "locked", "backend": name}
        except (errors.KeyringError, NotImplementedError, RuntimeError):
            return {"state": "failed", "backend": name}
        if value is not None:
            return {"state": "ok", "backend": name, "value": value}
    refused = [name for name in map(name_of, backends) if is_open(name)]
    return {"state": "open" if refused else "absent", "backend": (refused or [name_of(backends[0])])[0]}


if __name__ == "__main__":
    request = json.load(sys.stdin)
    json.dump(asked(request["service"], request["username"]), sys.stdout)
