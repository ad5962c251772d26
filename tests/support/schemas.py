# SPDX-License-Identifier: BSD-4-Clause
"""The published schemas (docs/schemas), and whether a session's evidence is what they promise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "schemas"
#: Made from the others, and no JSON.
_DERIVED = ("report.html", "junit.xml")


def load(name: str) -> dict[str, Any]:
    """A schema by its file's stem, checked to be one."""
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def problems(document: Any, name: str) -> list[str]:
    """What a document breaks of a schema, one sentence each."""
    found = jsonschema.Draft202012Validator(load(name)).iter_errors(document)
    return [f"{name}: {'.'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in found]


def evidence_problems(folder: Path) -> list[str]:
    """What is wrong with a run's files: no schema, no JSON, or not as the schema says."""
    found: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name in _DERIVED:
            continue
        name = f"evidence-{path.stem}"
        if not (FOLDER / f"{name}.json").exists() or path.suffix not in (".json", ".jsonl"):
            found.append(f"{path.name} has no schema")
            continue
        texts = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        found += [problem for text in texts for problem in problems(json.loads(text), name)]
    return found
