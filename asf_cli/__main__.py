# SPDX-License-Identifier: BSD-4-Clause
"""``python -m asf_cli``."""

from __future__ import annotations

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
