# SPDX-License-Identifier: BSD-4-Clause
"""What people see: progress, tables, errors; harmless whatever a workload put into it."""

import io
import json
import os
import threading
import time

import pytest

from asf_cli import main, render
from asf_cli.progress import Progress

EVIL = "a\x1b[2J\nb\u202ec"
PLAIN = render.Style()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def shown(stream, env, *steps):
    progress = Progress(stream, env)
    for name, *words in steps:
        getattr(progress, name)(*words)
    progress.close()
    return stream.getvalue()


STEPS = [("phase", "plan", EVIL, 0.0), ("line", "warning: w"), ("phase", "network", "y", 1.5), ("end", False, 2.0)]


def test_plain_lines():
    text = shown(io.StringIO(), {}, *STEPS)
    assert text.splitlines() == ["warning: w", "ok plan            1.50 s", "FAILED network         0.50 s"]


def test_a_terminal_has_one_updated_line():
    text = shown(Terminal(), {"TERM": "xterm"}, *STEPS)
    assert "▸ plan" in text and "\r\x1b[K" in text and "\x1b[32m✓\x1b[0m plan" in text and "\x1b[31m✗" in text
    assert "\x1b[2J" not in text and "\u202e" not in text


@pytest.mark.parametrize("env", [{"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_colour(env):
    text = shown(Terminal(), env, *STEPS)
    assert "\x1b[3" not in text
    assert ("\r" in text) is ("NO_COLOR" in env)


def test_notes_of_a_module(tmp_path):
    path = tmp_path / "progress"
    path.write_text("")
    stream = io.StringIO()
    progress = Progress(stream, {})
    progress.notes(path)
    progress.phase("image", "build", time.monotonic())
    path.write_text(json.dumps({"image": "base", "step": f"installing {EVIL}"}) + "\nnonsense\n[]\n")
    progress.end(True, time.monotonic())
    progress.close()
    assert stream.getvalue().count("image: base: installing a\\x1b[2J") == 1


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_notice_of_a_module_is_a_line_of_its_own(tmp_path, stream):
    path = tmp_path / "progress"
    path.write_text("")
    progress = Progress(stream, {"TERM": "xterm"})
    progress.notes(path)
    progress.phase("close", "remove", time.monotonic())
    path.write_text(json.dumps({"notice": f"waiting for {EVIL}"}) + "\n")
    progress.end(True, time.monotonic())
    progress.close()
    text = stream.getvalue()
    assert text.count("   waiting for a\\x1b[2J") == 1 and "close: waiting" not in text
    assert "waiting for a\\x1b[2J" in next(line for line in text.split("\n") if "waiting" in line)


def test_a_stuck_terminal_holds_nobody_up():
    moves_on = threading.Event()

    class Stuck(io.StringIO):
        def write(self, text):
            moves_on.wait(120)
            return len(text)

    progress = Progress(Stuck(), {})
    for number in range(1000):
        progress.line(str(number))  # one that waited would do so until the test's time is over
    moves_on.set()


def test_a_terminal_that_is_gone():
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError(5, "Input/output error")

    shown_progress = Progress(Gone(), {})
    shown_progress.line("x")
    shown_progress.close()


PROBES = [
    {
        "id": "b",
        "invariant": 2,
        "vantage": "outside",
        "expect": "x",
        "verdict": "fail",
        "evidence": {"got": EVIL, "n": ""},
    },
    {"id": "a", "invariant": 1, "vantage": "inside", "expect": EVIL, "verdict": "pass", "evidence": {"got": "y"}},
]


def test_probe_table():
    lines = render.probe_table(PROBES, PLAIN)
    assert lines[0].split() == ["verdict", "probe", "vantage", "inv", "expectation"]
    assert lines[1].split() == ["fail", "b", "outside", "2", "x"]
    assert lines[2].strip() == "got: a\\x1b[2J\\nb\\u202ec"
    assert lines[-1] == "2 probes: 1 fail, 1 pass"
    assert "got: y" not in "".join(lines)
    assert "got: y" in "".join(render.probe_table(PROBES, PLAIN, evidence=True))


def test_probes_in_brief():
    lines = render.probes_in_brief(PROBES, PLAIN)
    assert lines[1].split() == ["fail", "b", "outside", "2", "x"]
    assert lines[-1] == "2 probes: 1 fail, 1 pass (-v shows each)" and len(lines) == 4
    assert render.probes_in_brief(PROBES[1:], PLAIN) == ["1 probes: 1 pass (-v shows each)"]


def test_errors_show_every_problem():
    problem = {"file": "/r.yml", "line": 3, "column": 5, "key": "a.b", "message": EVIL, "found": "x", "allowed": "y"}
    lines = render.error({"message": "first", "problems": [problem, {**problem, "line": 4}]}, PLAIN)
    assert lines[:4] == ["error: /r.yml:3:5: a.b: a\\x1b[2J", "    b\\u202ec", "  found: x", "  allowed: y"]
    assert lines[4].startswith("error: /r.yml:4:5")


def test_a_message_of_several_lines():
    assert render.error({"message": "one\n\x1btwo"}, PLAIN) == ["error: one", "    \\x1btwo"]


def test_an_engines_last_words_are_shown():
    lines = render.error({"message": "podman failed", "stderr": f"one\n{EVIL.splitlines()[0]}"}, PLAIN)
    assert lines == ["error: podman failed", "    one", "    a\\x1b[2J"]


def test_sessions():
    row = {"session": "a.main", "state": "broken", "mode": "proxy", "isolation": "container", "reasons": [EVIL]}
    lines = render.sessions([row], PLAIN)
    assert lines[1].split() == ["a.main", "broken", "proxy", "container"]
    assert "\x1b" not in lines[2]
    assert render.sessions([], PLAIN) == ["no session owns anything"]


def test_a_defect_shows_no_traceback_without_vvv(monkeypatch, capsys):
    def broken(request):
        raise RuntimeError(EVIL)

    from asf_cli.commands import ls

    monkeypatch.setattr(ls, "run", broken)
    assert main.main(["ls"]) == 225
    err = capsys.readouterr().err
    assert "RuntimeError" in err and "-vvv" in err and "Traceback" not in err and "\x1b" not in err
    assert main.main(["ls", "--json"]) == 225
    assert '"code": "internal"' in capsys.readouterr().out


def test_a_reader_that_is_gone(run, account):
    reading, writing = os.pipe()
    os.close(reading)
    code, _out, err = run("--help", stdout=writing)
    os.close(writing)
    assert "Traceback" not in err and code == 141
