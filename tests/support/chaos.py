# SPDX-License-Identifier: BSD-4-Clause
"""asf-play under a recorder that knows every step that changes something, and can make things go wrong at each.

    python3 -P chaos.py CONFIG.json asf-play WORD...

The product has no hook for this and reads nothing that could switch it on: this script *is* the program that starts,
and it puts itself into ansible-playbook by the line that asf-play starts it with (``runner._LAUNCH``); workers and
helpers are forks and inherit it. What changes a file, a process or the engine is seen by Python's audit events (PEP
578) and by `subprocess.Popen`, so that a new step is a new point without anybody naming it; test_crash_points.py has
the calls that neither would see.

A point is ``ROLE MODULE.FUNCTION: WHAT``; ROLE is cli, play (ansible-playbook), task (its worker) or helper (what a
task forks into a namespace). A point of a file stands before the change; a command has two, `started` and `ended`.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

#: audit event -> index of the path in its arguments
FILES = {
    "open": 0,
    "os.rename": 1,
    "os.remove": 0,
    "os.mkdir": 0,
    "os.rmdir": 0,
    "os.chmod": 0,
    "os.chown": 0,
    "os.link": 1,
    "os.symlink": 1,
    "os.truncate": 0,
    "os.utime": 0,
    "shutil.rmtree": 0,
}
_CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Where the product's own code lies: what nobody of these asked for is Ansible's or Python's own business.
_OWN = re.compile(r"/(asf_cli|plugins/module_utils/engine|plugins/modules)/(\w+)\.py$")
#: What differs between two runs of the same step.
_RANDOM = (
    (re.compile(r"/\d{8}T\d{6}Z-[0-9a-f]{4}\b"), "/RUN"),
    # Ansible-runner's own folder: what lies in it is all alike.
    (re.compile(r"/cli/\d+-\d+-[0-9a-f]{8}-\w+(/.*)?"), "/cli/RUN"),
    (re.compile(r"(/\.(?:new|containers\.conf|repos)[^/ ]*?)[-.]\w{8}$"), r"\1-X"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "ID"),
)
#: What runs in place of a command that shall fail, or hang.
_INSTEAD = {"fail": ["/bin/sh", "-c", "echo 'Error: made to fail by a test' >&2; exit 125"], "hang": ["sleep", "900"]}
_busy = threading.local()


class Chaos:
    """What CONFIG.json says: `log`, `session`, and with `at` (a point) `nth`, `action` and `argument`.

    `without`: words with these beginnings are left out of every `podman` command, a mutation of the product.
    """

    def __init__(self, config: str, role: str) -> None:
        with open(config, encoding="utf-8") as file:
            self.config: dict[str, Any] = json.load(file)
        self.role, self.pid = role, os.getpid()
        self.full = False
        with open(f"{self.config['log']}.{role}", "w", encoding="ascii") as file:
            file.write(str(self.pid))

    # --- where we are

    def kind(self) -> str:
        """Role of the calling process."""
        if os.getpid() == self.pid:
            return self.role
        return "task" if self.role == "play" and os.getppid() == self.pid else "helper"

    def asked_by(self) -> str:
        """MODULE.FUNCTION of the product's innermost code on the stack; empty when there is none."""
        frame = sys._getframe(1)
        while frame is not None:
            found = _OWN.search(frame.f_code.co_filename)
            if found:
                return f"{found.group(2)}.{frame.f_code.co_qualname}"
            if frame.f_code.co_filename.endswith("/connection/local.py"):
                return "ansible.local"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def plain(self, text: str) -> str:
        """Without what differs from run to run."""
        text = text.replace(self.config["session"], "SESSION")
        for pattern, word in _RANDOM:
            text = pattern.sub(word, text)
        return text

    # --- points

    def reached(self, by: str, what: str, **more: Any) -> str:
        """Note a point; returns the action when this is where it shall go wrong, and kills or signals itself."""
        point = f"{self.kind()} {by}: {self.plain(what)}"
        count = self._note({"point": point, "pid": os.getpid(), **more})
        if point != self.config.get("at") or count != self.config.get("nth", 1):
            return ""
        action = str(self.config["action"])
        self._note({"hit": point})
        if action == "kill":
            self._kill(str(self.config["argument"]))
        elif action == "signal":
            number, times = self.config["argument"]
            for _ in range(times):
                os.kill(self._pid("cli"), number)
                time.sleep(0.15)
        elif action in ("full", "read-only"):
            self.full = True
        return action

    def _note(self, entry: dict[str, Any]) -> int:
        """Append to the log; returns how often its point was reached by now, over all processes."""
        before, _busy.on = getattr(_busy, "on", False), True
        try:
            return self._noted(entry)
        finally:
            _busy.on = before

    def _noted(self, entry: dict[str, Any]) -> int:
        with open(self.config["log"], "a+", encoding="utf-8") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            log.write(json.dumps(entry) + "\n")
            log.flush()
            log.seek(0)
            return sum(json.loads(line).get("point") == entry.get("point") for line in log)

    def _pid(self, role: str) -> int:
        try:
            with open(f"{self.config['log']}.{role}", encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 0

    def _kill(self, whom: str) -> None:
        """SIGKILL: `all` controllers with their forks, or one of `cli`, `play`, `task`. Podman's processes stay."""
        pids = [self._pid(whom)] if whom in ("cli", "play") else []
        if whom == "all":
            pids = [self._pid("cli"), self._pid("play"), *_forks(self._pid("play"))]
        elif whom == "task":
            pids = [os.getpid() if self.kind() == "task" else os.getppid()]
        pids = [pid for pid in pids if pid] + ([os.getpid()] if whom == "all" else [])
        for pid in sorted(pids, key=lambda pid: pid == os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    # --- what is seen

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """The hook of `sys.addaudithook`."""
        if event not in FILES or getattr(_busy, "on", False):
            return
        path = args[FILES[event]]
        path = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
        if event == "open" and not (isinstance(args[2], int) and args[2] & _CHANGING):
            return
        if ".pyc" in path or path.startswith(("/dev/", "/proc/")) or not (path or event == "shutil.rmtree"):
            return
        _busy.on = True
        try:
            by = self.asked_by()
            if by and by != "ansible.local":
                self.reached(by, f"{event} {self._shown(path)}")
                if self.full and event in ("open", "os.mkdir") and path.startswith(self.config["full"]):
                    number = errno.ENOSPC if self.config["action"] == "full" else errno.EROFS
                    raise OSError(number, os.strerror(number), path)
        finally:
            _busy.on = False

    def _shown(self, path: str) -> str:
        if not path.startswith("/"):
            return "(in a tree)"  # shutil.rmtree names what it removes relative to a descriptor
        for root, word in self.config["roots"].items():
            if path.startswith(root):
                return word + path[len(root) :]
        return path

    def command(self, words: Any) -> str:
        """A short name of an external command."""
        argv = [words] if isinstance(words, (str, bytes)) else list(words)
        argv = [os.fsdecode(word) for word in argv]
        if argv[:1] == ["nsenter"]:
            argv = argv[argv.index("--") + 1 :]
        program = os.path.basename(argv[0])
        if program != "podman":
            return " ".join([program, *(word for word in argv[1:3] if len(word) < 20)])
        named = [word for word in argv[1:] if not word.startswith("-") and "{{" not in word]
        names = [word[len("--name=") :] for word in argv if word.startswith("--name=")]
        return " ".join(["podman", *named[:2], *names] if not names else ["podman", *named[:1], *names])


def _forks(pid: int) -> list[int]:
    """Pids of a process's children and theirs that are Python: workers and helpers, not Podman."""
    found: list[int] = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
    except OSError:
        return found
    for child in children:
        found += _forks(child)
        try:
            if "python" in os.path.basename(os.readlink(f"/proc/{child}/exe")):
                found.append(child)
        except OSError:
            continue
    return found


def _spy(chaos: Chaos) -> None:
    """See commands start and end, signals and words that are sent."""
    _spy_start(chaos)
    _spy_end(chaos)
    _before(chaos, signal, "pidfd_send_signal")
    _before(chaos, os, "kill")
    _before(chaos, os, "killpg")
    _before(chaos, socket.socket, "sendall")


def _spy_start(chaos: Chaos) -> None:
    start = subprocess.Popen.__init__

    @functools.wraps(start)
    def started(self: Any, args: Any, *rest: Any, **named: Any) -> None:
        self.chaos_by, self.chaos_what, self.chaos_hangs = chaos.asked_by(), "", False
        if not self.chaos_by or getattr(_busy, "on", False):
            return start(self, args, *rest, **named)
        self.chaos_what = chaos.command(args)
        action = chaos.reached(self.chaos_by, f"{self.chaos_what} starts")
        self.chaos_hangs = action == "hang"
        if action in _INSTEAD:
            args = _INSTEAD[action]
        elif chaos.config.get("without"):
            args = [word for word in args if not word.startswith(tuple(chaos.config["without"]))]
        start(self, args, *rest, **named)
        chaos.reached(self.chaos_by, f"{self.chaos_what} started")
        return None

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


def _spy_end(chaos: Chaos) -> None:
    communicate, wait = subprocess.Popen.communicate, subprocess.Popen.wait

    def ended(self: Any, timeout: float | None) -> None:
        if self.chaos_what and self.returncode is not None:
            what, self.chaos_what = self.chaos_what, ""
            chaos.reached(self.chaos_by, f"{what} ended", timeout=timeout)

    def limit(self: Any, timeout: float | None) -> float | None:
        return timeout if timeout is None or not self.chaos_hangs else min(timeout, 1.0)

    @functools.wraps(communicate)
    def communicated(self: Any, input: Any = None, timeout: float | None = None) -> Any:
        result = communicate(self, input, limit(self, timeout))
        ended(self, timeout)
        return result

    @functools.wraps(wait)
    def waited(self: Any, timeout: float | None = None) -> Any:
        # communicate() waits with what is left of its own time; only a direct call is the caller's deadline.
        inner = sys._getframe(1).f_code.co_filename == subprocess.__file__
        result = wait(self, timeout if inner else limit(self, timeout))
        if not inner:
            ended(self, timeout)
        return result

    subprocess.Popen.communicate = communicated  # type: ignore[method-assign]
    subprocess.Popen.wait = waited  # type: ignore[method-assign,assignment]


def _before(chaos: Chaos, owner: Any, name: str) -> None:
    """A point before every call of a function."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        by = "" if getattr(_busy, "on", False) else chaos.asked_by()
        if by and by != "ansible.local":
            _busy.on = True
            try:
                chaos.reached(by, name)
            finally:
                _busy.on = False
        return function(*args, **named)

    setattr(owner, name, called)


def install(config: str, role: str) -> Chaos:
    """Record from now on, in this process and all that it forks."""
    chaos = Chaos(config, role)
    _spy(chaos)
    sys.addaudithook(chaos.audit)
    return chaos


def main() -> int:
    """Be asf-play."""
    config, sys.argv[:] = sys.argv[1], sys.argv[2:]
    from asf_cli import runner
    from asf_cli.main import main as asf_play

    mine = f"runpy.run_path({os.path.abspath(__file__)!r})['install']({config!r}, 'play')"
    runner._LAUNCH = f"import runpy; {mine}; {runner._LAUNCH}"
    install(config, "cli")
    return asf_play()


if __name__ == "__main__":
    sys.exit(main())
