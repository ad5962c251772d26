# SPDX-License-Identifier: BSD-4-Clause
"""open, verify, status, close under plain `ansible-playbook`: the result of asf-play (S5; `--check`, `--diff`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import plain
from support.product import Home, Session, SessionFactory, asf_play, podman

pytestmark = [pytest.mark.podman, pytest.mark.slow]

ROLES = ("agent", "caddy")
MANIFEST = {
    "adapter": "generic",
    "network": {"allow_domains": [{"name": "docs.example.com", "private": ["198.51.100.0/24"]}]},
    "filesystem": {"state": [{"key": "cache", "target": "/home/node/.cache"}]},
}


@pytest.fixture(scope="module")
def plainly(module_home: Home) -> Iterator[Session]:
    """A session of this module's own, not open yet; closed at the end whatever happened."""
    module_home.agent("plain", MANIFEST)
    session = Session(module_home, "plain", SessionFactory.new_name(), {})
    yield session
    assert session.close().rc == 0
    for volume in _volumes(session):
        podman("volume", "rm", "-f", volume)


def _listed(session: Session) -> dict[str, str]:
    done = asf_play("ls", "--json", home=session.home)
    assert done.rc == 0, done
    return {row["session"]: row["state"] for row in done.json}


def _ids(session: Session) -> list[str]:
    return [str(session.inspect(role)["Id"]) for role in ROLES]


def _volumes(session: Session) -> list[str]:
    return podman("volume", "ls", "-q", "--filter", f"label=asf.name={session.name}").split()


def _resources(session: Session) -> list[str]:
    """Everything of the session: containers, secrets, volumes, run folder, records."""
    found = podman("ps", "-a", "--filter", f"label=asf.session={session.id}", "--format", "{{.Names}}").split()
    for kind in (["secret", "ls", "--format", "{{.Name}}"], ["volume", "ls", "-q"]):
        found += [name for name in podman(*kind).split() if session.name in name]
    run = Path(os.environ["XDG_RUNTIME_DIR"], "asf")
    found += [str(path) for path in (run / session.id, *run.glob(f"check/{session.id}*")) if path.exists()]
    return found + [str(path) for path in session.home.state.rglob("*") if path.is_file()]


def test_check_mode_on_a_clean_host_neither_fails_nor_creates_anything(plainly: Session) -> None:
    done = plain.play("playbooks/open.yml", plainly, "--check", "--diff")
    assert done.rc == 0 and done.counts["failed"] == done.counts["rescued"] == 0, done
    assert done.counts["changed"] > 3, "it does not say what it would do"
    assert "chain input policy drop" in done.out, "the rules are not shown as text"
    assert _resources(plainly) == []
    assert plainly.id not in _listed(plainly)


def test_the_other_playbooks_in_check_mode_on_a_clean_host(plainly: Session) -> None:
    for playbook in ("status.yml", "close.yml"):
        done = plain.play(f"playbooks/{playbook}", plainly, "--check")
        assert done.rc == 0 and done.counts["changed"] == 0, done
    done = plain.play("playbooks/verify.yml", plainly, "--check")
    assert done.rc == 2 and "is not open" in done.out, done
    assert _resources(plainly) == []


def test_open_starts_the_workload_and_asf_play_sees_it(plainly: Session) -> None:
    done = plain.play("playbooks/open.yml", plainly, "--diff")
    assert done.rc == 0 and done.counts["changed"] > 3, done
    assert "+chain input policy drop" in done.out
    assert _listed(plainly)[plainly.id] == "live"
    told = plainly.exec("id", "-u")
    assert (told.rc, told.out) == (0, "1000\n"), told


def test_S5_a_second_run_changes_nothing(plainly: Session) -> None:
    before = _ids(plainly)
    for playbook in ("open.yml", "verify.yml", "status.yml"):
        done = plain.play(f"playbooks/{playbook}", plainly, "--diff")
        assert done.rc == 0 and done.counts["changed"] == 0, done
        assert _ids(plainly) == before
        assert playbook != "status.yml" or plainly.id in done.out, done


def test_S5_check_mode_on_a_live_session_changes_nothing(plainly: Session) -> None:
    before = _ids(plainly)
    done = plain.play("playbooks/open.yml", plainly, "--check", "--diff")
    assert done.rc == 0 and done.counts["changed"] == 0, done
    done = plain.play("playbooks/close.yml", plainly, "--check")
    assert done.rc == 0 and done.counts["changed"] == 1, done
    assert _ids(plainly) == before


def test_S5_asf_play_opens_the_session_that_is_open(plainly: Session) -> None:
    before = _ids(plainly)
    done = asf_play("open.yml", *plainly.selector(), "--json", "--detach", home=plainly.home)
    assert done.rc == 0 and done.json["ok"], done
    assert _ids(plainly) == before


def test_the_collections_playbook_by_name_from_another_folder(plainly: Session, tmp_path: Path) -> None:
    """Without the checkout's ansible.cfg: what an installed collection gives."""
    inventory = str(plain.ROOT / "inventory")
    done = plain.play("asf.sandbox.open", plainly, "-i", inventory, cwd=tmp_path)
    assert done.rc == 0 and done.counts["changed"] == 0, done


def test_close_leaves_nothing_but_evidence_and_state_volumes(plainly: Session) -> None:
    done = plain.play("playbooks/close.yml", plainly)
    assert done.rc == 0 and done.counts["changed"] == 1, done
    again = plain.play("playbooks/close.yml", plainly)
    assert again.rc == 0 and again.counts["changed"] == 0, again
    assert plainly.id not in _listed(plainly)
    # Beside a state volume lies what is known of the egress under which it was last used.
    stays = ("/evidence/", "/asf/volumes/", "index.jsonl")
    kept = [path for path in _resources(plainly) if not any(word in path for word in stays)]
    assert kept == _volumes(plainly) and len(kept) == 1, kept


def test_an_error_names_file_key_and_remedy(plainly: Session) -> None:
    broken = plainly.home.agent("plain-broken", {**MANIFEST, "network": {"allow_domain": ["docs.example.com"]}})
    session = Session(plainly.home, "plain-broken", SessionFactory.new_name(), {})
    before = _resources(session)
    done = plain.play("playbooks/open.yml", session)
    assert done.rc == 2, done
    for text in (str(broken), "network.allow_domain", "allow_domains"):
        assert text in done.out, done
    assert json.dumps(_resources(session)) == json.dumps(before)
