# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play secret``: values come from a prompt or a pipe, and are never shown (S1, S2, S4)."""

from __future__ import annotations

import base64
import json
import os
import pty
import select
import subprocess
from pathlib import Path

CANARY = "sk-ant-api03-CANARY-0123456789"


def _piped(start, data: str, *words: str) -> tuple[int, str, str]:
    process = start("secret", *words, stdin=subprocess.PIPE)
    out, err = process.communicate(data, timeout=60)
    return process.returncode, out, err


def _env(account) -> Path:
    return Path(account["ASF_HOME"]) / "secrets" / "claude.env"


def test_s2_a_pipe(start, run, account):
    code, out, err = _piped(start, CANARY + "\n", "set", "claude", "ANTHROPIC_API_KEY")
    assert (code, err) == (0, "") and CANARY not in out
    assert (
        _env(account).read_text() == f"ANTHROPIC_API_KEY={CANARY}\n" and _env(account).stat().st_mode & 0o777 == 0o600
    )
    code, out, err = run("secret", "check", "claude", "--json")
    (row,) = json.loads(out)["secrets"]
    assert code == 0 and row["state"] == "present" and row["line"] == 1 and CANARY not in out + err
    code, out, err = run("secret", "list", "--json")
    (row,) = [one for one in json.loads(out)["secrets"] if one["file"] == str(_env(account))]
    assert row["variables"] == ["ANTHROPIC_API_KEY"] and "claude" in row["agents"] and CANARY not in out + err


def test_a_prompt_shows_nothing(start, account):
    master, slave = pty.openpty()
    process = start("secret", "set", "claude", "K", stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    shown = b""
    while b"(not shown)" not in shown:
        assert select.select([master], [], [], 60)[0], shown
        shown += os.read(master, 4096)
    os.write(master, CANARY.encode() + b"\n")
    try:
        while select.select([master], [], [], 60)[0]:
            more = os.read(master, 4096)
            if not more:
                break
            shown += more
    except OSError:  # the terminal's other end is closed: the command has ended
        pass
    os.close(master)
    assert process.wait(60) == 0, shown
    assert CANARY.encode() not in shown and _env(account).read_text() == f"K={CANARY}\n"


def test_a_value_on_the_command_line_is_refused(run, account):
    for words in (("K", CANARY), (f"K={CANARY}",)):
        code, out, err = run("secret", "set", "claude", *words)
        assert code == 64 and "history" in err and CANARY not in out + err
        assert not _env(account).exists()


def test_absent_doubtful_and_of_wrong_mode(start, run, account):
    code, out, _ = run("secret", "check", "claude", "--json")
    assert code == 220 and json.loads(out)["secrets"][0]["state"] == "absent"
    assert _piped(start, "sk-ant-oat01-" + CANARY, "set", "claude", "ANTHROPIC_API_KEY")[0] == 0
    code, out, err = run("secret", "check", "claude")
    assert code == 220 and "doubtful" in out and "expires" in out and CANARY not in out + err
    _env(account).chmod(0o644)
    code, out, err = run("secret", "check", "claude", "--json")
    assert code == 220 and f"chmod 600 {_env(account)}" in out and CANARY not in out + err


def _token(end: int) -> str:
    parts = ({"alg": "none"}, {"exp": end}, {"x": CANARY})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)


def test_expired_and_several_agents_at_once(start, run, account):
    assert _piped(start, _token(1_000_000_000), "set", "claude", "ANTHROPIC_API_KEY")[0] == 0
    assert _piped(start, _token(4_000_000_000), "set", "openai", "OPENAI_API_KEY")[0] == 0
    code, out, err = run("secret", "check", "claude", "python-agent", "demo", "claude", "--json")
    rows = json.loads(out)["secrets"]
    assert code == 220 and [(row["agent"], row["state"]) for row in rows] == [
        ("claude", "expired"),
        ("python-agent", "doubtful"),
        ("demo", "unneeded"),
    ]
    assert "2001-09-09" in rows[0]["detail"] and "2096-10-02" in rows[1]["detail"]
    assert [row["source"] for row in rows] == ["claude.env", "openai.env", None]
    assert "eyJ" not in out + err and "CANARY" not in out + err


def test_sources_are_named_and_their_values_are_not(run, account):
    root = Path(account["ASF_HOME"])
    (root / "config.yml").write_text(
        "secrets: {ANTHROPIC_API_KEY: {env: MY_KEY}, OPENAI_API_KEY: {command: [/bin/false]}}\n"
    )
    code, out, err = run("secret", "check", "claude", "python-agent", "--json", env={"MY_KEY": CANARY})
    rows = json.loads(out)["secrets"]
    assert [(row["state"], row["source"]) for row in rows] == [
        ("present", "the environment variable MY_KEY"),
        ("absent", "the command /bin/false"),
    ]
    assert code == 220 and "CANARY" not in out + err
    code, out, _ = run("secret", "check", "claude")
    assert code == 220 and "set MY_KEY in the shell" in " ".join(out.split())


def test_a_source_is_listed_and_set_says_that_it_comes_first(start, run, account):
    (Path(account["ASF_HOME"]) / "config.yml").write_text("secrets: {ANTHROPIC_API_KEY: {env: MY_KEY}}\n")
    code, out, err = _piped(start, CANARY, "set", "claude", "ANTHROPIC_API_KEY")
    assert code == 0 and "the environment variable MY_KEY" in err and "before every file" in err and CANARY not in err
    code, out, err = run("secret", "list", "--json")
    row = json.loads(out)["secrets"][-1]
    assert code == 0 and (row["variables"], row["source"]) == (["ANTHROPIC_API_KEY"], "the environment variable MY_KEY")
    assert "claude" in row["agents"] and row["file"].endswith("config.yml") and CANARY not in out
    code, out, err = run("secret", "list")
    assert code == 0 and "MY_KEY" in out


def test_without_the_broker_the_key_is_the_agents_or_nobodys(start, run, account):
    folder = Path(account["ASF_HOME"]) / "agents" / "own"
    folder.mkdir(parents=True)
    text = "name: own\nadapter: claude\nllm: {broker: false, provider: anthropic}\nsecrets: {files: [claude.env]}\n"
    (folder / "runtime.yml").write_text(text + "network: {allow_domains: [api.anthropic.com]}\n")
    code, out, _ = run("secret", "check", "own", "--json")
    (row,) = json.loads(out)["secrets"]
    assert (code, row["state"]) == (0, "unneeded") and "logs in" in row["detail"]
    assert _piped(start, CANARY, "set", "claude", "ANTHROPIC_API_KEY")[0] == 0
    code, out, _ = run("secret", "check", "own", "--json")
    (row,) = json.loads(out)["secrets"]
    assert (code, row["state"]) == (0, "present") and "agent itself" in row["detail"] and "CANARY" not in out


def test_s1_the_line_of_what_is_wrong(run, account):
    _env(account).parent.mkdir(mode=0o700)
    _env(account).write_text(f"# x\nANTHROPIC_API_KEY = {CANARY}\n")
    _env(account).chmod(0o600)
    code, out, err = run("secret", "check", "claude", "--json")
    (row,) = json.loads(out)["secrets"]
    assert (code, row["state"], row["line"]) == (220, "absent", 2) and CANARY not in out + err


def test_every_shipped_agent_has_an_example():
    from asf_lib.engine import home as homes

    root = Path(__file__).resolve().parents[3]
    home = homes.Home(root, "checkout", root / "agents")
    for agent in homes.agents(home):
        manifest = homes.load_manifest(home, agent)
        for name in manifest.secrets_files:
            text = (root / "secrets" / f"{name}.example").read_text()
            llm = manifest.llm
            if llm is not None and llm.key_required and len(manifest.secrets_files) == 1:
                assert f"\n{llm.api_key_env}=\n" in text, (agent, name)
