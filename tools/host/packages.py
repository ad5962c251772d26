# SPDX-License-Identifier: BSD-4-Clause
"""Distribution packages that ASF needs on the host (Debian and its relatives)."""

import os
import shutil

from execute import captured
from say import SetupError, say

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: what must exist -> the package that brings it
_PROGRAMS = {
    "podman": "podman",
    "crun": "crun",
    "conmon": "conmon",
    "newuidmap": "uidmap",
    "catatonit": "catatonit",
    "slirp4netns": "slirp4netns",
    "nft": "nftables",
    "ip": "iproute2",
    "mmdebstrap": "mmdebstrap",
    "git": "git",
    "useradd": "passwd",
    "tmux": "tmux",  # the tests' terminal
    "zsh": "zsh",  # the tests of completion, as is fish
    "fish": "fish",
}
_FILES = {
    "/usr/lib/podman/netavark": "netavark",  # Podman looks for its network program even where no network is made
    "/etc/ssl/certs/ca-certificates.crt": "ca-certificates",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}


def missing():
    """Names of the packages that are not there."""
    wanted = [package for program, package in _PROGRAMS.items() if shutil.which(program, path=_PATH) is None]
    wanted += [package for path, package in _FILES.items() if not os.path.exists(path)]
    if not _venv_works():
        wanted.append("python3-venv")
    return wanted


def _venv_works():
    try:
        import ensurepip  # noqa: F401  Debian leaves it out of python3 and puts it into python3-venv
    except ImportError:
        return False
    return True


def install(names):
    """Install packages by apt-get; raises SetupError with what to do when that fails."""
    if shutil.which("apt-get", path=_PATH) is None:
        raise SetupError("missing, and this is no Debian: install the equivalents of " + " ".join(names))
    say("installing " + " ".join(names))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": _PATH}
    for step in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", *names]):
        done = captured(step, environment)
        if done.returncode:
            tail = "\n".join(done.stdout.splitlines()[-8:])
            raise SetupError(f"`{' '.join(step)}` failed ({done.returncode}):\n{tail}")
