# SPDX-License-Identifier: BSD-4-Clause
"""What an agent's own image adds, in real builds against a registry on loopback: what works, and all that does not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.product import Completed, Home, SessionFactory, asf_play, podman
from support.registry import Registry, lock, registry
from support.waiting import wait_for

pytestmark = pytest.mark.slow

MODEL = {"llm": {"protocol": "openai", "mock": "hello"}}


@pytest.fixture
def shelf() -> Iterator[Registry]:
    with registry() as found:
        yield found


class Maker:
    """Writes an agent with packages and builds its image."""

    def __init__(self, home: Home, shelf: Registry) -> None:
        self.home, self.shelf = home, shelf
        self.agents: list[str] = []

    def agent(self, name: str, packages: dict[str, Any], **files: str) -> None:
        folder = self.home.agent(name, {"adapter": "generic", **MODEL, "packages": packages}).parent
        for file, text in files.items():
            (folder / file).write_text(text)
        self.agents.append(name)

    def words(self, name: str, *more: str) -> list[str]:
        options = json.dumps({"asf_image_options": self.shelf.options})
        return ["build.yml", "-e", f"agent={name}", "-e", options, *more]

    def build(self, name: str) -> Completed:
        return asf_play(*self.words(name), home=self.home, timeout=300)

    def refused(self, name: str, *words: str) -> Completed:
        """A build that fails, says these words, and leaves nothing."""
        done = self.build(name)
        assert done.rc == 222 and not [word for word in words if word not in done.err], done
        assert self.images(name) == [] and _leftovers() == [], done
        return done

    @staticmethod
    def images(name: str) -> list[str]:
        listed = podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()
        return [image for image in listed if image.startswith(f"localhost/asf/packages-{name}:")]


def _leftovers() -> list[str]:
    """What a build may leave: containers of its own, steps of podman build, scratch folders."""
    rows = json.loads(podman("ps", "--all", "--external", "--format", "json"))
    named = [str(row["Names"]) for row in rows if (row.get("Labels") or {}).get("asf.build")]
    working = [str(row["Names"]) for row in rows if "working-container" in str(row.get("Names"))]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "asf" / "builds"
    return [*named, *working, *(path.name for path in cache.glob("packages-*"))]


@pytest.fixture
def maker(home: Home, shelf: Registry) -> Iterator[Maker]:
    found = Maker(home, shelf)
    yield found
    for name in found.agents:
        for image in found.images(name):
            podman("rmi", "--force", image, check=False, timeout=120)


def test_python_packages_with_hashes_and_a_program(maker: Maker, session: SessionFactory) -> None:
    """They are importable, replace what the client's image has, and a second build does nothing."""
    one, other = maker.shelf.wheel("shelfone", "1.0", ("shelftwo",)), maker.shelf.wheel("shelftwo", "2.0")
    text = f"shelfone==1.0 --hash=sha256:{one}\nshelftwo==2.0 \\\n    --hash=sha256:{other}\n"
    maker.agent("pk-pip", {"pip": "reqs.txt"}, **{"reqs.txt": text})
    done = maker.build("pk-pip")
    assert done.rc == 0 and "packages-pk-pip built" in done.out, done
    again = maker.build("pk-pip")
    assert again.rc == 0 and "packages-pk-pip exists" in again.out, again
    opened = session.open("pk-pip")
    code = "import openai, shelfone, shelftwo; print(shelfone.VERSION, shelftwo.VERSION)"
    assert opened.exec("python3", "-c", code).out == "1.0 2.0\n"
    assert opened.exec("find", "/", "-xdev", "-perm", "/6000", "-type", "f").out == ""
    assert opened.exec("ls", "-A", "/mnt", "/srv", "/tmp").out.split() == ["/mnt:", "/srv:", "/tmp:"]
    record = json.loads(next((maker.home.state / "asf" / "images").glob("packages-pk-pip-*.json")).read_text())
    assert "shelfone 1.0" in record["pip"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shelfone==9.9\n", ("No matching distribution", "shelfone==9.9", "check name and version")),
        ("nowhere==1.0\n", ("No matching distribution", "nowhere")),
        ("shelfsource==1.0\n", ("No matching distribution", "only wheels are taken")),
        ("shelfone==1.0\n", ("shelfone 1.0 requires shelftwo", "pip freeze")),
        (f"shelfone==1.0 --hash=sha256:{'0' * 64}\n", ("do not work around it",)),
    ],
    ids=["no-such-version", "no-such-package", "no-wheel", "something-missing", "other-bytes"],
)
def test_python_packages_that_do_not_resolve(maker: Maker, text: str, words: tuple[str, ...]) -> None:
    maker.shelf.wheel("shelfone", "1.0", ("shelftwo",))
    maker.shelf.source("shelfsource", "1.0")
    maker.agent("pk-none", {"pip": "requirements.txt"}, **{"requirements.txt": text})
    maker.refused("pk-none", "packages-pk-none", *words)


def test_install_scripts_of_npm_run_only_when_named(maker: Maker, session: SessionFactory) -> None:
    # What it must not have: the build's settings, a network device beside lo, a capability.
    script = 'test -z "$(ls -A /mnt)" && ! grep -v lo: /proc/net/dev | grep -q :'
    script += " && grep -q 'CapEff:.0000000000000000' /proc/self/status && touch ran"
    named, other = maker.shelf.npm("shelfrun", "1.0.0", script), maker.shelf.npm("shelfleft", "1.0.0", script)
    files = lock(shelfrun=named, shelfleft=other)
    maker.agent("pk-npm", {"npm": "package-lock.json", "npm_scripts": ["shelfrun"]}, **files)
    done = maker.build("pk-npm")
    assert done.rc == 0 and "install scripts of npm packages were not run: shelfleft" in done.out, done
    opened = session.open("pk-npm")
    assert opened.exec("shelfrun").out == "ran\n" and opened.exec("shelfleft").out == "not run\n"
    code = "console.log(require('shelfrun/package.json').version)"
    assert opened.exec("node", "-e", code).out == "1.0.0\n"


def test_an_npm_package_that_is_not_there(maker: Maker) -> None:
    entry = {**maker.shelf.npm("shelfrun", "1.0.0"), "version": "9.9.9"}
    maker.agent("pk-gone", {"npm": "package-lock.json"}, **lock(shelfrun=entry))
    maker.refused("pk-gone", "packages-pk-gone", "npm error code", "check names and versions")


def test_a_package_of_the_distribution_that_is_not_there(maker: Maker) -> None:
    """The closed network has no mirror: the step that asks for it is named, and what to do."""
    maker.agent("pk-apt", {"apt": ["no-such-package"]})
    maker.refused("pk-apt", "packages-pk-apt", "apt-get install", "package registries")


def test_a_build_that_is_killed_in_the_middle(maker: Maker) -> None:
    """Killed while pip waits for the registry: no image, no container, and the next build is whole."""
    maker.shelf.wheel("shelfone", "1.0")
    maker.agent("pk-cut", {"pip": "requirements.txt"}, **{"requirements.txt": "shelfone==1.0\n"})
    maker.shelf.go.clear()
    argv = ["asf-play", *maker.words("pk-cut")]
    with subprocess.Popen(argv, env=maker.home.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: "/simple/shelfone/" in maker.shelf.asked, 120, "pip to ask the registry")
        process.send_signal(signal.SIGKILL)
    maker.shelf.go.set()
    assert maker.images("pk-cut") == []
    done = maker.build("pk-cut")
    assert done.rc == 0 and len(maker.images("pk-cut")) == 1 and _leftovers() == [], done


def test_a_wrong_lock_is_refused_before_anything_is_built(maker: Maker) -> None:
    maker.agent("pk-wrong", {"pip": "requirements.txt"}, **{"requirements.txt": "one==1.0\ntwo>=2\n-r more.txt\n"})
    done = maker.build("pk-wrong")
    assert done.rc == 220 and "requirements.txt:2" in done.err and "requirements.txt:3" in done.err, done
    assert maker.shelf.asked == [] and maker.images("pk-wrong") == []
