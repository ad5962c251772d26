# SPDX-License-Identifier: BSD-4-Clause
"""tools/operator as an ordinary user runs it: the command's streams, arguments, signals and exit code are its own."""

import concurrent.futures
import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = str(ROOT / "tools" / "operator")


@pytest.fixture(scope="module", autouse=True)
def ready():
    """Only where set-up is complete: these tests must not install anything."""
    done = subprocess.run([OPERATOR, "true"], capture_output=True, text=True)
    if done.returncode == 78:
        pytest.skip("this machine is not set up: " + done.stderr.splitlines()[-1])


def operator(*argv, **options):
    return subprocess.run([OPERATOR, *argv], capture_output=True, timeout=60, **options)


@pytest.mark.parametrize("words", [["a b", "", "$HOME", "'\"", "*", "-x", "--", "\n", "é\x07"], ["--help"], ["-c"]])
def test_arguments_pass_unchanged(words):
    done = operator("python3", "-c", "import sys; print(ascii(sys.argv[1:]))", *words)
    assert done.stdout.decode().strip() == ascii(words)
    assert done.stderr == b""


def test_streams_are_the_commands_own():
    data = os.urandom(100000)
    assert operator("cat", input=data).stdout == data
    done = operator("sh", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


@pytest.mark.parametrize("code", [0, 1, 78, 255])
def test_exit_code(code):
    assert operator("sh", "-c", f"exit {code}").returncode == code


def test_a_command_that_is_not_there():
    done = operator("no-such-command")
    assert (done.returncode, done.stdout) == (127, b"")
    assert b"no-such-command: no such command" in done.stderr


def test_help_alone_is_no_command():
    done = operator("--help")
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"usage: tools/operator CMD" in done.stderr and b"ASF_ACCOUNT" in done.stderr
    done = operator("--help", "more")
    assert (done.returncode, done.stdout) == (127, b"")


def test_no_command_is_a_usage_error():
    assert operator().returncode == 64


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command(number):
    script = f"trap 'echo got; exit 3' {int(number)}; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen([OPERATOR, "bash", "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.read() == b"got\n"
        assert process.wait(20) == 3


def test_a_broken_pipe_ends_the_command_as_everywhere():
    done = subprocess.run(["bash", "-c", f"'{OPERATOR}' yes | head -1; echo ${{PIPESTATUS[0]}}"], capture_output=True)
    assert done.stdout == b"y\n141\n"


def test_several_at_once():
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda number: operator("echo", str(number)).stdout.strip(), range(12)))
    assert found == [str(number).encode() for number in range(12)]


def test_the_tools_are_there():
    names = "asf-play ansible-playbook pytest ruff mypy ansible-lint yamllint shellcheck molecule"
    done = operator("sh", "-c", f"for name in {names}; do command -v $name >/dev/null || echo $name; done")
    assert done.stdout == b""


def test_ansible_finds_both_collections():
    told = operator("ansible-galaxy", "collection", "list", "--format", "json").stdout.decode()
    assert '"asf.sandbox"' in told and '"containers.podman"' in told
