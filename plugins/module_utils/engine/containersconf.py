# SPDX-License-Identifier: BSD-2-Clause
"""The ``CONTAINERS_CONF`` of every Podman call: the host's facts from the usual files, ASF's own keys on top.

Podman reads the file named by ``CONTAINERS_CONF`` instead of all others (4.3 to 6.1; CONTAINERS_CONF_OVERRIDE is
ignored by 4.3). What says how this host runs containers (cgroup manager, runtime, storage of state) is carried over by
an allow list; what would put something into a container (mounts, environment, devices, hosts, hooks, ulimits, network
options) is not. Values are copied as text, so no TOML writer is needed, and no reader either: targets run Python 3.9.
Source: containers.conf(5).
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Iterator, Mapping, Optional

#: Section -> keys that are carried over; None: every key of the section.
CARRIED: dict[str, Optional[frozenset[str]]] = {
    "engine": frozenset(
        "cgroup_manager conmon_path database_backend events_logfile_max_size events_logfile_path events_logger"
        " helper_binaries_dir image_copy_tmp_dir lock_type network_cmd_path no_pivot_root num_locks runtime"
        " runtime_supports_json runtime_supports_kvm runtime_supports_nocgroup static_dir tmp_dir volume_path".split()
    ),
    "engine.runtimes": None,
    "network": frozenset(
        "cni_plugin_dirs firewall_driver netavark_plugin_dirs network_backend network_config_dir".split()
    ),
    "containers": frozenset("apparmor_profile cgroups label".split()),
}
#: ASF's own keys (architecture: no inherited hosts, no host alias, no default mounts, environment, ulimits, hooks).
OWN: dict[str, dict[str, str]] = {
    "containers": {
        "annotations": "[]",
        "base_hosts_file": '"none"',
        "default_ulimits": "[]",
        "devices": "[]",
        "env": "[]",
        "env_host": "false",
        "host_containers_internal_ip": '"none"',
        "http_proxy": "false",
        "log_driver": '"k8s-file"',
        "mounts": "[]",
        "volumes": "[]",
    },
    "engine": {"env": "[]", "hooks_dir": "[]"},
}

_HEADER = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]\s*(?:#.*)?\Z")
_PAIR = re.compile(r"""\s*(?:([A-Za-z0-9_-]+)|"([^"\\]+)")\s*=\s*(.*)\Z""", re.DOTALL)
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"'  # basic strings
    r"|'''.*?'''|'[^'\n]*'"  # literal strings
    r"""|#[^\n]*|[\[\]{}]|[^"'#\[\]{}]+""",
    re.DOTALL,
)


def _complete(value: str) -> bool:
    """True when a TOML value has its last line: brackets balanced, no string left open."""
    depth, position = 0, 0
    for match in _TOKEN.finditer(value):
        if match.start() != position:
            return False  # a quote that nothing closes yet
        position = match.end()
        depth += match.group() in "[{"
        depth -= match.group() in "]}"
    return position == len(value) and depth <= 0


def _pairs(text: str) -> Iterator[tuple[str, str, str]]:
    """``(section, key, value as text)`` of a TOML file, as far as containers.conf uses the language."""
    section, pending = "", ""
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header and not pending:
            section = header.group(1)
            continue
        if not pending and (not line.strip() or line.lstrip().startswith(("#", "[["))):
            section = "" if line.lstrip().startswith("[[") else section
            continue
        pending = f"{pending}\n{line}" if pending else line
        pair = _PAIR.match(pending)
        if pair is None:
            pending = ""
        elif _complete(pair.group(3)):
            yield section, pair.group(1) or pair.group(2), pair.group(3).strip()
            pending = ""


def merge(texts: list[str]) -> str:
    """One containers.conf out of several, later ones first in authority; pure."""
    merged: dict[str, dict[str, str]] = {}
    for text in texts:
        for section, key, value in _pairs(text):
            carried = CARRIED.get(section, frozenset())
            if carried is None or key in carried:
                merged.setdefault(section, {})[key] = value
    for section, keys in OWN.items():
        merged.setdefault(section, {}).update(keys)
    lines = ["# Made by ASF for its own Podman calls; changes are overwritten."]
    for section in sorted(merged):
        lines.append(f"[{section}]")
        lines += [f'"{key}" = {value}' for key, value in sorted(merged[section].items())]
    return "\n".join(lines) + "\n"


def user_folder(env: Mapping[str, str]) -> Path:
    """The account's own folder of Podman's configuration; need not exist."""
    config = env.get("XDG_CONFIG_HOME", "")
    return Path(config if os.path.isabs(config) else os.path.join(env.get("HOME", "/"), ".config")) / "containers"


def sources(env: Mapping[str, str]) -> list[Path]:
    """The files that Podman would read for this account, weakest first."""
    found: list[Path] = []
    for folder in (Path("/usr/share/containers"), Path("/etc/containers"), user_folder(env)):
        found.append(folder / "containers.conf")
        found += sorted(folder.glob("containers.conf.d/*.conf"))
    return found


def write(folder: Path, env: Mapping[str, str]) -> Path:
    """Write ``FOLDER/containers.conf`` when it differs (atomically, 0600) and return its path."""
    texts = []
    for source in sources(env):
        try:
            texts.append(source.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue  # absent, or not readable for this account: Podman would not read it either
    text, target = merge(texts), folder / "containers.conf"
    try:
        if target.read_text(encoding="utf-8") == text:
            return target
    except OSError:
        pass
    handle, name = tempfile.mkstemp(prefix=".containers.conf.", dir=str(folder))
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(name, target)
    return target
