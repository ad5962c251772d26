# SPDX-License-Identifier: BSD-4-Clause
"""A seeded sample of the crash matrix (`make crash` runs all of it), and that the matrix can fail (L1, L3, L4, L5, L6).

ASF_CRASH_SEED chooses another sample, ASF_CRASH_SAMPLE its size.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import crash, crash_cases, crash_lab, foreign, outage
from support.client import World
from support.product import SessionFactory, operator_home

from asf_lib.engine import state

pytestmark = [pytest.mark.podman, pytest.mark.slow]

SEED = int(os.environ.get("ASF_CRASH_SEED", "1"))
SAMPLE = int(os.environ.get("ASF_CRASH_SAMPLE", "6"))


def _lab(base: Path, world: World, *without: str) -> crash_lab.Lab:
    return crash_lab.Lab(operator_home(base, world), SessionFactory.new_name(), base / "runs", without)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, world: World) -> Iterator[crash_lab.Lab]:
    """The place where the cases run."""
    found = _lab(tmp_path_factory.mktemp("crash"), world)
    yield found
    if found.live:
        found.close()
    found.forget_volumes()


@pytest.fixture(scope="module")
def recorded(lab: crash_lab.Lab) -> crash_cases.Recorded:
    """Every step of open, verify and close, of each agent."""
    found = crash_cases.record(lab)
    lab.forget_volumes()
    return found


def test_every_external_command_has_a_deadline(recorded: crash_cases.Recorded) -> None:
    assert crash_cases.without_deadline(recorded) == []


def test_every_step_that_leaves_something_has_a_point(lab: crash_lab.Lab, recorded: crash_cases.Recorded) -> None:
    """A step that the recorder cannot see would have no case."""
    assert recorded and lab.missed == []


def test_a_sample_of_the_matrix(lab: crash_lab.Lab, recorded: crash_cases.Recorded) -> None:
    found = crash_cases.cases(recorded)
    assert len(found) >= 60, "the matrix has shrunk"
    chosen = random.Random(SEED).sample(found, SAMPLE)
    print(f"crash sample: ASF_CRASH_SEED={SEED}, {SAMPLE} of {len(found)} cases")
    neighbours = foreign.Foreign(lab, crash_lab.PLAIN, foreign.image())
    try:
        # Those of a live session last: one that is open serves several.
        verdicts = [
            crash.play_case(lab, case, [neighbours.check]) for case in sorted(chosen, key=lambda one: one.wants)
        ]
    finally:
        neighbours.remove()
    bad = {one.case: one.problems for one in verdicts if one.problems}
    assert not bad, f"seed {SEED}: {bad}"


def test_the_matrix_is_red_without_labels(tmp_path: Path, world: World) -> None:
    """The product is mutated: what it makes does not say whose it is. Then the case must be red."""
    lab = _lab(tmp_path, world, "--label=asf.session=")
    point = "task podman.Podman._call: podman init asf-SESSION-caddy ended"
    verdict = crash.play_case(lab, crash_lab.Case("open.yml", crash_lab.PLAIN, point, "kill", "all"))
    assert any("container" in problem for problem in verdict.problems), verdict


def test_L1_who_waits_is_told_on_whom(lab: crash_lab.Lab) -> None:
    session = f"{crash_lab.PLAIN}.{SessionFactory.new_name()}"
    name = session.partition(".")[2]
    words = ["asf-play", "close.yml", "-e", f"agent={crash_lab.PLAIN}", "-e", f"session={name}"]
    with state.lock(session):
        waiting = subprocess.Popen(
            words, env=lab.home.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        assert waiting.stderr is not None
        try:
            lines = iter(waiting.stderr.readline, "")
            told = next((line for line in lines if "waiting for session" in line), "")
        except BaseException:
            waiting.kill()
            raise
    assert f"held by process {os.getpid()} (" in told and session in told and "since" in told, told
    waiting.stderr.read()
    assert waiting.wait(60) == 0, "and then it goes on"


@pytest.fixture
def small() -> Iterator[Path]:
    """A file system of 2 MiB, empty."""
    place = Path("/run/asf-ns") / getpass.getuser() / "small"
    if not os.access(place, os.W_OK) or os.stat(place).st_dev == os.stat(place.parent).st_dev:
        pytest.skip("needs a small file system, which tools/operator makes as root with a new account's namespace")
    yield place
    for entry in place.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _fill(place: Path) -> None:
    with contextlib.suppress(OSError), open(place / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_really_full_state_folder(small: Path, tmp_path: Path, world: World) -> None:
    """open is refused with a reason and leaves nothing; close of a live session goes through, and says what is lost."""
    lab = _lab(tmp_path, world)
    lab.home.state = small / "state"
    lab.home.state.mkdir()
    _fill(small)
    done = lab.play("open.yml", crash_lab.PLAIN)
    assert done.rc != 0 and "space" in done.json["error"]["message"], done
    assert lab.left(crash_lab.PLAIN) == [] and lab.row(crash_lab.PLAIN) is None
    (small / "filler").unlink()
    opened = lab.play("open.yml", crash_lab.PLAIN)
    assert opened.rc == 0, opened
    _fill(small)
    closed = lab.play("close.yml", crash_lab.PLAIN)
    assert any("evidence not complete" in action for action in closed.json["cleanup"]["actions"]), closed
    assert lab.left(crash_lab.PLAIN) == [] and lab.row(crash_lab.PLAIN) is None
    assert closed.rc == 0, closed


@pytest.mark.parametrize("name", outage.CASES)
def test_everything_is_killed(name: str, lab: crash_lab.Lab) -> None:
    """Podman comes back by itself, or says what must be ended; the session is seen, cleaned up, opened again."""
    others = outage.strangers(lab.name)
    if others:
        pytest.skip("other sessions of this account are open, and would be killed as well")
    verdict = outage.play_outage(lab, name)
    assert not verdict.problems, verdict
