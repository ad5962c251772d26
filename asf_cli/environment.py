# SPDX-License-Identifier: BSD-4-Clause
"""Variables of asf-play's environment that hold keys (`secrets.VARIABLE.env` in config.yml), for one run's modules.

Ansible and everything that it starts get an environment without them; the module that needs one asks here, by a socket
in the run's private folder (``engine/secretenv.py``). So a key stands in no file, no command line and no environment
but the one that the operator put it into.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

_NAME = "environment"
_LONGEST = 256
_PATIENCE = 10.0


def named(asf_home: str | None) -> dict[str, str]:
    """The variables that config.yml's sources name, with their values now. A file that is wrong names none: whoever
    needs it says so."""
    from asf_lib.core.errors import AsfError
    from asf_lib.core.sources import ENV
    from asf_lib.engine import home

    try:
        sources = home.load_settings(home.resolve(asf_home)).sources.values()
    except AsfError:
        return {}
    return {one.name: os.environ.get(one.name, "") for one in sources if one.kind == ENV}


@contextlib.contextmanager
def answered(folder: Path, values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Answer questions for these variables while the block runs; what it gets is for Ansible's environment."""
    from asf_lib.engine import secretenv

    if not values:
        yield {}
        return
    path = folder / _NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as ear:
        ear.bind(str(path))
        os.chmod(path, 0o600)
        ear.listen(4)
        thread = threading.Thread(target=_answer, args=(ear, dict(values)), daemon=True)
        thread.start()
        try:
            yield {secretenv.VARIABLE: str(path)}
        finally:
            ear.shutdown(socket.SHUT_RDWR)  # wakes the thread, which then ends
            thread.join(_PATIENCE)


def _answer(ear: socket.socket, values: Mapping[str, str]) -> None:
    while True:
        try:
            line, _ = ear.accept()
        except OSError:
            return
        with line, contextlib.suppress(OSError, ValueError):
            line.settimeout(_PATIENCE)
            _, uid, _ = struct.unpack("iII", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if uid == os.getuid():
                name = line.recv(_LONGEST).decode().strip()
                line.sendall(json.dumps({"value": values.get(name) or None} if name in values else {}).encode())
