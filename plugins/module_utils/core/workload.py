# SPDX-License-Identifier: BSD-2-Clause
"""What the workload is started with: its words, its folder and its complete environment."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .adapters import Adapter, filled, model_of
from .policy import L1_PORT, L2_PORT
from .topology import Topology

HOME = "/home/node"
WORKSPACE = "/workspace/repos"
UID = 1000
CA_FILE = "/asf/ca.pem"

# Every client reads another variable; all of them name the same bundle.
_CA_VARIABLES = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
)

# Per protocol of the front: the variable of its address, the path below it, and the variables of the token.
_CLIENT: Dict[str, Tuple[str, str, List[str]]] = {
    "anthropic": ("ANTHROPIC_BASE_URL", "", ["ANTHROPIC_AUTH_TOKEN"]),
    "openai": ("OPENAI_BASE_URL", "/v1", ["OPENAI_API_KEY"]),
}

_TERM = "xterm-256color"
#: Terminal types that Debian's ncurses-base describes, which every image has; any other terminal of today (kitty,
#: alacritty, foot, iTerm, ...) does what xterm-256color promises.
_TERMS = frozenset(
    "ansi cygwin dumb hurd linux rxvt rxvt-basic screen screen-256color screen-256color-bce screen-bce"
    " screen.xterm-256color tmux tmux-256color vt100 vt102 vt220 xterm xterm-256color xterm-color xterm-mono".split()
)
_COLORTERMS = ("truecolor", "24bit")


def argv(runtime_command: Sequence[str], override: Optional[Sequence[str]]) -> List[str]:
    """The workload's words: the command after ``--``, else the manifest's, else a login shell."""
    return list(override or runtime_command or ("/bin/bash", "-l"))


def folder(repositories: Sequence[str]) -> str:
    """Where it starts: in the one repository, or above several."""
    return f"{WORKSPACE}/{repositories[0]}" if len(repositories) == 1 else WORKSPACE


def proxies(topology: Topology) -> Dict[str, str]:
    """Both cases, as clients differ. Plain HTTP goes to L1 as well: it refuses with a reason instead of a timeout."""
    url = f"http://{topology.agent.far.ip}:{L1_PORT}"
    env = {name: url for base in ("http_proxy", "https_proxy", "all_proxy") for name in (base, base.upper())}
    env["no_proxy"] = env["NO_PROXY"] = "front,localhost,127.0.0.1,::1"
    env["NODE_USE_ENV_PROXY"] = "1"
    return env


def terminal(given: Mapping[str, str]) -> Dict[str, str]:
    """What a workload is told of the user's terminal, out of the user's environment: ``TERM``, and perhaps
    ``COLORTERM``. Only known words pass."""
    term, colours = given.get("TERM"), given.get("COLORTERM")
    told = {"TERM": term if term in _TERMS else _TERM}
    return {**told, "COLORTERM": colours} if colours in _COLORTERMS else told


def placeholders(adapter: Adapter, models: Sequence[str], brokered: bool) -> Dict[str, Optional[str]]:
    """What an adapter's placeholders stand for; the front's have no value without one."""
    if not brokered:
        return {"@CA_FILE@": CA_FILE}
    return {
        "@CA_FILE@": CA_FILE,
        "@FRONT_HOST@": f"front:{L2_PORT}",
        "@FRONT_URL@": f"http://front:{L2_PORT}",
        "@MODEL@": model_of(adapter, models),
    }


def _front_env(adapter: Adapter, models: Sequence[str]) -> Dict[str, str]:
    values = placeholders(adapter, models, True)
    return {name: filled(text, values, adapter.file, f"front_env.{name}") for name, text in adapter.front_env.items()}


def environment(
    adapter: Adapter,
    models: Sequence[str],
    protocol: Optional[str],
    proxied: Optional[Topology],
    with_ca: bool,
    terminal_env: Mapping[str, str],
    manifest_env: Dict[str, str],
) -> Tuple[Dict[str, str], List[str]]:
    """The complete environment (the gate sets nothing else) and the variables that receive the session token.

    ``models`` are those of ``llm.models``; ``protocol`` is the front's when the session is brokered, else None;
    ``proxied`` is set in a mode with L1; ``terminal_env`` is empty without a terminal.
    The manifest's ``env`` comes last: network policy does not rest on variables.
    Raises PlanError where the adapter names a placeholder without a value.
    """
    env = {
        "HOME": HOME,
        "USER": "node",
        "LOGNAME": "node",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TERM": "dumb",
        **terminal_env,
        "IS_SANDBOX": "1",
        **(proxies(proxied) if proxied else {}),
        **adapter.env,
    }
    if with_ca:
        env.update({name: CA_FILE for name in _CA_VARIABLES})
    tokens: List[str] = []
    if protocol is not None:
        variable, path, tokens = _CLIENT[protocol]
        env[variable] = f"http://front:{L2_PORT}{path}"
        env.update(_front_env(adapter, models))
        tokens = [*tokens, *(name for name in adapter.token_env if name not in tokens)]
    env.update(manifest_env)
    return env, [name for name in tokens if name not in manifest_env]
