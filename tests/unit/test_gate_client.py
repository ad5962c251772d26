# SPDX-License-Identifier: BSD-4-Clause
"""The operator's end of the gate's protocol, over a socket of this process: its answer is untrusted (invariant 3)."""

import contextlib
import json
import os
import socket
import threading
import time

import pytest

from asf_lib.core.errors import EngineError, GateError
from asf_lib.engine import gate_client, netns

NAME = f"asf-test-gate-{os.getpid()}"
PLAN = {"gate": {"socket": NAME}}
REPORT = b'{"version": 1, "nonce": "n"}\n'


@pytest.fixture(autouse=True)
def _no_namespace(monkeypatch):
    """Work is done here instead of in a container's namespace; failures arrive as they do from there."""

    def in_net(pid, work, timeout=20.0):
        try:
            return work()
        except Exception as exc:
            raise EngineError(f"in a container's namespaces: {type(exc).__name__}: {exc}") from None

    monkeypatch.setattr(netns, "in_net", in_net)


@contextlib.contextmanager
def gate(report, *answers, late=0.0, hang=0.0):
    """A gate that sends `report`, then one answer per line that it reads; what it was told stands in the list."""
    told = []
    server = socket.socket(socket.AF_UNIX)

    def serve():
        with contextlib.suppress(OSError), server:
            time.sleep(late)
            server.bind("\0" + NAME)
            server.listen()
            connection, _ = server.accept()
            with connection:
                connection.sendall(report)
                for answer in answers:
                    told.append(connection.makefile().readline())
                    connection.sendall(answer)
                time.sleep(hang)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        thread.join(5)


def test_the_report_is_read_and_nothing_said():
    with gate(REPORT) as told:
        assert gate_client.report(os.getpid(), PLAN, 5) == {"version": 1, "nonce": "n"}
    assert told == []


def test_a_gate_that_listens_later_is_waited_for():
    with gate(REPORT, late=0.2):
        assert gate_client.report(os.getpid(), PLAN, 5)["nonce"] == "n"


def test_go_carries_the_nonce():
    with gate(REPORT, b"ok\n") as told:
        gate_client.go(os.getpid(), PLAN, "abc", 5)
    assert told == ["go abc\n"]


@pytest.mark.parametrize("answer", [b"no\n", b"OK\n", b"ok then\n", b"\n"])
def test_any_other_answer_to_go_is_an_error(answer):
    with gate(REPORT, answer), pytest.raises(GateError, match="did not take go"):
        gate_client.go(os.getpid(), PLAN, "abc", 5)


def test_another_process_that_answers_is_refused():
    """SO_PEERCRED: only the pid that was chosen at init is the gate."""
    with gate(REPORT), pytest.raises(GateError, match=f"pid {os.getpid()} answers, not 1"):
        gate_client.report(1, PLAN, 5)
    with gate(REPORT, b"ok\n"), pytest.raises(GateError, match="answers, not 1"):
        gate_client.go(1, PLAN, "abc", 5)


@pytest.mark.parametrize("data", [b"", b"{\n", b"no json\n", b'{"half": ', b"\xff\xfe\n"])
def test_what_is_no_report_is_an_error_with_a_remedy(data):
    with gate(data), pytest.raises(GateError) as caught:
        gate_client.report(os.getpid(), PLAN, 2)
    assert "not started" in caught.value.remedy


@pytest.mark.parametrize("data", [[], "text", 1, None])
def test_a_report_is_an_object(data):
    with gate(json.dumps(data).encode() + b"\n"), pytest.raises(GateError, match="not a JSON object"):
        gate_client.report(os.getpid(), PLAN, 2)


def test_silence_has_an_end():
    for said in (None, b'{"half": '):
        listening = gate(said, hang=3) if said else contextlib.nullcontext()
        with listening, pytest.raises(GateError, match=r"did not report within 0\.3 s"):
            gate_client.report(os.getpid(), PLAN, 0.3)


def test_a_report_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(gate_client, "MAX_REPORT", 1000)
    with gate(b"x" * 5000), pytest.raises(GateError, match="too long"):
        gate_client.report(os.getpid(), PLAN, 2)
