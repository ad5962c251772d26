# SPDX-License-Identifier: BSD-2-Clause
"""Where ASF looks for agents, secrets and settings: one root, and the shipped agents after it (invariant 11).

The root is ``ASF_HOME``, else the checkout that the program runs from, else ``$XDG_CONFIG_HOME/asf``. Never the current
directory: an agent may own it. State, run and cache folders are those of ``dirs.py``.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from ..core import adapters, manifest as manifest_core, packages as packages_core, secretfile, settings as settings_core
from ..core.errors import HostError, ManifestError, Problem, SecretError
from ..core.escape import terminal
from ..core.formats import NAME
from ..core.manifest import Manifest
from ..core.packages import Packages
from ..core.schema import misformed
from ..core.secretfile import Entry, Selection
from ..core.settings import Settings
from ..core.upstream import MANIFEST_KEY, Proxy
from . import regular, secretsource, trust, yamlload

MANIFEST_FILE, GRANTS_FILE, SETTINGS_FILE = "runtime.yml", "repos.yml", "config.yml"
_SECRETS_LIMIT = 64 * 1024
_POLICY_LIMIT = 64 * 1024
_LOCK_LIMIT = 16 * 1024 * 1024


@dataclass(frozen=True)
class AgentFolder:
    """One agent: where its manifest is, and where its grants are written (always in the root)."""

    name: str
    folder: Path
    grants_file: Path
    shipped: bool

    @property
    def manifest_file(self) -> Path:
        """The agent's ``runtime.yml``."""
        return self.folder / MANIFEST_FILE


@dataclass(frozen=True)
class Home:
    """The root, how it was found (``ASF_HOME``, ``checkout``, ``XDG_CONFIG_HOME``), and the shipped agents' folder."""

    root: Path
    origin: str
    shipped: Path | None = None

    @property
    def agents_dir(self) -> Path:
        """The operator's own agents, and all grants."""
        return self.root / "agents"

    @property
    def secrets_dir(self) -> Path:
        """The secrets files that manifests name."""
        return self.root / "secrets"

    @property
    def settings_file(self) -> Path:
        """The operator's ``config.yml``; need not exist."""
        return self.root / SETTINGS_FILE


# --- the root --------------------------------------------------------------------------------------------------


def checkout() -> Path | None:
    """The checkout that this program runs from (``pyproject.toml`` beside ``asf_cli``), or None when installed."""
    here = Path(__file__).resolve()
    for parent in here.parents[2:5]:
        if (parent / "pyproject.toml").is_file() and (parent / "asf_cli").is_dir():
            return parent
    return None


def shipped_agents() -> Path | None:
    """The folder of the shipped agents: in the checkout, in the collection, or beside an installed package."""
    parents = Path(__file__).resolve().parents
    candidates = [parents[3] / "agents"] if parents[2].name == "plugins" else []
    candidates.append(parents[2] / "ansible_collections" / "asf" / "sandbox" / "agents")
    return next((folder for folder in candidates if folder.is_dir()), None)


def resolve(
    asf_home: str | None = None,
    env: Mapping[str, str] | None = None,
    own_checkout: Path | None = None,
    shipped: Path | None = None,
) -> Home:
    """Find the root. ``asf_home`` (an option) comes before ``ASF_HOME``. Raises HostError.

    ``own_checkout`` and ``shipped`` are found beside the program when not given; an Ansible module, which runs from an
    archive, is told them.
    """
    env = os.environ if env is None else env
    shipped = shipped or shipped_agents()
    given = asf_home or env.get("ASF_HOME", "")
    if given:
        if not os.path.isabs(given):
            raise HostError(
                "ASF_HOME must be an absolute path",
                key="ASF_HOME",
                found=terminal(given, 200),
                remedy="write it in full",
            )
        return _checked(Home(Path(os.path.realpath(given)), "ASF_HOME", shipped))
    own = own_checkout or checkout()
    if own is not None:
        return _checked(Home(own, "checkout", shipped))
    base = env.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):  # the XDG specification says to ignore a relative one
        home = env.get("HOME", "") or os.path.expanduser("~")
        if not os.path.isabs(home):
            raise HostError("there is no home directory", key="HOME", found=terminal(home, 200), remedy="set HOME")
        base = os.path.join(home, ".config")
    return _checked(Home(Path(os.path.realpath(os.path.join(base, "asf"))), "XDG_CONFIG_HOME", shipped))


def _checked(home: Home) -> Home:
    """Refuse a root that somebody else could have prepared. One that does not exist yet is fine."""
    try:
        found = os.stat(home.root)
    except FileNotFoundError:
        return home
    except OSError as exc:
        raise HostError(f"ASF's root cannot be used: {exc.strerror}", file=str(home.root), key=home.origin) from None
    if not stat.S_ISDIR(found.st_mode):
        raise HostError("ASF's root is not a folder", file=str(home.root), key=home.origin, remedy="name a folder")
    if trust.foreign(found):
        remedy = f"name a folder of your own in ASF_HOME, or chown -R {os.getuid()} {home.root}"
        raise HostError(
            "ASF's root belongs to somebody else", file=str(home.root), found=f"uid {found.st_uid}", remedy=remedy
        )
    writers = trust.other_writers(found)
    if writers is not None:
        raise HostError(f"{writers} may write ASF's root", file=str(home.root), remedy=f"chmod go-w {home.root}")
    return home


# --- agents ----------------------------------------------------------------------------------------------------


def _is_folder(path: Path) -> bool:
    """A real folder, not a symbolic link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _has_manifest(folder: Path) -> bool:
    return _is_folder(folder) and os.path.lexists(folder / MANIFEST_FILE)


def agents(home: Home) -> list[str]:
    """The names of all agents, the operator's and the shipped ones, sorted."""
    found: set[str] = set()
    for base in (home.agents_dir, home.shipped):
        if base is not None and base.is_dir():
            names = (entry.name for entry in base.iterdir() if misformed(NAME, entry.name) is None)
            found |= {name for name in names if _has_manifest(base / name)}
    return sorted(found)


def agent(home: Home, name: str) -> AgentFolder:
    """The folder of one agent: the operator's own first, then the shipped one. Raises ManifestError."""
    wrong = misformed(NAME, name)
    if wrong is not None:
        raise ManifestError([Problem(wrong, key="agent", found=terminal(name, 80), allowed=NAME.words)])
    grants = home.agents_dir / name / GRANTS_FILE
    own = home.agents_dir / name
    if os.path.islink(own):
        remedy = "put a real folder there: links are not followed"
        raise ManifestError([Problem("the agent's folder is a symbolic link", str(own), remedy=remedy)])
    if _has_manifest(own):
        same = home.shipped is not None and home.shipped.resolve() == home.agents_dir.resolve()
        return AgentFolder(name, own, grants, same)
    if home.shipped is not None and _has_manifest(home.shipped / name):
        return AgentFolder(name, home.shipped / name, grants, True)
    known = agents(home)
    near = get_close_matches(name, known, 1, 0.6)
    places = " and ".join(str(place) for place in (home.agents_dir, home.shipped) if place is not None)
    remedy = f"did you mean {near[0]}?" if near else f"create {own / MANIFEST_FILE}"
    problem = Problem(
        f"there is no agent of this name in {places}", key="agent", found=name, allowed=", ".join(known), remedy=remedy
    )
    raise ManifestError([problem])


def load_manifest(home: Home, name: str) -> Manifest:
    """Read and validate an agent's manifest. Raises ManifestError with every problem."""
    return validated(str(agent(home, name).manifest_file), name)


def validated(file: str, name: str) -> Manifest:
    """The manifest in a file, for the agent ``name``. Raises ManifestError with every problem."""
    return manifest_core.validate(yamlload.load(file), file, name)


def load_packages(home: Home, manifest: Manifest) -> Packages | None:
    """What the agent's own image adds, or None. Raises ManifestError with every problem of the files that it names."""
    declared = manifest.packages or {}
    if not any(declared.get(key) for key in ("apt", "pip", "npm")):
        return None
    folder = os.path.dirname(manifest.file)
    texts, problems = {}, []
    for name, key in packages_core.files_of(declared):
        try:
            texts[name] = _text(Path(folder, name), _LOCK_LIMIT)
        except OSError as exc:
            remedy = f"put a text file there; it is named by {_where(manifest, key)}"
            problems.append(
                Problem(f"the file cannot be used: {exc.strerror or exc}", f"{folder}/{name}", key=key, remedy=remedy)
            )
    if problems:
        raise ManifestError(problems)
    return packages_core.of(manifest.name, manifest.adapter, declared, texts, folder)


def all_packages(home: Home) -> dict[str, Packages]:
    """What the images of all agents add, by image; an agent whose files are wrong has none."""
    found = {}
    for name in agents(home):
        with contextlib.suppress(ManifestError):
            if packages := load_packages(home, load_manifest(home, name)):
                found[packages.name] = packages
    return found


def load_adapter(collection: Path, name: str) -> adapters.Adapter:
    """What the collection says of a client. Raises ManifestError."""
    folder = collection / "agents" / adapters.FOLDERS[name]
    file = str(folder / adapters.FILE)
    found = adapters.validate(yamlload.load(file), file, name)
    rows = [replace(row, text=_policy_file(folder / "files" / row.source, file)) for row in found.files]
    return replace(found, files=tuple(rows))


def _policy_file(path: Path, where: str) -> str:
    """The text of an adapter's file. Raises ManifestError."""
    try:
        return _text(path, _POLICY_LIMIT)
    except OSError as exc:
        message = f"the file cannot be used: {exc.strerror or exc}"
    remedy = f"put a text file there, or remove it from files in {where}"
    raise ManifestError([Problem(message, str(path), key="files", remedy=remedy)])


def _text(path: Path, limit: int) -> str:
    """The UTF-8 text of a regular file. Raises OSError, with a text of its own for what the kernel does not refuse."""
    try:
        data, _ = regular.read(str(path), limit)
        if len(data) <= limit:
            return data.decode("utf-8")
    except regular.NotRegularError as exc:
        raise OSError(f"it is {exc}") from None
    except UnicodeDecodeError:
        raise OSError("it is no UTF-8 text") from None
    raise OSError(f"it is larger than {limit // 1024} KiB")


def load_settings(home: Home) -> Settings:
    """The operator's settings; defaults without a file. Raises ManifestError."""
    file = str(home.settings_file)
    if not os.path.lexists(file):
        return Settings()
    return settings_core.validate(yamlload.load(file), file)


# --- secrets ---------------------------------------------------------------------------------------------------


def provider_key(home: Home, manifest: Manifest) -> Selection | None:
    """The provider's key for the broker, or None when the session needs none. Raises SecretError, ManifestError.

    A source of config.yml for its variable comes before the manifest's files, and is asked each time.

    Only ``llm.api_key_env`` is taken; the names of other variables are in ``Selection.others``, for a warning.
    """
    llm = manifest.llm
    if llm is None or not llm.key_required or llm.api_key_env is None:
        return None
    sourced = _sourced(home, llm.api_key_env)
    if sourced is not None:
        return sourced
    return secretfile.select(_entries(home, _named(manifest), llm.api_key_env), llm.api_key_env)


def agent_key(home: Home, manifest: Manifest) -> Selection | None:
    """The provider's key for the agent itself, where the broker is off and there is one: a client without one logs in.

    A file that does not exist and a variable that is not set are no error; a file or source that is wrong is one.
    Raises SecretError, ManifestError.
    """
    llm = manifest.llm
    if llm is None or not llm.key_to_agent or llm.api_key_env is None:
        return None
    found = _sourced(home, llm.api_key_env)
    if found is None:
        there = [row for row in _named(manifest) if os.path.lexists(home.secrets_dir / row[0])]
        files = _entries(home, there, llm.api_key_env)
        if not any(entry.name == llm.api_key_env and entry.value for _, entries in files for entry in entries):
            return None
        found = secretfile.select(files, llm.api_key_env)
    return secretfile.word(found, llm.api_key_env)


def _sourced(home: Home, variable: str) -> Selection | None:
    """What the operator's config.yml has for a variable, or None where it names no source of it."""
    source = load_settings(home).sources.get(variable)
    if source is None:
        return None
    file = str(home.settings_file)
    return secretfile.select([(file, [secretsource.entry(source, file)])], variable)


def _named(manifest: Manifest) -> list[tuple[str, str, str]]:
    """``(file name, key, where that is said)`` of the manifest's secrets files."""
    keys = [f"secrets.files[{index}]" for index in range(len(manifest.secrets_files))]
    return [(name, key, _where(manifest, key)) for name, key in zip(manifest.secrets_files, keys)]


def proxy_credentials(home: Home, manifest: Manifest, proxy: Proxy | None) -> Selection | None:
    """``user:password`` of the operator's proxy, or None when it takes none. Raises SecretError."""
    if proxy is None or proxy.secret is None:
        return None
    if proxy.key == MANIFEST_KEY:
        keys = [f"secrets.files[{index}]" for index in range(len(proxy.files))]
        named = [(name, key, _where(manifest, key)) for name, key in zip(proxy.files, keys)]
    else:
        named = [(name, f"{proxy.key}.file", str(home.settings_file)) for name in proxy.files]
    files = _entries(home, named, proxy.secret)
    return secretfile.credentials(secretfile.select(files, proxy.secret, f"{proxy.key}.secret"), proxy.secret)


def _where(manifest: Manifest, key: str) -> str:
    line = manifest.line(key)
    return f"{manifest.file}:{line}" if line else manifest.file


def _entries(home: Home, named: Sequence[tuple[str, str, str]], variable: str) -> list[tuple[str, list[Entry]]]:
    """The parsed secrets files of ``(name, key, where that is said)``. Raises SecretError with every problem."""
    files: list[tuple[str, list[Entry]]] = []
    problems: list[Problem] = []
    for name, key, where in named:
        file = str(home.secrets_dir / name)
        try:
            files.append((file, secretfile.parse(read_secret(file, key, where, variable), file)))
        except SecretError as error:
            problems += error.problems
    if problems:
        raise SecretError(problems)
    return files


def read_secret(file: str, key: str, where: str, variable: str) -> bytes:
    """The bytes of a secrets file: a regular file of the operator's own with mode 0600 (or less)."""

    def refuse(message: str, remedy: str, found: str | None = None) -> SecretError:
        return SecretError([Problem(message, file, key=key, found=found, remedy=remedy)])

    try:
        data, found = regular.read(file, _SECRETS_LIMIT)
    except FileNotFoundError:
        remedy = f"create it with mode 0600 and a line {variable}=VALUE"
        raise refuse(f"the secrets file does not exist (named in {where})", remedy) from None
    except regular.NotRegularError as exc:
        raise refuse(f"this is {exc}", "put a regular file there") from None
    except OSError as exc:
        raise refuse(f"the secrets file cannot be read: {exc.strerror}", f"chmod 600 {file}") from None
    if found.st_uid != os.getuid():
        raise refuse("the secrets file belongs to somebody else", "make it your own", f"uid {found.st_uid}")
    if found.st_mode & 0o177:
        mode = f"{found.st_mode & 0o7777:04o}"
        raise refuse("others could read the secrets file: mode 0600 is required", f"chmod 600 {file}", mode)
    if len(data) > _SECRETS_LIMIT:
        raise refuse(f"the file is larger than {_SECRETS_LIMIT // 1024} KiB", "name a secrets file")
    return data
