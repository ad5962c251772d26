# SPDX-License-Identifier: BSD-4-Clause
"""Build the images that the tests and the demo use; what is built already costs a second per agent."""

import subprocess
import sys

_AGENTS = ("demo", "claude", "python-agent", "routed-scanner")


def main() -> int:
    """Build one agent's images after the other (they share layers); return the first exit code that is not 0."""
    for agent in sys.argv[1:] or _AGENTS:
        print(f"images of {agent}", flush=True)
        done = subprocess.run(["asf-play", "build.yml", "-e", f"agent={agent}"], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
