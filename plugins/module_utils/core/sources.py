# SPDX-License-Identifier: BSD-2-Clause
"""Where a provider's key comes from instead of a secrets file: `secrets.VARIABLE` of the operator's `config.yml`.

Pure: what a source is called, which files and programs it relies on, and what may be named. The engine reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import formats as form
from .schema import Checked, Key, ListOf, Section, Text, Variants

COMMAND, ENV, KEYRING, VAULT = "command", "env", "keyring", "vault"
KINDS = (COMMAND, ENV, KEYRING, VAULT)
#: Variables that asf-play hands on to Ansible, Podman or programs: a key in one of them would be in their environment.
PASSED_ON = frozenset(
    "HOME USER LOGNAME SHELL LANG TZ PATH TERM COLORTERM TMPDIR XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_STATE_HOME"
    " XDG_CACHE_HOME XDG_DATA_HOME DBUS_SESSION_BUS_ADDRESS CONTAINERS_STORAGE_CONF SSL_CERT_FILE SSL_CERT_DIR PIP_CERT"
    " NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE".split()
)
PASSED_ON_PREFIXES = ("ASF_", "ANSIBLE_", "LC_")

_WORDS = ListOf(Text(max_length=4096), min_items=1, max_items=50, unique=False)
_PATH = Text(form.ABSOLUTE, max_length=4096)
_KEYRING = Section(
    {
        "service": Key(Text(max_length=255), "The entry's service, as `keyring set SERVICE USERNAME` has it.", True),
        "username": Key(Text(max_length=255), "The entry's user name.", True),
    }
)
_VAULT = Section(
    {
        "file": Key(_PATH, "A file that Ansible Vault has encrypted as a whole, of your own.", True),
        "key": Key(
            Text(max_length=255),
            "What holds the value: a top-level key where the name ends in `.yml` or `.yaml`, else a variable of "
            "`KEY=VALUE` lines.",
            True,
        ),
        "password_file": Key(_PATH, "The file of the vault's password, mode 0600 and your own; it is not run."),
        "password_command": Key(_WORDS, "A program that prints the vault's password, run as `command` is."),
    }
)
#: Exactly one of them, so that no two can disagree.
SOURCE = Variants(
    (
        Section(
            {
                COMMAND: Key(
                    _WORDS,
                    "A program, by its absolute path, and its arguments; it prints the value. No shell, 30 seconds, "
                    "16 KiB.",
                    True,
                )
            }
        ),
        Section({ENV: Key(Text(form.ENV_NAME), "A variable of asf-play's own environment; it goes no further.", True)}),
        Section({KEYRING: Key(_KEYRING, "An entry of the desktop's keyring (needs the library `keyring`).", True)}),
        Section({VAULT: Key(_VAULT, "A value of a file that Ansible Vault has encrypted.", True)}),
    )
)


@dataclass(frozen=True)
class Source:
    """One variable's source. Only the fields of its ``kind`` are set; ``command`` may also give a vault's password."""

    variable: str
    kind: str
    command: tuple[str, ...] = ()
    name: str = ""
    service: str = ""
    username: str = ""
    file: str = ""
    key: str = ""
    password_file: str = ""

    @property
    def path(self) -> str:
        """Where it is said in ``config.yml``."""
        return f"secrets.{self.variable}.{self.kind}"

    def words(self) -> str:
        """What it is, for people: names and paths, never a value or a program's arguments."""
        said = {
            COMMAND: lambda: f"the command {self.command[0]}",
            ENV: lambda: f"the environment variable {self.name}",
            KEYRING: lambda: f"the keyring entry {self.service} / {self.username}",
            VAULT: lambda: f"{self.key} of the vault {self.file}",
        }
        return said[self.kind]()

    def relied_on(self) -> list[tuple[str, str]]:
        """``(what, path)`` of everything that decides which value is read: no agent may write it."""
        rows = [("a command of config.yml's secrets", word) for word in self.command if word.startswith("/")]
        return rows + ([("a vault of config.yml's secrets", self.file)] if self.file else [])

    def hidden(self) -> list[tuple[str, str]]:
        """``(what, path)`` of files that no agent may even read."""
        return [("a vault's password file", self.password_file)] if self.password_file else []


def of(variable: str, data: Mapping[str, Any]) -> Source:
    """The source that a validated mapping describes."""
    if COMMAND in data:
        return Source(variable, COMMAND, command=tuple(data[COMMAND]))
    if ENV in data:
        return Source(variable, ENV, name=data[ENV])
    if KEYRING in data:
        return Source(variable, KEYRING, service=data[KEYRING]["service"], username=data[KEYRING]["username"])
    vault = data[VAULT]
    command = tuple(vault.get("password_command", ()))
    password_file = vault.get("password_file", "")
    return Source(variable, VAULT, command=command, file=vault["file"], key=vault["key"], password_file=password_file)


def check(checked: Checked) -> None:
    """What must hold beyond the form of each key; problems are added."""
    for variable, source in ((checked.data or {}).get("secrets") or {}).items():
        given = source or {}
        _program(checked, f"secrets.{variable}.{COMMAND}", given.get(COMMAND))
        _variable(checked, f"secrets.{variable}.{ENV}", given.get(ENV))
        if given.get(VAULT):
            _password(checked, f"secrets.{variable}.{VAULT}", given[VAULT])


def _program(checked: Checked, key: str, command: Any) -> None:
    """A program is named by its path: nothing is looked up where somebody else could put a file."""
    if command and not str(command[0]).startswith("/"):
        checked.at(f"{key}[0]", "not an absolute path", found=str(command[0]), remedy="name the program in full")


def _variable(checked: Checked, key: str, name: Any) -> None:
    if name and (name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)):
        message = "this variable is handed on to the programs that asf-play runs, and a key must not be"
        checked.at(key, message, found=name, remedy="put the key into a variable of another name")


def _password(checked: Checked, key: str, vault: Mapping[str, Any]) -> None:
    ways = [name for name in ("password_file", "password_command") if name in vault]
    if len(ways) != 1 and not any(checked.wrong(f"{key}.{name}") for name in ("password_file", "password_command")):
        message = "the vault's password has two sources" if ways else "the vault's password has no source"
        checked.at(key, message, remedy="name password_file or password_command, one of them")
    _program(checked, f"{key}.password_command", vault.get("password_command"))
