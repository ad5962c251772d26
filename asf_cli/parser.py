# SPDX-License-Identifier: BSD-4-Clause
"""The command line: what was asked for, as data. Nothing is looked up or run here."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from . import commands, options, variables
from .commands import COMMANDS
from .errors import CliError
from .nearmiss import near

_EXAMPLES = """\
examples:
  asf-play open.yml -e agent=claude                open a verified session, attach to it
  asf-play open.yml -e agent=claude -- claude -p "fix the tests"
  asf-play open.yml -e agent=claude --detach       leave it running
  asf-play verify.yml -e agent=claude              probe a live session again
  asf-play close.yml -e agent=claude
  asf-play repo add claude ~/projects/my-api --mode ro
  asf-play shell claude                            back to it, or one more shell in it
  asf-play exec claude -- git status
  asf-play ls --json
  asf-play doctor

exit codes: 0 done; N the workload's own; 64 wrong use; 220 refused (manifest, grant, secret, plan);
  221 verification failed; 222 engine failed; 223 host not ready; 224 cleanup incomplete; 225 defect of asf-play;
  129, 130, 143 ended by SIGHUP, Ctrl-C, SIGTERM
"""


_UNKNOWN = re.compile(r"unrecognized arguments: (-\S+)")
_SURPLUS = re.compile(r"unrecognized arguments: ([^-\s]\S*)")
_CHOICE = re.compile(r".*invalid choice: '([^']*)' \(choose from (.*)\)")


def _verbs(given: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of a command's own verbs, by name."""
    found = [action for action in given._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: one for action in found for name, one in action.choices.items()}


#: Of a command that says nothing about its own (``EXIT_CODES``).
_CODES = """\
exit codes: 0 done; 64 wrong use, or no such session; 220 refused; 222 the engine failed; 223 host not ready;
  225 defect of asf-play
"""


class _Parser(argparse.ArgumentParser):
    """Errors are raised instead of printed, so that ``--json`` can report them too."""

    #: What to do about a word too many.
    surplus = ""

    def error(self, message: str) -> NoReturn:
        raise CliError(message, remedy=f"{self._meant(message)}{self.prog} --help shows how")

    def _meant(self, message: str) -> str:
        """``did you mean …? `` for an option or a choice that is close to what was typed."""
        unknown, choice = _UNKNOWN.match(message), _CHOICE.match(message)
        surplus = _SURPLUS.match(message)
        if surplus and self.surplus:
            return f"{self.surplus}; "
        if unknown:
            known = [name for one in [self, *_verbs(self).values()] for name in one._option_string_actions]
            return near(unknown.group(1).partition("=")[0], known)
        return near(choice.group(1), re.findall(r"'([^']*)'", choice.group(2))) if choice else ""


def split(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """The words before ``--``, and those after it (None when there is no ``--``)."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def parse(argv: list[str]) -> argparse.Namespace:
    """The request. ``verb`` is ``playbook`` or one of ``commands.COMMANDS``; ``command`` is the words after ``--`` (or
    None) where they are a command of the user's, and ``variables`` what ``-e`` gave to a playbook.

    Raises CliError for wrong use; SystemExit after ``--help`` and ``--version``.
    """
    first = argv[0] if argv else ""
    if not argv:
        raise CliError(
            "no command and no playbook is named",
            remedy=f"a playbook, as in asf-play open.yml -e agent=NAME, or one of {', '.join(COMMANDS)}; "
            "asf-play --help shows all",
        )
    if first in COMMANDS and not COMMANDS[first].takes_command:
        found = command(first).parse_args(argv[1:])  # here ``--`` only ends the options, as everywhere
        found.verb = first
        return found
    words, after = split(argv)
    if first not in COMMANDS and not first.startswith("-"):
        _known(first)
    found = command(first).parse_args(words[1:]) if first in COMMANDS else playbook().parse_args(words)
    found.verb = first if first in COMMANDS else "playbook"
    found.command = after
    if found.verb == "playbook":
        found.variables = variables.parse(found.extra)
    if after is not None and (not after or not after[0]):
        raise CliError("nothing stands after --", remedy="leave -- out, or name a command")
    return found


def _known(word: str) -> None:
    """Raise CliError for a first word that is neither command nor playbook, before others are misunderstood."""
    from . import paths

    if word and "/" not in word:
        paths.playbook(word, paths.content())


def command(name: str) -> argparse.ArgumentParser:
    """The parser of one command."""
    module = commands.module(name)
    usage = getattr(module, "USAGE", None)
    parser = _Parser(
        prog=f"asf-play {name}",
        usage=usage,
        description=f"{COMMANDS[name].summary[:1].upper()}{COMMANDS[name].summary[1:]}.",
        epilog=f"examples:\n{module.EXAMPLES}\n{getattr(module, 'EXIT_CODES', _CODES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    if COMMANDS[name].takes_command:
        parser.surplus = f"the command stands after --: asf-play {name} AGENT -- CMD…"
    return parser


def playbook() -> argparse.ArgumentParser:
    """The parser of a line that names a playbook."""
    parser = _Parser(
        prog="asf-play",
        usage="asf-play PLAYBOOK.yml -e agent=NAME [options] [-- CMD…]\n       asf-play COMMAND …",
        description="Run AI coding agents in verified, rootless sandboxes.\n\ncommands:\n"
        + "\n".join(f"  {name:<11} {one.summary}" for name, one in COMMANDS.items()),
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.surplus = "an agent is named by -e agent=NAME, a command stands after --"
    parser.add_argument(
        "playbook",
        metavar="PLAYBOOK.yml",
        help="open.yml, verify.yml, status.yml, close.yml, rotate.yml, reset.yml, build.yml, setup.yml, or a path",
    )
    parser.add_argument(
        "-e",
        "--extra-vars",
        dest="extra",
        action="append",
        default=[],
        metavar="NAME=VALUE|@FILE|JSON",
        help="a variable: agent, session, llm_mock=true, …",
    )
    parser.add_argument("-C", "--check", action="store_true", help="change nothing, say what would change")
    parser.add_argument("-D", "--diff", action="store_true", help="show changes of policy as text")
    parser.add_argument(
        "-v", dest="verbosity", action="count", default=0, help="show Ansible's own output (-vvv: tracebacks)"
    )
    parser.add_argument("-t", "--tags", action="append", default=[], help="only roles with these tags")
    parser.add_argument("--skip-tags", action="append", default=[], help="not the roles with these tags")
    parser.add_argument("-l", "--limit", help="only these hosts of the inventory")
    parser.add_argument("-i", "--inventory", help="an inventory of your own, by a path with a slash")
    parser.add_argument("-f", "--forks", type=int, help="hosts at once")
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")
    parser.add_argument("--detach", action="store_true", help="leave the session running; do not attach")
    parser.add_argument("--yes", action="store_true", help="reset.yml: remove without asking")
    options.raw_terminal(parser)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    return parser


class _Version(argparse.Action):
    """``--version``: looked up only when asked for (reading a distribution's metadata costs 30 ms)."""

    def __call__(self, parser: argparse.ArgumentParser, *_rest: object) -> NoReturn:
        print(f"asf-play {version()}")
        parser.exit()


def version() -> str:
    """Version of the distribution; in a checkout that was never installed, of its pyproject.toml."""
    from importlib import metadata

    try:
        return metadata.version("asf-play")
    except metadata.PackageNotFoundError:
        import tomllib

        from .paths import content

        with open(content() / "pyproject.toml", "rb") as handle:
            return str(tomllib.load(handle)["project"]["version"])


def wants_json(argv: list[str]) -> bool:
    """Whether ``--json`` is asked for: needed before the line is known to be right, to report that it is wrong."""
    return "--json" in split(argv)[0]


def wants_traceback(argv: list[str]) -> bool:
    """Whether ``-vvv`` (or more, in one word or several) is given."""
    return sum(len(word) - 1 for word in split(argv)[0] if word.startswith("-v") and set(word[1:]) == {"v"}) >= 3
