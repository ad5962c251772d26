# SPDX-License-Identifier: BSD-4-Clause
"""The pieces of set-up that need no root: environment, clone, subordinate ids, cache, frame of the repository."""

import os
import re
import sys
import tomllib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "host"))

import account as accounts  # noqa: E402
import as_user  # noqa: E402
import cache as caches  # noqa: E402
import clone as clones  # noqa: E402
import environ  # noqa: E402
import kernel  # noqa: E402
import mounts  # noqa: E402
import userland  # noqa: E402
from say import SetupError  # noqa: E402

ANN = types.SimpleNamespace(pw_name="ann", pw_dir="/home/ann", pw_uid=1000, pw_gid=1000)


def test_s7_the_account_gets_no_secret_of_the_callers_environment():
    caller = {
        "AWS_SECRET_ACCESS_KEY": "x",
        "SSH_AUTH_SOCK": "/s",
        "HTTPS_PROXY": "http://p",
        "http_proxy": "http://p",
        "PYTHONPATH": "/evil",
        "LD_PRELOAD": "/evil.so",
        "HOME": "/root",
        "PATH": "/evil",
        "XDG_RUNTIME_DIR": "/run/user/0",
    }
    found = environ.for_account(ANN, "/run/user/1000", caller)
    assert set(found) == {"LANG", "TERM", "ASF_HOME", "HOME", "USER", "LOGNAME", "SHELL", "PATH", "XDG_RUNTIME_DIR"}
    assert found["HOME"] == "/home/ann" and found["XDG_RUNTIME_DIR"] == "/run/user/1000"
    assert found["ASF_HOME"] == "/home/ann/.config/asf"
    assert "evil" not in "".join(found.values())


def test_the_account_gets_what_the_caller_means_for_it():
    spent = {"ASF_USERLAND": "trixie"}
    caller = {
        "ASF_HOME": "/x",
        "ASF_NETNS": "/n",
        "CI": "true",
        "PIP_CERT": "/ca",
        "GOPROXY": "off",
        "XDG_STATE_HOME": "/s",
    }
    found = environ.for_account(ANN, "/run/user/1000", {**caller, **spent})
    assert {name: found[name] for name in caller} == caller and not spent.keys() & found.keys()


def test_tools_come_first_on_the_path_once():
    cache = caches.Cache("/c", "key", ROOT / "requirements")
    once = environ.with_tools({"PATH": "/bin"}, "/clone", cache)
    twice = environ.with_tools(once, "/clone", cache)
    assert once["PATH"].startswith(f"{cache.venv}/bin:/clone/tools/bin:")
    assert once["PATH"] == twice["PATH"] and once["PATH"].endswith(":/bin")
    assert once["PYTHONPATH"] == "/clone"
    assert once["ANSIBLE_COLLECTIONS_PATH"].split(":") == [str(cache.own), str(cache.collections)]


def test_an_unreadable_authority_is_named(tmp_path):
    (tmp_path / "ca").touch()
    environment = {"PIP_CERT": str(tmp_path / "none"), "SSL_CERT_FILE": str(tmp_path / "ca"), "OTHER": "/none"}
    assert environ.unreadable_authorities(environment) == ["PIP_CERT"]


def test_the_userland_is_named_by_its_release(monkeypatch):
    monkeypatch.delenv("ASF_USERLAND", raising=False)
    monkeypatch.delenv("ASF_ACCOUNT", raising=False)
    assert (userland.name(), userland.folder(), accounts.name()) == ("", None, "asf")
    monkeypatch.setenv("ASF_USERLAND", "trixie")
    assert userland.folder().name.startswith("userland-trixie-") and accounts.name() == "asf-trixie"
    monkeypatch.setenv("ASF_ACCOUNT", "ann")
    assert accounts.name() == "ann"
    monkeypatch.setenv("ASF_USERLAND", "../x\x1b")
    with pytest.raises(SetupError, match=r"ASF_USERLAND='../x\\x1b' is no known release: use trixie"):
        userland.name()


@pytest.mark.parametrize(
    ("release", "recorded", "used", "fine"),
    [
        ("", None, True, True),
        ("trixie", None, False, True),
        ("trixie", "trixie", True, True),
        ("trixie", None, True, False),  # its store was made by the machine's own Podman
        ("", "trixie", True, False),
    ],
)
def test_an_account_belongs_to_one_userland(tmp_path, monkeypatch, release, recorded, used, fine):
    monkeypatch.setenv("ASF_USERLAND", release)
    monkeypatch.setattr(userland, "CACHE", str(tmp_path))
    if recorded:
        (tmp_path / "accounts").mkdir()
        (tmp_path / "accounts/ann").write_text(recorded)
    if fine:
        userland.claim("ann", used)
        userland.claim("ann", True)  # also the next time, when it has a store
    else:
        with pytest.raises(SetupError, match="ASF_ACCOUNT"):
            userland.claim("ann", used)


def test_the_userland_comes_from_where_the_machine_gets_debian(tmp_path, monkeypatch):
    told = "Other http://other.test/x\nDebian http://one.test/debian/\nDebian http://two.test/debian/\n"
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\ncat <<'END'\n{told}END\n")
    (tmp_path / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert userland._mirrors() == ["http://one.test/debian/"]
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    assert userland._mirrors() == []


def test_an_ordinary_user_is_told_that_a_userland_needs_root(monkeypatch):
    monkeypatch.setenv("ASF_USERLAND", "trixie")
    with pytest.raises(SetupError, match="ASF_USERLAND needs root"):
        as_user.become(["true"])


def test_clone_knows_what_lies_in_it(tmp_path):
    clone = clones.Clone(tmp_path)
    assert clone.within(str(tmp_path)) == ""
    assert clone.within(str(tmp_path / "a/b")) == "a/b"
    assert clone.within(str(tmp_path) + "x") is None
    assert clone.key != clones.Clone(tmp_path.parent).key


class Mounts:
    """Records what is asked of the kernel, in place of tools/host/kernel.py."""

    def __init__(self, monkeypatch):
        self._paths, self.flags, self.mounted = {}, {}, []
        for name in ("open_tree", "mount_setattr", "move_mount"):
            monkeypatch.setattr(kernel, name, getattr(self, name))
        monkeypatch.setattr(kernel, "setns", lambda *_: None)

    def open_tree(self, path):
        tree = os.open(path, os.O_RDONLY)
        self._paths[tree] = path
        return tree

    def mount_setattr(self, tree, flags, userns=0):
        self.flags.setdefault(self._paths[tree], []).append(flags)

    def move_mount(self, tree, target):
        self.mounted.append((self._paths[tree], target))


def test_build_is_the_accounts_and_never_mapped_to_the_clones_owner(tmp_path, monkeypatch):
    """A set-uid file that the account leaves there must never be the clone's owner's, who may be root."""
    asked = Mounts(monkeypatch)
    monkeypatch.setattr(mounts.namespace, "BASE", str(tmp_path / "ns"))
    monkeypatch.setattr(mounts, "_userns", lambda *_: os.open("/dev/null", os.O_RDONLY))
    (tmp_path / "clone").mkdir()
    clone = clones.Clone(tmp_path / "clone")
    account = types.SimpleNamespace(pw_name="ann", pw_uid=os.getuid(), pw_gid=os.getgid())
    clone.uid = account.pw_uid + 1  # somebody else's
    mounts.ensure(clone, account, 0, 0)
    tree, build = str(clone.path), str(clone.path / "build")
    assert asked.mounted == [(tree, mounts.place(clone)), (build, mounts.place(clone) + "/build")]
    assert asked.flags[tree] == [0x1 | 0x2 | 0x4, kernel.MOUNT_ATTR_IDMAP]  # read-only, nosuid, nodev
    assert asked.flags[build] == [0x2 | 0x4 | 0x8]  # nosuid, nodev, noexec


def test_build_may_be_no_link(tmp_path):
    (tmp_path / "build").symlink_to("/etc")
    with pytest.raises(SetupError, match="not a folder"):
        mounts._make_build(clones.Clone(tmp_path), ANN)


def test_digest_follows_every_input():
    clone = clones.here()
    assert clone.path == ROOT
    first = clone.digest()
    assert first == clones.here().digest()
    for name in clones._INPUTS:
        assert (ROOT / name).exists(), f"{name} does not exist: its changes would never cause a set-up"


@pytest.mark.parametrize(
    ("text", "free"),
    [("", 100000), ("a:100000:65536\n", 165536), ("a:100000:65536\n# x:1:2\nb:500000:10\nbad\n", 500010)],
)
def test_free_range_lies_behind_every_other(tmp_path, text, free):
    path = tmp_path / "subuid"
    path.write_text(text)
    assert accounts._free(str(path)) == free


def test_f6_no_file_means_no_range(tmp_path):
    assert accounts._ranges(str(tmp_path / "none")) == []


@pytest.mark.parametrize("content", ["", "nonsense", str(2**22 - 1), str(os.getpid())])
def test_only_a_pause_process_counts_as_one(tmp_path, content):
    (tmp_path / "libpod/tmp").mkdir(parents=True)
    (tmp_path / "libpod/tmp/pause.pid").write_text(content)
    assert accounts.pause(os.getuid(), str(tmp_path)) is None


def test_configuration_is_written_once(tmp_path):
    account = types.SimpleNamespace(pw_dir=str(tmp_path))
    accounts.configure(account)
    storage = tmp_path / ".config/containers/storage.conf"
    assert 'driver = "overlay"' in storage.read_text()
    storage.write_text("mine\n")
    accounts.configure(account)
    assert storage.read_text() == "mine\n"


def test_a_failing_step_says_what_to_do(tmp_path):
    with pytest.raises(SetupError, match="do this instead"):
        caches._run(["false"], "do this instead")


def test_cache_is_complete_only_with_everything(tmp_path):
    cache = caches.Cache(tmp_path, "key", ROOT / "requirements")
    assert not cache.complete("/clone")
    cache.venv.mkdir()
    (cache.venv / ".complete").touch()
    cache.collections.mkdir()
    assert not cache.complete(tmp_path)
    cache.ensure(tmp_path)
    assert cache.complete(tmp_path)
    assert not cache.complete("/elsewhere")


def test_dependencies_are_written_alike():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements/run.in").read_text().splitlines()]
    assert sorted(project["dependencies"]) == sorted(line for line in lines if line)
    tested = [line.split("#")[0].strip() for line in (ROOT / "requirements/dev.in").read_text().splitlines()]
    assert {one for extra in project["optional-dependencies"].values() for one in extra} <= set(tested)


def test_every_locked_requirement_has_a_hash_and_no_address():
    for name in ("dev.txt", "collections.txt"):
        text = (ROOT / "requirements" / name).read_text()
        assert "://" not in text
        for pin in re.findall(r"^[a-z].*?(?=^[a-z]|\Z)", text, re.M | re.S):
            assert re.match(r"[A-Za-z0-9._-]+==\S+", pin) and "--hash=sha256:" in pin, pin.splitlines()[0]
