# SPDX-License-Identifier: BSD-2-Clause
"""``adapter.yml``: what ASF has to know of a client, as data in the shipped agent of its name (pure).

It is as strict as a manifest. Values of ``front_env`` may hold placeholders, which are replaced as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from . import formats as form
from .errors import ManifestError, PlanError
from .marked import Node
from .schema import Choice, Format, Key, ListOf, MapOf, Section, Text, check

FILE = "adapter.yml"
#: The shipped agent whose folder holds ``adapter.yml`` and ``image/`` of an adapter.
FOLDERS = {"generic": "python-agent", "claude": "claude", "codex": "codex", "hermes": "hermes"}

PLACEHOLDERS = ("@CA_FILE@", "@FRONT_HOST@", "@FRONT_URL@", "@MODEL@")
_PLACEHOLDER = re.compile("@[A-Z][A-Z0-9_]*@")
_VARIABLES = MapOf(form.ENV_NAME, Text(min_length=0, max_length=4096))

#: Below a folder of /etc: never in the home, under a state volume, in a grant, or over a file of the system.
TARGET = Format("file-target", r"^/etc/[a-z0-9][a-z0-9-]*/[A-Za-z0-9_][A-Za-z0-9._-]*$", "/etc/FOLDER/FILE")
WHEN = ("always", "brokered", "direct")

_FILE = Section(
    {
        "source": Key(Text(form.FILE_NAME, max_length=255), "Its name in the adapter's `files/`.", required=True),
        "target": Key(Text(TARGET, max_length=255), "Where the workload sees it, read-only.", required=True),
        "when": Key(Choice(WHEN), "`brokered`: while there is a front; `direct`: without one.", default="always"),
    }
)

ADAPTER = Section(
    {
        "adapter": Key(Choice(tuple(FOLDERS)), "The manifest's word for it.", required=True),
        "model": Key(Text(form.MODEL, max_length=255), "What `@MODEL@` is where `llm.models` names none exactly."),
        "env": Key(_VARIABLES, "Static environment; a manifest's own comes later.", default_words="empty"),
        "front_env": Key(_VARIABLES, "Added while the session has a front.", default_words="empty"),
        "token_env": Key(
            ListOf(Text(form.ENV_NAME), max_items=20),
            "Variables that receive the session's token, besides the protocol's usual one.",
            default=(),
        ),
        "key_env": Key(
            ListOf(Text(form.ENV_NAME), max_items=20),
            "Variables that receive a provider's key that the agent itself holds (no broker), besides the manifest's.",
            default=(),
        ),
        "files": Key(
            ListOf(_FILE, max_items=20), "Files of the operator's that the workload cannot change.", default=()
        ),
    }
)


@dataclass(frozen=True)
class PolicyFile:
    """One of ``files``; ``text`` is what stands in it, placeholders included."""

    source: str
    target: str
    when: str
    text: str = ""

    def wanted(self, brokered: bool) -> bool:
        """Whether a session with or without a front has it."""
        return self.when == "always" or (self.when == "brokered") == brokered


@dataclass(frozen=True)
class Adapter:
    """What a client needs in its environment. ``file`` is where it stands, for errors."""

    file: str = FILE
    model: Optional[str] = None
    env: Mapping[str, str] = field(default_factory=dict)
    front_env: Mapping[str, str] = field(default_factory=dict)
    token_env: Sequence[str] = ()
    files: Sequence[PolicyFile] = ()
    key_env: Sequence[str] = ()


def validate(tree: Optional[Node], file: str, name: str) -> Adapter:
    """The adapter ``name`` in a marked tree. Raises ManifestError with every problem."""
    checked = check(ADAPTER, tree, file)
    data = checked.data if isinstance(checked.data, dict) else {}
    if data.get("adapter", name) != name:
        checked.at("adapter", "not the adapter of this folder", found=data["adapter"], remedy=f"write {name}")
    for variable, value in data.get("front_env", {}).items():
        for word in _PLACEHOLDER.findall(value):
            if word not in PLACEHOLDERS:
                message = "no such placeholder"
                checked.at(f"front_env.{variable}", message, found=word, allowed=", ".join(PLACEHOLDERS))
    rows = data.get("files", ())
    for index, row in enumerate(rows):
        if any(_meet(row, other) for other in rows[:index]):
            message = "two files have this target in the same session"
            checked.at(f"files[{index}].target", message, found=row["target"], remedy="remove one of them")
    if checked.problems:
        raise ManifestError(checked.problems)
    return Adapter(
        file,
        data.get("model"),
        dict(data.get("env", {})),
        dict(data.get("front_env", {})),
        tuple(data.get("token_env", ())),
        tuple(PolicyFile(row["source"], row["target"], row["when"]) for row in data.get("files", ())),
        tuple(data.get("key_env", ())),
    )


def _meet(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two entries of ``files`` would be mounted at the same place."""
    apart = {one.get("when"), other.get("when")} == {"brokered", "direct"}
    return "target" in one and one["target"] == other.get("target") and not apart


def model_of(adapter: Adapter, models: Sequence[str]) -> Optional[str]:
    """The model that ``@MODEL@`` stands for: the first of ``llm.models`` without ``*``, else the adapter's own."""
    return next((name for name in models if "*" not in name), adapter.model)


def filled(text: str, values: Mapping[str, Optional[str]], file: str, key: str) -> str:
    """``text`` with its placeholders replaced, once: a value that looks like one stays as it is.

    Raises PlanError naming file and key where a placeholder has no value.
    """

    def value(match: re.Match[str]) -> str:
        found = values.get(match.group())
        if found is None:
            remedy = "name a model without * in llm.models" if match.group() == "@MODEL@" else "remove it"
            message = "this placeholder has no value in this session"
            raise PlanError(message, file=file, key=key, found=match.group(), remedy=remedy, code="placeholder")
        return found

    return _PLACEHOLDER.sub(value, text)
