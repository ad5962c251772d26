# SPDX-License-Identifier: BSD-4-Clause
"""Documents that the command line prints, checked against the schemas that it publishes (docs/schemas)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema

from support import schemas


@cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(schemas.load(name))


def asked(words: Sequence[object]) -> bool:
    """Whether a command line asks for one document. ``watch`` prints one for each event, of a schema of its own."""
    before = list(words)[: words.index("--") if "--" in words else None]
    return "--json" in before and before[0] != "watch"


def name_of(words: Sequence[object], document: Any) -> str:
    """Which document a command line prints: the schema's name."""
    verb = str(words[0]) if words else ""
    if verb == "evidence" and not _failure(document):
        return f"evidence-{words[1]}"
    if _failure(document):
        return "cli-failure"
    playbook = (
        list(words[:2]) == ["secret", "rotate"]
        or "/" in verb
        or verb.startswith("-")
        or verb.endswith((".yml", ".yaml"))
    )
    return "cli-playbook" if playbook else f"cli-{verb}"


def _failure(document: Any) -> bool:
    """Refused before anything ran: the document of it says nothing about a command of its own."""
    return (
        isinstance(document, dict)
        and document.get("ok") is False
        and "error" in document
        and "playbook" not in document
    )


def wrong(words: Sequence[object], document: Any) -> list[str]:
    """What is wrong with a document, for people; nothing when it is as published."""
    name = name_of(words, document)
    if not (schemas.FOLDER / f"{name}.json").is_file():
        return [f"no schema is published for {name}: add it to tools/cli_schemas.py"]
    found = [leaf for one in _validator(name).iter_errors(document) for leaf in _leaves(one)]
    return [f"{name}: {'/'.join(map(str, one.absolute_path))}: {one.message[:300]}" for one in found]


def _leaves(error: Any) -> list[Any]:
    """What is really wrong where several schemas were tried."""
    return [leaf for one in error.context for leaf in _leaves(one)] if error.context else [error]
