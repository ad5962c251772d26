# SPDX-License-Identifier: BSD-4-Clause
"""Terminals that come and go, in tmux: size, keys, what is filtered, what is lost and found again (L5)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.product import Home, Session, SessionFactory, asf_play
from support.terminal import Pane, pane
from support.waiting import wait_for

from asf_lib.core import workload
from asf_lib.engine import procs

pytestmark = [pytest.mark.podman, pytest.mark.slow]

AGENT: dict[str, Any] = {
    "adapter": "generic",
    "network": {"allow_domains": [{"name": "docs.example.com", "private": ["198.51.100.0/24"]}]},
}
#: Runs in the sandbox: asks the terminal its words, and prints what came before the answer to a last question.
ASK = r"""
import os, sys, termios, tty
before = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, sys.argv[1].encode().decode("unicode_escape").encode("latin-1") + b"\033[5n")
said = b""
while not said.endswith(b"\033[0n"):
    said += os.read(0, 1000)
termios.tcsetattr(0, termios.TCSANOW, before)
print("answer", said[:-4])
"""
#: The prompt of a shell in the sandbox, with nothing typed behind it.
PROMPT = r"^node@[^\n]*\$$"
HOST = r"^host>$"


@pytest.fixture(scope="module")
def live(module_home: Home, module_session: SessionFactory) -> Session:
    """A session whose workload is a shell that nobody is attached to."""
    module_home.agent("term", AGENT)
    session = module_session.open("term")
    assert session.exec("tee", "/tmp/ask.py", stdin=ASK).rc == 0
    return session


@pytest.fixture
def user(module_home: Home) -> Iterator[Pane]:
    """A terminal in which a shell of the host runs."""
    with pane([], {**module_home.env, "PS1": "host> "}) as found:
        found.expect(HOST)
        yield found


def enter(user: Pane, *words: str, told: str = "") -> None:
    """Type a line of asf-play, wait for what it says and for the prompt in the sandbox."""
    user.type(" ".join(["asf-play", *words]) + "\n")
    if told:
        user.expect(told)
    user.expect(PROMPT)


def leave(user: Pane) -> None:
    """Press the keys that leave."""
    user.keys("C-]", "C-]")
    user.expect(HOST)


def run(user: Pane, line: str, expected: str) -> re.Match[str]:
    """A line in the sandbox, on an empty screen; what it prints."""
    user.clear()
    user.type(line + "\n")
    return user.expect(expected)


WAYS = {"workload": [], "new shell": ["--new"], "exec -t": None}


@pytest.fixture(params=WAYS.values(), ids=WAYS)
def inside(request: pytest.FixtureRequest, user: Pane, live: Session) -> Iterator[Pane]:
    """The three ways to a shell in the sandbox."""
    if request.param is None:
        enter(user, "exec", live.id, "-t", "--", "bash", "-l")
    else:
        enter(user, "shell", live.id, *request.param)
    yield user
    leave(user)


# --- a terminal as any other ------------------------------------------------------------------------------------------


def test_size_follows(inside: Pane) -> None:
    until = "while test \"$(stty size)\" != '40 120'; do sleep 0.1; done"  # a workload that ran before is made to paint
    run(inside, f"{until}; stty size", "^40 120$")
    inside.resize(77, 22)
    run(inside, "stty size", "^22 77$")
    run(inside, """sh -c 'trap "stty size" WINCH; echo be""gun; while :; do sleep 0.1; done'""", "^begun$")
    inside.resize(100, 30)
    inside.expect("^30 100$")
    inside.keys("C-c")
    inside.expect(PROMPT)


def test_interrupt_and_stop_are_keys(inside: Pane) -> None:
    """Ctrl-C ends what is in the foreground and nothing else; Ctrl-Z stops it; jobs and fg are the shell's."""
    run(inside, "sleep 500 & sleep 600", "sleep 600$")
    inside.keys("C-c")
    run(inside, "echo code $?; jobs", r"^code 130\n\[1\]\+? +Running +sleep 500")
    run(inside, "sleep 700", "sleep 700$")
    inside.keys("C-z")
    inside.expect(r"Stopped +sleep 700")
    run(inside, "fg", r"^sleep 700$")
    inside.keys("C-c")
    run(inside, "echo code $?; kill %1; wait; echo over", r"^code 130\n(?s:.*)^over$")
    run(inside, "cat", "cat$")
    inside.keys("C-d")
    run(inside, "echo code $?", "^code 0$")


def test_letters(inside: Pane) -> None:
    """Typed, echoed and printed, in one piece and in pieces."""
    run(inside, "echo é漢字😀 | od -An -c | head -3; echo é漢字😀 ß", "^é漢字😀 ß$")
    whole = "é漢😀".encode()
    parts = "; ".join(f"printf '\\x{byte:02x}'; sleep 0.03" for byte in whole)
    run(inside, f"{parts}; echo", "^é漢😀$")


def test_terminal_type(inside: Pane) -> None:
    """The user's own, as tmux sets it; colours too."""
    run(inside, "echo $TERM; tput colors 2>/dev/null || infocmp -1 | grep colors", r"^(tmux|xterm)-256color$")


def test_every_type_that_passes_is_known_in_the_image(live: Session) -> None:
    done = live.exec("find", "/lib/terminfo", "/usr/share/terminfo", "-type", "f,l", "-printf", "%f\n")
    assert done.rc in (0, 1) and set(done.out.split()) >= workload._TERMS, done


def test_a_paste_is_not_held_up_by_its_size(inside: Pane, tmp_path: Path) -> None:
    run(inside, "stty -echo; head -c 200000 | wc -c; stty echo", "echo$")
    (tmp_path / "text").write_text(("y" * 999 + "\n") * 200)
    inside.tmux("load-buffer", str(tmp_path / "text"))
    inside.tmux("paste-buffer", "-r")
    inside.expect("^200000$", 60)


def test_a_flood_can_be_interrupted(inside: Pane) -> None:
    run(inside, "yes flooding", "^flooding$")
    inside.keys("C-c")
    inside.expect(PROMPT)
    run(inside, "echo code $?", "^code 130$")


# --- what is filtered -------------------------------------------------------------------------------------------------

CLIPBOARD = r"printf '\033]52;c;aGVsbG8=\007'"
ATTEMPTS = [
    CLIPBOARD,
    r"printf '\033]2;evil title\007\033]0;evil title\033\\'",
    r"printf '\033Ptmux;\033\033]52;c;aGVsbG8=\007\033\\'",
    r"printf '\302\23552;c;aGVsbG8=\007\23552;c;aGVsbG8=\234'",
    r"printf '\033kevil title\033\\'",
]


def test_clipboard_and_title_stay_the_users(inside: Pane) -> None:
    title = inside.ask("pane_title")
    for attempt in ATTEMPTS:
        run(inside, f"{attempt}; echo do''ne", "^(|.*[^'])done$")
    assert inside.clipboard() == "" and inside.ask("pane_title") == title and "evil" not in inside.ask("window_name")


def test_a_title_cannot_be_read_back(inside: Pane) -> None:
    """CSI 21 t has the terminal type its title: nothing comes. A question that is allowed is answered."""
    for words in (r"\033[21t\033[20t", r"\033P$qm\033\\", r"\033]52;c;?\007", r"\033[1;1;1;1;5;5*y", r"\005"):
        run(inside, f"python3 /tmp/ask.py '{words}'", r"^answer b''$")
    run(inside, r"python3 /tmp/ask.py '\033[c'", r"^answer b'\\x1b\[\?[0-9;]+c'$")
    run(inside, r"python3 /tmp/ask.py '\033[3;7H\033[6n'", r"answer b'\\x1b\[3;7R'$")


@pytest.mark.parametrize("own", ["-t", ""])
def test_the_user_is_told_of_the_clipboard_and_may_allow_it(user: Pane, live: Session, own: str) -> None:
    """`--raw-terminal` is the positive control of the tests above: this terminal has a clipboard and a title.

    Without `-t` the command has no terminal, but what it writes ends on the user's.
    """
    line = rf"{CLIPBOARD}; printf '\033]2;my title\007'"
    user.type(f'asf-play exec {live.id} {own} -- bash -c "{line}"\n')
    user.expect(f"clipboard requests of the sandbox kept back: 1(?s:.*){HOST}")
    assert user.clipboard() == "" and user.ask("pane_title") != "my title"
    user.type(f"asf-play exec {live.id} {own} --raw-terminal -- bash -c \"{line}; echo do''ne\"\n")
    user.expect("^done$")
    wait_for(lambda: user.clipboard() == "hello" and user.ask("pane_title") == "my title", 60)


@pytest.mark.parametrize("how", ["ends", "left", "lost"])
def test_the_terminal_is_put_back(user: Pane, live: Session, how: str) -> None:
    """A program that leaves everything on: alternate screen, mouse, no cursor, keypad, paste marks, raw mode."""
    user.type("stty -a | md5sum > /tmp/before.$$; echo me''rk\n")
    user.expect("^merk$")
    modes = r"\033[?1049h\033[?1003h\033[?1006h\033[?25l\033[?1h\033=\033[?2004h\033[5;9r\033[31mup"
    after = {"ends": "exit 4", "left": "sleep 600", "lost": "sleep 600"}[how]
    user.type(f"asf-play exec {live.id} -t -- bash -c \"printf '{modes}'; {after}\"\n")
    if how != "ends":
        user.expect("^up")
        assert user.ask("alternate_on") == user.ask("mouse_any_flag") == "1" and user.ask("cursor_flag") == "0"
        if how == "left":
            user.keys("C-]", "C-]")
        else:
            os.kill(child(user.pid()), signal.SIGTERM)
    user.expect(HOST)
    user.type("echo code $?; stty -a | md5sum | cmp - /tmp/before.$$ && echo sa''me; rm /tmp/before.$$\n")
    user.expect(f"^code {dict(ends=4, left=0, lost=143)[how]}\nsame$")
    flags = ("alternate_on", "mouse_any_flag", "keypad_cursor_flag", "keypad_flag", "scroll_region_upper")
    assert [user.ask(one) for one in flags] == ["0"] * 5
    assert user.ask("cursor_flag") == "1" and user.ask("scroll_region_lower") == "39"


def test_answers_do_not_become_the_hosts_input(user: Pane, live: Session) -> None:
    """Questions right before the end: the answers are waited for and thrown away."""
    user.type(f"asf-play exec {live.id} -t -- bash -c \"printf '\\033[c\\033[6n\\033]11;?\\007\\033[>q'\"\n")
    user.expect(rf"(?s:.*)asf-play exec(?s:.*){HOST}")
    user.type("echo cle''an\n")
    user.expect("^host> echo cle''an\nclean$")


def test_less(inside: Pane) -> None:
    """A full-screen program of every image: alternate screen, scrolling, and back."""
    run(inside, "seq 1 500 > /tmp/numbers; less /tmp/numbers", r"^1\n2\n(?s:.*)/tmp/numbers$")
    assert inside.ask("alternate_on") == "1"
    inside.keys("G")
    inside.expect(r"^500\n(?s:.*)END")
    inside.keys("q")
    inside.expect(PROMPT)
    assert inside.ask("alternate_on") == "0"


# --- leaving, losing, coming back -------------------------------------------------------------------------------------


def child(pid: int) -> int:
    """The one child of a shell: the command that it runs."""
    found: list[int] = wait_for(lambda: procs.children(pid), 10, f"a child of {pid}")
    return found[0]


def test_left_and_back(user: Pane, live: Session) -> None:
    enter(user, "shell", live.id, told="back to the workload of session")
    run(user, "kept=there; cd /tmp", PROMPT)
    user.keys("C-]", "C-]")
    user.expect(f"left session {re.escape(live.id)}(?s:.*)asf-play shell {re.escape(live.id)}(?s:.*){HOST}")
    user.clear()
    user.type(f"echo code $?; asf-play shell {live.id}\n")
    user.expect(r"^code 0$")
    user.expect(r"left with Ctrl-\] at 20\d\d-")
    user.expect(PROMPT)  # painted again without a key
    run(user, "echo $kept $PWD", "^there /tmp$")
    leave(user)


@pytest.mark.parametrize("how", ["closed", "hangup", "killed"])
def test_lost_and_back(module_home: Home, user: Pane, live: Session, how: str) -> None:
    """The window is closed, the line hangs up, asf-play is killed: the session stays, both say so, Podman goes (L5)."""
    with pane([], {**module_home.env, "PS1": "host> "}) as other:
        enter(other, "shell", live.id)
        run(other, f"kept={how}", PROMPT)
        pid = child(other.pid())
        wait_for(live.clients, 60)
        if how == "closed":
            other.tmux("kill-server")
        else:
            os.kill(pid, signal.SIGHUP if how == "hangup" else signal.SIGKILL)
        wait_for(lambda: procs.start_time(pid) is None, 60, "asf-play to end")
        if how == "hangup":
            other.expect(f"lost the terminal of session {re.escape(live.id)}: it goes on")
            other.type("echo code $?\n")
            other.expect("code 129")
    wait_for(lambda: not live.clients(), 60, "Podman to end")
    enter(user, "shell", live.id, told=r"its terminal was lost(?s:.*)")
    run(user, "echo $kept", f"^{how}$")
    leave(user)


def test_several_at_once(module_home: Home, user: Pane, live: Session) -> None:
    """The workload's terminal is one user's; others get shells of their own, whose ends end nothing else."""
    enter(user, "shell", live.id, told="back to the workload")
    with pane([], {**module_home.env, "PS1": "host> "}) as one, pane([], {**module_home.env, "PS1": "host> "}) as two:
        enter(one, "shell", live.id, told="a new shell in session")
        enter(two, "shell", live.id, "--new", told="a new shell in session")
        places = {run(which, "tty", "^/dev/pts/[0-9]+$").group() for which in (user, one, two)}
        assert len(places) == 3
        one.type("exit 3\n")
        one.expect(HOST)
        one.type("echo code $?\n")
        one.expect("^code 3$")
        run(user, "echo still here", "^still here$")
        run(two, "echo still here", "^still here$")
        two.type("exit\n")
        two.expect(HOST)
    run(user, "echo still here", "^still here$")
    leave(user)


def test_a_shell_without_its_user_ends(module_home: Home, user: Pane, live: Session) -> None:
    """There is no way back to an additional shell: it is hung up with its terminal, at the latest by the next one."""

    def shells() -> int:
        return live.exec("pgrep", "-c", "-f", "[s]leep 4321").out.strip() == "1"

    for how in (signal.SIGHUP, signal.SIGKILL):
        with pane([], {**module_home.env, "PS1": "host> "}) as other:
            enter(other, "shell", live.id, "--new")
            other.type("sleep 4321\n")
            wait_for(shells, 60)
            os.kill(child(other.pid()), how)
            if how == signal.SIGKILL:
                enter(user, "shell", live.id, "--new")
                user.type("exit\n")
            wait_for(lambda: not shells(), 60, "the shell to end")
    wait_for(lambda: not live.clients(), 60, "Podman to end")


def test_L5_podman_goes_with_asf_play(live: Session) -> None:
    """SIGKILL of `exec` without a terminal: nothing lingers on the host until the session ends."""
    argv = ["asf-play", "exec", live.id, "--", "sleep", "600"]
    with subprocess.Popen(argv, env=live.home.env, stdin=subprocess.DEVNULL) as process:
        wait_for(live.clients, 60)
        process.kill()
    wait_for(lambda: not live.clients(), 60, "Podman to end")


def test_without_a_terminal(live: Session) -> None:
    for words in (["shell", live.id], ["exec", live.id, "-t", "--", "true"]):
        done = asf_play(*words, home=live.home)
        assert done.rc == 64 and "terminal" in done.err, done


# --- a session of one's own -------------------------------------------------------------------------------------------


def test_from_open_to_the_workloads_end(module_home: Home, module_session: SessionFactory, user: Pane) -> None:
    """`open` attaches; asf-play is killed; `shell` returns, and the workload's end closes the session with its code."""
    session = module_session.adopt("term")
    user.type("COLORTERM=truecolor TERM=screen-256color asf-play open.yml " + " ".join(session.selector()) + "\n")
    user.expect("attached; Ctrl-] twice leaves", 240)
    user.expect(PROMPT)
    run(user, "echo $TERM-$COLORTERM; mark=$$; stty size", "^screen-256color-truecolor\n40 120$")
    os.kill(child(user.pid()), signal.SIGKILL)
    user.expect("host>$")
    user.type("stty sane")  # what was killed could not put the terminal back: the enter key is none there
    user.keys("C-j")
    user.clear()
    assert session.owns()
    enter(user, "open.yml", *session.selector(), told="attached")  # another TERM changes no plan
    leave(user)
    enter(user, "shell", session.id, told="back to the workload")
    run(user, "test $mark = $$ && echo sa''me", "^same$")
    user.type("exit 7\n")
    user.expect(rf"head: [0-9a-f]+(?s:.*){HOST}", 120)
    user.type("echo code $?\n")
    user.expect("^code 7$")
    assert not session.owns()


def test_claude_code(module_home: Home, module_session: SessionFactory, user: Pane) -> None:
    """A program of today, with keyboard protocol, questions and links: all of it works through the filter."""
    module_home.agent("term-claude", {"adapter": "claude", "llm": {"mock": "the embedded model speaks"}})
    session = module_session.open("term-claude")
    known = json.dumps(
        {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "projects": {"/workspace/repos": {"hasTrustDialogAccepted": True}},
        }
    )
    assert session.exec("tee", "/home/node/.claude.json", stdin=known).rc == 0
    user.type(f"asf-play exec {session.id} -t -- claude\n")
    user.expect(r"^❯", 90)
    user.type("say somé 漢字")
    user.expect("somé 漢字")
    user.keys("Enter")
    user.expect("the embedded model speaks", 90)
    user.resize(80, 30)
    user.expect("the embedded model speaks")
    user.keys("C-]", "C-]")
    user.expect(HOST)
    assert user.ask("cursor_flag") == "1" and user.ask("alternate_on") == "0"
