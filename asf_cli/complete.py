# SPDX-License-Identifier: BSD-4-Clause
"""What may stand at the cursor of a half-written command line: out of the parsers themselves, and what exists now.

An argument of a parser says what it takes by an attribute ``complete`` with names of ``_KINDS``; choices and options
are read from the parser. Sessions are those with a record: no Podman is asked.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import parser
from .commands import COMMANDS

#: A line that asks the shell to offer names of files as well.
FILES = "\tfiles"


def split(line: str) -> list[str]:
    """Words of a line up to the cursor, as a shell would take them; the last one is what stands at the cursor."""
    for closing in ("", "'", '"', "\\"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return words if line and (closing or not line[-1].isspace()) else [*words, ""]
    return [""]


def candidates(words: Sequence[str]) -> list[str]:
    """Whole words that may stand at the cursor. ``words`` come after the program's name; the last one is begun."""
    *before, current = words or [""]
    if "--" in before:
        return [FILES]
    if not before and not current.startswith("-"):
        return _fitting([*COMMANDS, *_playbooks()], current)
    if before and before[0] in COMMANDS:
        return _fitting(_argument(parser.command(before[0]), before[1:], current), current)
    return _fitting(_argument(parser.playbook(), before, current), current)


def _fitting(found: Iterable[str], current: str) -> list[str]:
    return sorted({word for word in found if word == FILES or word.startswith(current)})


def _options(given: argparse.ArgumentParser) -> list[str]:
    hidden = {name for action in given._actions if action.help == argparse.SUPPRESS for name in action.option_strings}
    return [name for name in given._option_string_actions if name not in hidden]


def _argument(given: argparse.ArgumentParser, before: Sequence[str], current: str) -> list[str]:
    """Candidates for the argument at the cursor."""
    positionals = [action for action in given._actions if not action.option_strings]
    words = list(before)
    while words:
        word = words.pop(0)
        option = given._option_string_actions.get(word)
        if option is not None:
            if _takes_value(option):
                if not words:
                    return _values(option, current)
                words.pop(0)
            continue
        if word.startswith("-") or not positionals:
            continue
        action = positionals[0]
        if isinstance(action, argparse._SubParsersAction):
            below = action.choices.get(word)
            return _argument(below, words, current) if below is not None else []
        if action.nargs not in ("*", "+"):
            positionals.pop(0)
    if current.startswith("-"):
        return _options(given)
    return _values(positionals[0], current) if positionals else []


def _takes_value(action: argparse.Action) -> bool:
    return action.nargs != 0


def _values(action: argparse.Action, current: str) -> list[str]:
    if action.choices is not None:
        return [str(one) for one in action.choices]
    kinds: Sequence[str] = getattr(action, "complete", ()) or _BY_NAME.get(action.dest, ())
    return [word for kind in kinds for word in _KINDS[kind](current)]


# --- what exists -------------------------------------------------------------------------------------------------


def _playbooks(_current: str = "") -> list[str]:
    from . import paths

    return paths.playbooks(paths.content())


def _agents(_current: str = "") -> list[str]:
    from asf_lib.engine import home

    return list(home.agents(home.resolve()))


def _sessions(_current: str = "") -> list[str]:
    """Sessions with a record; an agent alone where that names its session ``main``."""
    from asf_lib.engine import state

    found = sorted(state.recorded())
    return found + [one.partition(".")[0] for one in found if one.endswith(".main")]


def _logs(_current: str) -> list[str]:
    from .commands.logs import LOGS

    return list(LOGS)


def _places(_current: str) -> list[str]:
    return [f"{one}:" for one in _sessions()] + [FILES]


def _variables(current: str) -> list[str]:
    if current.startswith("agent="):
        return [f"agent={one}" for one in sorted({*_agents(), *(one.partition(".")[0] for one in _sessions())})]
    if current.startswith("session="):
        return [f"session={one.partition('.')[2]}" for one in _sessions() if "." in one]
    return ["agent=", "session="]


#: What arguments of these names take wherever they stand.
_BY_NAME = {
    "extra": ("variable",),
    "playbook": ("playbook", "file"),
    "inventory": ("file",),
    "target": ("session",),
    "folder": ("file",),
}
_KINDS: dict[str, Callable[[str], list[str]]] = {
    "session": _sessions,
    "agent": _agents,
    "playbook": _playbooks,
    "log": _logs,
    "place": _places,
    "file": lambda _: [FILES],
    "variable": _variables,
    "shell": lambda _: ["bash", "zsh", "fish"],
}


def told(line: str | None, words: Sequence[str], breaks: str) -> list[str]:
    """Lines for a shell's function. With ``line`` (bash: the whole line up to the cursor) each candidate is cut down to
    what bash will replace, which begins after the last of its ``breaks``."""
    every: Any = split(line)[1:] if line is not None else list(words)
    found = candidates(every)
    if line is None:
        return found
    current = every[-1] if every else ""
    cut = max((current.rfind(one) + 1 for one in "=:" if one in breaks), default=0)
    return [one if one == FILES else one[cut:] for one in found]
