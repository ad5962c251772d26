# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play cp``: files into a session and out of it, as tar streams through the gate's exec, as the workload's user.

What comes out of a session was made by whoever runs in it: it is vetted entry by entry (``core/untar.py``), made beside
the target and renamed as a whole (``engine/unpack.py``), and never written where an agent could redirect it.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import re
import secrets
import select
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO, Any, NamedTuple

from .. import document, entering, errors, render, target
from ..errors import CliError
from ..interrupts import Interrupted, raised

USAGE = "asf-play cp [AGENT[.SESSION]]:PATH LOCAL | asf-play cp LOCAL [AGENT[.SESSION]]:PATH"
EXAMPLES = """\
  asf-play cp claude:result.txt .             out of the session; PATH is relative to its working folder
  asf-play cp claude.second:/tmp/build ./build
  asf-play cp ./notes.md claude:/tmp/         into the session
  asf-play cp ./a:b :/tmp/                    a local name with a colon begins with ./ or /

PATH or LOCAL is a file or a folder. When the target is a folder the copy is made in it, else it is the
copy's name; what exists already is replaced with --force only. Links are copied as links. A copy is made
whole or not at all.
"""

_REMOTE = re.compile(r"([a-z0-9][a-z0-9_-]*(?:\.[a-z0-9][a-z0-9_-]*)?)?:(.*)\Z", re.DOTALL)
#: Seconds without a byte after which the other side counts as stuck, and for its end after the last one.
_STALL, _END = 60, 20
_WORDS = 4000
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}

#: $1 folder, $2 entry. No ``exec``: the exit code of cd must be told from tar's.
_PACK = 'cd -- "$1" || exit 3; exec tar -c -f - -- "$2"'
#: $1 target; $2, $3 its folder and name; $4 name in it when it is a folder; $5 force; $6 name of a temporary folder.
_UNPACK = """\
if [ -d "$1" ]; then cd -- "$1" || exit 3; name=$4; else cd -- "$2" || exit 3; name=$3; fi
if [ -z "$5" ] && { [ -e "./$name" ] || [ -L "./$name" ]; }; then exit 4; fi
mkdir -- "./$6" || exit 3
trap 'rm -rf -- "./$6"' EXIT
trap 'exit 5' HUP INT TERM PIPE
tar -x -o -f - -C "./$6" || exit 5
if [ -n "$5" ] && { [ -e "./$name" ] || [ -L "./$name" ]; }; then mv -- "./$name" "./$6/old" || exit 5; fi
mv -- "./$6/x" "./$name" || exit 5
"""
_SAID = {3: "the folder cannot be entered", 4: "there is something of this name already", 5: "it could not be written"}


class Remote(NamedTuple):
    """``[AGENT[.SESSION]]:PATH``."""

    session: str | None
    path: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    places = [
        parser.add_argument("source", metavar="FROM", help="[AGENT[.SESSION]]:PATH, or a local path"),
        parser.add_argument("target", metavar="TO", help="a local path, or [AGENT[.SESSION]]:PATH"),
    ]
    for one in places:
        one.complete = ("place",)  # type: ignore[attr-defined]
    parser.add_argument("--force", action="store_true", help="replace what is there")
    parser.add_argument(
        "--skip-unsafe", action="store_true", help="leave out links that lead outside and special files"
    )
    parser.add_argument("--max-size", default="1g", metavar="SIZE", help="most bytes of content: 500m, 20g (1g)")
    parser.add_argument("--max-files", type=int, default=100_000, metavar="N", help="most files and folders (100000)")
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")


def run(request: argparse.Namespace) -> int:
    """Copy; returns 0. Raises CliError, ArchiveError, GrantError, EngineError; then nothing was copied."""
    from asf_lib.core.untar import Limits

    source, to = remote(request.source), remote(request.target)
    if (source is None) == (to is None):
        raise CliError("one of the two must be in a session, and only one", remedy=USAGE)
    limits = Limits(size(request.max_size), request.max_files)
    there = source or to
    assert there is not None
    session = target.session(argparse.Namespace(target=there.session, extra=[]))
    container = entering.container(session)
    carry = _out if source is not None else _into
    try:
        with raised():  # a signal, too, leaves nothing half made
            place, copied = carry(request, container, there.path, limits)
    except Interrupted as stop:
        if request.json:
            print(document.dump(document.failure(CliError("interrupted", code="interrupted").fields)))
        print("interrupted: nothing was copied", file=sys.stderr)
        return errors.signal_code(stop.number)
    except OSError as error:
        raise CliError(
            f"{error.strerror or error}",
            file=str(error.filename or request.target),
            remedy="nothing was copied",
            code="engine",
        ) from error
    if request.json:
        told = {"ok": True, "session": session, "from": request.source, "to": request.target, "path": place}
        print(document.dump({**told, **vars(copied)}))
        return errors.OK
    style = render.style(sys.stderr, os.environ)
    for name in copied.left_out:
        print(render.warning(f"left out {name}", style), file=sys.stderr)
    if copied.left_out_count > len(copied.left_out):
        print(render.warning(f"left out {copied.left_out_count} entries in all", style), file=sys.stderr)
    counts = (("file", copied.files), ("folder", copied.folders), ("link", copied.links), ("byte", copied.bytes))
    made = [f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts]
    where = f"{session}:" if source is None else ""
    print(f"copied {', '.join(made)} to {where}{render.safe(place, 300)}")
    return errors.OK


def remote(word: str) -> Remote | None:
    """The word as a place in a session; None when it is a local path. Raises CliError for what may be either."""
    before = word.partition(":")[0]
    if ":" not in word or "/" in before:
        return None
    match = _REMOTE.match(word)
    if match is None:
        raise CliError(
            "not a session before the colon", found=word[:80], remedy=f"a local path with a colon: ./{word[:80]}"
        )
    if not match.group(2) or "\0" in word:
        raise CliError("no path after the colon", found=word[:80], remedy="AGENT:PATH; the working folder is AGENT:.")
    return Remote(match.group(1), match.group(2))


def size(word: str) -> int:
    """Bytes: digits, and k, m, g or t for powers of 1024. Raises CliError."""
    match = re.match(r"(\d{1,15})([kmgt]?)\Z", word.lower())
    if match is None:
        raise CliError("not a size", key="--max-size", found=word[:40], remedy="500m, or 20g")
    return int(match.group(1)) << _UNITS.get(match.group(2), 0)


def split(path: str) -> tuple[str, str]:
    """``(folder, name)`` of a path in the session, both harmless as words of cd and tar; no name: the folder itself."""
    folder, name = posixpath.split(path.rstrip("/") or "/")
    if name in ("", ".", ".."):
        folder, name = path, ""
    return (folder if folder.startswith("/") else f"./{folder}"), name


# --- out of a session --------------------------------------------------------------------------------------------


def _out(request: argparse.Namespace, container: str, path: str, limits: Any) -> tuple[str, Any]:
    from asf_lib.engine import hostpath, unpack
    from asf_lib.engine.podman import Podman

    folder, name = split(path)
    if not name and (os.path.isdir(request.target) or request.target.endswith("/")):
        raise CliError("the copy needs a name", found=request.target[:80], remedy="name the new folder itself")
    spot = hostpath.target(request.target, name, hostpath.writable(Podman()))
    try:
        with _Exec(container, _PACK, [folder, f"./{name}"], out=True) as other:
            try:
                copied = unpack.unpack(
                    other.read, other.drain, spot.parent, spot.name, name, limits, request.force, request.skip_unsafe
                )
            except Exception as error:
                other.explain(error)
                raise
    finally:
        os.close(spot.parent)
    return spot.path, copied


# --- into a session ----------------------------------------------------------------------------------------------


def _into(request: argparse.Namespace, container: str, path: str, limits: Any) -> tuple[str, Any]:
    from asf_lib.engine import hostpath, pack
    from asf_lib.engine.podman import Podman

    spot = hostpath.source(request.source, hostpath.writable(Podman()))
    try:
        folder, name = split(path)
        whole = path if path.startswith("/") else f"./{path}"
        words = [whole, folder, name or spot.name, spot.name, "1" if request.force else "", _temporary()]
        if path.endswith("/"):
            words[1] = whole  # must be a folder, and exist
        with _Exec(container, _UNPACK, words, out=False) as other:
            try:
                with os.fdopen(os.dup(other.stdin), "wb") as sink:
                    copied = pack.pack(spot.parent, spot.name, "x", sink, limits, request.skip_unsafe)
            except BrokenPipeError as error:
                other.finish()  # its own words say why
                raise _failed("it took only a part", other.words()) from error
            other.finish()
    finally:
        os.close(spot.parent)
    return path, copied


def _temporary() -> str:
    return f".asf-cp-{secrets.token_hex(8)}"


class _Exec:
    """A shell script in the session. Its words are data: bounded here, escaped where they are shown."""

    def __init__(self, container: str, script: str, words: Sequence[str], out: bool) -> None:
        from asf_lib.engine.podman import Podman

        argv = [
            "podman",
            "exec",
            "--interactive",
            container,
            "/asf/gate",
            "exec",
            "--",
            "sh",
            "-c",
            script,
            "sh",
            *words,
        ]
        self._child = subprocess.Popen(
            argv,
            env=Podman().env,
            stdin=subprocess.DEVNULL if out else subprocess.PIPE,
            stdout=subprocess.PIPE if out else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._said = b""
        assert self._child.stderr is not None
        self._listener = threading.Thread(target=self._listen, args=(self._child.stderr,), daemon=True)
        self._listener.start()

    def __enter__(self) -> _Exec:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        self._listener.join(1)

    @property
    def stdin(self) -> int:
        """Descriptor of the script's standard input."""
        assert self._child.stdin is not None
        return self._child.stdin.fileno()

    def _listen(self, stream: IO[bytes]) -> None:
        while part := os.read(stream.fileno(), _WORDS):
            self._said += part[: _WORDS - len(self._said)]

    def read(self, count: int) -> bytes:
        """Up to so many bytes of the script's output. Raises CliError when nothing comes for too long."""
        assert self._child.stdout is not None
        if not select.select([self._child.stdout], [], [], _STALL)[0]:
            raise _failed(f"the session sent nothing for {_STALL} s", "")
        return os.read(self._child.stdout.fileno(), count)

    def drain(self) -> None:
        """Read what tar pads its end with, then wait for the end. Raises CliError when that was no success."""
        for _ in range(1 << 10):
            if not self.read(1 << 16):
                break
        self._ended(changed=True)

    def finish(self) -> None:
        """All was sent: wait for the end. Raises CliError when that was no success."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._ended()

    def _ended(self, changed: bool = False) -> None:
        """``changed``: tar's 1 says that a file changed while it was read, which a running workload's may."""
        try:
            code = self._child.wait(_END)
        except subprocess.TimeoutExpired:
            raise _failed(f"the session did not end the copy within {_END} s", "") from None
        if code == 1 and changed and self.words():
            style = render.style(sys.stderr, os.environ)
            print(render.warning(f"the session says: {self.words()}", style), file=sys.stderr)
        elif code:
            raise _failed(_SAID.get(code, f"it ended with code {code}"), self.words())

    def words(self) -> str:
        """The first line that the script said on standard error: what follows it are consequences."""
        self._listener.join(2)
        return next(iter(self._said.decode("utf-8", "replace").strip().splitlines()), "")

    def explain(self, error: Exception) -> None:
        """An empty or broken stream has its reason in the session: raise that instead, when it ended badly."""
        if getattr(error, "code", "") == "archive" and self._child.stdout is not None:
            try:
                code = self._child.wait(1)
            except subprocess.TimeoutExpired:
                return
            if code and self.words():
                raise _failed(_SAID.get(code, f"it ended with code {code}"), self.words()) from error


def _failed(why: str, words: str) -> CliError:
    return CliError(
        f"the session could not do its part of the copy: {why}",
        found=words or None,
        remedy="see whether the path exists there, and whether there is room",
        code="copy",
    )
