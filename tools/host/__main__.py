# SPDX-License-Identifier: BSD-4-Clause
"""Set up what is missing on this machine, then become the command that was asked for.

Run as ``python3 -I tools/host CMD [ARG...]`` by tools/operator. Only Debian's own Python 3.11 and its standard library
are needed, because this runs before anything else of the project is installed, and partly as root.
"""

import os
import sys

from say import SetupError, say


def _main(argv):
    if not argv:
        say("usage: tools/operator CMD [ARG...]")
        return 64
    if sys.version_info < (3, 11):  # noqa: UP036  nothing has checked it before
        say(f"Python 3.11 or newer is needed, {sys.executable} is {sys.version.split()[0]}: install a newer python3")
        return 78
    if os.geteuid() == 0:
        from as_root import become
    else:
        from as_user import become
    try:
        become(argv)
    except (SetupError, OSError) as error:
        say(str(error))
        return 78
    except KeyboardInterrupt:
        return 130
    return 127  # become() returns only when the command could not be executed


sys.exit(_main(sys.argv[1:]))
