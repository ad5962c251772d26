# SPDX-License-Identifier: BSD-4-Clause
"""asf-play around the real ansible-runner and ansible-core, with a module that does as it is told."""

import contextlib
import json
import os
import signal
import stat
import time
from pathlib import Path

import pytest

from asf_cli import errors

FIXTURES = Path(__file__).resolve().parent / "fixtures"
CANARY = "{{ lookup('pipe', 'touch ' ~ canary) }}"


def leftovers(account):
    """Whatever is left of a run: run directories, and anything of Ansible's in the home."""
    cli = Path(account["XDG_RUNTIME_DIR"]) / "asf" / "cli"
    home = Path(account["HOME"])
    return [str(path) for path in cli.iterdir()] + [str(path) for path in home.rglob("*") if path.is_file()]


def until(condition, seconds=40):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_for_people(run, account):
    code, out, err = run(FIXTURES / "good.yml", "-e", "agent=claude")
    assert code == 0
    assert "agent-routes" in out and "1 probes: 1 pass" in out and "evidence: /tmp/evidence" in out
    lines = err.splitlines()
    assert "warning: a limit does not bite" in lines
    assert [line.split()[1] for line in lines if " s" in line and line[:1] in "✓o"] == [
        "start",
        "plan",
        "network",
        "verify",
    ]
    assert any("network: base: half way" in line for line in lines)
    assert "\x1b" not in out + err
    assert leftovers(account) == []


def test_json_and_what_reaches_ansible(run, account, tmp_path):
    """Invariant 10 (a command is data), invariant 11 (no path of the caller's), cases P14 and S7 (environment)."""
    canary = tmp_path / "canary"
    cwd = tmp_path / "cwd"
    (cwd / "ansible.cfg").write_text("[defaults]\ncallback_plugins = ./evil\n")
    hostile = {
        "ANSIBLE_CALLBACK_PLUGINS": str(cwd / "evil"),
        "ANSIBLE_STDOUT_CALLBACK": "evil",
        "ANSIBLE_CONFIG": str(cwd / "ansible.cfg"),
        "AWX_LIB_DIRECTORY": str(cwd),
        "HTTPS_PROXY": "http://proxy.invalid:1",
        "ANTHROPIC_API_KEY": "sk-canary-0123456789",
        "PYTHONSTARTUP": str(cwd / "x"),
    }
    command = ["sh", "-c", CANARY, "--json", "-e", "{{ canary }}"]
    words = [FIXTURES / "good.yml", "-e", "agent=claude", "-e", f"canary={canary}", "--json", "--", *command]
    code, out, err = run(*words, env=hostile)
    assert code == 0, err
    found = json.loads(out)
    assert found["ok"] and found["changed"] and found["session"] == "claude.main"
    assert found["read"] == {"command": command}
    assert not canary.exists()
    given = found["environment"]
    assert not {"HTTPS_PROXY", "ANTHROPIC_API_KEY", "PYTHONSTARTUP", "AWX_LIB_DIRECTORY"} & set(given)
    assert not any(str(cwd) in value for value in given.values())
    assert given["ANSIBLE_HOST_KEY_CHECKING"] == "True" and given["ANSIBLE_PIPELINING"] == "True"
    assert "sk-canary" not in out + err
    assert leftovers(account) == []


def test_an_error_names_its_place_and_a_rescue_hides_nothing(run):
    code, out, err = run(FIXTURES / "bad.yml", "-e", "agent=claude")
    assert code == errors.REFUSED
    assert "error: /a/runtime.yml:7: network.mode: no such mode \\x1b[31m" in err
    assert "  found: routedd" in err and "  remedy: did you mean routed?" in err
    assert "Traceback" not in err and "\x1b" not in err
    code, out, _err = run(FIXTURES / "bad.yml", "--json")
    assert code == errors.REFUSED
    error = json.loads(out)["error"]
    assert (error["file"], error["key"], error["line"], error["code"]) == (
        "/a/runtime.yml",
        "network.mode",
        7,
        "manifest",
    )


def test_a_playbook_that_ansible_cannot_read(run, tmp_path, account):
    broken = tmp_path / "broken.yml"
    broken.write_text("- hosts: localhost\n  tasks: [\n")
    code, out, _err = run(broken, "--json")
    assert code == errors.ENGINE
    assert "broken.yml" in json.loads(out)["error"]["message"]
    assert leftovers(account) == []


def test_secrets_are_redacted(run, account, tmp_path):
    """Case S4: a module that says a secret, in a failing task, with -vvv."""
    secret = "sk-canary/with+odd=characters"
    folder = Path(account["ASF_HOME"]) / "secrets"
    folder.mkdir(mode=0o700)
    (folder / "x.env").write_text(f'# comment\nexport KEY="{secret}"\n')
    (folder / "x.env").chmod(0o600)
    book = tmp_path / "leak.yml"
    book.write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - name: plan | leak\n      ansible.builtin.fail:\n"
        f"        msg: 'it said {secret}'\n"
    )
    code, out, err = run(book, "-vvv")
    assert code != 0
    assert "[redacted]" in err and secret not in out + err
    code, out, err = run(book, "--json")
    assert "[redacted]" in out and secret not in out + err


def test_interrupt_stops_cleanly(start, account, tmp_path):
    pidfile = tmp_path / "pid"
    process = start(FIXTURES / "slow.yml", "-e", f"pidfile={pidfile}", "--json")
    until(lambda: pidfile.exists() and pidfile.read_text())
    [folder] = (Path(account["XDG_RUNTIME_DIR"]) / "asf" / "cli").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "extravars.json").stat().st_mode) == 0o600
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=40)
    assert process.returncode == errors.INTERRUPTED
    assert json.loads(out)["error"]["code"] == "interrupted"
    assert "interrupt again to kill" in err and "Traceback" not in err
    until(lambda: gone(int(pidfile.read_text())))
    assert leftovers(account) == []


def test_a_second_interrupt_kills(start, account, tmp_path):
    """Ansible is stopped, so that it does not react to the first; the second follows what the first one says."""
    pidfile, told = tmp_path / "pid", tmp_path / "told"
    with told.open("w") as stderr:
        process = start(FIXTURES / "slow.yml", "-e", f"pidfile={pidfile}", stderr=stderr)
    until(lambda: pidfile.exists() and pidfile.read_text())
    [ansible] = children(process.pid)
    os.kill(ansible, signal.SIGSTOP)
    try:
        process.send_signal(signal.SIGINT)
        until(lambda: "interrupt again to kill" in told.read_text())
        assert not gone(ansible)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=40)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pidfile.read_text()), signal.SIGKILL)
    assert process.returncode == errors.INTERRUPTED
    assert "interrupted: killed" in told.read_text() and gone(ansible)
    assert leftovers(account) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_early_signal_is_passed_on_later(start, tmp_path, number):
    process = start(FIXTURES / "slow.yml", "-e", f"pidfile={tmp_path / 'pid'}")
    until(lambda: b"asf_cli" in Path(f"/proc/{process.pid}/cmdline").read_bytes())
    # Handlers are in place once runner starts its child, long before Ansible says anything.
    until(lambda: [pid for pid in children(process.pid)])
    process.send_signal(number)
    process.communicate(timeout=40)
    assert process.returncode == 128 + number


def children(parent):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry))
    return found


def test_run_directories_of_the_dead_are_swept(run, account):
    base = Path(account["XDG_RUNTIME_DIR"]) / "asf" / "cli"
    (base / "999999-1-00000000-dead").mkdir(parents=True)
    (base / "something-else").mkdir()
    code, _out, err = run(FIXTURES / "empty.yml")
    assert code == 0, err
    assert [path.name for path in base.iterdir()] == ["something-else"]


def test_bare_names_are_never_looked_up_here(run, tmp_path):
    (tmp_path / "cwd" / "evil.yml").write_text("- hosts: localhost\n  tasks: []\n")
    code, _out, err = run("evil.yml")
    assert code == errors.USAGE and "./evil.yml" in err
    assert run("opne.yml", "-e", "agent=a")[2].count("did you mean open.yml?") == 1


def test_what_an_agent_can_write_is_not_run(run, account, tmp_path):
    """Invariant 11: neither a playbook nor an inventory out of a granted repository."""
    repository = tmp_path / "repo"
    (repository / "deep").mkdir(parents=True)
    (repository / "deep" / "x.yml").write_text("- hosts: localhost\n  tasks: []\n")
    (tmp_path / "link.yml").symlink_to(repository / "deep" / "x.yml")
    code, _out, err = run("repo", "add", "claude", repository)
    assert code == 0, err
    for words in ([repository / "deep" / "x.yml"], [tmp_path / "link.yml"], [FIXTURES / "empty.yml", "-i", repository]):
        code, out, _err = run(*words, "--json")
        assert code == errors.REFUSED
        assert "claude may write there" in json.loads(out)["error"]["message"]
    assert run("repo", "add", "claude", repository, "--mode", "ro")[0] == 0
    assert run(repository / "deep" / "x.yml")[0] == 0
