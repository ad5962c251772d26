# SPDX-License-Identifier: BSD-4-Clause
"""The terminal's filter: what passes, what does not, and that neither depends on how the output is cut."""

import random
import re

import pytest

from asf_cli.termfilter import LIMIT, MODES, UTF8, Filter

ESC, CSI, OSC, ST, BEL = b"\x1b", b"\x1b[", b"\x1b]", b"\x1b\\", b"\x07"


def shown(data, size=None, **options):
    """What passes of the data, given in pieces of a size."""
    made = Filter(**options)
    size = size or len(data) or 1
    return b"".join(made.feed(data[at : at + size]) for at in range(0, len(data), size))


def marked(data):
    """What passes between two marks: the second shows that nothing behind was swallowed."""
    found = shown(b"<" + data + b">")
    assert found.startswith(b"<") and found.endswith(b">"), found
    return found[1:-1]


PASSES = {
    "text": b"plain text, \t tabs\r\n and bells\x07\b",
    "utf-8": "é ß 漢字 \u202f 😀 👩‍👩‍👧 À Û Ý ﷽ \U0010ffff".encode(),
    "colours": b"\x1b[0m\x1b[1;38;5;200m\x1b[38:2::1:2:3m\x1b[m\x1b[4:3m\x1b[58:5:1m",
    "cursor": b"\x1b[H\x1b[2;3H\x1b[10A\x1b[K\x1b[2J\x1b[3J\x1b[5;10r\x1b[s\x1b[u\x1b7\x1b8\x1bM\x1bD\x1bE",
    "edit": b"\x1b[4h\x1b[4l\x1b[2@\x1b[3P\x1b[L\x1b[M\x1b[X\x1b[5b\x1b[2S\x1b[2T",
    "screen": b"\x1b[?1049h\x1b[?25l\x1b[?1;7h\x1b[?12l\x1b[?25h\x1b[?1049l\x1b[!p",
    "mouse": b"\x1b[?1000h\x1b[?1002h\x1b[?1003h\x1b[?1006h\x1b[?1004h\x1b[?1000;1002;1003;1006;1004l",
    "paste and the like": b"\x1b[?2004h\x1b[?2026h\x1b[?2026l\x1b[?2031h\x1b[?2048h\x1b[?2004l",
    "keyboard": b"\x1b[>1u\x1b[=5;1u\x1b[<u\x1b[>4;2m\x1b[>4m\x1b=\x1b>",
    "shape": b"\x1b[2 q\x1b[ q\x1b[?0c",
    "line drawing": b"\x1b(0lqk\x1b(B\x0elqk\x0f",
    "identity": b"\x1b[c\x1b[0c\x1b[>c\x1b[>0c\x1b[=c\x1b[>q\x1b[>0q",
    "place": b"\x1b[6n\x1b[5n\x1b[?6n\x1b[?996n",
    "modes": b"\x1b[?2026$p\x1b[4$p\x1b[?u\x1b[?4m",
    "sizes": b"\x1b[14t\x1b[16t\x1b[18t",
    "colours of the terminal": b"\x1b]10;?\x07\x1b]11;?\x1b\\\x1b]12;?\x07\x1b]4;255;?\x1b\\",
}

DROPPED = {
    "clipboard": b"\x1b]52;c;c2VjcmV0\x07",
    "clipboard, ST": b"\x1b]52;c;c2VjcmV0\x1b\\",
    "clipboard asked": b"\x1b]52;c;?\x07",
    "clipboard, long": b"\x1b]52;c;" + b"A" * 100_000 + b"\x07",
    "clipboard of kitty": b"\x1b]5522;type=read\x1b\\",
    "titles": b"\x1b]0;t\x07\x1b]1;t\x1b\\\x1b]2;t\x07\x1b]l t\x07\x1bk t\x1b\\",
    "title, not ASCII": "\x1b]0;✳ Ü\x07".encode(),
    "title asked": b"\x1b[21t\x1b[20t\x1b[22;0;0t\x1b[23;0;0t",
    "window": b"\x1b[8;10;10t\x1b[3;0;0t\x1b[2t\x1b[5t\x1b[9;1t\x1b[t\x1b[11t\x1b[13t\x1b[19t\x1b[24t",
    "hyperlink": b"\x1b]8;;file:///etc/passwd\x1b\\\x1b]8;;\x1b\\",
    "folder": b"\x1b]7;file://host/tmp\x07",
    "notifications": b"\x1b]9;hello\x07\x1b]777;notify;a;b\x07\x1b]99;i=1;x\x1b\\\x1b]9;4;1;50\x07",
    "files": b"\x1b]1337;File=inline=0:AAAA\x07\x1b]5113;ac=send\x1b\\",
    "shell marks": b"\x1b]133;A\x07\x1b]633;E;id\x07",
    "colours set": b"\x1b]10;#ffffff\x07\x1b]11;#ffffff\x07\x1b]4;1;#ff0000\x07\x1b]104\x07\x1b]4;1;?;2;red\x07",
    "font": b"\x1b]50;?\x07\x1b]60\x07\x1b]46;/tmp/log\x07",
    "palette of Linux": b"\x1b]R\x1b]P0aabbcc",
    "DECRQSS": b"\x1bP$qm\x1b\\",
    "XTGETTCAP": b"\x1bP+q4d73\x1b\\",
    "keys": b"\x1bP0;1|17/6c73\x1b\\",
    "sixel": b"\x1bPq#0;2;0;0;0~~\x07~~\x1b\\",
    "tmux": b"\x1bPtmux;\x1b\x1b]52;c;c2VjcmV0\x07\x1b\\",
    "screen": b"\x1bP\x1b]52;c;c2VjcmV0\x07\x1b\\",
    "APC, PM, SOS": b"\x1b_Gf=100;AAAA\x1b\\\x1b^x\x1b\\\x1bXx\x1b\\",
    "checksum of the screen": b"\x1b[1;1;1;1;24;80*y\x1b[?63n\x1b[1*x",
    "printer": b"\x1b[5i\x1b[4i\x1b[?5i\x1b[?15n\x1b[0i",
    "answerback": b"\x05",
    "8-bit answers": b'\x1b G\x1b F\x1b[62;0"p\x1b[64"p',
    "other encodings": b"\x1b%@\x1b%G\x1b%/G",
    "keyboard lock": b"\x1b[2h\x1b[12h\x1b[20h\x1b[?8l",
    "highlight": b"\x1b[?1001h\x1b[1;2;3;4;5T",
    "other modes": b"\x1b[?3h\x1b[?40h\x1b[?80h\x1b[?1034h\x1b[?1042;1043h\x1b[?9001h\x1b[?5522h\x1b[?1049s\x1b[?1049r",
    "rectangles": b"\x1b[1;1;2;2$z\x1b[65;1;1;9;9$x\x1b[1$}\x1b['z",
    "memory": b"\x1bl\x1bm\x1bn\x1bo\x1b|\x1bZ\x1b\\\x1b#8",
    "large numbers": b"\x1b[4294967295b\x1b[999999A\x1b[1;999999999H",
    "many numbers": b"\x1b[" + b"1;" * 40 + b"m",
    "Linux's own": b"\x1b[9;0]\x1b[[A"[:-1],
    "NUL and the like": b"\x00\x01\x04\x10\x11\x13\x16\x1c\x1f\x7f",
}


@pytest.mark.parametrize("data", PASSES.values(), ids=PASSES)
def test_passes_as_it_is(data):
    assert marked(data) == data


@pytest.mark.parametrize("data", DROPPED.values(), ids=DROPPED)
def test_is_dropped_whole(data):
    assert marked(data) == b""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x1b[?1049;8;2004h", b"\x1b[?1049;2004h"),  # a list loses what is not allowed
        (b"\x1bc", b"\x1bc" + UTF8),  # a reset may choose another encoding
        (b"\x9d52;c;c2VjcmV0\x07", b"52;c;c2VjcmV0\x07"),  # C1: no introducer, so what follows is text
        (b"\x9b31mx\x90q\x9c", b"31mxq"),
        ("\x9d52;c;eA==\x9c\x9b21t".encode(), b"52;c;eA==21t"),
        (b"\xff\xfe\xc0\x9b\xe0\x82\x9b\xf8x", "\ufffd\ufffd\ufffd\ufffd\ufffdx".encode()),  # overlong forms hide a C1
        (b"\xed\xa0\x80", "\ufffd\ufffd".encode()),  # a surrogate: its last byte alone is a C1
        (b"\xc3\x1b[m", "\ufffd\x1b[m".encode()),  # a character that was cut
        (b"\x1b[3\n1m", b"\n1m"),  # a control ends a sequence
        (b"\x1b[31\xc3\xa9m", "ém".encode()),
        (b"\x1b[31\x1b[32m", b"\x1b[32m"),
        (b"\x1b]0;title\x1b[31mred", b"\x1b[31mred"),  # a string that is never ended
        (b"\x1bPq\x18text", b"text"),
        (b"\x1b]0;t\x1atext", b"text"),
        (b"\x1b\x1b\x1b[m", b"\x1b[m"),
        (b"\x1b]P12x", b"x"),
        (b"\x1b" + b"(" * 10 + b"B", b"((((((B"),
    ],
)
def test_becomes(data, expected):
    assert marked(data) == expected


@pytest.mark.parametrize(
    "data", [*PASSES.values(), *DROPPED.values(), b"\x1b[" + b"1" * 300 + b"m\x1b]4;" + b"1" * 300]
)
def test_cut_anywhere(data):
    data = data[:700]
    whole = shown(data)
    for at in range(1, len(data)):
        made = Filter()
        assert made.feed(data[:at]) + made.feed(data[at:]) == whole, at
    assert shown(data, 1) == whole


#: Pieces that random output is made of: what attacks are written in, and what they hide behind.
_PIECES = [
    *PASSES.values(),
    *(one[:300] for one in DROPPED.values()),
    *(bytes([one]) for one in range(256)),
    *(b"\x1b" + bytes([one]) for one in range(256)),
    *(b"\x1b[" + bytes([one]) for one in range(32, 127)),
    b"\x1b]", b"\x1bP", b"\x1bPtmux;", b"\x1b_", b"\x1b^", b"\x1bX", b"\x1bk", b"52;c;", b"?", b";", b"0", b"$", b" ",
    b"21t", b"\xc2", b"\xe2\x9b", b"\xf0\x9f", "\x9b".encode(), "\x9d".encode(), "✜".encode(), b"A" * 300,
    b"1;" * 140,
]  # fmt: skip

#: What a terminal obeys, as any of them might read it: written apart from the filter's own tables.
_SEQUENCE = re.compile(
    rb"\x1b(?:\[(?P<csi>[0-?]*[ -/]*[@-~])|(?P<osc>\][^\x07\x1b]*(?:\x07|\x1b\\))|(?P<other>[ -/]*[0-Z=>a-jl-~]))"
)
_HARMLESS_CSI = re.compile(
    rb"[0-9:;]*[@A-MPSXZ`abd-gmrsu]|[0-9]*T|\?(?:[0-9]+;)*[0-9]+[hl]|\?[0-9]*[JK]|\?[0-9;]*c|(?:4|34)[hl]|[0-9]* q|!p"
    rb"|>[0-9;]*m|>[0-9]*n|[<>][0-9]*u|=[0-9;]*u|[>=]?[0-9]*c|[56]n|\?(?:6|996)n|\??[0-9]*\$p|>0?q|\?u|\?[0-9]m|1[468]t"
)
_HARMLESS_OSC = re.compile(rb"\](?:1[012];\?|4;[0-9]{1,3};\?)(?:\x07|\x1b\\)")
_HARMLESS_OTHER = re.compile(rb"[78DEHM=>c]|[()][0AB]|%G")


def harmless(data):
    """Fail unless a terminal finds nothing but text and harmless sequences in the data."""
    text = data.decode("utf-8")  # strict: no byte can be taken for a control of another encoding
    assert not re.search("[\x00-\x06\x10-\x1a\x1c-\x1f\x7f-\x9f]", text), data
    at = 0
    while (at := data.find(ESC, at)) >= 0:
        found = _SEQUENCE.match(data, at)
        assert found, data[at : at + 80]
        if found["csi"] is not None:
            assert _HARMLESS_CSI.fullmatch(found["csi"]), found
            numbers = re.split(b"[;:]", found["csi"])
            assert len(numbers) <= 33 and not any(re.search(b"[0-9]{6}", one) for one in numbers), found
            modes = re.fullmatch(rb"\?([0-9;]+)[hl]", found["csi"])
            assert not modes or {int(one) for one in modes[1].split(b";")} <= MODES, found
        elif found["osc"] is not None:
            assert _HARMLESS_OSC.fullmatch(found["osc"]), found
        else:
            assert _HARMLESS_OTHER.fullmatch(found["other"]), found
        at = found.end()


@pytest.mark.parametrize("seed", range(40))
def test_nothing_else_survives(seed):
    chosen = random.Random(seed)
    data = b"".join(chosen.choice(_PIECES) for _ in range(400))
    whole = shown(data)
    harmless(whole)
    harmless(whole + Filter().restore())
    for size in (1, 2, 3, 7, 64, chosen.randrange(1, 2000)):
        assert shown(data, size) == whole, size


@pytest.mark.parametrize("seed", range(10))
def test_random_bytes(seed):
    data = random.Random(seed).randbytes(5000)
    harmless(shown(data))
    assert shown(data, 1) == shown(data)


@pytest.mark.parametrize("seed", range(10))
def test_what_passed_once_passes_again(seed):
    chosen = random.Random(seed)
    once = shown(b"".join(chosen.choice(_PIECES) for _ in range(300)))
    assert shown(once).replace(UTF8, b"") == once.replace(UTF8, b"")


def test_the_checker_itself():
    """It finds every sequence of the table of what must not pass."""
    for name, data in DROPPED.items():
        if name == "Linux's own":
            continue
        with pytest.raises(AssertionError):
            harmless(data)


def test_memory_is_bounded():
    made = Filter()
    for start in (b"\x1b[", b"\x1b]4;", b"\x1bP", b"\x1b]52;c;", b"\x1b(", b"\xf0"):
        made.feed(start)
        for _ in range(20):
            made.feed(b"1" * 50_000)
            assert len(made._rest) <= LIMIT + 8
        made.feed(b"\x18")
    assert made.feed(b"still there") == b"still there"


def test_a_terminal_that_speaks_no_utf8():
    """There the second byte of a letter is a C1 control: À ends in 80, Û in 9B, Ý in 9D."""
    found = shown("aÀÛÝ漢\x1b[31m😀".encode() + b"\xff", ascii_only=True)
    assert found == b"a????\x1b[31m??"


def test_attempts_to_reach_the_clipboard_are_counted():
    made = Filter()
    made.feed(DROPPED["clipboard"] + DROPPED["clipboard, long"] + DROPPED["titles"] + DROPPED["tmux"])
    assert made.clipboard == 3


def test_questions_are_remembered():
    made = Filter()
    made.feed(b"\x1b[31mtext" + DROPPED["title asked"])
    assert not made.asked
    made.feed(b"\x1b]11;?\x07")
    assert made.asked


@pytest.mark.parametrize(
    ("data", "wanted", "unwanted"),
    [
        (b"text\r\n", [], [b"\x1b"]),
        (b"\x1b[31mred", [b"\x1b[0m"], [b"\x1b[?"]),
        (b"\x1b[?1049h\x1b[?1003;1006h", [b"\x1b[?1049l", b"\x1b[?1003l", b"\x1b[?1006l"], []),
        (b"\x1b[?1049h\x1b[?1049l\x1b[?2004h\x1b[?2004l", [], [b"\x1b[?1049l", b"\x1b[?2004l"]),
        (b"\x1b[?25l\x1b[?7l", [b"\x1b[?25h", b"\x1b[?7h"], []),
        (b"\x1b[?25l\x1b[?25h", [], [b"\x1b[?25"]),
        (b"\x1b[?1h\x1b=\x1b[5 q\x1b[2;5r", [b"\x1b[?1l", b"\x1b>", b"\x1b[0 q", b"\x1b[r"], []),
        (b"\x1b[>1u\x1b[>4;2m", [b"\x1b[<99u", b"\x1b[>4m"], []),
        (b"\x1b[?1049h\x1b[>1u\x1bc", [b"\x1b[0m"], [b"\x1b[?1049l", b"\x1b[<99u"]),
    ],
)  # fmt: skip
def test_the_terminal_is_put_back(data, wanted, unwanted):
    made = Filter()
    made.feed(data)
    found = made.restore()
    assert all(one in found for one in wanted) and not any(one in found for one in unwanted), found
    if found:
        harmless(found)
