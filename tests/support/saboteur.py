# SPDX-License-Identifier: BSD-4-Clause
"""A `podman` that breaks one thing on its way and is the real one otherwise: found by ASF_PATH.

It changes what ASF has made (a file of the run folder, the words of one call), never ASF itself.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_SCRIPT = """#!{python} -IS
import os, sys
words = sys.argv[1:]
call, last = words[0] if words else "", words[-1] if words else ""
folder = os.environ["XDG_RUNTIME_DIR"] + "/asf/"
{body}
os.execv({real!r}, ["podman", *words])
"""

#: podman --version of a Podman that is too old.
TOO_OLD = """
if call == "--version":
    print("podman version 4.2.1")
    sys.exit(0)
"""

#: What Podman says when its storage has no room for one more container.
STORAGE_FULL = """
if call == "create" and any(word.endswith("-caddy") and word.startswith("--name=") for word in words):
    print("Error: creating container storage: mkdir /home/x/overlay/abc: no space left on device", file=sys.stderr)
    sys.exit(125)
"""

#: The gate of the agent is another program, which neither listens nor reports.
GATE_SILENT = """
if call == "create" and any(word.endswith("-agent") and word.startswith("--name=") for word in words):
    words = ['--entrypoint=["/bin/sleep"]' if w.startswith("--entrypoint=") else w for w in words[:-1]] + ["600"]
"""


def broken_file(role: str, path: str, text: str) -> str:
    """Just before `role` starts, a file of its session's run folder is overwritten."""
    return f"""
if call == "start" and last.endswith("-{role}"):
    with open(folder + last[len("asf-"):-len("-{role}")] + "/{path}", "w") as file:
        file.write({text!r})
"""


def path_with(folder: Path, body: str) -> str:
    """Write such a podman into a new folder; the ASF_PATH on which it is found. `body` is one of the above.

    :raises AssertionError: there is no real podman
    """
    real = shutil.which("podman")
    assert real, "no podman on the path"
    folder.mkdir()
    program = folder / "podman"
    program.write_text(_SCRIPT.format(python=sys.executable, body=body, real=real))
    program.chmod(0o755)
    return str(folder)
