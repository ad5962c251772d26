# SPDX-License-Identifier: BSD-4-Clause
"""Where the program's own content lies, and the environment that Ansible gets (invariant 11).

Nothing is looked up in the current directory, and nothing that the operator's shell says about Ansible is taken over.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from .errors import CliError
from .nearmiss import near

#: Variables of the operator that Podman, builds and programs need. Everything else stays behind: proxy variables
#: (case P14), credentials (S7) and above all ANSIBLE_*, which can name plugins to run.
_KEPT = (
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "DBUS_SESSION_BUS_ADDRESS",
    "CONTAINERS_STORAGE_CONF",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
)
_KEPT_PREFIXES = ("LC_", "ASF_")


def content() -> Path:
    """The folder with playbooks, roles, inventory and ansible.cfg: the checkout, or the installed collection."""
    package = Path(__file__).resolve().parent
    candidates = [package.parent, package.parent / "ansible_collections" / "asf" / "sandbox"]
    for folder in candidates:
        if (folder / "playbooks").is_dir() and (folder / "roles").is_dir():
            return folder
    raise CliError(
        "the collection asf.sandbox does not lie beside this program",
        file=str(candidates[-1]),
        remedy="install asf-play again",
        code="host",
    )


def ansible_playbook() -> str:
    """Path of the ``ansible-playbook`` of the very installation that this interpreter runs from.

    Raises CliError when there is none. It is run by ``sys.executable``: a script's first line may name another one.
    """
    folders = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
    folders += [os.path.dirname(os.path.abspath(sys.argv[0]))] if os.sep in sys.argv[0] else []
    for folder in folders:
        script = os.path.join(folder, "ansible-playbook")
        if os.path.isfile(script):
            return script
    found = shutil.which("ansible-playbook", path=_search_path(os.environ))
    if found:
        return found
    raise CliError(
        "ansible-playbook is not installed beside asf-play",
        found=sys.executable,
        remedy="install asf-play with its requirements (ansible-core)",
        code="host",
    )


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """What of the operator's environment reaches Ansible and its modules."""
    from asf_lib.engine import secretenv

    kept = {
        name: value
        for name, value in env.items()
        if value and (name in _KEPT or name.startswith(_KEPT_PREFIXES)) and not _secret_looking(name)
    }
    kept.pop(secretenv.VARIABLE, None)  # another asf-play's, and none of this one
    kept["PATH"] = _search_path(env)
    kept.setdefault("HOME", os.path.expanduser("~"))
    kept.setdefault("LC_ALL", "C.UTF-8")
    return kept


def _search_path(env: Mapping[str, str]) -> str:
    from asf_lib.engine import trust

    return ":".join(trust.search_path(env))


def _secret_looking(name: str) -> bool:
    return any(word in name for word in ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL"))


def _collections(folder: Path, home: str, run: Path, given: str) -> str:
    """Search path of collections. The run directory holds a link to this very content, so it always comes first.

    ``given`` is the operator's own ``ANSIBLE_COLLECTIONS_PATH``; relative entries, which depend on the current
    directory, are left out.
    """
    own = [part for part in given.split(":") if os.path.isabs(part)]
    places = [run / "collections", folder / ".ansible" / "collections", *own, Path(home) / ".ansible" / "collections"]
    return ":".join(str(place) for place in [*places, Path("/usr/share/ansible/collections")])


def ansible_environment(env: Mapping[str, str], run: Path, folder: Path) -> dict[str, str]:
    """The complete environment of ansible-playbook. ``run`` is the run directory, ``folder`` the content."""
    kept = scrubbed(env)
    home = run / "home"
    kept.update(
        ANSIBLE_CONFIG=str(folder / "ansible.cfg"),
        ANSIBLE_HOME=str(home),
        ANSIBLE_LOCAL_TEMP=str(home / "tmp"),
        ANSIBLE_ROLES_PATH=str(folder / "roles"),
        ANSIBLE_COLLECTIONS_PATH=_collections(folder, kept["HOME"], run, env.get("ANSIBLE_COLLECTIONS_PATH", "")),
        ANSIBLE_HOST_KEY_CHECKING="True",
        ANSIBLE_PIPELINING="True",
        ANSIBLE_PYTHON_INTERPRETER=sys.executable,
        ANSIBLE_RETRY_FILES_ENABLED="False",
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_DEPRECATION_WARNINGS="False",
        # The default drops a result over 700 kB silently, and with it what the module had to say.
        MAX_EVENT_RES="8000000",
        PYTHONUNBUFFERED="1",
    )
    return kept


def playbooks(folder: Path) -> list[str]:
    """File names of the shipped playbooks."""
    return sorted(entry.name for entry in (folder / "playbooks").iterdir() if entry.suffix in (".yml", ".yaml"))


def playbook(word: str, folder: Path) -> Path:
    """The playbook that a word names: a shipped one by its bare name, any other by a path with a slash.

    A bare name is never looked up in the current directory. Raises CliError with the nearest names.
    """
    if "/" in word:
        path = Path(word).expanduser().absolute()
        if not path.is_file():
            raise CliError("no such playbook", found=word, remedy="name an existing file")
        return path
    shipped = playbooks(folder)
    for name in (word, f"{word}.yml"):
        if name in shipped:
            return folder / "playbooks" / name
    from .commands import COMMANDS

    meant = near(word, [*COMMANDS, *shipped, *(name.rsplit(".", 1)[0] for name in shipped)])
    listed = (
        f"commands: {', '.join(COMMANDS)}; playbooks: {', '.join(shipped)}; your own: by a path, as in ./{word[:80]}"
    )
    raise CliError("no such command or playbook", found=word[:80], remedy=f"{meant}{listed}")
