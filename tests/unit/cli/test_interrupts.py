# SPDX-License-Identifier: BSD-4-Clause
"""Signals while Ansible runs, without Ansible: a child stands for it."""

import os
import signal
import subprocess
import sys

import pytest

from asf_cli.interrupts import HANDLED, Interrupted, Interrupts, raised


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_handlers_are_restored():
    before = [signal.getsignal(number) for number in HANDLED]
    with Interrupts():
        assert [signal.getsignal(number) for number in HANDLED] != before
    with raised():
        pass
    assert [signal.getsignal(number) for number in HANDLED] == before


def test_the_first_asks(child):
    told = []
    with Interrupts(told.append) as interrupts:
        interrupts.running(child.pid)
        os.kill(os.getpid(), signal.SIGINT)
        assert child.wait(30) == -signal.SIGINT
        assert interrupts.interrupted and not interrupts.cancelled() and interrupts.signal == signal.SIGINT
    assert told == ["stopping; interrupt again to kill"]


def test_an_early_one_is_passed_on_with_the_first_event(child):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGTERM)
        interrupts.running(child.pid)
        assert child.wait(30) == -signal.SIGINT
        assert interrupts.signal == signal.SIGTERM


def test_the_second_kills(child):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.running(child.pid)
        assert interrupts.cancelled()
        os.kill(os.getpid(), signal.SIGINT)
        assert child.wait(30) in (-signal.SIGKILL, -signal.SIGINT)


def test_a_teardown_is_patient(child):
    with Interrupts(patient=True) as interrupts:
        interrupts.running(child.pid)
        os.kill(os.getpid(), signal.SIGINT)
        assert not interrupts.interrupted and child.poll() is None
        os.kill(os.getpid(), signal.SIGINT)
        assert child.wait(30) == -signal.SIGKILL


def test_what_the_caller_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_raised():
    with pytest.raises(Interrupted) as caught, raised():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.number == signal.SIGTERM
