# SPDX-License-Identifier: BSD-4-Clause
"""What outlives sessions, cleared: state volumes by reset.yml, old images and run folders by prune."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.product import RUN, Completed, Home, Session, SessionFactory, asf_play, podman, run
from support.waiting import wait_for

from asf_lib.core.pruning import Item
from asf_lib.engine import dirs, images, pruning, rundirs

pytestmark = [pytest.mark.podman, pytest.mark.slow]

CONTENT = Path(__file__).resolve().parents[2]
KEPT = "/home/node/.keep"
DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
KEEPER: dict[str, Any] = {
    "adapter": "generic",
    "runtime": {"mode": "service", "command": ["sleep", "600"]},
    "network": {"allow_domains": [DOCS]},
    "filesystem": {"state": [{"key": "keep", "target": KEPT}]},
}


def volume(session: Session) -> str:
    """Name of the session's state volume."""
    return f"asf-state-{session.id}.keep"


def exists(name: str) -> bool:
    return run(["podman", "volume", "exists", name]).rc == 0


def reset(session: Session, *more: str) -> Completed:
    return asf_play("reset.yml", *session.selector(), "--json", *more, home=session.home)


def test_reset_clears_what_no_session_uses(session: SessionFactory, home: Home) -> None:
    home.agent("keeper", KEEPER)
    live, other = session.open("keeper"), session.open("keeper")
    assert live.exec("sh", "-c", f"head -c 3000000 /dev/zero >{KEPT}/data").rc == 0

    for words in ([], ["--yes"], ["--check"]):
        done = reset(live, *words)
        assert done.rc == 220 and f"session {live.id} (live)" in done.json["error"]["message"], done
    assert live.close().rc == 0

    done = reset(live)
    assert done.rc == 220 and "--yes" in done.json["error"]["remedy"], done
    assert f"{volume(live)} (keep of {live.id}, 3 MiB)" in done.json["error"]["message"]
    assert volume(other) not in done.out

    done = reset(live, "--check")
    assert (done.rc, done.json["changed"], done.json["removed"]) == (0, True, []), done
    assert exists(volume(live))

    done = reset(live, "--yes")
    assert (done.rc, done.json["changed"], done.json["removed"]) == (0, True, [volume(live)]), done
    assert not exists(volume(live)) and exists(volume(other))

    done = reset(live, "--yes")
    assert (done.rc, done.json["changed"], done.json["removed"]) == (0, False, []), done
    assert asf_play("status", other.id, "--json", home=home).json["status"]["state"] == "live"


def test_all_of_an_agent_or_nothing(session: SessionFactory, home: Home) -> None:
    """Without a session's name all are meant; one in use keeps the others, too."""
    agent = f"keeper{RUN[-6:]}"
    home.agent(agent, KEEPER)
    closed, live = session.open(agent), session.open(agent)
    assert closed.close().rc == 0
    done = asf_play("reset.yml", "-e", f"agent={agent}", "--yes", "--json", home=home)
    assert done.rc == 220 and exists(volume(closed)) and exists(volume(live)), done
    assert live.close().rc == 0
    done = asf_play("reset.yml", "-e", f"agent={agent}", "--yes", "--json", home=home)
    assert sorted(done.json["removed"]) == sorted([volume(closed), volume(live)]), done


def test_an_open_under_wider_egress_than_the_last_says_so(session: SessionFactory, home: Home) -> None:
    home.agent("keeper", KEEPER)
    first = session.open("keeper")
    assert first.close().rc == 0
    wider = {**KEEPER, "network": {"allow_domains": [DOCS, "more.example.com"]}}
    for manifest, told in ((KEEPER, False), (wider, True), (wider, False), (KEEPER, False)):
        home.agent("keeper", manifest)
        again = session.open("keeper", name=first.name)
        said = [one for one in again.document["warnings"] if "last used where" in json.dumps(one)]
        assert bool(said) is told, (manifest, again.document["warnings"])
        assert not told or "more.example.com:443" in json.dumps(said)
        assert again.close().rc == 0


# --- prune -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def old(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An old image of ASF's, one of somebody's with ASF's label, and one with ASF's name only."""
    (tmp_path / "empty").mkdir()
    names = {
        "old": f"localhost/asf/agent-generic:{RUN}",
        "theirs": f"localhost/theirs-{RUN}:latest",
        "named": f"localhost/asf/named:{RUN}",
    }
    for key, name in names.items():
        label = [] if key == "named" else ["--label=asf.image=agent-generic"]
        file = tmp_path / f"{key}.containerfile"
        file.write_text(f"FROM scratch\nENV made={key}\n")
        podman("build", "--layers=false", *label, f"--tag={name}", f"--file={file}", str(tmp_path / "empty"))
    yield names
    for name in names.values():
        podman("rmi", "--ignore", name)


def _listed(*words: str) -> dict[str, Any]:
    done = asf_play("prune", "--json", *words)
    assert done.rc == 0, done
    found: dict[str, Any] = done.json
    return found


def test_prune_finds_and_removes_an_old_image_and_nothing_foreign(old: dict[str, str]) -> None:
    names = {item["name"] for item in _listed("--only", "images", "--dry-run")["found"]}
    assert old["old"] in names
    assert not names & {old["theirs"], old["named"]}
    with open(CONTENT / "inventory/group_vars/all/pins.yml", encoding="utf-8") as file:
        host = images.workshop(images.Options.of(CONTENT, {}), yaml.safe_load(file)["asf_image_pins"])
    item = next(one for one in pruning.find([host], ["images"]) if one.name == old["old"])
    assert isinstance(item, Item)
    wait_for(lambda: _removed(host, item), 120, "no build runs")
    for key, there in (("old", 1), ("theirs", 0), ("named", 0)):
        assert run(["podman", "image", "exists", old[key]]).rc == there, key


def _removed(host: Any, item: Item) -> bool:
    """Whether it went; another run's build keeps all of them for the moment."""
    try:
        return pruning.remove(host, [item]) == ([item], [])
    except Exception as error:
        if getattr(error, "code", "") != "busy":
            raise
        return False


def test_prune_removes_run_folders_of_the_dead_alone() -> None:
    base = dirs.private(rundirs.base())
    dead, living = base / f"{2**22 - 1}-1-00000000-{RUN}", base / f"{rundirs.prefix()}{RUN}"
    foreign = base / f"notes-{RUN}"
    for folder in (dead, living, foreign):
        folder.mkdir()
    try:
        listed = _listed("--only", "runs", "--dry-run")["found"]
        assert str(dead) in {item["name"] for item in listed} and dead.exists()
        gone = _listed("--only", "runs", "--yes")["removed"]
        assert str(dead) in gone and not dead.exists()
        assert living.exists() and foreign.exists()
    finally:
        for folder in (dead, living, foreign):
            if folder.exists():
                os.rmdir(folder)
