# SPDX-License-Identifier: BSD-4-Clause
"""Check tools/operator as root, on a clone of this clone: what no test that runs as the account could see.

A clone below a folder that only root may enter, made under umask 077; several first calls at once; ownership of what a
command leaves in build/, and that no set-uid file of anybody else's can come to lie there; the account's inability to
change the clone; no trace of a clone that is gone. Silent but for one line when all is well; says what is wrong and
exits 1 when not. Needs root and nothing but the standard library.
"""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ACCOUNT = os.environ.get("ASF_ACCOUNT") or "-".join(filter(None, ("asf", os.environ.get("ASF_USERLAND"))))


def _expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"tools/check_operator.py: {what}: expected {wanted!r}, got {found!r}")


def _run(clone, script, **options):
    argv = [str(clone / "tools/operator"), "bash", "-c", script]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=clone, **options)


def _clone(folder):
    """A clone with the working tree's own files: what is checked is what lies here."""
    os.umask(0o077)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    shutil.copytree(ROOT / "tools", folder / "tools", dirs_exist_ok=True)
    return folder


def _first_calls(clone):
    script = "id -u; pwd; head -c 4 galaxy.yml; umask"
    calls = [
        subprocess.Popen([str(clone / "tools/operator"), "bash", "-c", script], cwd=clone, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    told = {call.communicate(timeout=300)[0].decode() for call in calls}
    _expect("four first calls at once", len(told), 1)
    uid, place, _rest = told.pop().split("\n", 2)
    _expect("the command's user is root", uid == "0", False)
    _expect("the clone is seen below the account's folder", place.startswith("/run/asf-ns/"), True)


def _streams(clone):
    done = _run(clone, "cat; echo no >&2; exit 7", input="x\n")
    _expect("stdout, stderr, exit code", (done.stdout, done.stderr, done.returncode), ("x\n", "no\n", 7))
    with subprocess.Popen(
        [str(clone / "tools/operator"), "bash", "-c", "trap 'exit 3' TERM; echo; while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE,
    ) as call:
        call.stdout.readline()
        call.send_signal(signal.SIGTERM)
        _expect("exit code after SIGTERM", call.wait(20), 3)


def _environment(clone):
    secret = {**os.environ, "AWS_SECRET_ACCESS_KEY": "canary", "HTTPS_PROXY": "http://canary", "LD_PRELOAD": ""}
    told = _run(clone, "env; cat /proc/self/status", env=secret).stdout
    _expect("a secret of the caller reaches the account", "canary" in told, False)
    effective = [line.split()[1] for line in told.splitlines() if line.startswith(("CapEff:", "CapPrm:", "CapInh:"))]
    _expect("capabilities of the account", set(effective), {"0" * 16})


def _files(clone):
    done = _run(
        clone, "echo '{}' >build/check.json; touch new galaxy.yml; rm -f galaxy.yml; git status --porcelain -uno"
    )
    _expect("the clone is read-only for the account", done.stderr.count("Read-only file system"), 3)
    account = pwd.getpwnam(ACCOUNT)
    owners = [(status.st_uid, status.st_gid) for status in map(os.stat, (clone / "build", clone / "build/check.json"))]
    _expect("owners of build/ and what lies in it", owners, [(account.pw_uid, account.pw_gid)] * 2)
    _expect("files of Python in the clone", [str(path) for path in clone.rglob("__pycache__")], [])
    shutil.rmtree(clone / "build")
    _expect("build/ removed and made again", _run(clone, "touch build/again").returncode, 0)


def _programs(clone):
    """What the account leaves in build/ is no way to become anybody else, by whatever path it is run."""
    os.chown(clone / "build", 0, 0)  # as a clone has it that root made
    (clone / "build/old").touch()
    (clone / "build/old").chmod(0o4755)
    os.link(clone / "galaxy.yml", clone / "build/link")
    done = _run(clone, "echo x >build/old; cp /bin/true build/tool; chmod 4755 build/tool; build/tool")
    _expect("a program in build/ is executed", (done.returncode, "Permission denied" in done.stderr), (126, True))
    _expect("owner of a file that build/ has a second name of", os.stat(clone / "galaxy.yml").st_uid, os.getuid())
    uid, modes = pwd.getpwnam(ACCOUNT).pw_uid, []
    for name in ("build", "build/old", "build/tool"):
        status = os.stat(clone / name)
        _expect(f"owner of {name} as a set-uid program", status.st_uid, uid)
        modes.append(status.st_mode & 0o7777)
    _expect("modes of build/, an old set-uid file and the account's own", modes, [0o755, 0o755, 0o4755])


def main():
    """Run all checks."""
    if os.getuid() != 0:
        return print("tools/check_operator.py: nothing to check as an ordinary user")
    with tempfile.TemporaryDirectory(prefix="asf-check-", dir="/root") as folder:
        clone = _clone(Path(folder) / "clone")
        for check in (_first_calls, _streams, _environment, _files, _programs):
            check(clone)
    subprocess.run([str(ROOT / "tools/operator"), "true"], check=True)
    known = [json.loads(path.read_text()) for path in Path(f"/run/asf-ns/{ACCOUNT}/clones").glob("*.json")]
    _expect("clones that are gone stay known", [row["path"] for row in known if row["path"].startswith(folder)], [])
    return print("tools/operator as root: all checks passed")


if __name__ == "__main__":
    main()
