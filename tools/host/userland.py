# SPDX-License-Identifier: BSD-4-Clause
"""Another Debian release for the account: its programs lie in a folder that is the root of the account's namespace.

Root only. ASF_USERLAND names the release. The folder is made once per list of packages, belongs to root, and is mounted
read-only; kernel, devices, network, homes and temporary folders stay the machine's own. An account belongs to one
userland for good, because two Podmans of different releases would convert each other's store.
"""

import hashlib
import os
import platform
import shutil
from pathlib import Path

import kernel
from execute import captured
from say import SetupError, say

CACHE = "/var/cache/asf"
#: release -> packages: what set-up installs on a host of that release (Podman 5's user-mode network is pasta's)
_PACKAGES = {
    "trixie": (
        *("podman", "crun", "conmon", "netavark", "aardvark-dns", "passt", "uidmap", "catatonit", "nftables"),
        *("iproute2", "mount", "procps", "mmdebstrap", "debian-archive-keyring", "git", "passwd", "tmux"),
        *("python3", "python3-venv", "ca-certificates"),
    )
}
#: Folders of the machine that stay visible: the kernel's, those of accounts, Go, and certificates.
_FOLDERS = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/home")
_OPTIONAL = ("/usr/local/go", "/etc/ssl", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates")
#: The account's entries, and the network as the machine sees it. Files that are replaced later stay as they are now.
_FILES = (
    *("/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"),
    *("/etc/resolv.conf", "/etc/hosts", "/etc/hostname"),
)
_UNPACKED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")


def name():
    """The release that ASF_USERLAND names, '' for the machine's own programs. Raises SetupError for an unknown one."""
    found = os.environ.get("ASF_USERLAND", "")
    if found and found not in _PACKAGES:
        raise SetupError(f"ASF_USERLAND={found[:40]!a} is no known release: use {' or '.join(_PACKAGES)}, or unset it")
    return found


def folder():
    """Where the release's programs lie, None for the machine's own."""
    if not name():
        return None
    digest = hashlib.sha256(" ".join(_PACKAGES[name()]).encode()).hexdigest()[:12]
    return Path(CACHE, f"userland-{name()}-{platform.machine()}-{digest}")


def claim(account, used):
    """Bind the account `account` (a name) to the userland; `used`: it has a container store already.

    Raises SetupError when the account belongs to another userland.
    """
    record = Path(CACHE, "accounts", account)
    known = record.read_text(encoding="utf-8") if record.exists() else None
    if known is None and name() and not used:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(name(), encoding="utf-8")
    elif (known or "") != name():
        raise SetupError(
            f"the account {account} has a container store of {known or 'this machine'}'s Podman, and ASF_USERLAND is "
            f"{name() or 'not set'}: name another account (ASF_ACCOUNT)"
        )


def ensure():
    """Make the folder when it is missing. 350 MB; 60 to 95 s."""
    target = folder()
    if target is None or target.is_dir():
        return
    say(f"fetching and unpacking {name()} into {target} (once; about a minute)")
    partial = Path(f"{target}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a set-up that was killed
    target.parent.mkdir(parents=True, exist_ok=True)
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--variant=apt", "--include=" + ",".join(_PACKAGES[name()])]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in _UNPACKED]
    proxy = os.environ.get("ASF_BUILD_PROXY")
    environment = {**os.environ, **({"http_proxy": proxy, "https_proxy": proxy} if proxy else {})}
    done = captured([*argv, name(), str(partial), *_mirrors()], environment)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        tail = "\n".join(done.stdout.splitlines()[-12:])
        raise SetupError(f"mmdebstrap of {name()} failed ({done.returncode}): its mirror must be reachable\n{tail}")
    _mount_points(partial)
    partial.rename(target)


def _mirrors():
    """Where this machine gets Debian itself from ([URL]); empty (mmdebstrap's own default) when apt does not say."""
    done = captured(["apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages"])
    rows = [row.split() for row in done.stdout.splitlines()]
    return [row[1] for row in rows if len(row) == 2 and row[0] == "Debian"][:1]


def _mount_points(root):
    for path in (*_FOLDERS, *_OPTIONAL):
        (root / path[1:]).mkdir(parents=True, exist_ok=True)
    for path in _FILES:
        (root / path[1:]).touch()


def enter(account):
    """Make the folder the root of this mount namespace, which must be private; nothing without a userland."""
    target = folder()
    if target is None:
        return
    root = str(target)
    homes = [] if account.pw_dir.startswith("/home/") else [account.pw_dir]
    for path in homes:
        os.makedirs(root + path, exist_ok=True)
    kernel.mount(root, root, flags=kernel.MS_BIND)
    for path in [*_FOLDERS, *homes, *_OPTIONAL, *_FILES]:
        if os.path.exists(path):
            kernel.mount(path, root + path, flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.mount(None, root, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY)
    os.chdir(root)
    kernel.pivot_root(".", ".")  # the old root lies on top of the new one (pivot_root(2)) until it is detached
    kernel.detach(".")
    os.chdir("/")
