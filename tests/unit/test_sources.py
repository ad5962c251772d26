# SPDX-License-Identifier: BSD-4-Clause
"""Sources of keys in config.yml: what may be named, and what each one gives, with the real libraries (S1, S2, S4)."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from asf_cli import environment, paths
from asf_lib.core import settings, sources
from asf_lib.core.errors import ManifestError, SecretError
from asf_lib.core.grants import Grant
from asf_lib.core.sources import Source
from asf_lib.engine import grantfs, home as homes, podman, secretenv, secretsource, yamlload
from asf_lib.engine.home import Home

CANARY = "sk-CANARY-0123456789"
CONFIG = "config.yml"


# --- what may be named ------------------------------------------------------------------------------------------------


def _read(text: str) -> Source:
    tree = yamlload.parse(f"secrets: {{K: {text}}}\n".encode(), CONFIG)
    return settings.validate(tree, CONFIG).sources["K"]


def test_every_kind() -> None:
    assert _read("{command: [/bin/pass, show]}").command == ("/bin/pass", "show")
    assert _read("{env: MY_KEY}").name == "MY_KEY"
    found = _read("{keyring: {service: asf, username: me}}")
    assert (found.service, found.username) == ("asf", "me")
    found = _read("{vault: {file: /v, key: k, password_file: /p}}")
    assert (found.file, found.key, found.password_file) == ("/v", "k", "/p")
    assert _read("{vault: {file: /v, key: k, password_command: [/bin/p, a]}}").command == ("/bin/p", "a")


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("{command: [/bin/pass], env: X}", "secrets.K.env", "unknown key"),
        ("{env: X, keyring: {service: a, username: b}}", "secrets.K.", "unknown key"),
        ("{}", "secrets.K.command", "missing"),
        ("{comand: [/bin/pass]}", "secrets.K.comand", "did you mean command?"),
        ("{env: 'A B'}", "secrets.K.env", "variable name"),
        ("{env: ASF_HOME}", "secrets.K.env", "handed on"),
        ("{env: PATH}", "secrets.K.env", "handed on"),
        ("{keyring: {service: asf}}", "secrets.K.keyring.username", "missing"),
        ("{vault: {file: v, key: k, password_file: /p}}", "secrets.K.vault.file", "absolute"),
        ("{vault: {file: /v, key: k}}", "secrets.K.vault", "no source"),
        ("{vault: {file: /v, key: k, password_file: /p, password_command: [/q]}}", "secrets.K.vault", "two sources"),
        ("{vault: {file: /v, key: k, password_command: [pass]}}", "secrets.K.vault.password_command[0]", "absolute"),
    ],
)
def test_what_is_refused(text: str, key: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        _read(text)
    assert any((one.key or "").startswith(key) and words in one.text() for one in caught.value.problems), caught.value


def test_no_variable_that_asf_hands_on_can_be_a_source() -> None:
    assert {*paths._KEPT, *podman.KEPT} <= sources.PASSED_ON
    assert set(paths._KEPT_PREFIXES) <= set(sources.PASSED_ON_PREFIXES)


def test_no_source_says_a_value_or_the_arguments_of_a_program() -> None:
    assert _read("{command: [/bin/pass, show, the-name]}").words() == "the command /bin/pass"


def test_what_a_source_relies_on_is_out_of_an_agents_reach(tmp_path: Path) -> None:
    home = Home(tmp_path / "asf", "ASF_HOME")
    home.root.mkdir(mode=0o700)
    for name in ("vault", "password"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    vault = f"{{file: {tmp_path}/vault/file, key: k, password_file: {tmp_path}/password/file}}"
    home.settings_file.write_text(f"secrets: {{K: {{vault: {vault}}}}}\n")
    grants = {name: Grant(str(tmp_path / folder), mode) for name, (folder, mode) in _GRANTED.items()}
    refused = {name for name, grant in grants.items() if _refused(home, grant)}
    assert refused == {"vault-rw", "password-rw", "password-ro"}


_GRANTED = {
    "vault-rw": ("vault", "rw"),
    "vault-ro": ("vault", "ro"),
    "password-rw": ("password", "rw"),
    "password-ro": ("password", "ro"),
}


def _refused(home: Home, grant: Grant) -> bool:
    try:
        grantfs.check([grant], grantfs.context(home, [grant], [], []))
    except Exception as error:
        return "vault" in str(error)
    return False


# --- the environment --------------------------------------------------------------------------------------------------


def _value(source: Source) -> str:
    return secretsource.entry(source, CONFIG).value


def _wrong(source: Source) -> str:
    with pytest.raises(SecretError) as caught:
        _value(source)
    assert "CANARY" not in str(caught.value.as_dict()) and "CANARY" not in str(caught.value)
    return str(caught.value)


ENV = Source("K", sources.ENV, name="MY_KEY")


def test_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secretenv.VARIABLE, raising=False)
    monkeypatch.setenv("MY_KEY", CANARY + "\n")
    assert _value(ENV) == CANARY
    for value, words in (("", "empty"), (f"{CANARY}\n{CANARY}", "more than one line")):
        monkeypatch.setenv("MY_KEY", value)
        assert words in _wrong(ENV)
    monkeypatch.delenv("MY_KEY")
    assert "is not set" in _wrong(ENV) and "secrets.K.env" in _wrong(ENV)


def test_the_module_asks_asf_play_and_ansibles_environment_has_it_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", CANARY)
    assert CANARY not in str(paths.ansible_environment(os.environ, tmp_path, tmp_path))
    with environment.answered(tmp_path, {"MY_KEY": CANARY, "EMPTY": ""}) as given:
        assert list(given) == [secretenv.VARIABLE] and CANARY not in str(given)
        monkeypatch.delenv("MY_KEY")
        monkeypatch.setenv(secretenv.VARIABLE, given[secretenv.VARIABLE])
        assert _value(ENV) == CANARY
        assert "is not set" in _wrong(Source("K", sources.ENV, name="EMPTY"))
        assert "does not answer" in _wrong(Source("K", sources.ENV, name="HOME")), "only what config.yml names"
        assert [path.name for path in tmp_path.iterdir()] == ["environment"]
    assert "does not answer" in _wrong(ENV), "not after the run"


def test_nothing_listens_where_no_variable_is_a_source(tmp_path: Path) -> None:
    with environment.answered(tmp_path, {}) as given:
        assert given == {} and list(tmp_path.iterdir()) == []


def test_another_account_gets_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with environment.answered(tmp_path, {"MY_KEY": CANARY}) as given:
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(given[secretenv.VARIABLE])
            with contextlib.suppress(ConnectionError):  # it is closed with the question unread
                line.sendall(b"MY_KEY\n")
                assert line.recv(100) == b""


# --- Ansible Vault ----------------------------------------------------------------------------------------------------

YAML = f"other: x\nanthropic: {CANARY}\nnumber: 12\n"
LINES = f"# note\nexport ANTHROPIC='{CANARY}'\n"
PASSWORD = "correct horse"


def _vault(
    folder: Path, name: str = "v.yml", text: str = YAML, key: str = "anthropic", password: str = "password"
) -> Source:
    (folder / "password").write_text(PASSWORD + "\n")
    (folder / "password").chmod(0o600)
    (folder / name).write_text(text)
    argv = [str(Path(sys.executable).with_name("ansible-vault")), "encrypt", "--vault-id", password, name]
    subprocess.run([sys.executable, *argv], cwd=folder, check=True, capture_output=True)
    return Source("K", sources.VAULT, file=str(folder / name), key=key, password_file=str(folder / "password"))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("vault")
    folder.chmod(0o700)
    return _vault(folder)


def _with(source: Source, **changes: str) -> Source:
    return Source(**{**vars(source), **changes})


def test_a_vault_of_yaml_and_one_of_lines(sealed: Source, tmp_path: Path) -> None:
    assert Path(sealed.file).read_text().startswith("$ANSIBLE_VAULT;") and _value(sealed) == CANARY
    assert _value(_vault(tmp_path, "v.env", LINES, "ANTHROPIC")) == CANARY
    assert _value(_vault(tmp_path, "id.yml", password="prod@password")) == CANARY
    assert (tmp_path / "id.yml").read_text().startswith("$ANSIBLE_VAULT;1.2;AES256;prod")
    command = ("/bin/sh", "-c", f"echo ' {PASSWORD} '")
    assert _value(Source("K", sources.VAULT, command, file=sealed.file, key="anthropic")) == CANARY


def test_what_a_vault_does_not_hold(sealed: Source) -> None:
    assert "does not set none" in _wrong(_with(sealed, key="none"))
    assert "is not text" in _wrong(_with(sealed, key="number"))


def test_a_wrong_password_and_a_damaged_vault(sealed: Source, tmp_path: Path) -> None:
    other = tmp_path / "password"
    other.write_text("CANARY-wrong\n")
    other.chmod(0o600)
    assert "does not open with this password" in _wrong(_with(sealed, password_file=str(other)))
    damaged = tmp_path / "v.yml"
    damaged.write_text("".join(Path(sealed.file).read_text().splitlines(keepends=True)[:2]))
    assert "vault" in _wrong(_with(sealed, file=str(damaged)))
    damaged.write_text(YAML)
    text = _wrong(_with(sealed, file=str(damaged)))
    assert "not encrypted" in text and f"ansible-vault encrypt {damaged}" in text


def test_s1_what_is_no_yaml_is_told_by_its_line(tmp_path: Path) -> None:
    text = _wrong(_vault(tmp_path, text=f"a: 1\nanthropic: [{CANARY}\n"))
    assert "does not hold YAML" in text
    assert "KEY=VALUE" in _wrong(_vault(tmp_path, "v.env", f"anthropic = {CANARY}\n"))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o700])
def test_the_passwords_file_is_the_owners_alone(sealed: Source, mode: int) -> None:
    os.chmod(sealed.password_file, mode)
    try:
        text = _wrong(sealed)
    finally:
        os.chmod(sealed.password_file, 0o600)
    assert f"chmod 600 {sealed.password_file}" in text and f"{mode:04o}" in text


def test_no_link_and_nothing_that_others_may_write(sealed: Source, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sealed.file)
    assert "a symbolic link" in _wrong(_with(sealed, file=str(tmp_path / "link")))
    (tmp_path / "password").symlink_to(sealed.password_file)
    assert "a symbolic link" in _wrong(_with(sealed, password_file=str(tmp_path / "password")))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "v.yml").write_bytes(Path(sealed.file).read_bytes())
    shared.chmod(0o777)
    assert "another account may write" in _wrong(_with(sealed, file=str(shared / "v.yml")))
    shared.chmod(0o700)
    (shared / "v.yml").chmod(0o666)
    assert "chmod go-w" in _wrong(_with(sealed, file=str(shared / "v.yml")))
    assert "cannot be read" in _wrong(_with(sealed, file=str(tmp_path / "none")))


# --- the keyring, by the real library and a backend of the test's -----------------------------------------------------

BACKEND = f"""
from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, InitError

class Desktop(KeyringBackend):
    priority = 9
    def get_password(self, service, username):
        if username == "locked":
            raise KeyringLocked("CANARY")
        if username == "broken":
            raise InitError("CANARY")
        return {{"me": "{CANARY}", "two": "{CANARY}\\nCANARY"}}.get(username)
    def set_password(self, service, username, password): ...
    def delete_password(self, service, username): ...

class PlaintextDesktop(Desktop):
    pass
"""


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which the library uses the test's backend; returns the library's settings."""
    (tmp_path / "asf_test_keyring.py").write_text(textwrap.dedent(BACKEND))
    file = tmp_path / ".config" / "python_keyring" / "keyringrc.cfg"
    file.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    _use(file, "asf_test_keyring.Desktop")
    return file


def _use(file: Path, name: str) -> None:
    file.write_text(f"[backend]\ndefault-keyring={name}\nkeyring-path={file.parents[2]}\n")


def _entry(username: str) -> Source:
    return Source("K", sources.KEYRING, service="asf", username=username)


def test_an_entry_of_the_keyring(backend: Path) -> None:
    assert _value(_entry("me")) == CANARY
    assert "more than one line" in _wrong(_entry("two"))


@pytest.mark.parametrize(
    ("username", "words"),
    [("locked", "is locked"), ("broken", "did not answer"), ("nobody", "keyring set asf nobody")],
)
def test_a_keyring_that_does_not_give_it(backend: Path, username: str, words: str) -> None:
    text = _wrong(_entry(username))
    assert words in text and "asf_test_keyring.Desktop" in text and "secrets.K.keyring" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("asf_test_keyring.PlaintextDesktop", "unencrypted"),
        ("keyring.backends.fail.Keyring", "no keyring"),
        ("keyring.backends.null.Keyring", "no keyring"),
    ],
)
def test_a_backend_that_is_none(backend: Path, name: str, words: str) -> None:
    _use(backend, name)
    assert words in _wrong(_entry("me"))


def test_without_a_desktop_the_library_has_no_backend(backend: Path) -> None:
    backend.unlink()
    assert "no keyring" in _wrong(_entry("me"))


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")  # the system's, beside which it is not installed
    if subprocess.run(["/usr/bin/python3", "-P", "-c", "import keyring"], capture_output=True).returncode == 0:
        pytest.skip("the system's Python has the library keyring")
    assert "asf-play[keyring]" in _wrong(_entry("me"))


def test_a_source_comes_before_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(secretenv.VARIABLE, raising=False)
    monkeypatch.setenv("MY_KEY", CANARY)
    home = Home(tmp_path, "ASF_HOME")
    folder = home.agents_dir / "a"
    folder.mkdir(parents=True)
    (folder / "runtime.yml").write_text("name: a\nadapter: claude\nllm: {provider: anthropic}\n")
    home.settings_file.write_text("secrets: {ANTHROPIC_API_KEY: {env: MY_KEY}}\n")
    chosen = homes.provider_key(home, homes.load_manifest(home, "a"))
    assert chosen is not None and (chosen.value, chosen.file) == (CANARY, str(home.settings_file))
