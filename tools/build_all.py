# SPDX-License-Identifier: BSD-4-Clause
"""Build the images that the tests and the demo use; what is built already costs a second per agent."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "own-agent.md"
_AGENTS = ("demo", "claude", "codex", "hermes", "python-agent", "langgraph", "crewai", "smolagents", "routed-scanner")


def main() -> int:
    """Build one agent's images after the other (they share layers); return the first exit code that is not 0."""
    for agent in sys.argv[1:] or _AGENTS:
        print(f"images of {agent}", flush=True)
        done = subprocess.run(["asf-play", "build.yml", "-e", f"agent={agent}"], check=False)
        if done.returncode:
            return done.returncode
    return 0 if sys.argv[1:] else _page()


def _page() -> int:
    """The image that docs/own-agent.md makes, by its own commands, in a root that is thrown away."""
    print(f"images of {_PAGE.name}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        argv = [sys.executable, str(_PAGE.parents[1] / "tools" / "doc_commands.py"), str(_PAGE), "asf-play build.yml"]
        return subprocess.run(argv, env={**os.environ, "ASF_HOME": root}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
