# SPDX-License-Identifier: BSD-4-Clause
"""Writing secrets files (S1, S2), what is said about keys without showing them (S4), and no core dumps."""

from __future__ import annotations

import base64
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from asf_lib.core import providers, secretfile
from asf_lib.core.errors import SecretError
from asf_lib.engine import hidden, secretstore
from asf_lib.engine.home import Home

CANARY = "sk-CANARY-0123456789"
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", b"K=%s\n"),
        (b"# note\nA=1\n", b"# note\nA=1\nK=%s\n"),
        (b"A=1", b"A=1\nK=%s\n"),
        (b"A=1\r\n", b"A=1\r\nK=%s\r\n"),
        (b"\xef\xbb\xbfK=old\nB=2 \n", b"\xef\xbb\xbfK=%s\nB=2 \n"),
        (b"# x\r\nexport K='old'\r\n\r\nB=2\r\n", b"# x\r\nK=%s\r\n\r\nB=2\r\n"),
        (b"K=old", b"K=%s"),
    ],
)
def test_s1_other_lines_stay(before: bytes, after: bytes) -> None:
    assert secretfile.with_value(before, "a.env", "K", CANARY) == after % CANARY.encode()


@pytest.mark.parametrize("value", ["a", "a b", "a$b`c\\d", "it's", "a#b=c", '"q"', "~*!"])
def test_s1_what_is_written_is_what_is_read(value: str) -> None:
    data = secretfile.with_value(b"A=1\n", "a.env", "K", value)
    assert {one.name: one.value for one in secretfile.parse(data, "a.env")} == {"A": "1", "K": value}


@pytest.mark.parametrize(
    "value",
    ["", *(one.replace("a", CANARY) for one in ("a\nb", "a\r", "a\x00b", " a", "a ", "a\u200bb", "a\x1bb", "a'$"))],
)
def test_s2_values_that_cannot_be_a_key(value: str) -> None:
    with pytest.raises(SecretError) as caught:
        secretfile.with_value(b"", "a.env", "K", value)
    assert CANARY not in str(caught.value.as_dict()) and caught.value.line is None


def test_a_broken_file_is_not_written_over(tmp_path: Path) -> None:
    home = _home(tmp_path, "K = spaced\n")
    with pytest.raises(SecretError) as caught:
        secretstore.put(home, "a.env", "K", CANARY)
    assert caught.value.problems[0].line == 1
    assert (home.secrets_dir / "a.env").read_text() == "K = spaced\n"


def _home(folder: Path, text: str | None = None, mode: int = 0o600) -> Home:
    home = Home(folder, "ASF_HOME")
    home.secrets_dir.mkdir(mode=0o700)
    if text is not None:
        (home.secrets_dir / "a.env").write_text(text)
        (home.secrets_dir / "a.env").chmod(mode)
    return home


def test_put_makes_a_private_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    home = Home(tmp_path, "ASF_HOME")
    old = os.umask(0)
    try:
        path = secretstore.put(home, "a.env", "K", CANARY)
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o7777 == 0o600 and home.secrets_dir.stat().st_mode & 0o7777 == 0o700
    secretstore.put(home, "a.env", "L", "2")
    assert os.listdir(home.secrets_dir) == ["a.env"] and path.read_text() == f"K={CANARY}\nL=2\n"


def test_a_file_that_others_may_read_is_refused_with_the_command(tmp_path: Path) -> None:
    home = _home(tmp_path, "K=1\n", 0o640)
    with pytest.raises(SecretError) as caught:
        secretstore.put(home, "a.env", "K", CANARY)
    assert caught.value.remedy == f"chmod 600 {home.secrets_dir}/a.env"


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    home = _home(tmp_path)
    (tmp_path / "elsewhere").write_text("A=1\n")
    (home.secrets_dir / "a.env").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecretError):
        secretstore.put(home, "a.env", "K", CANARY)
    assert (tmp_path / "elsewhere").read_text() == "A=1\n"


@pytest.mark.parametrize("word", ["../a", "a/b", "", "-x", ".hidden"])
def test_names_of_files(word: str) -> None:
    assert secretstore.file_name("claude") == secretstore.file_name("claude.env") == "claude.env"
    with pytest.raises(SecretError):
        secretstore.file_name(word)


def test_what_looks_wrong_about_a_key() -> None:
    assert providers.doubt("anthropic", "sk-ant-api03-x") is None and providers.doubt("nobody", "x") is None
    assert "begins with" in (providers.doubt("anthropic", "sk-x") or "")
    assert "expires" in (providers.doubt("anthropic", "sk-ant-oat01-x") or "")
    assert all(CANARY not in (providers.doubt(name, CANARY) or "") for name in providers.DOMAINS)
    assert set(providers.KEY_PREFIXES) <= set(providers.DOMAINS)


def _token(**claims: object) -> str:
    """A JSON web token of these claims."""
    parts = ({"alg": "none"}, claims, {"x": CANARY})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


@pytest.mark.parametrize(
    ("key", "moment"),
    [
        (_token(exp=1_000_000_000), 1_000_000_000),
        (_token(exp=1_000_000_000.5), 1_000_000_000.5),
        (json.dumps({"claudeAiOauth": {"accessToken": "x", "expiresAt": 1_000_000_000_000}}), 1_000_000_000),
        (json.dumps({"tokens": {"id_token": "x", "access_token": _token(exp=5)}}), 5),
        (_token(sub="me"), None),
        (_token(exp="soon"), None),
        (_token(exp=True), None),
        ("eyJ.%%%.x", None),
        ("eyJhbGciOiJub25lIn0.bm8gSlNPTg.x", None),
        ("{" * 5000, None),
        ("[" * 100_000, None),
        ("sk-ant-api03-x", None),
    ],
)
def test_when_a_token_ends_by_its_own_word(key: str, moment: float | None) -> None:
    assert providers.ends(key) == moment


def test_no_core_dump_of_the_process_or_of_a_child() -> None:
    """Dumpable is 0, so the kernel writes no core whatever the pattern; of a child, the limit keeps it."""
    program = """
import ctypes, resource, asf_cli
from asf_lib.engine import hidden
hidden.undumped()
print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), resource.getrlimit(resource.RLIMIT_CORE)[0])
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert run.stdout.split() == ["0", "0"], run.stderr


def test_children_of_a_coreless_block() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    show = [sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"]
    with hidden.coreless():
        assert subprocess.run(show, capture_output=True, text=True).stdout.strip() == "0"
    assert resource.getrlimit(resource.RLIMIT_CORE) == before
