# SPDX-License-Identifier: BSD-4-Clause
"""The product as its user sees it: `asf-play`, an operator's home, sessions. All through the command line."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support import addresses, documents, netns
from support.client import World
from support.waiting import wait_for

#: part of the name of every session that this test run opens: the leak check goes by it
RUN = f"t{os.getpid():x}{secrets.token_hex(2)}"

_PROBES = Path(__file__).with_name("probe_tools.py")


@dataclass
class Completed:
    """What a command did. `json` is stdout's document, or None when stdout is not one JSON document."""

    rc: int
    out: str
    err: str
    json: Any = None

    def __str__(self) -> str:
        return f"exit {self.rc}\n--- stdout\n{self.out[-6000:]}\n--- stderr\n{self.err[-6000:]}"


def run(
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    timeout: float = 180,
    cwd: Path | None = None,
) -> Completed:
    """Run a command to its end; on time-out its whole process group is killed and the test fails.

    :raises AssertionError: it took longer than `timeout` seconds
    """
    data = stdin.encode() if isinstance(stdin, str) else stdin
    pipe = subprocess.PIPE
    source = subprocess.DEVNULL if data is None else pipe
    with subprocess.Popen(
        list(argv), stdin=source, stdout=pipe, stderr=pipe, env=env, cwd=cwd, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(data, timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            shown = Completed(-9, out.decode(errors="replace"), err.decode(errors="replace"))
            raise AssertionError(f"{argv} took longer than {timeout} s: {shown}") from None
    done = Completed(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    try:
        done.json = json.loads(done.out)
    except ValueError:
        done.json = None
    return done


def podman(*args: str, check: bool = True, stdin: str | None = None, timeout: float = 60) -> str:
    """Podman's stdout, stripped.

    :raises AssertionError: it failed and `check` is set
    """
    done = run(["podman", *args], stdin=stdin, timeout=timeout)
    assert done.rc == 0 or not check, f"podman {args}: {done}"
    return done.out.strip()


def remove(*names: str, timeout: float = 60) -> None:
    """Remove containers, running or not, named or by id, until Podman lists none of them; some may be gone already.

    Podman 4.3 removes in steps that are not atomic: `rm -f` fails with "container state improper" or "no such process"
    when a container ends by itself at that moment (an enforcer does once its cable's far end went), and of several it
    may remove none and answer 0 when one vanished. So its answer does not count, the list does.

    :raises AssertionError: one was still there after `timeout` seconds; says what Podman answered last
    """
    told = ""

    def gone() -> bool:
        nonlocal told
        rows = [
            line.split() for line in podman("ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Names}}").splitlines()
        ]
        left = [name for name in names if any(name in row for row in rows)]
        if left:
            told = str(run(["podman", "rm", "-f", "-v", "-t", "0", *left]))
        return not left

    try:
        wait_for(gone, timeout, f"{', '.join(names)} to be removed", 0.1)
    except AssertionError as error:
        raise AssertionError(f"{error}; podman rm: {told}") from None


@dataclass
class Home:
    """An operator's ASF_HOME and state folder of a test's own, with secrets that are random canaries."""

    path: Path
    state: Path
    secrets: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        """The environment that makes asf-play use this home."""
        return {**os.environ, "ASF_HOME": str(self.path), "XDG_STATE_HOME": str(self.state), **self.extra}

    def config(self, **settings: Any) -> None:
        """Write config.yml."""
        self._write(self.path / "config.yml", yaml.safe_dump(settings, sort_keys=False))

    def agent(self, name: str, manifest: Mapping[str, Any] | str) -> Path:
        """Write an agent's runtime.yml (a map gets `name` by itself; a text is written as it is)."""
        if not isinstance(manifest, str):
            manifest = yaml.safe_dump({"name": name, **manifest}, sort_keys=False)
        return self._write(self.path / "agents" / name / "runtime.yml", manifest)

    def grant(self, agent: str, *repos: Path | Mapping[str, Any]) -> Path:
        """Write an agent's repos.yml; a bare path means rw."""
        entries = [dict(repo) if isinstance(repo, Mapping) else {"path": str(repo), "mode": "rw"} for repo in repos]
        return self._write(self.path / "agents" / agent / "repos.yml", yaml.safe_dump({"repos": entries}))

    def secret(self, file: str, **values: str) -> Path:
        """Write a secrets file, mode 0600; a value of "" becomes a random canary. All values stand in `secrets`."""
        values = {name: value or f"canary-{name.lower()}-{secrets.token_hex(12)}" for name, value in values.items()}
        self.secrets.update(values)
        path = self._write(self.path / "secrets" / file, "".join(f"{name}={value}\n" for name, value in values.items()))
        path.chmod(0o600)
        return path

    @staticmethod
    def _write(path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def operator_home(tmp_path: Path, world: World | None = None, **config: Any) -> Home:
    """A home below `tmp_path` that trusts the test world's authority and asks its resolver."""
    home = Home(tmp_path / "asf-home", tmp_path / "asf-state")
    for folder in (home.path, home.path / "agents", home.path / "secrets", home.state):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = {"ca_bundle": str(world.bundle), "resolver": addresses.RESOLVER} if world else {}
    home.config(**{**settings, **config})
    home.secret("anthropic.env", ANTHROPIC_API_KEY="")
    home.secret("openai.env", OPENAI_API_KEY="")
    return home


def sample_repo(path: Path, files: Mapping[str, str] | None = None) -> Path:
    """A git repository with one commit."""
    path.mkdir(parents=True)
    for name, text in (files or {"README.md": "# sample\n", "app.py": 'print("hello")\n'}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    identity = {"GIT_AUTHOR_NAME": "Test", "GIT_AUTHOR_EMAIL": "test@example.com"}
    identity |= {name.replace("AUTHOR", "COMMITTER"): value for name, value in identity.items()}
    env = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for argv in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        done = run(["git", *argv], env=env, cwd=path)
        assert done.rc == 0, done
    return path


def asf_play(
    *args: str,
    home: Home | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    timeout: float = 180,
    cwd: Path | None = None,
) -> Completed:
    """Run asf-play as a user would; `env` is added to the home's environment."""
    base = home.env if home else dict(os.environ)
    done = run(["asf-play", *args], env={**base, **(env or {})}, stdin=stdin, timeout=timeout, cwd=cwd)
    if done.json is not None and documents.asked(args):
        problems = documents.wrong(args, done.json)
        assert not problems, f"asf-play {args} printed what its schema does not allow: {problems}\n{done}"
    return done


@dataclass
class Session:
    """An open session. `document` is what open.yml printed with --json."""

    home: Home
    agent: str
    name: str
    document: dict[str, Any]

    @property
    def id(self) -> str:
        """AGENT.NAME, as in the label asf.session."""
        return f"{self.agent}.{self.name}"

    @property
    def evidence(self) -> Path:
        """The session's evidence folder."""
        return Path(self.document["evidence"])

    def selector(self) -> list[str]:
        """The options that name this session."""
        return ["-e", f"agent={self.agent}", "-e", f"session={self.name}"]

    def play(self, playbook: str, *args: str, timeout: float = 180) -> Completed:
        """Run a playbook on this session with --json."""
        return asf_play(playbook, *self.selector(), "--json", *args, home=self.home, timeout=timeout)

    def exec(self, *argv: str, stdin: str | bytes | None = None, timeout: float = 60) -> Completed:
        """`asf-play exec`."""
        return asf_play("exec", *self.selector(), "--", *argv, home=self.home, stdin=stdin, timeout=timeout)

    def probe(self, name: str, timeout: float = 60, **arguments: Any) -> Any:
        """Run a function of probe_tools inside the agent; its result.

        :raises AssertionError: it did not run there
        """
        argv = ["python3", "-", name, json.dumps(arguments)]
        done = self.exec(*argv, stdin=_PROBES.read_bytes(), timeout=timeout)
        assert done.rc == 0, f"probe {name} did not run in {self.id}: {done}"
        return json.loads(done.out)

    def probe_all(self, calls: Sequence[tuple[str, dict[str, Any]]], timeout: float = 120) -> list[Any]:
        """Run several functions of probe_tools inside the agent, one after the other, at the cost of one exec."""
        source = _PROBES.read_text().partition("\nif __name__ ==")[0]
        run_all = "\nprint(json.dumps([globals()[name](**arguments) for name, arguments in json.loads(sys.argv[1])]))\n"
        done = self.exec("python3", "-", json.dumps(calls), stdin=source + run_all, timeout=timeout)
        assert done.rc == 0, done
        results: list[Any] = json.loads(done.out)
        return results

    def container(self, role: str) -> str:
        """Name of the container: role is agent, caddy or broker."""
        return f"asf-{self.id}-{role}"

    def clients(self) -> list[int]:
        """Podman's processes that are in the agent's container on behalf of a user: attached, or running a command."""
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            ours = self.container("agent") in words and {"attach", "exec"} & set(words)
            if ours and os.path.basename(words[0]) in ("podman", "setpriv", "setsid"):
                found.append(int(entry))
        return found

    def inspect(self, role: str) -> dict[str, Any]:
        """`podman inspect` of one container."""
        found: list[dict[str, Any]] = json.loads(podman("container", "inspect", self.container(role)))
        return found[0]

    def pid(self, role: str) -> int:
        """The container's first process, as the host numbers it."""
        return int(self.inspect(role)["State"]["Pid"])

    def in_netns(self, role: str, function: Callable[[], Any], timeout: float = 30) -> Any:
        """Run a Python function in the container's network namespace, with all capabilities there."""
        return netns.in_netns(self.pid(role), function, timeout)

    def wire_sh(self, role: str, script: str) -> str:
        """Run a shell script in the container's network namespace, to break the wiring."""
        return netns.wire_sh(self.pid(role), script)

    def logs(self, role: str) -> str:
        """The container's log so far, both streams."""
        done = run(["podman", "logs", self.container(role)])
        return done.out + done.err

    def decisions(self) -> list[dict[str, Any]]:
        """Caddy's decision lines so far."""
        lines = (line for line in self.logs("caddy").splitlines() if '"decision"' in line and line.startswith("{"))
        return [entry for entry in map(json.loads, lines) if entry.get("msg") == "decision"]

    def decided(self, host: str) -> list[str]:
        """Reasons of the decisions about a host; waits for the first, which conmon may write after the client's answer.

        :raises AssertionError: there is none
        """
        return wait_for(
            lambda: [entry["reason"] for entry in self.decisions() if entry.get("host") == host],
            60,
            f"one on {host}",
            0.1,
        )

    def owns(self) -> bool:
        """True while anything of the session exists: a closed one need not be closed again, which costs seconds."""
        from support import leaks

        return (self.home.state / "asf" / "live" / f"{self.id}.json").exists() or bool(leaks.find(self.name))

    def close(self, timeout: float = 120) -> Completed:
        """Close; may be repeated."""
        return self.play("close.yml", timeout=timeout)


def in_agent(session: Session, argv: Iterable[str], stdin: str | bytes | None = None) -> Completed:
    """Run a command in the agent through `asf-play exec`."""
    return session.exec(*argv, stdin=stdin)


class SessionFactory:
    """Opens sessions under names of this test run, and closes every one of them at the end."""

    _count = 0

    def __init__(self, home: Home) -> None:
        self.home = home
        self._tried: list[Session] = []

    @staticmethod
    def new_name() -> str:
        """A session name that is unique and known to the leak check."""
        SessionFactory._count += 1
        return f"{RUN}-{SessionFactory._count}"

    @staticmethod
    def used() -> bool:
        """True when this test run has tried to open any session."""
        return SessionFactory._count > 0

    def adopt(self, agent: str, name: str | None = None) -> Session:
        """A session that the test opens in a way of its own; it is closed at the end like the others."""
        session = Session(self.home, agent, name or self.new_name(), {})
        self._tried.append(session)
        return session

    def attempt(
        self,
        agent: str,
        *args: str,
        name: str | None = None,
        command: Sequence[str] = (),
        timeout: float = 240,
        env: Mapping[str, str] | None = None,
    ) -> tuple[Completed, Session]:
        """Try to open; whatever came of it is closed at the end."""
        session = self.adopt(agent, name)
        tail = ["--", *command] if command else []
        argv = ["open.yml", *session.selector(), "--json", "--detach", *args, *tail]
        done = asf_play(*argv, home=self.home, timeout=timeout, env=env)
        if isinstance(done.json, dict):
            session.document = done.json
        return done, session

    def open(self, agent: str, *args: str, **options: Any) -> Session:
        """Open a session: extra arguments go to asf-play, e.g. "-e", "llm_mock=true".

        :raises AssertionError: it did not open
        """
        done, session = self.attempt(agent, *args, **options)
        assert done.rc == 0 and session.document.get("ok"), f"{session.id} did not open: {done}"
        return session

    def close_all(self) -> list[str]:
        """Close all; the returned texts say what went wrong."""
        problems = []
        for session in reversed(self._tried):
            if not session.owns():
                continue
            done = session.close()
            if done.rc:
                problems.append(f"close of {session.id}: {done}")
            for volume in podman("volume", "ls", "-q", check=False).split():
                if session.name in volume:
                    podman("volume", "rm", "-f", volume, check=False)
        self._tried.clear()
        return problems
