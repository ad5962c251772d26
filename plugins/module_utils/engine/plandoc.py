# SPDX-License-Identifier: BSD-2-Clause
"""The plan's file: written once, read by every later step (invariant 7)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional

from ..core import redact, revision
from ..core.errors import EngineError
from ..core.plan import VERSION, digest
from ..core.redact import Redactor
from . import dirs
from .evidencefs import atomic

Json = Dict[str, Any]


class PlanDocument(NamedTuple):
    """A plan with its digest and the file that it came from."""

    path: str
    digest: str
    plan: Json

    @property
    def session(self) -> str:
        return str(self.plan["session"]["id"])

    @property
    def origin(self) -> str:
        """Digest of revision 0: what the resources are labelled with."""
        return revision.origin(self.plan, self.digest)

    def names(self) -> Dict[str, str]:
        """Container names by role."""
        return {c["role"]: c["name"] for c in self.plan["containers"]}


def write(path: str, plan: Json) -> PlanDocument:
    """Write the plan and its digest; the folder exists."""
    found = digest(plan)
    atomic(Path(path), json.dumps({"digest": found, "plan": plan}, sort_keys=True, indent=1).encode() + b"\n")
    return PlanDocument(path, found, plan)


def _checked_folder() -> Path:
    return dirs.run_dir() / "check"


def write_checked(plan: Json) -> PlanDocument:
    """Check mode: the plan lies where nothing looks for it later, and until the last step has seen it."""
    folder = dirs.private(dirs.private(dirs.run_dir()) / _checked_folder().name)
    return write(str(folder / f"{plan['session']['id']}.json"), plan)


def drop_checked(doc: PlanDocument) -> None:
    """Remove a plan that :func:`write_checked` wrote; any other one stays."""
    if Path(doc.path).parent == _checked_folder():
        Path(doc.path).unlink(missing_ok=True)


def for_evidence(doc: PlanDocument) -> Json:
    """The document ``plan.json`` of the evidence: values of variables that look like secrets are masked by name.

    ``digest`` stays that of the whole plan, which nobody can compute from this copy then.
    """
    plan = dict(doc.plan)
    for part in [part for part in ("gate", "manifest") if "env" in plan.get(part, {})]:
        plan[part] = {**plan[part], "env": redact.masked(plan[part]["env"])}
    return {"digest": doc.digest, "plan": plan}


def redactor(path: Optional[str]) -> Redactor:
    """Redactor of what the plan's environment holds that looks like a secret; an empty one when there is no plan."""
    try:
        env = json.loads(Path(str(path)).read_bytes())["plan"]["manifest"]["env"]
        return Redactor(redact.secret_values(env))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Redactor()


def read(path: str) -> PlanDocument:
    """Read a plan and check its digest. Raises EngineError when it is missing, damaged or of another version."""
    if not os.path.isabs(path):
        raise EngineError("a plan's path must be absolute", file=path, code="plan-file")
    try:
        document = json.loads(Path(path).read_bytes())
        found = PlanDocument(path, document["digest"], document["plan"])
        ok = digest(found.plan) == found.digest and found.plan["version"] == VERSION
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise EngineError(
            f"the session's plan cannot be read: {exc}",
            file=path,
            remedy="close the session and open it again",
            code="plan-file",
        ) from None
    if not ok:
        raise EngineError(
            "the session's plan does not match its digest or is of another version of ASF",
            file=path,
            remedy="close the session and open it again",
            code="plan-file",
        )
    return found
