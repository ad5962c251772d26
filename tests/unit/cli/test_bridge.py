# SPDX-License-Identifier: BSD-4-Clause
"""The bridge between two terminals: keys that leave, and a whole run on real pseudo-terminals, without Podman."""

import os
import re
import signal
import sys
import textwrap

import pytest
from support.terminal import terminal

from asf_cli import bridge
from asf_cli.bridge import Keys

CTRL = b"\x1d"


@pytest.mark.parametrize(
    ("pieces", "passed", "leaves"),
    [
        ([b"abc"], b"abc", False),
        ([CTRL + CTRL], b"", True),
        ([CTRL, CTRL], b"", True),
        ([b"x" + CTRL, CTRL + b"y"], b"x", True),
        ([CTRL + b"a" + CTRL], CTRL + b"a", False),  # the last one is kept back
        ([CTRL, b"a", CTRL, b"b"], CTRL + b"a" + CTRL + b"b", False),
        ([b"\x1b[93;5u\x1b[93;5u"], b"", True),  # kitty's keyboard
        ([b"\x1b[93;5u", b"\x1b[93;5:3u", b"\x1b[93;5u"], b"", True),  # with releases
        ([b"\x1b[93;5:1u\x1b[93;5:2u"], b"", True),
        ([b"\x1b[27;5;93~", b"\x1b[27;5;93~"], b"", True),  # xterm's modifyOtherKeys
        ([b"\x1b[93;5u\x1b[A"], b"\x1b[93;5u\x1b[A", False),
        (["é漢".encode()], "é漢".encode(), False),
    ],
)
def test_keys_that_leave(pieces, passed, leaves):
    keys = Keys()
    out, left = b"", False
    for piece in pieces:
        more, left = keys.feed(piece)
        out += more
    assert (out, left) == (passed, leaves)


def test_a_key_that_was_kept_back_is_passed_on_later():
    keys = Keys()
    assert keys.feed(CTRL) == (b"", False) and keys.release() == CTRL and keys.release() == b""


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({}, None),
        ({"LANG": "C"}, None),
        ({"LANG": "C.UTF-8"}, True),
        ({"LANG": "de_DE.utf8"}, True),
        ({"LANG": "C.UTF-8", "LC_ALL": "de_DE.ISO-8859-1"}, False),
        ({"LANG": "de_DE@euro"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, None),  # Python's own doing
        ({"LC_CTYPE": "C.UTF-8", "LANG": "de_DE.ISO-8859-1"}, False),
        ({"LC_CTYPE": "en_GB.UTF-8"}, True),
    ],
)
def test_what_the_locale_says(env, said):
    assert bridge.speaks_utf8(env) is said


#: Runs a program on a bridge as asf-play does; says how it ended.
OUTER = """
import signal, subprocess, sys
from asf_cli import bridge
with bridge.Bridge(signals={{signal.SIGINT: lambda: None}}) as screen:
    child = screen.start([sys.executable, "-c", {inner!r}], {{"PATH": "/usr/bin:/bin"}})
    how = screen.pump(child)
    if how != bridge.ENDED:
        child.kill()
    code = child.wait()
screen.tell()
print("how", how, code, flush=True)
"""
#: What the program does first: its end of the terminal as Podman sets it.
INNER = """
import os, signal, sys, termios, time, tty
tty.setraw(0)
def show(text): os.write(1, text.encode())
def size(): return "%d %d" % os.get_terminal_size(0)[::-1]
"""


def bridged(inner, env=None):
    code = OUTER.format(inner=INNER + textwrap.dedent(inner))
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    return terminal([sys.executable, "-c", code], {**path, **(env or {})})


def test_output_keys_size_and_end():
    program = """
        signal.signal(signal.SIGWINCH, lambda *_: show("<" + size() + ">"))
        show("ready " + size() + "\\r\\n")
        show("\\x1b]52;c;eA==\\x07\\x1b]2;title\\x07\\x1b[31mred\\x1b[0m ")
        while (key := os.read(0, 100)) != b"q":
            show("[" + key.hex() + "]")
        sys.exit(5)
    """
    with bridged(program) as user:
        at = user.expect("ready 40 120\nred ")
        user.type("é漢\x03\x1a")
        at = user.expect("é漢\x03\x1a".encode().hex() + r"\]", since=at)
        user.resize(77, 33)
        at = user.expect("<33 77>", since=at)
        user.type("q")
        assert user.wait() == 0
        assert "clipboard requests of the sandbox kept back: 1" in user.text and "how ended 5" in user.text
    assert b"]52" not in user.raw and b"title" not in user.raw


def test_a_large_output_arrives_whole_and_in_order():
    program = """
        data = b"".join(b"%08d\\r\\n" % number for number in range(100_000))
        while data:
            data = data[os.write(1, data):]
    """
    with bridged(program) as user:
        assert user.wait(120) == 0
    numbers = re.findall(rb"^(\d{8})\r$", user.raw, re.MULTILINE)
    assert numbers == [b"%08d" % number for number in range(100_000)]


def test_a_flood_does_not_hold_up_keys():
    program = """
        import threading
        threading.Thread(target=lambda: (os.read(0, 1), os._exit(3))).start()
        while True:
            os.write(1, b"flood\\r\\n" * 1000)
    """
    with bridged(program) as user:
        user.expect("flood")
        user.type("x")
        assert user.wait(60) == 0 and "how ended 3" in user.text


def test_keys_that_are_not_read_hold_up_nothing():
    """More is pasted than any buffer takes; output goes on, and the user can leave."""
    program = """
        show("ready")
        while True:
            time.sleep(0.05)
            show(".")
    """
    with bridged(program) as user:
        at = user.expect("ready")
        for _ in range(20):
            user.type("x" * 4000)
        at = user.expect(r"\.{5}", since=at)
        user.type("\x1d\x1d")
        user.expect("how detached", since=at)
        assert user.wait() == 0


@pytest.mark.parametrize(("number", "how"), [(signal.SIGHUP, "hangup"), (signal.SIGTERM, "terminated")])
def test_signals_leave(number, how):
    with bridged("show('\\x1b[?1049h\\x1b[?1003hready'); time.sleep(600)") as user:
        user.expect("ready")
        os.kill(user.process.pid, number)
        user.expect(f"how {how} -9")
        assert user.wait() == 0
    assert (b"\x1b[?1049l" in user.raw) is (how == "terminated")


def test_stopped_and_continued():
    """Whoever stopped it has set the terminal's modes: they are raw again, and the size may be another."""
    program = """
        signal.signal(signal.SIGWINCH, lambda *_: show("<" + size() + ">"))
        show("ready")
        while True:
            show("[" + os.read(0, 100).hex() + "]")
    """
    import termios

    with bridged(program) as user:
        at = user.expect("ready")
        pid = user.process.pid
        os.kill(pid, signal.SIGSTOP)
        modes = termios.tcgetattr(user.handle)
        modes[3] |= termios.ICANON | termios.ECHO | termios.ISIG
        termios.tcsetattr(user.handle, termios.TCSANOW, modes)
        user.resize(50, 20)
        os.kill(pid, signal.SIGCONT)
        at = user.expect("<20 50>", since=at)
        user.type("\x03")
        user.expect(r"\[03\]", since=at)
        os.kill(pid, signal.SIGTERM)
        assert user.wait() == 0


def test_its_death_hangs_the_program_up(tmp_path):
    """SIGKILL: nothing can be done any more, and the kernel does it."""
    mark = tmp_path / "mark"
    program = f"""
        signal.signal(signal.SIGHUP, lambda *_: (open({str(mark)!r}, "w").write("hung up"), sys.exit()))
        show("ready")
        time.sleep(600)
    """
    from support.waiting import wait_for

    with bridged(program) as user:
        user.expect("ready")
        os.kill(user.process.pid, signal.SIGKILL)
        wait_for(mark.exists, 20)


def test_a_terminal_in_another_encoding():
    with bridged("show('aÛ漢\\r\\n')", {"LANG": "de_DE.ISO-8859-1"}) as user:
        user.expect(r"a\?\?")
        assert user.wait() == 0
    assert b"\x9b" not in user.raw


def test_a_terminal_of_unknown_encoding_is_told():
    with bridged("show('aÛ漢\\r\\n')", {"LANG": "C"}) as user:
        user.expect("aÛ漢")
        assert user.wait() == 0
    assert b"\x1b%G" in user.raw


def test_what_is_done_soon_is_repeated_until_the_program_says_something(monkeypatch):
    """Two by two: what is made smaller is always made whole again."""
    monkeypatch.setattr(bridge.sys, "stdin", sys.__stdin__)
    done = []
    for heard_after, expected in ((0, "w"), (1, "w"), (2, "wsw"), (3, "wsw"), (9, "wswsw")):
        found = bridge.Bridge(True)
        done.clear()
        found._soon = [lambda what=what: done.append(what) for what in "wswsw"]
        for now in range(10):
            found._heard = found._heard or now >= heard_after
            found._overdue(float(now * 1000))
        assert "".join(done) == expected and found._soon == []
    found = bridge.Bridge(True)
    done.clear()
    found._soon, found._pause, found._due = [lambda what=what: done.append(what) for what in "wsw"], 0.2, 100.0
    for now in (100.0, 101.0, 101.1):
        found._overdue(now)
    found._hear()  # while it is smaller: whole again at once
    found._overdue(101.2)
    assert "".join(done) == "wsw" and found._soon == []
