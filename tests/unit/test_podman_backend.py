# SPDX-License-Identifier: BSD-4-Clause
"""The interface to Podman, with a stand-in for the program: argv, environment, deadlines, typed errors."""

from __future__ import annotations

import grp
import json
import os
import tomllib
from pathlib import Path

import pytest
from support.waiting import wait_for

from asf_cli import paths
from asf_lib.core.errors import EngineError, HostError
from asf_lib.core.redact import Redactor
from asf_lib.engine import containersconf, dirs, hostprograms, podman, procs, trust
from asf_lib.engine.podman import Podman

FAKE = """#!/bin/sh
case "$1" in
  args) shift; for word; do printf '%s\\n' "$word"; done;;
  env) env;;
  cat) cat;;
  json) printf '%s' "$2";;
  fail) printf '%s\\n' "$2" >&2; exit 125;;
  hang) sleep 300 & echo $! >"$2"; wait;;
  --version) echo "podman version ${FAKE_VERSION:-4.3.1}";;
esac
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path), "PATH": os.environ["PATH"]}


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "podman"
    path.write_text(FAKE)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def fake(env: dict[str, str], program: str) -> Podman:
    return Podman(redactor=Redactor(["hunter2-hunter2"]), env=env, program=program)


def test_F1_arguments_arrive_as_they_are(fake: Podman) -> None:
    words = ["a b", "$(id)", "--x=';'", "*", "", "-", "é"]
    assert fake.run(["args", *words]).stdout.split("\n")[:-1] == words


def test_S7_P14_environment_is_scrubbed(env: dict[str, str], program: str) -> None:
    dirty = {
        **env,
        "HTTPS_PROXY": "http://evil",
        "ANTHROPIC_API_KEY": "k",
        "CONTAINERS_CONF_OVERRIDE": "/x",
        "LD_PRELOAD": "",
    }
    found = dict(line.split("=", 1) for line in Podman(env=dirty, program=program).run(["env"]).stdout.splitlines())
    assert not {"HTTPS_PROXY", "ANTHROPIC_API_KEY", "CONTAINERS_CONF_OVERRIDE"} & set(found)
    assert found["CONTAINERS_CONF"] == str(Path(env["XDG_RUNTIME_DIR"]) / "asf" / "conf" / "containers.conf")
    assert found["HOME"] == env["HOME"] and "/usr/sbin" in found["PATH"].split(":")


def test_builds_may_add_variables(env: dict[str, str], program: str) -> None:
    found = Podman(env=env, program=program, extra_env={"HTTPS_PROXY": "http://p", "CONTAINERS_CONF": "/x"}).run(
        ["env"]
    )
    assert "HTTPS_PROXY=http://p" in found.stdout and "CONTAINERS_CONF=/x" not in found.stdout


def _path(env: dict[str, str]) -> list[str]:
    return podman.environment(None, {"HOME": "/h", **env})["PATH"].split(":")


def test_relative_path_entries_are_dropped(tmp_path: Path) -> None:
    assert _path({"PATH": f".:{tmp_path}::bin"}) == [*trust.SYSTEM_PATH, str(tmp_path)]


def test_a_repository_on_the_path_cannot_stand_in_for_podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 11: what an agent left in a folder on PATH is found after the system's programs, or not at all."""
    system, planted, chosen = tmp_path / "system", tmp_path / "repo" / "bin", tmp_path / "own"
    for folder in (system, planted, chosen):
        folder.mkdir(parents=True)
        (folder / "podman").write_text("#!/bin/sh\n")
        (folder / "podman").chmod(0o755)
    monkeypatch.setattr(trust, "SYSTEM_PATH", (str(system),))
    monkeypatch.setenv("PATH", f"{planted}:/usr/bin")
    assert _path({"PATH": f"{planted}"}) == [str(system), str(planted)]
    assert hostprograms.program("podman") == str(system / "podman")
    assert paths.scrubbed({"PATH": str(planted), "HOME": "/h"})["PATH"].split(":")[0] == str(system)
    monkeypatch.setenv("ASF_PATH", str(chosen))
    assert hostprograms.program("podman") == str(chosen / "podman")


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_folders_that_others_may_write_are_not_searched(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("team", "x", gid, [])))
    folder = tmp_path / "open" / "bin"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    assert trust.searched(str(folder)) and trust.searched(str(tmp_path / "link"))
    folder.chmod(mode)
    assert not trust.searched(str(folder)) and not trust.searched(str(tmp_path / "link"))
    folder.chmod(0o755)
    folder.parent.chmod(mode)
    assert trust.searched(str(folder)) is (mode == 0o1777)  # in a sticky folder nobody else can replace it
    assert not trust.searched(str(tmp_path / "missing"))


def test_a_folder_of_somebody_else_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trust.searched(str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    assert trust.searched(str(tmp_path)) is (tmp_path.stat().st_uid == 0) and trust.searched("/usr/bin")


def test_input_and_parallel_results_keep_their_order(fake: Podman) -> None:
    found = fake.parallel([(["cat"], b"one"), ["args", "two"], (["cat"], b"three")])
    assert [one.stdout.strip() for one in found] == ["one", "two", "three"] and fake.parallel([]) == []


def test_two_words_are_no_pair(fake: Podman) -> None:
    assert fake.parallel([("args", "x")])[0].stdout == "x\n"


def test_json_and_nothing(fake: Podman) -> None:
    assert fake.json(["json", '[{"a": 1}]']) == [{"a": 1}] and fake.json(["json", " "]) == []
    with pytest.raises(EngineError) as caught:
        fake.json(["json", "table"])
    assert caught.value.code == "bad-answer" and caught.value.found == "table"


def test_failure_is_typed_and_redacted(fake: Podman) -> None:
    with pytest.raises(EngineError) as caught:
        fake.run(["fail", "Error: hunter2-hunter2 is wrong"])
    error = caught.value.as_dict()
    assert error["rc"] == 125 and error["code"] == "engine" and "hunter2" not in json.dumps(error)
    assert fake.run(["fail", "x"], check=False).rc == 125


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("invalid internal status, try resetting the pause process: cannot re-exec process", "podman-wedged"),
        ("Error: writing blob: no space left on device", "storage-full"),
        ("Error: cannot find UID/GID for user asf: no subuid ranges found for user", "no-subuid"),
        ("Error: unknown flag: --read-only-tmpfs", "podman-old"),
        ("cgroups in hybrid mode not supported", "cgroups"),
        ("Error: localhost/asf/caddy:1: image not known", "image-missing"),
        ('Error: creating container storage: the container name "x" is already in use', "name-in-use"),
        ("Error: could not find slirp4netns", "helper-missing"),
        ("Error: something new", "engine"),
    ],
)
def test_known_failures_say_what_to_do(text: str, code: str, fake: Podman) -> None:
    with pytest.raises(EngineError) as caught:
        fake.run(["fail", text])
    assert caught.value.code == code and (caught.value.remedy is None) == (code == "engine")


def test_the_line_that_says_what_is_wrong_is_shown(fake: Podman) -> None:
    with pytest.raises(EngineError, match="unknown flag: --x"):
        fake.run(["fail", "Error: unknown flag: --x\nSee 'podman create --help'"])


def test_deadline_kills_all_that_the_call_started(fake: Podman, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(EngineError) as caught:
        fake.run(["hang", str(pid)], timeout=2)
    assert caught.value.code == "timeout"
    wait_for(lambda: procs.start_time(int(pid.read_text())) is None, 30, "the call's own child to end")


def test_missing_program(env: dict[str, str]) -> None:
    with pytest.raises(EngineError) as caught:
        Podman(env=env, program="/nonexistent/podman").run(["ps"])
    assert caught.value.code == "podman-missing" and caught.value.remedy


@pytest.mark.parametrize(("said", "expected"), [("4.3.1", (4, 3, 1)), ("5.4.2-dev", (5, 4, 2)), ("6.0", (6, 0, 0))])
def test_version(said: str, expected: tuple[int, int, int], env: dict[str, str], program: str) -> None:
    assert Podman(env=env, program=program, extra_env={"FAKE_VERSION": said}).version() == expected


@pytest.mark.parametrize(("said", "code"), [("4.2.9", "podman-old"), ("none", "bad-answer")])
def test_version_refused(said: str, code: str, env: dict[str, str], program: str) -> None:
    with pytest.raises(EngineError) as caught:
        Podman(env=env, program=program, extra_env={"FAKE_VERSION": said}).version()
    assert caught.value.code == code


CONF = """
# comment
[containers]
volumes = ["/etc/secrets:/secrets"]   # would be mounted into every container
env = [
  "KEY=VALUE", # with ] and "quotes"
]
default_ulimits = ["nofile=1:1"]
label = false
[engine]
cgroup_manager = "cgroupfs"
hooks_dir = ["/hooks"]
events_logger = 'file'
conmon_path = [
    "/usr/bin/conmon",   # the first
    "/opt/a[b]#c",
]
network_cmd_options = ["allow_host_loopback=true"]
[engine.runtimes]
crun = ["/opt/crun"]
"odd-name" = ["/opt/x"]
[[unknown]]
cgroup_manager = "x"
[network]
network_backend = "netavark"
default_subnet = "10.88.0.0/16"
"""


def test_conf_carries_the_hosts_facts_and_nothing_that_enters_a_container() -> None:
    merged = tomllib.loads(containersconf.merge([CONF, '[engine]\n"events_logger" = "journald"\n']))
    assert merged["engine"] == {
        "cgroup_manager": "cgroupfs",
        "events_logger": "journald",
        "conmon_path": ["/usr/bin/conmon", "/opt/a[b]#c"],
        "hooks_dir": [],
        "env": [],
        "runtimes": {"crun": ["/opt/crun"], "odd-name": ["/opt/x"]},
    }
    assert merged["network"] == {"network_backend": "netavark"}
    own = merged["containers"]
    assert own["volumes"] == own["env"] == own["default_ulimits"] == [] and own["label"] is False
    assert own["base_hosts_file"] == own["host_containers_internal_ip"] == "none"


@pytest.mark.parametrize(
    "text", ["", "[engine", "key", "[engine]\nruntime = [", '[engine]\nruntime = "open', "\0\n= = ="]
)
def test_conf_survives_damaged_files(text: str) -> None:
    merged = tomllib.loads(containersconf.merge([text, '[engine]\nruntime = "crun"\n']))
    assert merged["engine"]["runtime"] == "crun"


def test_conf_is_read_in_podmans_order_and_written_once(tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "containers"
    (folder / "containers.conf.d").mkdir(parents=True)
    (folder / "containers.conf").write_text('[engine]\nruntime = "runc"\n')
    (folder / "containers.conf.d" / "9.conf").write_text('[engine]\nruntime = "crun"\n')
    env = {"HOME": str(tmp_path)}
    target = containersconf.write(tmp_path, env)
    assert '"runtime" = "crun"' in target.read_text()
    before = target.stat().st_ino
    assert containersconf.write(tmp_path, env).stat().st_ino == before
    (folder / "containers.conf.d" / "9.conf").unlink()
    assert '"runtime" = "runc"' in containersconf.write(tmp_path, env).read_text()


def test_S6_no_run_directory_names_the_fix(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        dirs.run_dir({"XDG_RUNTIME_DIR": str(tmp_path / "none")})
    assert caught.value.key == "XDG_RUNTIME_DIR" and "log in" in str(caught.value.remedy)


@pytest.mark.parametrize("text", ["../x.main", "a", "a.b/c", ".a.b", "A.b", "a.b.c", "a.b\n", "a" * 99 + ".b", ""])
def test_ids_that_are_no_ids(text: str) -> None:
    with pytest.raises(HostError):
        dirs.session_id(text)
