# SPDX-License-Identifier: BSD-4-Clause
"""Files of a session: grants under odd names, owners, and what an agent leaves behind (F1, F2, F3, F6, F8)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.mutate import Plan, mutated
from support.product import Home, Session, SessionFactory, asf_play, podman, sample_repo
from support.waiting import wait_for

from asf_lib.engine import grantfs

pytestmark = [pytest.mark.podman, pytest.mark.slow]

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
PLAIN: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
}
DISK = 16 << 20
HOME = "/home/node"
STATE = f"{HOME}/.keep"
WORKSPACE = "/workspace/repos"

#: F1. Each could be taken for something else by some layer between the command line and mount(2).
ODD = [
    "two  blanks",
    "co:lon:ro",
    "com,ma,readonly",
    "dst=elsewhere,type=tmpfs",
    'qu"ote',
    "sing'le $(id)",
    "-v",
    "--privileged",
    "back\\slash\\n",
    "{{ lookup('pipe', 'id') }}",
    "ünï🙂",
    "~",
]


def here(session: Session, code: str, **arguments: Any) -> Any:
    """Run Python in the agent: `code` finds its arguments in `given` and puts its result into `result`."""
    head = "import json, os, sys\ngiven = json.loads(sys.argv[1])\nresult = None\n"
    source = f"{head}{code}\nprint(json.dumps(result))\n"
    done = session.exec("python3", "-", json.dumps(arguments), stdin=source)
    assert done.rc == 0, done
    return json.loads(done.out)


# --- one session with everything --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd(module_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with odd names, granted rw by the command line; a library, granted ro."""
    base = tmp_path_factory.mktemp("odd")
    module_home.agent(
        "files", {**PLAIN, "limits": {"disk": "16m"}, "filesystem": {"state": [{"key": "keep", "target": STATE}]}}
    )
    for name in ODD:
        (base / name).mkdir()
        (base / name / "content").write_text(name)
        done = asf_play("repo", "add", "files", f"./{name}", "--json", home=module_home, cwd=base)
        assert done.rc == 0 and done.json["path"] == str(base / name), done
    sample_repo(base / "library")
    done = asf_play("repo", "add", "files", str(base / "library"), "--mode", "ro", home=module_home)
    assert done.rc == 0, done
    return base


@pytest.fixture(scope="module")
def files(module_session: SessionFactory, odd: Path) -> Session:
    """A session with all those grants, a state volume and a small home."""
    return module_session.open("files")


def test_F1_every_odd_name_is_mounted_exactly(files: Session, odd: Path) -> None:
    code = f"base = {WORKSPACE!r}\nresult = {{n: open(f'{{base}}/{{n}}/content').read() for n in given['names']}}"
    assert here(files, code, names=ODD) == {name: name for name in ODD}
    seen = here(files, f"result = sorted(os.listdir({WORKSPACE!r}))")
    assert seen == sorted([*ODD, "library"])
    binds = {m["Destination"]: m["Source"] for m in files.inspect("agent")["Mounts"] if m["Type"] == "bind"}
    assert {n: binds[f"{WORKSPACE}/{n}"] for n in ODD} == {n: str(odd / n) for n in ODD}


def test_F1_no_name_became_an_option(files: Session) -> None:
    found = files.inspect("agent")
    assert found["HostConfig"]["Privileged"] is False and found["HostConfig"]["ReadonlyRootfs"] is True
    targets = {mount["Destination"] for mount in found["Mounts"]}
    assert not {target for target in targets if "elsewhere" in target.rpartition("/")[0] or target == "/v"}, targets


def test_F1_the_list_shows_them(module_home: Home, files: Session, odd: Path) -> None:
    listed = asf_play("repo", "list", "files", "--json", home=module_home)
    assert {row["path"] for row in listed.json["grants"]} == {str(odd / name) for name in [*ODD, "library"]}


@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[2J", "tab\t", b"not-utf-8-\xff"])
def test_F1_other_names_are_refused_by_name(home: Home, tmp_path: Path, name: str | bytes) -> None:
    home.agent("refused", PLAIN)
    folder = os.fsdecode(os.path.join(os.fsencode(tmp_path), os.fsencode(name)))
    os.mkdir(folder)
    done = asf_play("repo", "add", "refused", folder, "--json", home=home)
    assert done.rc == 220 and done.json["error"]["key"] == "path", done
    assert "control character" in done.json["error"]["message"] or "UTF-8" in done.json["error"]["message"], done
    assert done.json["error"]["remedy"] == "rename the folder", done
    plain = asf_play("repo", "add", "refused", folder, home=home)
    assert plain.rc == 220 and "\x1b[2J" not in plain.err and "new\nline" not in plain.err, plain
    assert not (home.path / "agents" / "refused" / "repos.yml").exists()


def test_F6_what_the_agent_makes_belongs_to_the_operator(files: Session, odd: Path) -> None:
    repo = odd / ODD[0]
    before = (repo.stat().st_uid, (repo / "content").stat().st_uid)
    code = f"""
base = {WORKSPACE!r} + "/" + given["name"]
os.makedirs(base + "/new/deep")
open(base + "/new/deep/file", "w").write("made by the agent")
open(base + "/content", "a").write("!")
os.chmod(base + "/new/deep/file", 0o700)
result = [os.getuid(), os.stat(base).st_uid, os.stat(base + "/content").st_uid]
"""
    assert here(files, code, name=ODD[0]) == [1000, 1000, 1000]
    made = [repo / "new", repo / "new/deep", repo / "new/deep/file", repo / "content"]
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(os.getuid(), os.getgid())}
    assert before == (os.getuid(), os.getuid()) and os.getuid() != 1000, "the point is an operator who is not uid 1000"
    shutil.rmtree(repo / "new")  # by the operator, without any help


def test_ro_grants_are_read_only(files: Session, odd: Path) -> None:
    code = f"""
import errno
base, result = {WORKSPACE!r} + "/library", {{}}
def tried(name, act):
    try:
        act()
        result[name] = "done"
    except OSError as error:
        result[name] = errno.errorcode[error.errno]
tried("write", lambda: open(base + "/README.md", "a"))
tried("create", lambda: open(base + "/new", "w"))
tried("remove", lambda: os.remove(base + "/app.py"))
tried("chmod", lambda: os.chmod(base + "/app.py", 0o777))
tried("git", lambda: open(base + "/.git/config", "a"))
result["read"] = open(base + "/app.py").read()
"""
    got = here(files, code)
    assert got.pop("read") == (odd / "library/app.py").read_text()
    assert set(got.values()) == {"EROFS"}, got


def test_sizes_bite(files: Session) -> None:
    code = """
import errno
result = {}
for path in given["paths"]:
    name, written = path + "/filler", 0
    try:
        with open(name, "wb", buffering=0) as file:
            while written < given["limit"]:
                written += file.write(b"x" * 1048576)
        result[path] = "no limit"
    except OSError as error:
        result[path] = errno.errorcode[error.errno]
    os.remove(name)
"""
    got = here(files, code, paths=[HOME, "/dev/shm"], limit=DISK + (80 << 20))
    assert got == {HOME: "ENOSPC", "/dev/shm": "ENOSPC"}
    sizes = here(
        files,
        "s = {p: os.statvfs(p) for p in given['p']}\nresult = {p: v.f_blocks * v.f_frsize for p, v in s.items()}",
        p=[HOME, "/tmp", "/dev/shm"],
    )
    assert sizes == {HOME: DISK, "/tmp": 512 << 20, "/dev/shm": 64 << 20}


def test_a_tree_that_a_live_session_writes_is_not_granted_twice(
    files: Session, module_session: SessionFactory, odd: Path
) -> None:
    """Two sessions of one agent would write the same trees; so would another agent that is granted the folder above."""
    done, other = module_session.attempt("files")
    assert done.rc == 220 and f"session {files.id} already has" in done.json["error"]["message"], done
    remedy = f"close session {files.id} first; two sessions share a tree only with mode ro"
    assert done.json["error"]["remedy"] == remedy
    module_session.home.agent("above", PLAIN)
    module_session.home.grant("above", {"path": str(odd), "mode": "ro"})
    done, _ = module_session.attempt("above")
    assert done.rc == 220 and files.id in done.json["error"]["message"], done
    assert podman("ps", "-aq", "--filter", f"label=asf.session={other.id}") == ""


# --- state ------------------------------------------------------------------------------------------------------------


def _marks(session: Session) -> dict[str, Any]:
    code = f"""
result = {{}}
for place in ({STATE!r}, {HOME!r}):
    result[place] = sorted(n for n in os.listdir(place) if n.startswith("mark-"))
    open(place + "/mark-" + given["mark"], "w").close()
"""
    found: dict[str, Any] = here(session, code, mark=session.name)
    return found


def test_state_outlives_sessions_and_the_home_does_not(session: SessionFactory, home: Home) -> None:
    home.agent("keeper", {**PLAIN, "filesystem": {"state": [{"key": "keep", "target": STATE}]}})
    first = session.open("keeper")
    assert _marks(first) == {STATE: [], HOME: []}
    other = session.open("keeper")
    assert _marks(other) == {STATE: [], HOME: []}, "a second session shares the first one's state"
    assert first.close().rc == 0
    again = session.open("keeper", name=first.name)
    assert _marks(again) == {STATE: [f"mark-{first.name}"], HOME: []}
    volumes = podman("volume", "ls", "-q", "--filter", "label=asf.volume=state").split()
    assert len([name for name in volumes if first.name in name or other.name in name]) == 2


# --- what an agent leaves ---------------------------------------------------------------------------------------------

#: F3. Keys that make git run a program, or read another configuration.
_CONFIG = """
[core]
\tfsmonitor = {run}
\thooksPath = {hooks}
\tpager = {run}
\teditor = {run}
\tsshCommand = {run}
\tattributesFile = {base}/attributes
[diff]
\texternal = {run}
[filter "bad"]
\tclean = {run}
\tsmudge = {run}
\tprocess = {run}
[credential]
\thelper = !{run}
[gpg]
\tprogram = {run}
[alias]
\tstatus = !{run}
\trev-parse = !{run}
"""

#: What a program of the host that looks into its current directory might load.
_LURES = {
    "ansible.cfg": "[defaults]\ncallback_plugins = ./plugins\ncallbacks_enabled = lure\nstdout_callback = lure\n",
    "plugins/lure.py": "import os\nos.system({run!r})\n",
    "sitecustomize.py": "import os\nos.system({run!r})\n",
    "usercustomize.py": "import os\nos.system({run!r})\n",
    "yaml.py": "import os\nos.system({run!r})\n",
    "status.yml": "- hosts: localhost\n  tasks: [{{command: {run!r}}}]\n",
    "close.yml": "- hosts: localhost\n  tasks: [{{command: {run!r}}}]\n",
    "config.yml": "resolver: 203.0.113.1\n",
    "agents/left/runtime.yml": "name: left\nadapter: claude\n",
    "library/asf_status.py": "import os\nos.system({run!r})\n",
    **dict.fromkeys(("podman", "pasta", "git", "nft", "getsubids", "python3", "sh"), "#!/bin/sh\n{run}\n"),
    ".gitattributes": "* filter=bad diff=bad\n",
}

_PLANT = f"""
base = {WORKSPACE!r} + "/" + given["repo"]
for name, text in given["files"].items():
    path = base + "/" + name
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write(text)
    os.chmod(path, 0o755)
open(base + "/.git/config", "a").write(given["config"])
for hook in ("post-index-change", "fsmonitor-watchman", "post-checkout", "pre-commit", "reference-transaction"):
    open(base + "/.git/hooks/" + hook, "w").write("#!/bin/sh\\n" + given["run"] + "\\n")
    os.chmod(base + "/.git/hooks/" + hook, 0o755)
"""


class Left:
    """A session attached to a command line of its own, so that the command line can be killed."""

    def __init__(self, session: Session, repo: Path, canary: Path) -> None:
        self.session, self.repo, self.canary = session, repo, canary
        argv = ["asf-play", "open.yml", *session.selector(), "--json"]
        null, self._log = subprocess.DEVNULL, canary.with_name("open.log")
        with self._log.open("wb") as log:  # a file: what outlives a killed asf-play would hold a pipe open
            self.process = subprocess.Popen(
                argv, env=session.home.env, stdin=null, stdout=log, stderr=log, start_new_session=True
            )

    def live(self) -> bool:
        """True once the workload runs; an asf-play that ended before fails the test."""
        assert self.process.poll() is None, f"asf-play ended: {self._log.read_text(errors='replace')[-6000:]}"
        path = self.session.home.state / "asf" / "live" / f"{self.session.id}.json"
        with contextlib.suppress(OSError, ValueError):
            return bool(json.loads(path.read_bytes()).get("state") == "live")
        return False

    def kill(self) -> None:
        """SIGKILL of asf-play and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def left(session: SessionFactory, home: Home, tmp_path: Path) -> Iterator[Left]:
    """A live session with one repository, whose agent may leave what it wants."""
    repo = sample_repo(tmp_path / "work" / "left")
    home.agent("left", PLAIN)
    home.grant("left", repo)
    attached = Left(session.adopt("left"), repo, tmp_path / "canary")
    try:
        wait_for(attached.live, 120, "the session to be live")
        yield attached
    finally:
        attached.kill()


def test_F3_F8_nothing_that_the_agent_left_is_run_and_the_repository_is_as_it_left_it(left: Left) -> None:
    """The agent writes configuration and lures; every command runs from that very folder; the opener is killed."""
    session, canary = left.session, left.canary
    command = f"touch {canary}"
    script = left.repo.parent / "run.sh"  # outside of the grant: the agent knows the operator's paths, at worst
    script.write_text(f"#!/bin/sh\n{command}\n")
    script.chmod(0o755)
    given = {
        "repo": "left",
        "run": command,
        "files": {name: text.format(run=command) for name, text in _LURES.items()},
        "config": _CONFIG.format(run=script, hooks=f"{left.repo}/.git/hooks", base=left.repo),
    }
    here(session, _PLANT, **given)
    assert (left.repo / "ansible.cfg").is_file() and "fsmonitor" in (left.repo / ".git/config").read_text()
    before = _tree(left.repo)
    left.kill()
    env = {"PATH": f"{os.environ['PATH']}:", "PYTHONSAFEPATH": ""}  # an empty part means the current directory
    options = {"home": session.home, "cwd": left.repo, "env": env}
    for argv in (["status.yml"], ["verify.yml"], ["open.yml", "--detach"], ["open.yml", "--detach", "--check"]):
        done = asf_play(argv[0], *session.selector(), "--json", *argv[1:], **options)
        assert done.rc == 0 and done.json["ok"], f"{argv}: {done}"
    for argv in (["repo", "list"], ["repo", "add", "left", str(left.repo)], ["ls"], ["doctor"]):
        done = asf_play(*argv, **options)
        assert done.rc == 0 or argv == ["doctor"], f"{argv}: {done}"
    done = asf_play("close.yml", *session.selector(), "--json", **options)
    assert done.rc == 0 and done.json["cleanup"]["left"] == [], done
    assert not canary.exists(), "something that the agent left was run"
    assert _tree(left.repo) == before, "F8: something was left in, or taken from, the repository"


def _tree(repo: Path) -> dict[str, tuple[int, int, str]]:
    """Every path below: mode, owner, content."""
    out = {}
    for path in sorted(repo.rglob("*")):
        found = path.lstat()
        text = path.read_bytes().decode("latin-1") if path.is_file() and not path.is_symlink() else ""
        out[str(path.relative_to(repo))] = (found.st_mode, found.st_uid, text)
    return out


_LINKS = f"""
base = {WORKSPACE!r} + "/left"
os.symlink(given["secret"], base + "/link")
os.symlink(given["outside"], base + "/folder")
os.rename(base + "/.git", base + "/git-moved")
os.symlink(given["outside"], base + "/.git")
os.remove(base + "/README.md")
os.symlink(given["secret"], base + "/README.md")
"""


def test_F2_links_that_the_agent_left_are_not_followed(left: Left, tmp_path: Path) -> None:
    session, outside = left.session, tmp_path / "outside"
    outside.mkdir()
    secret = outside / "secret"
    secret.write_text("never to be read by way of a link")
    secret.chmod(0o600)
    for name in ("config", "commondir", "HEAD"):
        (outside / name).write_text(f"canary-{name}")
    here(session, _LINKS, secret=str(secret), outside=str(outside))
    code = f"result = [os.path.exists({WORKSPACE!r} + '/left/' + n) for n in ('link', 'folder', '.git', 'README.md')]"
    assert here(session, code) == [False] * 4, "the links lead out of the repository even in the container"
    read = {path: path.stat().st_atime_ns for path in outside.iterdir()}
    for path in outside.iterdir():
        os.utime(path, ns=(1, path.stat().st_mtime_ns))
    assert session.play("verify.yml").rc == 0
    added = asf_play("repo", "add", "left", str(left.repo), "--json", home=session.home)
    assert added.rc == 220 and "symbolic link" in added.json["error"]["message"], added
    left.kill()
    assert session.close().rc == 0
    done, _ = SessionFactory(session.home).attempt("left", name=session.name)
    assert done.rc == 220 and "symbolic link" in done.json["error"]["message"], done
    assert read and {path.name for path in outside.iterdir() if path.stat().st_atime_ns != 1} == set(), "it was read"
    assert secret.stat().st_uid == os.getuid() and secret.stat().st_mode & 0o777 == 0o600


def test_F2_a_granted_path_that_became_a_link_is_refused(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    home.agent("swapped", PLAIN)
    repo, elsewhere = sample_repo(tmp_path / "repo"), sample_repo(tmp_path / "elsewhere")
    assert asf_play("repo", "add", "swapped", str(repo), home=home).rc == 0
    repo.rename(tmp_path / "moved")
    repo.symlink_to(elsewhere)
    done, opened = session.attempt("swapped")
    error = done.json["error"]
    assert done.rc == 220 and "real location" in error["message"] and error["file"].endswith("repos.yml"), done
    assert error["key"] == "repos[0].path" and error["line"], error
    assert podman("ps", "-aq", "--filter", f"label=asf.session={opened.id}") == ""


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_F2_a_granted_path_that_is_swapped_between_plan_and_create_fails(home: Home, tmp_path: Path, kind: str) -> None:
    """Invariant 11: every mount root's device and inode are those that the plan was made of."""
    home.agent("swapped", PLAIN)
    repo, elsewhere = sample_repo(tmp_path / "repo"), sample_repo(tmp_path / "elsewhere")
    home.grant("swapped", repo)

    def swap(plan: Plan) -> None:
        repo.rename(tmp_path / "moved")
        repo.symlink_to(elsewhere) if kind == "link" else elsewhere.rename(repo)

    with mutated(home, "swapped", edit_plan=swap) as broken:
        assert broken.error is not None and broken.verdict("agent-mount-roots") == "fail", broken


def test_the_search_for_sockets_holds_at_open(session: SessionFactory, home: Home, tmp_path: Path) -> None:
    """What an agent left in a tree in an earlier session is found before the next one gets it."""
    home.agent("sockets", PLAIN)
    repo = sample_repo(tmp_path / "repo")
    home.grant("sockets", repo)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(repo / "s"))
        done, _ = session.attempt("sockets")
    assert done.rc == 220 and "socket" in done.json["error"]["message"], done
    assert grantfs.facts(str(repo)).specials == (("s", "socket"),)
