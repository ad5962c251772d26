# SPDX-License-Identifier: BSD-4-Clause
"""What a workload, a manifest or a repository says is data (invariant 10): a template in it runs nothing and arrives
as it was written. Every canary would leave a file of its own name in ASF_HOME, if anything on the host rendered it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import canaries, front, plain, product
from support.client import World
from support.product import Home, Session, SessionFactory, asf_play, podman, sample_repo
from support.waiting import wait_for

pytestmark = [pytest.mark.podman, pytest.mark.slow]

LOUD = ("-vvv", "--diff")
AGENT = "jinja"
#: Prints what it was given, then stays.
PRINT = """\
import json, os, pathlib, sys, time
repos = pathlib.Path("/workspace/repos")
heads = [(path / ".git/HEAD").read_text().strip() for path in repos.iterdir()]
told = {"argv": sys.argv[1:], "env": os.environ["CANARY"], "repos": os.listdir(repos), "heads": heads}
print(json.dumps(told), flush=True)
time.sleep(float(sys.argv[1]))
"""
Play = Callable[..., Any]


def canary(name: str, quote: str = "'") -> str:
    """A template that makes the file `name` in ASF_HOME; no slash, so that it can be a file name."""
    words = ("pipe", f"cd $ASF_HOME;touch {name}")
    return "{{ lookup(" + ",".join(f"{quote}{word}{quote}" for word in words) + ") }}"


#: no blank, which git does not allow in a branch's name
BRANCH = canary("branch").replace("cd ", "cd${IFS}").replace("touch ", "touch${IFS}").replace(" ", "")
#: a secrets file holds it between single quotes
KEY = canary("secret", '"')
MANIFEST = {
    "description": canary("description"),
    "adapter": "generic",
    "runtime": {"command": ["python3", "-c", PRINT, "600", canary("manifest-word")]},
    "llm": {
        "protocol": "openai",
        "models": ["plain"],  # a name with braces is refused before anything exists
        "mock": [{"text": canary("mock-text")}, {"tool": "shell", "input": {canary("key"): canary("value")}}],
    },
    "secrets": {"files": ["odd.env"]},
    "env": {"CANARY": canary("env")},
}


@pytest.fixture
def jinja(home: Home, tmp_path: Path) -> Iterator[Session]:
    """A session of an agent that has a canary wherever one fits; closed at the end."""
    repo = sample_repo(tmp_path / canary("repository"), {canary("file"): canary("content")})
    for argv in (["checkout", "-q", "-b", BRANCH], ["config", "user.name", canary("user")]):
        done = product.run(["git", *argv], cwd=repo)
        assert done.rc == 0, done
    home.agent(AGENT, MANIFEST)
    home.grant(AGENT, repo)
    home.secret("odd.env").write_text(f"OPENAI_API_KEY='{KEY}'\nOTHER='{canary('other', chr(34))}'\n")
    session = Session(home, AGENT, SessionFactory.new_name(), {})
    yield session
    assert session.close().rc == 0


@pytest.fixture(autouse=True)
def _nothing_ran(home: Home) -> Iterator[None]:
    """The assertion of every test here."""
    yield
    assert sorted(path.name for path in home.path.iterdir()) == ["agents", "config.yml", "secrets"]


def _by_asf_play(session: Session) -> Play:
    def play(playbook: str, *args: str, **options: Any) -> Any:
        more = ("--detach",) if playbook == "open.yml" else ()
        return asf_play(playbook, *session.selector(), *more, *args, home=session.home, **options)

    return play


def _by_ansible(session: Session) -> Play:
    return lambda playbook, *args, **options: plain.play(f"playbooks/{playbook}", session, *args, **options)


WAYS = {"asf-play": _by_asf_play, "ansible-playbook": _by_ansible}


def _printed(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith('{"argv"')]
    return json.loads(lines[-1]) if lines else {}


def test_a_canary_would_run(home: Home, jinja: Session, tmp_path: Path) -> None:
    """The test of the test: as an extra variable, which Ansible trusts, it runs."""
    book = tmp_path / "book.yml"
    task = {"name": "Show", "ansible.builtin.debug": {"msg": "{{ canary }}"}}
    book.write_text(json.dumps([{"name": "Play", "hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    for name, text in (("canary", canary("canary")), ("branch", BRANCH)):
        done = plain.play(str(book), jinja, "-e", json.dumps({"canary": text}))
        assert done.rc == 0, done
        (home.path / name).unlink()


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_whole_life_runs_no_canary_and_changes_no_text(way: str, jinja: Session) -> None:
    run = WAYS[way](jinja)
    done = run("open.yml", *LOUD)
    assert done.rc == 0, str(done)
    found = json.loads(podman("container", "inspect", jinja.container("agent")))[0]
    assert found["Config"]["Labels"]["asf.session"] == jinja.id
    told = jinja.exec("sh", "-c", 'printf %s "$CANARY"; ls /workspace/repos; cat /workspace/repos/*/.git/HEAD')
    assert told.out == f"{canary('env')}{canary('repository')}\nref: refs/heads/{BRANCH}\n", told
    assert front.ask(jinja, front.chat(model=canary("model")))[0].status == 404, "no model has such a name"
    answer = front.ask(jinja, front.chat(model="plain"))[0]
    assert canary("mock-text") in answer.body, answer
    for playbook in ("open.yml", "verify.yml", "status.yml", "close.yml"):
        done = run(playbook, *LOUD)
        assert done.rc == 0, str(done)


def test_words_of_a_service_and_after_the_dashes_arrive_as_they_are(home: Home, jinja: Session) -> None:
    words = [canary("word"), "{% raw %}", "{# #}", "!unsafe", "$(touch x)", "a\nb"]
    command = ["python3", "-c", PRINT, "0", *words]
    done = asf_play("open.yml", *jinja.selector(), *LOUD, "--", *command, home=home)
    told = _printed(done.out)
    assert told == {
        "argv": ["0", *words],
        "env": canary("env"),
        "repos": [canary("repository")],
        "heads": [f"ref: refs/heads/{BRANCH}"],
    }, done
    assert done.rc == 0, done
    home.agent(AGENT, {**MANIFEST, "runtime": {"mode": "service", "command": command}})
    done = asf_play("open.yml", *jinja.selector(), "-vvv", home=home)
    assert _printed(done.out)["argv"] == ["0", *words] and done.rc == 0, done


def test_a_key_and_a_command_file_under_plain_ansible(jinja: Session, tmp_path: Path, world: World) -> None:
    words = ["python3", "-c", PRINT, "600", canary("word")]
    llm = {"protocol": "openai", "provider": "openai", "private": ["198.51.100.0/24"]}
    jinja.home.agent(AGENT, {**MANIFEST, "llm": llm})
    file = tmp_path / "command.json"
    file.write_text(json.dumps({"command": words}))
    done = plain.play("playbooks/open.yml", jinja, *LOUD, "-e", f"asf_command_file={file}")
    assert done.rc == 0, str(done)
    assert wait_for(lambda: _printed(jinja.logs("agent")), what="the workload's words")["argv"] == words[3:]
    mark = world.mark()
    assert front.ask(jinja, front.chat())[0].status == 200
    assert {event["key"] for event in world.provider_requests(mark)} == {KEY}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_errors_that_repeat_a_canary_run_nothing(way: str, jinja: Session, tmp_path: Path) -> None:
    """Podman's own words with the repository's name in them, through rescue and fail; then a manifest's values."""
    run = WAYS[way](jinja)
    done = run("open.yml", *LOUD, env=canaries.broken_podman(tmp_path / "bin", "create --label=asf.plan"))
    assert done.rc != 0 and "broken by a test" in done.out + done.err, str(done)
    wrong = {
        "adapter": canary("adapter"),
        canary("unknown-key"): 1,
        "secrets": {"files": [canary("secrets-file")]},
        "network": {"allow_domains": [canary("domain")]},
        "filesystem": {"state": [{"key": canary("volume"), "target": canary("target")}]},
    }
    jinja.home.agent(AGENT, {**MANIFEST, **wrong})
    done = run("open.yml", *LOUD)
    assert done.rc != 0 and canary("adapter") in done.out + done.err, str(done)


@pytest.mark.parametrize(
    "words",
    [
        ["-e", f"agent={canary('agent')}"],
        ["-e", f"agent={AGENT}", "-e", f"session={canary('session')}"],
        ["-e", json.dumps({"agent": AGENT, "llm_mock": canary("mock")})],
        ["-e", json.dumps({"agent": AGENT, canary("name"): 1})],
        ["-e", json.dumps({"agent": AGENT, "asf_teardown_session": ["{% if 1 %}", {"a": "{# x #}"}]})],
        ["-e", "@FILE", "-e", f"agent={AGENT}"],
    ],
)
@pytest.mark.parametrize("playbook", ["open.yml", "close.yml"])
def test_asf_play_refuses_extra_variables_with_markers(
    playbook: str, words: list[str], home: Home, tmp_path: Path
) -> None:
    file = tmp_path / "variables.yml"
    file.write_text(f'isolation: "{canary("file")}"\n')
    given = [f"@{file}" if word == "@FILE" else word for word in words]
    done = asf_play(playbook, *given, "--json", home=home)
    assert done.rc == 64 and done.json["ok"] is False and done.json["error"]["remedy"], done
