# SPDX-License-Identifier: BSD-4-Clause
"""What set-up does as the account, with the account's own programs: ``python3 -E -s prepare.py KEY PLACE``.

KEY is the clone's, PLACE is where the clone is seen. A program of its own, because in another userland (userland.py)
root's interpreter no longer finds its library, and packages must be installed for the Python that runs them.
"""

import os
import pwd
import sys

import account as accounts
from cache import Cache
from say import SetupError, say


def _main(key, place):
    try:
        accounts.configure(pwd.getpwuid(os.getuid()))
        Cache(os.path.expanduser("~/.cache/asf"), key, place + "/requirements").ensure(place)
    except (SetupError, OSError) as error:
        say(str(error))
        return 78
    return 0


sys.exit(_main(*sys.argv[1:]))
