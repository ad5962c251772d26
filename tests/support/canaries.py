# SPDX-License-Identifier: BSD-4-Clause
"""Looking for texts that must be nowhere: in files while commands run, and afterwards (S4, invariant 10)."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.product import Home

LARGEST = 32 << 20


def places(home: Home) -> list[Path]:
    """Folders that ASF and Ansible write to: run folder, state, Ansible's homes and temporary files."""
    found = [Path(os.environ["XDG_RUNTIME_DIR"], "asf"), home.state, Path.home() / ".ansible"]
    found += [Path(os.environ[name]) for name in ("ANSIBLE_HOME", "TMPDIR") if os.environ.get(name)]
    return found


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if path.is_file() and not path.is_symlink():
                    yield path


def in_files(folders: Iterable[Path], texts: Mapping[str, str]) -> list[str]:
    """`NAME in PATH` for every text in the content or the name of a file; files that vanish are passed over."""
    found = []
    for path in _files(folders):
        try:
            if path.stat().st_size > LARGEST:
                continue
            data = path.read_bytes()
        except OSError:
            continue
        where = str(path).encode() + b"\0" + data
        found += [f"{name} in {path}" for name, text in texts.items() if text.encode() in where]
    return found


@contextmanager
def searching(folders: Iterable[Path], texts: Mapping[str, str]) -> Iterator[set[str]]:
    """Search again and again while the block runs: what is removed at the end was there all the same."""
    found: set[str] = set()
    done, places = threading.Event(), list(folders)

    def search() -> None:
        while not done.wait(0.25):
            found.update(in_files(places, texts))

    thread = threading.Thread(target=search)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


def broken_podman(folder: Path, words: str) -> dict[str, str]:
    """An environment in which Podman fails whenever its arguments contain `words`; it says them, as Podman would."""
    folder.mkdir()
    real = shutil.which("podman")
    script = folder / "podman"
    fails = f'case "$*" in *"{words}"*) echo "broken by a test: podman $*" >&2; exit 125;; esac'
    script.write_text(f'#!/bin/sh\n{fails}\nexec {real} "$@"\n')
    script.chmod(0o755)
    return {"ASF_PATH": str(folder)}
