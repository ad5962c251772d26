# SPDX-License-Identifier: BSD-2-Clause
"""A key out of a file that Ansible Vault has encrypted (`secrets.VARIABLE.vault` in config.yml), by Ansible's own code.

The vault may lie where others read it; where they write, or where a link leads elsewhere, nothing is read.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import stat
import sys
from typing import Optional

from ..core import secretfile
from ..core.errors import AsfError, Problem, SecretError
from ..core.marked import TEXT
from ..core.sources import Source
from . import askvault, regular, secretcommand, trust, yamlload

_LIMIT = 256 * 1024
_HEADER = b"$ANSIBLE_VAULT;"
_YAML = (".yml", ".yaml")


def value(source: Source, config: str) -> str:
    """The value that the vault's key has. Raises SecretError, which never holds any of what the vault holds."""
    data = _file(source.file, source.path + ".file", private=False)
    if not data.startswith(_HEADER):
        remedy = f"ansible-vault encrypt {source.file}"
        raise _refused("the file is not encrypted as a whole", source.file, source, remedy)
    held = _opened(data, _password(source, config), source)
    return _chosen(held, source)


def _refused(message: str, file: str, source: Source, remedy: str, line: Optional[int] = None) -> SecretError:
    return SecretError([Problem(message, file, line, key=source.path, remedy=remedy)])


def _file(path: str, key: str, private: bool) -> bytes:
    """The bytes of a file that nobody else can have put there; ``private``: and that nobody else can read."""

    def refuse(message: str, remedy: str, found: Optional[str] = None) -> SecretError:
        return SecretError([Problem(message, path, key=key, found=found, remedy=remedy)])

    try:
        data, found = regular.read(path, _LIMIT)
    except regular.NotRegularError as error:
        raise refuse(f"this is {error}", "name the file itself") from None
    except OSError as error:
        raise refuse(f"the file cannot be read: {error.strerror}", "check that it exists and is yours") from None
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    if found.st_uid != os.getuid():
        raise refuse("the file belongs to somebody else", "make it your own", f"uid {found.st_uid}")
    if private and found.st_mode & 0o177:
        raise refuse("others could read the vault's password: mode 0600 is required", f"chmod 600 {path}", mode)
    if trust.other_writers(found) is not None:
        raise refuse(f"{trust.other_writers(found)} may write the file", f"chmod go-w {path}", mode)
    if not trust.searched(os.path.dirname(path)):
        raise refuse("the file lies in a folder that another account may write", "move it to a folder of your own")
    if len(data) > _LIMIT:
        raise refuse(f"the file is larger than {_LIMIT // 1024} KiB", "make it smaller")
    return data


def _password(source: Source, config: str) -> bytes:
    """As Ansible reads one: without blanks and newlines around it."""
    if source.command:
        return secretcommand.value(source.command, config, source.path + ".password_command").strip().encode()
    key = source.path + ".password_file"
    password = _file(source.password_file, key, private=True).strip()
    if not password:
        remedy = "write the vault's password into it"
        problem = Problem("the file is empty", source.password_file, key=key, remedy=remedy)
        raise SecretError([problem])
    return password


def _opened(data: bytes, password: bytes, source: Source) -> bytes:
    """What the vault holds."""
    asked = {"data": base64.b64encode(data).decode(), "password": base64.b64encode(password).decode()}
    argv = [sys.executable, "-P", "-c", inspect.getsource(askvault)]
    try:
        code, held = secretcommand.run(argv, json.dumps(asked).encode(), _LIMIT)
    except (OSError, secretcommand.Unanswered):
        raise _refused("Ansible's vault library failed", source.file, source, _by_hand(source)) from None
    if code == askvault.WRONG_PASSWORD:
        remedy = f"check the password: {_by_hand(source)}"
        raise _refused("the vault does not open with this password", source.file, source, remedy)
    if code == askvault.NO_VAULT:
        raise _refused("the file is damaged, or was not made by Ansible Vault", source.file, source, _by_hand(source))
    if code == askvault.NO_LIBRARY:
        remedy = "install asf-play with its requirements (ansible-core)"
        raise _refused("ansible-core is not installed beside ASF", source.file, source, remedy)
    if code:
        raise _refused("Ansible's vault library failed", source.file, source, _by_hand(source))
    return held


def _by_hand(source: Source) -> str:
    return f"ansible-vault view {source.file}"


def _chosen(held: bytes, source: Source) -> str:
    """The value of the source's key in the text. What the parsers say of it is told by its line alone."""
    remedy = f"ansible-vault edit {source.file}"
    try:
        if source.file.endswith(_YAML):
            tree = yamlload.parse(held, source.file)
            node = next((one for key, one in tree.pairs() if key.value == source.key), None) if tree else None
            if node is not None and node.kind != TEXT:
                quoted = f"{remedy}: put it in quotes"
                raise _refused(f"{source.key} is not text", source.file, source, quoted, node.line)
            found = str(node.value) if node is not None else None
        else:
            entries = secretfile.parse(held, source.file)
            found = next((entry.value for entry in entries if entry.name == source.key), None)
    except SecretError as error:
        if error.key == source.path:
            raise
        raise _refused("the vault does not hold KEY=VALUE lines", source.file, source, remedy, error.line) from None
    except AsfError as error:
        raise _refused("the vault does not hold YAML", source.file, source, remedy, error.line) from None
    if not found:
        raise _refused(f"the vault does not set {source.key}", source.file, source, remedy)
    return secretcommand.one_line(
        found.encode(), lambda what: _refused(f"{source.key} holds {what}", source.file, source, remedy)
    )
