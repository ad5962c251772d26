# SPDX-License-Identifier: BSD-4-Clause
"""Values of ``-e``: parsed, and refused when Ansible would take them for a template (invariant 10).

Extravars are trusted templates in ansible-core: a value with Jinja markers would run on this host. So no value, key or
file named by ``-e`` may hold one; what needs such text (a command) goes into a JSON file that only a module reads.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from typing import Any

from .errors import CliError

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_MARKERS = ("{{", "{%", "{#")
_FILE_LIMIT = 1 << 20
_DEPTH_LIMIT = 20
DEFAULT_SESSION = "main"
#: Set by asf-play alone.
RESERVED = ("asf_command_file", "asf_hold", "asf_image_progress", "asf_terminal", "asf_tty")


def parse(words: list[str]) -> dict[str, Any]:
    """All ``-e`` words as one mapping, later ones first in authority.

    A word is ``k=v`` (several, quoted as in a shell), a JSON object, or ``@FILE`` (JSON or YAML). Raises CliError.
    """
    merged: dict[str, Any] = {}
    for word in words:
        for key, value in _one(word).items():
            check_name(key)
            check_value(value, key)
            merged[key] = value
    for key in ("agent", "session"):
        if key in merged:
            check_identity(key, merged[key])
    return merged


def _one(word: str) -> dict[str, Any]:
    if word.startswith("@"):
        return _from_file(word[1:])
    if word.lstrip().startswith("{") and not word.lstrip().startswith(_MARKERS):
        return _object(_json(word, "-e"), "-e")
    return _pairs(word)


def _pairs(word: str) -> dict[str, Any]:
    """``k=v`` words. A value with blanks is quoted, as for ansible-playbook."""
    _refuse_markers(word, word.split("=", 1)[0])
    try:
        parts = shlex.split(word)
    except ValueError as error:
        raise CliError(f"-e cannot be read: {error}", key="-e", found=word, remedy="close the quotation") from error
    found: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise CliError(
                "-e wants NAME=VALUE, a JSON object or @FILE",
                key="-e",
                found=part,
                remedy="quote a value with blanks inside the word: -e 'name=\"two words\"'",
            )
        found[key] = value
    return found


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CliError(
            f"not JSON: {error}", key="-e", file=None if where == "-e" else where, found=text[:80]
        ) from error


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CliError(f"{where} must hold a mapping of variables", key="-e", found=type(value).__name__)
    return value


def _from_file(name: str) -> dict[str, Any]:
    """The variables of a file. It is read once, here: what was checked is what Ansible gets."""
    path = os.path.abspath(os.path.expanduser(name))
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise CliError("not a regular file", key="-e", file=path)
            raw = stream.read(_FILE_LIMIT + 1)
    except OSError as error:
        raise CliError(
            f"cannot be read: {error.strerror}", key="-e", file=path, remedy="name a readable file"
        ) from error
    if len(raw) > _FILE_LIMIT:
        raise CliError("larger than 1 MiB", key="-e", file=path, remedy="a file of variables is small")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CliError("not UTF-8", key="-e", file=path) from error
    if text.lstrip().startswith("{"):
        return _object(_json(text, path), path)
    return _object(_yaml(text, path), path)


def _yaml(text: str, path: str) -> Any:
    import yaml

    try:
        # Safe: no tags, plain data only. Ansible's own tags (!vault, !unsafe) are errors here, and should be.
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())[:200]
        raise CliError(f"not YAML: {problem}", key="-e", file=path) from error


def check_name(key: object) -> None:
    """Raise CliError unless the key is a variable name that a caller may set."""
    if not isinstance(key, str) or not _VARIABLE.match(key):
        raise CliError(
            "not a variable name", key="-e", found=str(key)[:80], remedy="letters, digits, _; no leading digit"
        )
    if key in RESERVED:
        raise CliError(f"{key} is set by asf-play itself", key=key, remedy="leave it out")


def check_value(value: object, key: str, depth: int = 0) -> None:
    """Raise CliError when a value, at any depth, is no plain JSON data or holds a Jinja marker."""
    if depth > _DEPTH_LIMIT:
        raise CliError("nested too deeply", key=key)
    if isinstance(value, str):
        _refuse_markers(value, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise CliError("a key of a mapping must be text", key=key, found=str(name)[:80])
            if name.startswith("__ansible"):
                raise CliError("keys that Ansible decodes are not allowed", key=f"{key}.{name}")
            _refuse_markers(name, key)
            check_value(item, f"{key}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            check_value(item, f"{key}[{index}]", depth + 1)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise CliError("not plain data (text, number, true, false, list, mapping)", key=key, found=str(value)[:80])


def _refuse_markers(text: str, key: str) -> None:
    for marker in _MARKERS:
        if marker in text:
            raise CliError(
                f"holds the Jinja marker {marker}, which Ansible would run on this host",
                key=key,
                found=text[:80],
                remedy="give the plain value; a command goes after --",
            )


def check_identity(key: str, value: object) -> None:
    """Raise CliError unless an ``agent`` or ``session`` is a name (no dot, so that AGENT.NAME is unambiguous)."""
    if not isinstance(value, str) or not NAME.match(value):
        raise CliError(
            f"{key} is not a name",
            key=key,
            found=str(value)[:80],
            remedy="lower-case letters, digits, - and _, at most 63, starting with a letter or digit",
        )
