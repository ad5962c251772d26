# SPDX-License-Identifier: BSD-4-Clause
"""An ordinary user's way: check, say what an administrator must do, prepare the user's own cache, execute the command.

Never sudo, never a change outside the user's own cache folder (and `build/` of the clone).
"""

import os
import sys

import clone as clones
import environ
import lock
from cache import Cache
from execute import execute
from say import SetupError, say


def become(argv):
    """Do what is missing and may be done, then turn this process into `argv`; returns only when that failed."""
    if os.environ.get("ASF_USERLAND"):
        raise SetupError("ASF_USERLAND needs root, who unpacks the other release and mounts it: unset it, or ask root")
    clone = clones.here()
    base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "asf")
    os.makedirs(base, exist_ok=True)
    lock.take(base + "/set-up.lock")
    cache = Cache(base, clone.key, clone.path / "requirements")
    stamp = f"{base}/set-up-{clone.key}"
    if _read(stamp) != _now(clone) or not cache.complete(clone.path):
        _check(clone)
        cache.ensure(clone.path)
        with open(stamp, "w", encoding="ascii") as file:
            file.write(_now(clone))
    _make_build(clone)
    execute(argv, environ.with_tools(dict(os.environ), clone.path, cache))


def _now(clone):
    """Digest of set-up's inputs and the boot: what the checks look at may change with a reboot."""
    return clone.digest() + " " + (_read("/proc/sys/kernel/random/boot_id") or "").strip()


def _read(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except OSError:
        return None


def _make_build(clone):
    if os.access(clone.path, os.W_OK):  # in the account's view of a clone of root's it is mounted there already
        os.makedirs(clone.path / "build", exist_ok=True)


def _check(clone):
    """Run the checks of `asf-play doctor`; raises SetupError listing what an administrator must do."""
    sys.path.insert(0, str(clone.path))
    import asf_cli  # noqa: F401  gives the shared code its name
    from asf_lib.core import doctor
    from asf_lib.engine import hostfacts

    verdicts = doctor.verdicts(hostfacts.collect())
    for verdict in verdicts:
        if verdict.state == "warn":
            say(doctor.line(verdict))
    failed = [verdict for verdict in verdicts if verdict.state == "fail"]
    if failed:
        raise SetupError(
            "this machine is not ready. Do the following, an administrator what says `as root`:\n"
            + "\n".join(doctor.line(verdict) for verdict in failed)
        )
