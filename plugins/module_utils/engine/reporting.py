# SPDX-License-Identifier: BSD-2-Clause
"""The report of a session, made from its sealed files and sealed after them: ``report.html`` and ``junit.xml``."""

from __future__ import annotations

from ..core import report_html, report_junit
from ..core.errors import AsfError
from . import evidencecheck
from .evidencefs import Evidence


def write(evidence: Evidence) -> list[str]:
    """Write both. Returns why one was not written, one sentence each: a report must not keep a session alive."""
    documents, problems = evidencecheck.check(str(evidence.folder)).documents(), []
    for name, render in (("report.html", report_html.render), ("junit.xml", report_junit.render)):
        try:
            evidence.write_derived(name, render(documents))
        except AsfError as error:
            problems.append(f"{name} not written: {error.message}")
        except Exception as error:  # a defect of the report is no reason to keep anything
            problems.append(f"{name} not written: {type(error).__name__}: {error}"[:300])
    return problems
