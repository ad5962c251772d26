# SPDX-License-Identifier: BSD-4-Clause
"""The command line of ASF.

`asf_lib` is the collection's `plugins/module_utils`. A wheel installs it under that name; a checkout has it only where
Ansible wants it, so that here, once, the name is given to that folder. Import one of the two names in a process, never
both: exception classes would differ.
"""

import importlib.util
import sys
from pathlib import Path


def _alias_shared_code() -> None:
    if "asf_lib" in sys.modules or importlib.util.find_spec("asf_lib") is not None:
        return
    folder = Path(__file__).resolve().parent.parent / "plugins" / "module_utils"
    spec = importlib.util.spec_from_file_location(
        "asf_lib", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not folder.is_dir():
        raise ImportError(f"asf_lib is neither installed nor at {folder}: install the distribution asf-play again")
    module = importlib.util.module_from_spec(spec)
    sys.modules["asf_lib"] = module
    spec.loader.exec_module(module)


_alias_shared_code()
