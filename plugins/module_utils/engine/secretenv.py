# SPDX-License-Identifier: BSD-2-Clause
"""A key out of asf-play's own environment (`secrets.VARIABLE.env` in config.yml).

Ansible gets a scrubbed environment, and runner writes that into a file. So asf-play keeps the variable, and answers
whoever asks for it at a socket in the run's private folder, which ``ASF_ENVIRONMENT`` names. Under plain
``ansible-playbook`` there is no socket, and the variable is in the environment that the operator gave it.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Optional

from ..core.errors import Problem, SecretError
from ..core.sources import Source
from . import secretcommand

VARIABLE = "ASF_ENVIRONMENT"
LIMIT = 64 * 1024
_PATIENCE = 10.0


def value(source: Source, file: str) -> str:
    """The variable's value. Raises SecretError, which never holds any of it."""

    def refuse(message: str) -> SecretError:
        remedy = f"set {source.name} in the shell that asf-play is started from"
        return SecretError([Problem(message, file, key=source.path, found=source.name, remedy=remedy)])

    path = os.environ.get(VARIABLE)
    try:
        text = _asked(path, source.name) if path else os.environ.get(source.name)
    except (OSError, ValueError, KeyError):
        raise refuse("asf-play does not answer for its environment") from None
    if not text:
        raise refuse("the environment variable is empty" if text == "" else "the environment variable is not set")
    return secretcommand.one_line(os.fsencode(text), lambda what: refuse(f"the environment variable holds {what}"))


def _asked(path: str, name: str) -> Optional[str]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(_PATIENCE)
        line.connect(path)
        line.sendall(name.encode() + b"\n")
        line.shutdown(socket.SHUT_WR)
        data = b""
        while len(data) <= LIMIT and (part := line.recv(LIMIT)):
            data += part
    answer: Optional[str] = json.loads(data)["value"]
    return answer
