# SPDX-License-Identifier: BSD-4-Clause
"""``asf-play completion``: a script for a shell, which asks the program itself what may stand at the cursor."""

from __future__ import annotations

import argparse

from .. import complete, document, errors
from ..errors import CliError
from ..nearmiss import near

USAGE = "asf-play completion bash|zsh|fish"
EXAMPLES = """\
  asf-play completion bash > ~/.local/share/bash-completion/completions/asf-play
  asf-play completion zsh > ~/.zfunc/_asf-play            with: fpath+=~/.zfunc before compinit
  asf-play completion fish > ~/.config/fish/completions/asf-play.fish
"""

_BASH = """\
# completion of asf-play for bash
_asf_play() {
    local word files=
    COMPREPLY=()
    while IFS= read -r word; do
        if [[ $word == $'\\tfiles' ]]; then files=1; else COMPREPLY+=("$word"); fi
    done < <("$1" completion --words --breaks="$COMP_WORDBREAKS" --line="${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    if [[ $files ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$2")
    fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=:] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -F _asf_play asf-play
"""
_ZSH = """\
#compdef asf-play
# completion of asf-play for zsh
_asf_play() {
    local -a found open
    local word
    local -a given=("${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}")
    for word in "${(@f)$("${words[1]}" completion --words -- "${given[@]}" 2>/dev/null)}"; do
        case $word in
            ($'\\tfiles') _files ;;
            (*[=:]) open+=("$word") ;;
            (?*) found+=("$word") ;;
        esac
    done
    (( ${#open} )) && compadd -S '' -- "${open[@]}"
    (( ${#found} )) && compadd -- "${found[@]}"
}
if [[ ${funcstack[1]:-} == _asf-play ]]; then _asf_play "$@"; else compdef _asf_play asf-play; fi
"""
_FISH = """\
# completion of asf-play for fish
function __asf_play
    set -l words (commandline -opc) (commandline -ct)
    for word in ($words[1] completion --words -- $words[2..-1] 2>/dev/null)
        if test "$word" = \\tfiles
            __fish_complete_path (commandline -ct)
        else
            echo $word
        end
    end
end
complete -c asf-play -f -a '(__asf_play)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    shell = parser.add_argument("shell", nargs="*", metavar="|".join(SCRIPTS), help="the shell")
    shell.complete = ("shell",)  # type: ignore[attr-defined]
    parser.add_argument("--json", action="store_true", help="standard output is one JSON document")
    # For the scripts alone.
    parser.add_argument("--words", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.add_argument("--breaks", default="", help=argparse.SUPPRESS)


def run(request: argparse.Namespace) -> int:
    """Print the script, or (for it) the words that fit."""
    if request.words:
        print("\n".join(complete.told(request.line, request.shell, request.breaks)))
        return errors.OK
    if len(request.shell) != 1 or request.shell[0] not in SCRIPTS:
        word = " ".join(request.shell)[:80]
        raise CliError(
            "completion is for one of three shells", found=word or None, remedy=f"{near(word, list(SCRIPTS))}{USAGE}"
        )
    name = request.shell[0]
    if request.json:
        print(document.dump({"ok": True, "shell": name, "script": SCRIPTS[name]}))
    else:
        print(SCRIPTS[name], end="")
    return errors.OK
