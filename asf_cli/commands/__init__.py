# SPDX-License-Identifier: BSD-4-Clause
"""The commands beside the playbooks, one module each: ``EXAMPLES``, ``add_arguments(parser)``, ``run(request)``.

They need no Ansible. A module is imported when its command is asked for: start-up time matters.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import NamedTuple


class Command(NamedTuple):
    """``summary`` is one line of help; ``takes_command``: words after ``--`` are a command of the user's."""

    summary: str
    takes_command: bool = False


#: By name; the module is ``asf_cli.commands.NAME``.
COMMANDS = {
    "ls": Command("the sessions that still own something"),
    "status": Command("what there is to know about a session"),
    "logs": Command("what the parts of a session have written"),
    "events": Command("what happened in a session"),
    "watch": Command("follow a live session until it ends, and verify it again and again"),
    "evidence": Command("what sessions left: show, verify, export, prune"),
    "shell": Command("a terminal in a live session: its workload's, or one more shell"),
    "exec": Command("run a command in a live session", takes_command=True),
    "cp": Command("copy files into a session or out of it"),
    "policy": Command("what an agent could reach, in words, without opening anything"),
    "new": Command("a folder for an agent of your own, made from another's"),
    "repo": Command("which repositories an agent gets"),
    "secret": Command("keys of providers: set, list, check, rotate; none is ever shown"),
    "completion": Command("completion of words for bash, zsh or fish"),
    "prune": Command("remove images, caches and run folders that nothing needs"),
    "doctor": Command("what this host offers and lacks"),
}


def module(name: str) -> ModuleType:
    """The module that carries out a command."""
    return importlib.import_module(f".{name}", __package__)
