# SPDX-License-Identifier: BSD-4-Clause
"""ansible-runner, embedded: one run of one playbook in a run directory of its own.

What runner does by itself and is undone here: it seeds the environment with the whole of the operator's and stores it
in clear, takes ``env/`` files, switches host key checking off, and runs whatever ``ansible-playbook`` comes first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import environment, paths, rundir, variables
from .interrupts import Interrupts

_PROGRESS = "progress"
#: Starts ansible-playbook with a lazy garbage collector: a tenth of its start-up goes there. The path stays an argument
#: of its own, because the program is recognized by it (``engine/procs.py``). -P: nothing is imported from the cwd.
_LAUNCH = (
    "import gc, runpy, sys; gc.set_threshold(50000, 20, 20); del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
EventHandler = Callable[[Mapping[str, Any]], None]


@dataclass
class Run:
    """What to run. ``variables`` were checked (``variables.parse``); ``command`` is the user's, free text."""

    playbook: Path
    variables: dict[str, Any] = field(default_factory=dict)
    command: list[str] | None = None
    check: bool = False
    diff: bool = False
    verbosity: int = 0
    tags: list[str] = field(default_factory=list)
    skip_tags: list[str] = field(default_factory=list)
    limit: str | None = None
    inventory: str | None = None
    forks: int | None = None


def execute(run: Run, on_event: EventHandler, interrupts: Interrupts, on_start: Callable[[Path], None]) -> int | None:
    """Run the playbook; returns Ansible's exit code (ambiguous: decide from the events).

    ``on_event`` gets each event in the thread of the caller and must not block; ``on_start`` the file to which modules
    may append lines about what they are doing (``asf_image_progress``).
    """
    with rundir.fresh() as folder:
        on_start(rundir.write(folder / _PROGRESS, ""))
        with environment.answered(folder, environment.named(run.variables.get("asf_home"))) as more:
            runner = _prepare(run, folder, on_event, interrupts, more)
            runner.run()
        return int(runner.rc) if runner.rc is not None else None


def _prepare(run: Run, folder: Path, on_event: EventHandler, interrupts: Interrupts, more: Mapping[str, str]) -> Any:
    """Runner, ready to run; ``more`` comes to Ansible's environment."""
    from ansible_runner.interface import init_runner  # type: ignore[import-untyped]

    from asf_lib.engine import notices

    content = paths.content()
    _link_collection(folder, content)
    # Settings as an argument are dropped by runner when there is no file for them.
    settings = {"suppress_output_file": True, "suppress_ansible_output": True, "pexpect_timeout": 1}
    rundir.write(folder / "env" / "settings", json.dumps(settings))
    given = {**paths.ansible_environment(os.environ, folder, content), **more}
    if not (content / "ansible.cfg").is_file():
        # A file that is not there would make Ansible look for one in the home.
        given["ANSIBLE_CONFIG"] = str(rundir.write(folder / "ansible.cfg", "[defaults]\n"))
    given[notices.VARIABLE] = str(folder / _PROGRESS)
    with _only(given):
        runner = init_runner(
            private_data_dir=str(folder),
            ident="run",
            playbook=str(run.playbook),
            inventory=_inventory(run, content),
            extravars=str(rundir.write(folder / "extravars.json", json.dumps(_extravars(run, folder)))),
            cmdline=shlex.join(_options(run)) or None,
            limit=run.limit,
            tags=",".join(run.tags) or None,
            skip_tags=",".join(run.skip_tags) or None,
            forks=run.forks,
            verbosity=run.verbosity or None,
            suppress_env_files=True,
            fact_cache_type="memory",
            quiet=True,
            event_handler=_handler(on_event, interrupts),
            cancel_callback=interrupts.cancelled,
        )
    runner.config.command[:1] = [sys.executable, "-P", "-c", _LAUNCH, paths.ansible_playbook()]
    return runner


def _link_collection(folder: Path, content: Path) -> None:
    """This very content is what ``asf.sandbox`` means in the run, wherever else a copy may be installed."""
    target = folder / "collections" / "ansible_collections" / "asf"
    target.mkdir(mode=0o700, parents=True)
    (target / "sandbox").symlink_to(content)


@contextlib.contextmanager
def _only(environment: Mapping[str, str]) -> Iterator[None]:
    """Runner copies ``os.environ``: while it prepares, that is the scrubbed one."""
    saved = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


def _inventory(run: Run, content: Path) -> str:
    return os.path.abspath(run.inventory) if run.inventory else str(content / "inventory")


def _options(run: Run) -> list[str]:
    return [option for option, wanted in (("--check", run.check), ("--diff", run.diff)) if wanted]


def _extravars(run: Run, folder: Path) -> dict[str, Any]:
    """The extravars: checked ones, and paths. A command is free text, which Ansible would render: it goes by file."""
    given = {**run.variables, "asf_image_progress": str(folder / _PROGRESS)}
    if run.command is not None:
        given["asf_command_file"] = str(rundir.write(folder / "command.json", json.dumps({"command": run.command})))
    for key, value in given.items():
        variables.check_value(value, key)
    return given


def _handler(on_event: EventHandler, interrupts: Interrupts) -> Callable[[dict[str, Any]], bool]:
    def handle(event: dict[str, Any]) -> bool:
        pid = event.get("pid")
        if isinstance(pid, int):
            interrupts.running(pid)
        on_event(event)
        return False  # nothing of it is stored

    return handle
