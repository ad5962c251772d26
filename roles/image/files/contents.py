# SPDX-License-Identifier: BSD-4-Clause
"""Run inside a finished image: one JSON object on stdout that lists what it holds."""

import json
import os
import stat
import subprocess
from importlib import metadata


def _dpkg():
    try:
        lines = subprocess.run(
            ["dpkg-query", "-W", "-f=${Package} ${Version} ${Architecture}\n"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []
    return sorted(lines)


def _python():
    return sorted(f"{found.metadata['Name']} {found.version}" for found in metadata.distributions())


def _npm():
    found = []
    folder = "/usr/local/lib/asf/npm"
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), encoding="utf-8") as handle:
            package = json.load(handle)
        found.append(f"{package['name']} {package['version']}")
    return found


def _setuid():
    found = []
    for folder, _, names in os.walk("/"):
        if folder in ("/proc", "/sys", "/dev"):
            continue
        if folder.startswith(("/proc/", "/sys/", "/dev/")):
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                found.append(path)
    return found


def _system():
    with open("/etc/os-release", encoding="utf-8") as handle:
        pairs = dict(line.rstrip().split("=", 1) for line in handle if "=" in line)
    return pairs.get("PRETTY_NAME", "").strip('"')


print(json.dumps({"system": _system(), "dpkg": _dpkg(), "pip": _python(), "npm": _npm(), "setuid": _setuid()}))
