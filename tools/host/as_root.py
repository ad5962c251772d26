# SPDX-License-Identifier: BSD-4-Clause
"""Root's way: prepare machine and account, become the account inside its namespaces, execute the command."""

import hashlib
import os
import sys
from pathlib import Path

import account as accounts
import clone as clones
import environ
import kernel
import lock
import mounts
import namespace
import packages
import userland
from cache import Cache
from execute import execute
from say import SetupError, say


def become(argv):
    """Do what is missing, then turn this process into `argv` run by the account; returns only when that failed."""
    clone = clones.here()
    directory = os.getcwd()
    namespace.prepare_base()
    lock.take(namespace.BASE + "/lock")
    stamp = _Stamp(clone)
    fresh = not stamp.valid()
    if fresh:
        absent = packages.missing()
        if absent:
            packages.install(absent)
    userland.ensure()
    account = accounts.ensure() if fresh else accounts.entry()
    if account is None:
        account = accounts.ensure()
    accounts.ensure_run_dir(account)
    network = _open_network()
    namespace.ensure(account)
    outside = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    inside = os.open(namespace.handle(), os.O_RDONLY | os.O_CLOEXEC)
    mounts.ensure(clone, account, outside, inside)  # from here on inside
    place = mounts.place(clone)
    environment = environ.for_account(account, accounts.run_dir(account.pw_uid), os.environ)
    cache = Cache(account.pw_dir + "/.cache/asf", clone.key, place + "/requirements")
    if fresh or not cache.complete(place):
        _prepare(account, environment, clone.key, place)
        stamp.write()
    if network is not None:
        kernel.setns(network, kernel.CLONE_NEWNET)
    _drop(account)
    _enter(directory, clone, place, account.pw_dir)
    for name in environ.unreadable_authorities(environment):
        say(f"{name}={environment.pop(name)} cannot be read by {account.pw_name} and is not passed on")
    environment["PWD"] = os.getcwd()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # none of root's descriptors, and the lock: see lock.take
    execute(argv, environ.with_tools(environment, place, cache))


class _Stamp:
    """Remembers that set-up was done for these inputs, this clone and this state of the machine's packages."""

    def __init__(self, clone):
        key = hashlib.sha256(f"{clone.digest()} {clone.path}".encode()).hexdigest()[:24]
        status = os.stat("/var/lib/dpkg/status").st_mtime_ns if os.path.exists("/var/lib/dpkg/status") else 0
        self._path = Path(namespace.stamp(clone.key))
        self._text = f"{key} {status} {userland.name()}"  # now: in another userland there is another dpkg

    def valid(self):
        return self._path.exists() and self._path.read_text(encoding="utf-8") == self._text

    def write(self):
        self._path.write_text(self._text, encoding="utf-8")


def _open_network():
    path = os.environ.get("ASF_NETNS")
    if not path:
        return None
    if not kernel.is_namespace(path):
        raise SetupError(f"ASF_NETNS={path} is no network namespace: give the path of one, such as /run/netns/NAME")
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _drop(account):
    """Become the account for good."""
    os.setgroups(os.getgrouplist(account.pw_name, account.pw_gid))
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(account.pw_uid, account.pw_uid, account.pw_uid)
    kernel.drop_capabilities()


def _prepare(account, environment, key, place):
    """Run prepare.py as the account."""
    child = os.fork()
    if child == 0:
        try:
            _drop(account)
            os.chdir("/")
            argv = [sys.executable, "-E", "-s", "-B", place + "/tools/host/prepare.py", key, place]
            os.execve(argv[0], argv, environment)
        except OSError as error:  # the child must not return into its parent's code
            say(str(error))
        finally:
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        raise SetupError("set-up is not complete, the command was not run")


def _enter(directory, clone, place, home):
    """The same directory when the account can go there; for one in the clone the same place of the mounted clone."""
    below = clone.within(directory)
    wanted = [directory] if below is None else [os.path.join(place, below)]
    for candidate in [*wanted, home, "/"]:
        try:
            os.chdir(candidate)
            return
        except OSError:
            continue
