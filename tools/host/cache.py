# SPDX-License-Identifier: BSD-4-Clause
"""What lies in the account's cache: the Python environment, the collections, the caches of tools. Runs unprivileged."""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from execute import captured
from say import SetupError, say

_COLLECTION = "ansible_collections/containers/podman/"


class Cache:
    """Folders below `base` (~/.cache/asf) for the clone `key`, whose requirement files lie in `requirements`."""

    def __init__(self, base, key, requirements):
        self.base = Path(base)
        self.requirements = Path(requirements)
        self.venv = self.base / ("venv-" + self._digest("dev.txt"))
        self.collections = self.base / ("collections-" + self._digest("collections.txt"))
        self.own = self.base / f"collections-clone-{key}"
        self.tools = self.base / f"tools-{key}"

    def _digest(self, name):
        return hashlib.sha256((self.requirements / name).read_bytes()).hexdigest()[:12]

    def complete(self, link):
        """True when everything is there and the clone is found as a collection at `link`."""
        return (
            (self.venv / ".complete").exists() and self.collections.is_dir() and _read_link(self._link()) == str(link)
        )

    def _link(self):
        return self.own / "ansible_collections" / "asf" / "sandbox"

    def ensure(self, link):
        """Make what is missing; `link` is where the clone is seen from here."""
        self.base.mkdir(parents=True, exist_ok=True)
        if not (self.venv / ".complete").exists():
            self._make_venv()
        if not self.collections.is_dir():
            self._fetch_collection()
        if _read_link(self._link()) != str(link):
            self._link().parent.mkdir(parents=True, exist_ok=True)
            self._link().unlink(missing_ok=True)
            self._link().symlink_to(link)
        self._sweep()

    def _make_venv(self):
        say("installing Python packages (hash-locked) into " + str(self.venv))
        shutil.rmtree(self.venv, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(self.venv)], "install python3-venv")
        self._pip("install", "--no-compile", "-r", str(self.requirements / "dev.txt"))
        (self.venv / ".complete").touch()

    def _pip(self, command, *arguments):
        proxy = os.environ.get("ASF_BUILD_PROXY")
        _run(
            [
                str(self.venv / "bin/python"),
                "-m",
                "pip",
                command,
                "--quiet",
                "--disable-pip-version-check",
                "--no-input",
                "--require-hashes",
                "--no-deps",
                *(["--proxy", proxy] if proxy else []),
                *arguments,
            ],
            "the Python package index must be reachable; PIP_CERT names a CA bundle, ASF_BUILD_PROXY a proxy",
        )

    def _fetch_collection(self):
        """containers.podman alone, out of the community package: Galaxy is not needed, and 1 MB of its 500 is."""
        say("fetching the collection containers.podman")
        with tempfile.TemporaryDirectory(dir=self.base) as folder:
            self._pip("download", "--dest", folder, "-r", str(self.requirements / "collections.txt"))
            wheel = next(Path(folder).glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if name.startswith(_COLLECTION)]
                archive.extractall(folder + "/out", members)
            os.rename(folder + "/out", self.collections)

    def _sweep(self):
        """Forget clones that no longer exist."""
        for own in self.base.glob("collections-clone-*"):
            if not (own / "ansible_collections/asf/sandbox").is_dir():
                shutil.rmtree(own, ignore_errors=True)
                shutil.rmtree(self.base / own.name.replace("collections-clone", "tools"), ignore_errors=True)


def _read_link(path):
    try:
        return os.readlink(path)
    except OSError:
        return None


def _run(argv, remedy):
    done = captured(argv)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise SetupError(f"`{' '.join(argv)}` failed ({done.returncode}): {remedy}\n{tail}")
