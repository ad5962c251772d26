# SPDX-License-Identifier: BSD-4-Clause
"""The commands of a page, as they stand there: its ```sh blocks, in their order, as one script.

python3 tools/doc_commands.py PAGE [LAST]: run them with bash, up to the first block that holds the text LAST.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```$")


def script(page: Path, last: str = "") -> str:
    """The page's blocks as one bash script that ends at the first failure; ``last`` ends it after a block.

    Raises ValueError when no block holds ``last``.
    """
    blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
    ends = [number for number, text in enumerate(blocks, 1) if last in text]
    if not ends:
        raise ValueError(f"{page}: no block of commands holds {last!r}")
    return "set -euo pipefail\n" + "\n".join(blocks[: ends[0]] if last else blocks)


def main() -> None:
    """Become bash with the script."""
    page, last = Path(sys.argv[1]), "".join(sys.argv[2:3])
    os.execvp("bash", ["bash", "-c", script(page, last)])


if __name__ == "__main__":
    main()
