# SPDX-License-Identifier: BSD-2-Clause
"""Typed errors. Each says which file, which key, what was found and what to do (invariant 8).

Modules translate them once, into ``fail_json(msg=str(error), asf_error=error.as_dict())``; the CLI prints the text.
The texts are not escaped here: whoever shows them does that (``escape.terminal``), because JSON needs no escaping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one input.

    ``line`` and ``column`` count from 1; ``key`` is a dotted path such as ``network.allow_domains[2].ports``.
    ``found`` is the offending value as text, never the value of a secret.
    """

    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None
    key: str | None = None
    found: str | None = None
    allowed: str | None = None
    remedy: str | None = None
    code: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The problem as plain data, every field present."""
        return dict(vars(self))

    def text(self) -> str:
        """One line: ``FILE:LINE:COLUMN: KEY: MESSAGE (found: …; allowed: …). REMEDY.``"""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        head = ": ".join(part for part in (place, self.key, self.message) if part)
        facts = [f"{word}: {value}" for word, value in (("found", self.found), ("allowed", self.allowed)) if value]
        if facts:
            head = f"{head} ({'; '.join(facts)})"
        return f"{_sentence(head)} {_sentence(self.remedy)}" if self.remedy else head


class AsfError(Exception):
    """Base of every error that ASF raises on purpose.

    ``code`` is a stable word for programs (``E_…`` is not used: it is the kind of error, such as ``manifest``).
    """

    default_code = "error"

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        key: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        line: int | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.key = key
        self.found = found
        self.remedy = remedy
        self.line = line
        self.code = code or self.default_code

    def as_dict(self) -> dict[str, Any]:
        """The shape of ``error`` in JSON documents; ``kind`` is the class of error, ``code`` may say more."""
        return {
            "file": self.file,
            "key": self.key,
            "message": self.message,
            "remedy": self.remedy,
            "line": self.line,
            "found": self.found,
            "code": self.code,
            "kind": self.default_code,
        }

    def __str__(self) -> str:
        return Problem(self.message, self.file, self.line, None, self.key, self.found, None, self.remedy).text()


class ProblemsError(AsfError):
    """An input with at least one problem. All of them are in ``problems``; the first one fills the plain fields.

    Raises ValueError when made without any problem: an error that says nothing is a bug of the caller.
    """

    def __init__(self, problems: Sequence[Problem], *, code: str | None = None) -> None:
        if not problems:
            raise ValueError("an error needs at least one problem")
        first = problems[0]
        super().__init__(
            first.message,
            file=first.file,
            key=first.key,
            found=first.found,
            remedy=first.remedy,
            line=first.line,
            code=code or first.code,
        )
        self.problems: list[Problem] = list(problems)

    def as_dict(self) -> dict[str, Any]:
        """As in the base class, plus ``problems``."""
        return {**super().as_dict(), "problems": [problem.as_dict() for problem in self.problems]}

    def __str__(self) -> str:
        return "\n".join(problem.text() for problem in self.problems)


class ManifestError(ProblemsError):
    """A manifest or ``config.yml`` that is wrong."""

    default_code = "manifest"


class GrantError(ProblemsError):
    """A grant, or the file of grants, that is refused."""

    default_code = "grant"


class SecretError(ProblemsError):
    """A secrets file that is wrong. No field ever holds a value from it."""

    default_code = "secret"


class PlanError(AsfError):
    """No plan can be made of these inputs on this host."""

    default_code = "plan"


class HostError(AsfError):
    """The host lacks something that a session needs."""

    default_code = "host"


class VerifyError(AsfError):
    """A probe failed or was inconclusive: the session is not started."""

    default_code = "verify"


class GateError(AsfError):
    """The gate was silent, answered nonsense, or is not who it should be."""

    default_code = "gate"


class EngineError(AsfError):
    """A program that ASF ran failed. ``cmd`` and ``stderr`` arrive redacted (``redact.Redactor``)."""

    default_code = "engine"

    def __init__(
        self,
        message: str,
        *,
        cmd: Sequence[str] = (),
        rc: int | None = None,
        stderr: str = "",
        file: str | None = None,
        key: str | None = None,
        found: str | None = None,
        remedy: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, file=file, key=key, found=found, remedy=remedy, code=code)
        self.cmd = list(cmd)
        self.rc = rc
        self.stderr = stderr

    def as_dict(self) -> dict[str, Any]:
        """As in the base class, plus ``cmd``, ``rc`` and ``stderr``."""
        return {**super().as_dict(), "cmd": self.cmd, "rc": self.rc, "stderr": self.stderr}
