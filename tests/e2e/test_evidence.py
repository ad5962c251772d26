# SPDX-License-Identifier: BSD-4-Clause
"""What real sessions leave (invariants 9, 10): documents as published, a report, a chain, floods that are counted."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support import schemas
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play

DOCS = {"name": "docs.example.com", "private": ["198.51.100.0/24"]}
CANARY = "ev-canary-4f1c9a7d3b"


def _manifest(**more: Any) -> dict[str, Any]:
    return {"network": {"allow_domains": [DOCS]}, **more}


def _rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def closed(module_home: Home, module_session: SessionFactory) -> Session:
    """A brokered session with an embedded model that asked for this and that, and was closed."""
    llm = {"provider": "anthropic", "protocol": "anthropic", "mock": "hello"}
    module_home.agent("ev-broker", _manifest(llm=llm, env={"MY_API_TOKEN": CANARY, "PLAIN": "shown"}))
    held = module_session.open("ev-broker")
    held.exec("curl", "-sS", "-m", "5", "https://<script>alert(1).example/", "https://evil.example/")
    body = '{"model":"claude","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}'
    ask = f"""curl -sSf -m 20 -H "authorization: Bearer $ANTHROPIC_AUTH_TOKEN" -H 'content-type: application/json' \\
      -H 'anthropic-version: 2023-06-01' http://front:4000/v1/messages -d '{body}'"""
    answer = held.exec("sh", "-c", ask)
    assert "hello" in answer.out, answer
    done = held.close()
    assert done.rc == 0 and done.json["head"], done
    held.document["head"] = done.json["head"]
    return held


def test_every_document_is_as_published(closed: Session) -> None:
    assert schemas.evidence_problems(closed.evidence) == []
    names = {path.name for path in closed.evidence.iterdir()}
    assert {"plan.json", "verification.json", "decisions.jsonl", "supervisor.jsonl", "usage.json"} < names
    index = _rows(closed.home.state / "asf", "index.jsonl")
    assert [problem for entry in index for problem in schemas.problems(entry, "evidence-index")] == []
    assert index[-1]["head"] == closed.document["head"]


def test_a_file_without_schema_is_noticed(closed: Session, tmp_path: Path) -> None:
    copy = shutil.copytree(closed.evidence, tmp_path / "copy")
    (copy / "more.json").write_text("{}")
    (copy / "cleanup.json").write_text('{"version": 1}')
    found = schemas.evidence_problems(copy)
    assert "more.json has no schema" in found and any("'left' is a required property" in text for text in found)


def test_usage_tells_requests_bytes_and_seconds(closed: Session) -> None:
    usage = json.loads((closed.evidence / "usage.json").read_text())
    (asked,) = [row for row in usage["front"]["routes"] if row["route"] == "POST /v1/messages"]
    assert (asked["decisions"], asked["status"]) == (1, 200) and asked["up"] > 50 and asked["down"] > 50
    assert usage["total"]["requests"] == 1 and usage["decisions"]["deny"]["denied-name"] >= 1


def test_values_that_look_like_secrets_are_not_kept(closed: Session) -> None:
    plan = (closed.evidence / "plan.json").read_text()
    assert '"PLAIN": "shown"' in plan and '"MY_API_TOKEN": "[redacted]"' in plan
    for path in closed.evidence.iterdir():
        assert CANARY not in path.read_text(), path.name


def test_the_report_is_there_and_runs_nothing(closed: Session) -> None:
    report = (closed.evidence / "report.html").read_text()
    assert "evil.example" in report and closed.id in report and "<svg" in report
    assert "<script" not in report and 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in report
    (suite,) = ElementTree.parse(closed.evidence / "junit.xml").getroot()
    assert int(suite.get("tests", 0)) > 80 and suite.get("failures") == suite.get("errors") == "0"


@pytest.mark.parametrize("action", ["list", "show", "verify", "prune"])
def test_every_action_has_its_document(action: str, closed: Session) -> None:
    more = {"prune": ["--dry-run"], "show": [closed.id], "verify": [closed.id]}.get(action, [])
    done = asf_play("evidence", action, *more, "--json", home=closed.home)
    assert done.rc == 0 and schemas.problems(done.json, f"evidence-{action}") == [], done


def test_export_and_verify_elsewhere(closed: Session, tmp_path: Path) -> None:
    target = tmp_path / "handed-over"
    done = asf_play("evidence", "export", closed.id, str(target), "--json", home=closed.home)
    assert done.rc == 0 and schemas.problems(done.json, "evidence-export") == [], done
    checked = asf_play("evidence", "verify", str(target), "--head", closed.document["head"], home=closed.home)
    assert checked.rc == 0, checked
    (target / "cleanup.json").write_bytes((target / "cleanup.json").read_bytes().replace(b"removed", b"forgot "))
    assert asf_play("evidence", "verify", str(target), "--head", closed.document["head"], home=closed.home).rc == 221
    again = asf_play("evidence", "show", closed.id, "--html", home=closed.home)
    assert again.out == (closed.evidence / "report.html").read_text(), "made again, it is the same"


def test_a_session_that_did_not_verify_leaves_its_report(session: SessionFactory, home: Home, world: World) -> None:
    """The allowed control cannot be reached by policy: a private address that is not declared as such."""
    home.agent("ev-refused", {"network": {"allow_domains": ["docs.example.com"]}, "runtime": {"mode": "interactive"}})
    done, held = session.attempt("ev-refused")
    folder = Path(str((done.json or {}).get("evidence") or (done.json or {}).get("error", {}).get("file")))
    if done.rc == 0:
        held.close()
        folder = held.evidence
    assert schemas.evidence_problems(folder) == []
    report = (folder / "report.html").read_text()
    (suite,) = ElementTree.parse(folder / "junit.xml").getroot()
    assert (done.rc == 0) == (suite.get("failures") == suite.get("errors") == "0")
    assert ("did not pass" in report) == (done.rc != 0)


def test_output_that_met_its_bound_is_said(home: Home, session: SessionFactory) -> None:
    """The engine keeps the last of a detached command's output, 10 MiB, and starts a full log over."""
    home.agent("ev-output", _manifest())
    flood = "head -c 12000000 /dev/zero | tr '\\0' x | fold -w 1000; touch /tmp/said; sleep 600"
    for name, command in (("quiet", "echo little; touch /tmp/said; sleep 600"), ("loud", flood)):
        held = session.open("ev-output", command=["sh", "-c", command])
        held.exec("sh", "-c", "until [ -e /tmp/said ]; do sleep 0.1; done", timeout=60)
        actions = held.close().json["cleanup"]["actions"]
        assert any("met the bound of its log" in text for text in actions) == (name == "loud"), actions


FLOOD = """
import socket, sys
count, names = int(sys.argv[1]), int(sys.argv[2])
for n in range(count):
    with socket.create_connection(("198.18.0.1", 3128)) as c:
        c.sendall(b"CONNECT flood-%d.example:443 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % (n % names))
        c.recv(100)
print(count)
"""


@pytest.mark.slow
def test_a_flood_of_denials_is_counted_and_hides_nothing(home: Home, session: SessionFactory) -> None:
    """L1: what was denied first stays, every denial is counted, and Caddy's log does not grow with them."""
    home.agent("ev-flood", _manifest())
    old = home.state / "asf" / "evidence" / "ev-flood.old" / "20200101T000000Z-abcd"
    old.mkdir(parents=True)
    (old / "chain.json").write_text('{"entries": []}')
    held = session.open("ev-flood")
    held.exec("curl", "-sS", "-m", "5", "https://first-of-all.example/")
    total = 0
    for count, names in ((12_000, 1), (8_000, 4_000)):
        done = held.exec("python3", "-", str(count), str(names), stdin=FLOOD, timeout=200)
        assert done.out.strip() == str(count), done
        total += count
    assert len(held.logs("caddy")) < 2_000_000
    done = held.close()
    assert done.rc == 0 and not [text for text in done.json["cleanup"]["actions"] if "not complete" in text], done
    rows = _rows(held.evidence, "decisions.jsonl")
    names = [row["host"] for row in rows if row.get("reason") == "denied-name" and "host" in row]
    assert "first-of-all.example" in names and names.index("first-of-all.example") < names.index("flood-0.example")
    counted = sum(
        row.get("count", 1) for row in rows if str(row.get("host", "")).startswith("flood-") or row.get("others")
    )
    assert counted == total, (counted, len(rows))
    usage = json.loads((held.evidence / "usage.json").read_text())
    others = {"first-of-all.example", "asf-denied.invalid"}
    assert usage["decisions"]["deny"]["denied-name"] == total + sum(name in others for name in names)
    assert len(rows) < 5000 and schemas.evidence_problems(held.evidence) == []
    assert (held.evidence / "report.html").stat().st_size < 200_000
    assert not old.exists(), "a close removes evidence that is too old"
