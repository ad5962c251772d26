# SPDX-License-Identifier: BSD-4-Clause
"""One wheel brings the CLI and the collection: built and used here without network and without this checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with what the wheel installs."""
    base = tmp_path_factory.mktemp("wheel")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(base)], cwd=ROOT)
    with zipfile.ZipFile(next(base.glob("*.whl"))) as wheel:
        wheel.extractall(base / "site")
    return base / "site"


def _run(argv, cwd, **environment):
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "XDG_RUNTIME_DIR", "PYTHONPYCACHEPREFIX")
    }
    done = subprocess.run(
        argv, cwd=cwd, env={**kept, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_no_foreign_files(site):
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {
        "asf_cli",
        "asf_lib",
        "ansible_collections",
    }
    assert not list(site.rglob("__pycache__"))


def test_asf_play_runs_from_the_wheel(site):
    pytest.importorskip("asf_cli.__main__")
    told = _run([sys.executable, "-m", "asf_cli", "--version"], cwd=site.parent, PYTHONPATH=str(site))
    assert "0.1.0" in told


def test_ansible_finds_the_collection_of_the_wheel(site, tmp_path):
    told = _run(
        ["ansible-doc", "-t", "module", "asf.sandbox.asf_doctor"],
        cwd=tmp_path,
        PYTHONPATH=str(site),
        ANSIBLE_COLLECTIONS_PATH=str(tmp_path),
        ANSIBLE_HOME=str(tmp_path),
    )
    assert "asf_doctor" in told.lower()
    told = _run(
        ["ansible-playbook", "-i", "localhost,", "--syntax-check", "asf.sandbox.setup"],
        cwd=tmp_path,
        PYTHONPATH=str(site),
        ANSIBLE_COLLECTIONS_PATH=str(tmp_path),
        ANSIBLE_HOME=str(tmp_path),
    )
    assert "asf/sandbox/playbooks/setup.yml" in told
