# SPDX-License-Identifier: BSD-4-Clause
"""Images on real Podman: what the shipped ones hold, and builds that fail, are killed, or meet each other.

No registry is needed: test builds stand on the base that exists, with recipes of their own in a copy of the collection.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from support.product import remove

from asf_lib.core import images as core
from asf_lib.core.errors import EngineError
from asf_lib.engine import build_go, dirs, images
from asf_lib.engine.build_host import sha256
from asf_lib.engine.podman import Podman

ROOT = Path(__file__).resolve().parents[2]
PINS = yaml.safe_load((ROOT / "inventory/group_vars/all/pins.yml").read_text())["asf_image_pins"]
SHIPPED = ("base", "litellm", "agent-generic", "agent-claude", "caddy", "gateway", "gate")
#: A recipe that needs no network; @STEP@ is what the test is about.
RECIPE = "ARG BASE\nFROM ${BASE}\nRUN set -eu; @STEP@; sh /mnt/prepare.sh@AFTER@\n"
#: A step that makes the image pass its check.
STUB = "echo '__version__ = 1' >$(python3 -c 'import site; print(site.getsitepackages()[0])')/openai.py"
BUILDER = """
import json, sys, yaml
from pathlib import Path
sys.path.insert(0, {root!r})
import asf_cli
from asf_lib.engine import images
pins = yaml.safe_load(Path({pins!r}).read_text())["asf_image_pins"]
say = lambda *words: print(*words, file=sys.stderr, flush=True)
host = images.workshop(images.Options.of(Path({repo!r}), {{}}), pins, progress=say)
print(json.dumps(images.ensure(host, ["agent-generic"])._asdict()))
"""


@pytest.fixture(scope="module")
def shipped():
    """Names of the shipped images; all must exist, because nothing can be fetched here."""
    host = images.workshop(images.Options.of(ROOT, {}), PINS)
    found = images.state(host)
    missing = found.missing(SHIPPED)
    if missing:
        pytest.fail(f"build first: asf-play build.yml (missing: {', '.join(missing)})")
    return host, found.tags


class Shop:
    """A copy of the collection's sources with one recipe changed, and caches of its own."""

    def __init__(self, folder: Path) -> None:
        self.repo = folder / "collection"
        for source in core.SOURCES.values():
            shutil.copytree(ROOT / source, self.repo / source)
        shutil.copy(ROOT / "roles/image/files/contents.py", self.repo / "roles/image/files")
        self.env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "XDG_STATE_HOME": str(folder / "state")}
        downloads = dirs.private(dirs.private(dirs.cache_dir(self.env)) / "downloads")
        for wheel in (dirs.cache_dir() / "downloads").glob("pip-*.whl"):
            shutil.copy(wheel, downloads)
        self.made: list[str] = []

    def recipe(self, step: str, after: str = "") -> None:
        """Change what agent-generic is made of; ``after``: a step behind the last one."""
        text = RECIPE.replace("@STEP@", step).replace("@AFTER@", f"; {after}" if after else "")
        (self.repo / core.SOURCES["agent-generic"] / "Containerfile").write_text(text)

    def host(self, **more):
        host = images.workshop(images.Options.of(self.repo, {}, {}), PINS, env=self.env, **more)
        self.made.append(images.tags(host)["agent-generic"])
        return host

    def builder(self) -> subprocess.Popen[bytes]:
        """The same in a process of its own."""
        code = BUILDER.format(root=str(ROOT), pins=str(ROOT / "inventory/group_vars/all/pins.yml"), repo=str(self.repo))
        self.host()
        argv = [sys.executable, "-c", code]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def leftovers(self) -> dict[str, list[str]]:
        """What a build may leave behind."""
        podman = Podman()
        rows = podman.json(["ps", "--all", "--external", "--format=json"])
        cache = dirs.cache_dir(self.env)
        return {
            "containers": [row["Id"] for row in rows if (row.get("Labels") or {}).get("asf.build") == "agent-generic"],
            "working": [row["Id"] for row in rows if images._is_working(row)],
            "tags": [tag for tag in images._tagged(self.host(), f"{core.PREFIX}*") if "agent-generic:building-" in tag],
            "scratch": [str(path) for path in cache.glob("builds/*")],
        }


@pytest.fixture
def shop(tmp_path, shipped):
    found = Shop(tmp_path)
    yield found
    podman, used = Podman(), set(shipped[1].values())
    for tag in set(found.made) - used:
        podman.run(["rmi", "--force", tag], check=False, timeout=120)


NOTHING = {"containers": [], "working": [], "tags": [], "scratch": []}


def wait_for(what, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return
        time.sleep(0.1)
    pytest.fail("waited in vain")


# --- what the shipped images hold ---


def inside(host, name, tag, script):
    mapping = core.SPECS[name].mapping
    user = {"nomap": "10001:10001", "": "0:0"}.get(mapping, "1000:1000")
    argv = ["run", "--rm", "--network=none", "--cap-drop=ALL", "--read-only", f"--user={user}", "--entrypoint="]
    return host.podman.run([*argv, *([f"--userns={mapping}"] if mapping else []), tag, "sh", "-euc", script]).stdout


@pytest.mark.parametrize("name", ["agent-generic", "agent-claude"])
def test_an_agent_image_is_what_sessions_expect(shipped, name):
    host, tags = shipped
    script = (
        "id; echo $HOME; pwd; stat -c '%a %u:%g %n' /home/node /workspace/repos /asf; getent passwd 1000;"
        "git config --system --get-all safe.directory; locale -a 2>/dev/null | grep -x C.utf8; echo $LANG;"
        "wc -c </etc/resolv.conf; stat -c %a /etc/resolv.conf;"
        "ls -A /mnt /srv /tmp; command -v python3 git curl less ps"
    )
    lines = inside(host, name, tags[name], script).splitlines()
    assert lines[0].startswith("uid=1000(node) gid=1000(node)") and lines[1:3] == ["/home/node", "/workspace/repos"]
    assert "755 1000:1000 /home/node" in lines and "755 1000:1000 /workspace/repos" in lines
    assert "node:x:1000:1000::/home/node:/bin/bash" in lines and "/workspace/repos/*" in lines and "C.utf8" in lines
    at = lines.index("C.UTF-8")
    assert lines[at + 1 : at + 3] == ["0", "644"]
    assert lines[at + 3 :][:3] == ["/mnt:", "", "/srv:"], "something of the build stayed in the image"


def test_clients_start(shipped):
    host, tags = shipped
    assert "Claude Code" in inside(host, "agent-claude", tags["agent-claude"], "HOME=/tmp claude --version")
    found = inside(
        host, "agent-generic", tags["agent-generic"], "/usr/bin/python3 -c 'import openai as o; print(o.__version__)'"
    )
    assert found.strip() == PINS["openai"]


@pytest.mark.parametrize("name", [name for name in SHIPPED if name != "gate"])
def test_labels_name_image_and_inputs_and_the_environment_holds_no_setting(shipped, name):
    host, tags = shipped
    config = host.podman.json(["image", "inspect", tags[name]])[0]["Config"]
    assert config["Labels"]["asf.image"] == name and config["Labels"]["asf.inputs"] == core.digest_of(tags[name])
    names = {pair.split("=")[0] for pair in config.get("Env") or ()}
    assert names <= {
        "PATH",
        "LANG",
        "HOME",
        "PYTHONDONTWRITEBYTECODE",
        "LITELLM_LOCAL_MODEL_COST_MAP",
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_the_record_says_what_went_in(shipped, name):
    host, tags = shipped
    path = host.records / core.record_name(name, tags[name])
    if not path.exists():
        pytest.skip("built by a run with a state folder of its own, which has the record")
    record = json.loads(path.read_text())
    assert record["tag"] == tags[name] and record["podman"] and record["seconds"] > 0
    if name == "gate":
        assert len(record["sha256"]) == 64 and record["toolchain"].startswith("go1.")
    elif not core.SPECS[name].bare:
        assert any(line.startswith("git ") for line in record["dpkg"]) and record["setuid"] == []
    if name == "litellm":
        assert f"litellm {PINS['litellm']}" in record["pip"]
    if name == "agent-claude":
        assert record["npm"] == [f"@anthropic-ai/claude-code {PINS['claude']}"]


def test_claudes_executable_is_there_once(shipped):
    """Hard links or a second copy would double the layer, and again for the mapping."""
    host, tags = shipped
    script = "find / -xdev -type f -size +50M -printf '%n %p\\n' 2>/dev/null || true"
    assert inside(host, "agent-claude", tags["agent-claude"], script).splitlines() == ["1 /usr/local/bin/claude"]


def test_containers_of_a_shipped_image_start_without_a_copy(shipped):
    """The copy for the user mapping is paid at build time: creating a container makes none, in seconds."""
    host, tags = shipped
    for name in ("agent-claude", "litellm", "caddy", "gateway"):
        before = _copies(host, tags[name])
        argv = ["create", "--network=none", f"--userns={core.SPECS[name].mapping}", tags[name], "true"]
        remove(host.podman.run(argv).stdout.strip())
        assert before and _copies(host, tags[name]) == before, name


def _copies(host, tag):
    """Layers that Podman's store holds of an image's topmost one for user mappings."""
    driver, root = host.podman.run(
        ["info", "--format", "{{.Store.GraphDriverName}} {{.Store.GraphRoot}}"]
    ).stdout.split()
    rows = json.loads(Path(root, f"{driver}-images", "images.json").read_text())
    (row,) = [row for row in rows if any(name == tag or name.endswith(f"/{tag}") for name in row.get("names") or ())]
    return row.get("mapped-layers", [])


def test_a_second_run_builds_nothing(shipped):
    host, tags = shipped
    images.ensure(host, SHIPPED)
    found = images.ensure(host, SHIPPED)
    assert not found.changed and all(action.endswith(" exists") for action in found.actions)
    assert found.images["caddy"] == tags["caddy"] and Path(found.images["gate"]).stat().st_mode & 0o111


# --- builds ---


def test_a_good_build_leaves_an_image_a_record_and_nothing_else(shop):
    shop.recipe(STUB)
    host = shop.host()
    found = images.ensure(host, ["agent-generic"])
    assert found.changed and found.actions[0].startswith("agent-generic built in ")
    assert images.ensure(host, ["agent-generic"]).actions == ["agent-generic exists"]
    assert shop.leftovers() == NOTHING and list(host.records.glob("agent-generic-*.json"))


def test_check_mode_builds_nothing(shop):
    shop.recipe("true")
    found = images.ensure(shop.host(), ["agent-generic"], dry=True)
    assert found.changed and found.actions == ["agent-generic would be built"]
    assert "agent-generic" not in images.state(shop.host()).present


@pytest.mark.parametrize(
    ("step", "code", "said"),
    [
        ("echo about to fail; false", "build", "about to fail"),
        ("dd if=/dev/zero of=/dev/full count=1", "storage-full", "No space left on device"),
        (
            "python3 /mnt/pip.whl/pip install --require-hashes --no-deps /mnt/prepare.sh",
            "build",
            "rror",
        ),
    ],
)
def test_a_failed_build_is_told_and_leaves_nothing(shop, step, code, said):
    shop.recipe(step)
    with pytest.raises(EngineError) as caught:
        images.ensure(shop.host(), ["agent-generic"])
    error = caught.value
    assert "agent-generic" in error.message and "STEP" in error.message and said in error.stderr
    assert error.code == code and Path(error.file).is_file() and error.remedy
    assert shop.leftovers() == NOTHING and "agent-generic" not in images.state(shop.host()).present


@pytest.mark.parametrize(
    ("step", "after", "said"),
    [
        ("true", "", "does not work"),
        (STUB, "cp /bin/true /usr/local/bin/t; chmod 4755 /usr/local/bin/t", "set-uid"),
    ],
)
def test_an_image_that_fails_its_check_gets_no_name(shop, step, after, said):
    shop.recipe(step, after)
    with pytest.raises(EngineError) as caught:
        images.ensure(shop.host(), ["agent-generic"])
    assert caught.value.code == "build-check" and said in caught.value.message
    assert shop.leftovers() == NOTHING and "agent-generic" not in images.state(shop.host()).present


def test_a_killed_build_ends_at_once_and_the_next_one_clears_up(shop):
    """Case L3."""
    shop.recipe("echo sleeping >&2; exec sleep 61.25")
    process = shop.builder()
    log = shop.host().log_path("agent-generic", shop.made[-1])
    wait_for(lambda: log.exists() and "sleeping\n" in log.read_text())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    place = str(shop.repo.parent).encode()
    wait_for(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if place in _read(path)], 60)
    assert not any(tag for tag in shop.leftovers()["tags"])
    shop.recipe(STUB)
    assert images.ensure(shop.host(), ["agent-generic"]).changed
    assert shop.leftovers() == NOTHING
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"61.25" in _read(path)], "a step goes on"


def test_an_interrupted_build_ends_with_all_its_steps(shop):
    """Ctrl-C."""
    shop.recipe("echo sleeping >&2; exec sleep 62.25")
    process = shop.builder()
    log = shop.host().log_path("agent-generic", shop.made[-1])
    wait_for(lambda: log.exists() and "sleeping\n" in log.read_text())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    wait_for(lambda: not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"62.25" in _read(path)], 60)
    assert shop.leftovers()["scratch"] == []


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_two_runs_at_once_build_once(shop):
    shop.recipe(f"sleep 3; {STUB}")
    answers = [process.communicate(timeout=200) for process in [shop.builder(), shop.builder()]]
    actions = sorted(json.loads(out)["actions"][0] for out, _ in answers)
    assert actions[0].startswith("agent-generic built in") and actions[1].endswith("by another run meanwhile"), answers


def test_without_podman_the_error_says_so(shop):
    shop.recipe("true")
    host = shop.host()
    host.podman = Podman(program="podman-that-is-not-there")
    with pytest.raises(EngineError) as caught:
        images.ensure(host, ["agent-generic"])
    assert caught.value.code == "podman-missing" and "4.3" in caught.value.remedy


def test_a_base_image_by_digest_is_used_instead_of_packages(shop, shipped):
    """The setting's own path, with an image that is in the store already: nothing is pulled."""
    host, tags = shipped
    digest = host.podman.json(["image", "inspect", tags["base"]])[0]["Digest"]
    options = images.Options.of(shop.repo, {"base_image": f"{core.PREFIX}base@{digest}"}, {})
    other = images.workshop(options, PINS, env=shop.env)
    shop.made.append(images.tags(other)["base"])
    found = images.ensure(other, ["base"])
    assert found.images["base"] != tags["base"] and found.changed
    assert json.loads(next(other.records.glob("base-*.json")).read_text())["base_image"] == options.base_image


# --- Go programs ---


@pytest.mark.parametrize("name", ["gate", pytest.param("caddy-binary", marks=pytest.mark.slow)])
def test_the_same_program_comes_out_of_two_folders(shop, shipped, name, tmp_path):
    """Reproducible: same sources, same toolchain, same bytes, wherever they lie; and the same as the one in use."""
    host, tags = shipped
    source = core.SPECS[name].sources[0]
    other = images.workshop(images.Options.of(shop.repo, {}), PINS, env={**os.environ, "GOPROXY": "off"})
    with open(tmp_path / "log", "wb") as log:
        facts = build_go.build(other, name, source, f"test-{os.getpid()}-{name}", log)
    other.binary(f"test-{os.getpid()}-{name}").unlink()
    program = host.binary(tags[name])
    mode = program.stat().st_mode
    program.chmod(0o700)  # the gate in use is execute-only
    try:
        assert facts["sha256"] == sha256(program)
    finally:
        program.chmod(mode)
