# SPDX-License-Identifier: BSD-4-Clause
"""The report of a session (invariants 9, 10): one file without script, hostile texts stay text, long lists are cut."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from asf_lib.core import evidence, report, report_html, report_junit, report_svg
from asf_lib.engine import evidencecheck

#: What a workload would like to see in a report.
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=https://evil.example/x onerror=alert(1)>",
    "]]><!--",
    '"><a href="https://evil.example/">x</a>',
    "' onmouseover='alert(1)",
    "‮gpj.exe⁦",
    "nul\0nul",
    "\x1b]0;title\x07\x9b2J",
    "</style></title></textarea>",
    "&lt;b&gt;",
    "﻿￿\ud800",
    "{{ lookup('pipe', 'id') }}",
    "a\nb\r\n\tc",
    "x" * 5000,
)
_VOID = {"meta", "br"}


class Page(HTMLParser):
    """Every tag must be closed, and what could fetch or run is gathered."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.text = ""
        self.style = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += data


def _plan(text: str) -> dict[str, Any]:
    end = {"role": "agent", "ip": text, "interface": text, "mac": text}
    return {
        "session": {"id": "claude.main", "agent": "claude", "mode": text, "isolation": text},
        "containers": [{"role": role, "name": text} for role in ("agent", "caddy", "broker")],
        "wiring": {"cables": [{"name": text, "near": end, "far": {**end, "role": "caddy", "ip": "198.18.0.1"}}]},
        "listeners": [{"name": text, "address": f"198.18.0.1:{text}"}],
        "network": {"domains": [{"name": text, "ports": [text], "tls": text, "key": text}]},
        "llm": {"protocol": text, "provider": text, "mock": False},
        "repos": [{"name": text, "path": text, "rw": True}],
        "warnings": [text],
    }


def _documents(text: str) -> dict[str, Any]:
    """Documents of a session in which every string that can be is that text."""
    probe = {"id": text, "invariant": text, "vantage": "inside", "expect": text, "evidence": text}
    record = {"listener": text, "host": text, "port": text, "reason": text, "detail": text, "ts": text, "key": text}
    container = {"role": text, "before": text, "exit_code": text, "oom_killed": text, "last_words": [text]}
    carried = {"decisions": text, "denied": text, "up": text, "down": text, "seconds": text}
    entry = {"file": text, "sha256": text, "prev": text, "head": text}
    usage = {
        "decisions": {text: {text: 1}},
        "listeners": {text: carried},
        "front": {"routes": [{"route": text, "status": text, **carried}]},
        "total": {"requests": text, "input_tokens": text},
        "models": {text: {"requests": text}},
    }
    verdicts = [{**probe, "verdict": verdict} for verdict in ("pass", "fail", "inconclusive", "warn", text)]
    return {
        "plan.json": {"digest": text, "plan": _plan(text)},
        "verification.json": {"ok": True, "at": text, "seconds": 1.5, "probes": verdicts},
        "decisions.jsonl": [{**record, "decision": decision} for decision in ("allow", "deny", text)],
        "supervisor.jsonl": [{"role": text, "ts": text, "event": text, "status": text, "start": 1}],
        "usage.json": usage,
        "routed.json": _routed(text),
        "cleanup.json": {"at": text, "actions": [text], "left": [text], "containers": {text: container}},
        "chain.json": {"session": text, "run": text, "entries": [entry]},
    }


def _routed(text: str) -> dict[str, Any]:
    row = {"packets": text, "bytes": text}
    rule = {"key": text, "cidr": text, "protocol": text, "ports": [text], **row}
    noted = {"protocol": text, "address": text, "port": text, **row}
    drops = [{"reason": text, "packets": 3, "bytes": 9}]
    return {"lost": None, "rules": [rule], "drops": drops, "flows": [noted], "denials": [noted], "full": [text]}


def _page(documents: dict[str, Any]) -> tuple[str, Page]:
    content = report_html.render(documents)
    assert content.isascii()
    text = content.decode()
    return text, Page(text)


def _closed(text: str, page: Page) -> None:
    """One file that needs nothing and runs nothing."""
    assert page.open == [], page.open
    assert not page.tags & {"script", "iframe", "object", "embed", "img", "link", "form", "base", "a", "input", "image"}
    names = {name for name, _ in page.attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "action", "style", "data", "poster"}, names
    assert not [name for name in names if name.startswith("on")]
    assert not re.search(r"url\(|@import", page.style)
    allowed = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in value)
    assert policy == f"default-src 'none'; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    assert text.index("Content-Security-Policy") < text.index("<style>")


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_stay_text(hostile: str) -> None:
    text, page = _page(_documents(hostile))
    _closed(text, page)
    assert not [char for char in page.text if ord(char) < 0x20 and char != "\n"]
    assert not set(page.text) & set("‮⁦﻿\x9b\0")
    if hostile.startswith("<script>"):
        assert page.text.count(hostile) > 40, "every place that should show it does"


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_texts_stay_text_in_junit(hostile: str) -> None:
    root = ElementTree.fromstring(report_junit.render(_documents(hostile)))
    (suite,) = root
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "5",
        "failures": "1",
        "errors": "2",  # inconclusive, and a verdict that nobody knows
    }
    assert {child.tag for case in suite for child in case} == {"failure", "error", "system-out"}


@pytest.mark.parametrize(
    "documents",
    [{}, {"plan.json": None}, {"plan.json": [], "verification.json": "x", "usage.json": 3, "cleanup.json": []}],
)
def test_missing_and_damaged_documents_are_said(documents: dict[str, Any]) -> None:
    text, page = _page(documents)
    _closed(text, page)
    assert "not closed" in page.text and "not verified" in page.text
    (suite,) = ElementTree.fromstring(report_junit.render(documents))
    assert suite.get("errors") == "1", "nobody may take it for a success"


def test_thousands_of_decisions_are_summarized() -> None:
    records = [
        {"listener": "L1", "host": f"h{n}.example", "decision": "deny", "reason": "denied-name"} for n in range(9000)
    ]
    records += [{"listener": "L1", "host": "evil.example", "decision": "deny", "reason": "denied-name", "count": 77}]
    records += [
        {"listener": "L1", "others": True, "decision": "deny", "reason": "denied-name", "count": 5},
        {"dropped": 12},
    ]
    content = report_html.render({"decisions.jsonl": records})
    assert len(content) < 60_000
    found = report.decided({"decisions.jsonl": records})
    assert found is not None and found["destinations"][0]["destination"] == "evil.example"
    assert found["destinations"][0]["count"] == 77 and found["destinations"][1]["destination"] == "(many names)"
    assert found["more_destinations"] == 9002 - report.MAX_DESTINATIONS and found["not_kept"] == 12
    assert found["totals"] == {"deny": {"denied-name": 9000 + 77 + 5}}
    page = Page(content.decode())
    assert "more destinations are not shown" in page.text and "12 decisions are counted" in page.text


def test_long_lists_of_everything_are_cut() -> None:
    documents = _documents("x")
    documents["cleanup.json"]["actions"] = ["removed"] * 5_000
    documents["supervisor.jsonl"] *= 5_000
    documents["verification.json"]["probes"] *= 5_000
    documents["cleanup.json"]["containers"] = {str(n): {"last_words": ["y"] * 500} for n in range(1000)}
    documents["usage.json"]["models"] = {str(n): {} for n in range(5_000)}
    assert len(report_html.render(documents)) < evidence.MAX_BYTES // 4
    assert len(report_junit.render(documents)) < evidence.MAX_BYTES // 4


def test_it_tells_what_there_is_to_tell() -> None:
    documents = _documents("word")
    documents["chain.json"] = {"session": "claude.main", "run": "20260102T030405Z-abcd", "entries": []}
    _, page = _page(documents)
    for part in ("claude.main", "2026-01-02 03:04:05 UTC", "Topology", "Last words of", "did not pass"):
        assert part in page.text or part == "did not pass"
    for heading in ("Topology", "Probes", "Decisions", "Usage", "Repositories", "Cleanup", "Evidence"):
        assert heading in page.text


@pytest.mark.parametrize(
    ("roles", "cables", "expected"),
    [
        ((), (), []),
        (("agent",), (), ["agent"]),
        (("agent", "caddy"), (("agent", "caddy"),), ["agent", "Caddy", "outside"]),
        (("agent", "caddy", "broker"), (("agent", "caddy"), ("broker", "caddy")), ["LiteLLM broker"]),
        (("gateway", "agent"), (("agent", "gateway"),), ["agent", "gateway", "outside"]),
    ],
)
def test_the_topology_is_drawn_from_the_plan(
    roles: tuple[str, ...], cables: tuple[tuple[str, str], ...], expected: list[str]
) -> None:
    plan = {
        "containers": [{"role": role} for role in roles],
        "wiring": {
            "cables": [
                {"near": {"role": near, "ip": "198.18.0.2"}, "far": {"role": far, "ip": "198.18.0.1"}}
                for near, far in cables
            ],
            "uplinks": [{"role": role, "interface": "tap0"} for role in roles if role in ("caddy", "gateway")],
        },
        "listeners": [{"name": "L1", "address": "198.18.0.1:3128"}],
        "network": {"domains": [{"name": "a.example"}]},
    }
    drawn = report_svg.render(plan)
    assert (drawn == "") == (not roles)
    if drawn:
        root = ElementTree.fromstring(drawn)
        texts = [one.text for one in root.iter() if one.text]
        assert not set(expected) - set(texts), texts
        assert sum("cable 198.18.0.2 - 198.18.0.1" in text for text in texts) == len(cables)
        assert texts.count("L1 :3128") == len(cables)
        assert texts.count("outside") == sum(role in ("caddy", "gateway") for role in roles)


#: Evidence of a small session, and what is made of it, by lines.
GOLDEN = Path(__file__).with_name("reports")


@pytest.mark.parametrize(("name", "render"), [("report.html", report_html.render), ("junit.xml", report_junit.render)])
def test_the_report_of_a_known_session_is_as_it_was(name: str, render: Callable[[dict[str, Any]], bytes]) -> None:
    """A change of the report is a change of expected.json: look at it in a browser first (make reportshot)."""
    made = render(evidencecheck.check(str(GOLDEN / "evidence")).documents()).decode().split("\n")
    assert made == json.loads((GOLDEN / "expected.json").read_text())[name]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on this host (Debian package chromium)")
def test_a_browser_sees_text_alone(tmp_path: Path) -> None:
    """What Chromium makes of a hostile report: the elements of a harmless one, and no more."""
    (tmp_path / "hostile.html").write_bytes(report_html.render(_documents("".join(HOSTILE[:-1]))))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    argv = ["chromium", *options, f"file://{tmp_path / 'hostile.html'}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=150, check=True)
    page = Page(done.stdout)
    _closed(done.stdout, page)
    _, harmless = _page(_documents("word"))
    assert page.tags == harmless.tags and "main" in page.tags


def test_the_head_is_the_one_before_the_report() -> None:
    entries: list[dict[str, Any]] = []
    for name in ("plan.json", "cleanup.json"):
        entries = evidence.extended(entries, name, evidence.digest(name.encode()))
    before = evidence.head(entries)
    first = report_html.render({"chain.json": {"entries": entries}})
    entries = evidence.extended(entries, "report.html", evidence.digest(first))
    assert report.sealed_head({"chain.json": {"entries": entries}}) == before
    assert report_html.render({"chain.json": {"entries": entries}}) == first, "made again, it is the same"
