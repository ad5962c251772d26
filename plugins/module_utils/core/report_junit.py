# SPDX-License-Identifier: BSD-2-Clause
"""The probes of a verification as JUnit XML, for CI systems: one test case per probe. Pure.

``fail`` is a failure, ``inconclusive`` an error; ``warn`` passes and says why in its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .escape import html as escaped
from .report import mapping, number, rows, summary

MAX_PROBES = 1000
_TAGS = {"fail": "failure", "inconclusive": "error"}


def render(documents: Mapping[str, Any]) -> bytes:
    """The document, ASCII. Without a verification it holds one error, so that nobody takes it for a success."""
    told = summary(documents)
    document = mapping(documents.get("verification.json"))
    probes = rows(document.get("probes"))[:MAX_PROBES] or [_MISSING]
    verdicts = [str(probe.get("verdict")) for probe in probes]
    attributes = {
        "name": f"asf {told['session']}",
        "tests": len(probes),
        "failures": sum(_tag(verdict) == "failure" for verdict in verdicts),
        "errors": sum(_tag(verdict) == "error" for verdict in verdicts),
        "skipped": 0,
        "time": f"{number(document.get('seconds')):.3f}",
        "timestamp": str(document.get("at") or told["opened"] or "").rstrip("Z"),
    }
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>", f"<testsuite {_attributes(attributes)}>"]
    lines += [_case(probe) for probe in probes]
    text = "\n".join([*lines, "</testsuite>", "</testsuites>", ""])
    return text.encode("ascii", "xmlcharrefreplace")


_MISSING = {
    "id": "verification",
    "vantage": "outside",
    "verdict": "inconclusive",
    "expect": "the session was verified",
    "evidence": "there is no verification report",
}


def _tag(verdict: str) -> str | None:
    """The element of a verdict. An unknown one is an error: it must not look like a success."""
    return None if verdict in ("pass", "warn") else _TAGS.get(verdict, "error")


def _case(probe: Mapping[str, Any]) -> str:
    verdict = str(probe.get("verdict"))
    tag, said = _tag(verdict), escaped(probe.get("evidence", ""), 2000)
    where = f"asf.{probe.get('vantage', '')}.invariant-{probe.get('invariant', '')}"
    body = f"<system-out>{escaped(probe.get('expect', ''), 500)}\n{said}</system-out>"
    if tag:
        body = f"<{tag} {_attributes({'message': probe.get('expect', ''), 'type': verdict})}>{said}</{tag}>{body}"
    return f"<testcase {_attributes({'classname': where, 'name': probe.get('id', ''), 'time': '0'})}>{body}</testcase>"


def _attributes(pairs: Mapping[str, Any]) -> str:
    return " ".join(f'{name}="{escaped(value, 500)}"' for name, value in pairs.items())
