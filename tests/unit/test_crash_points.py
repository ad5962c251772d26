# SPDX-License-Identifier: BSD-4-Clause
"""What the recorder of the crash matrix would not see: a step taken in such a way would have no case (L1)."""

from __future__ import annotations

import ast
from pathlib import Path

from support import chaos

_ROOT = Path(__file__).resolve().parents[2]
#: Calls that change something and that neither an audit event nor `chaos` shows, with the reason why each may stay.
BLIND = {
    ("netns.py", "os.fork"): "a helper; it inherits the recorder, and its own steps are points",
    ("signals.py", "os.fork"): "as above",
    ("logs.py", "os.fork"): "as above",
    ("logfollow.py", "os.fork"): "as above",
    ("hostfacts.py", "os.fork"): "as above",
}
_UNSEEN = {
    f"os.{name}"
    for name in (
        *("system", "popen", "posix_spawn", "posix_spawnp", "fork", "forkpty", "execv", "execve", "execvp", "execvpe"),
        *("mknod", "mkfifo", "sendfile", "copy_file_range", "splice", "setxattr", "removexattr"),
    )
} | {"pty.spawn", "pty.fork"}


def _called(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            names.add(f"{node.func.value.id}.{node.func.attr}")
    return names


def test_no_step_is_taken_in_a_way_that_the_recorder_cannot_see() -> None:
    """A new call of this kind needs a point in chaos.py, or a reason here."""
    found = set()
    for file in [*(_ROOT / "plugins/module_utils/engine").glob("*.py"), *(_ROOT / "asf_cli").rglob("*.py")]:
        found |= {(file.name, name) for name in _called(ast.parse(file.read_text())) & _UNSEEN}
    assert found - set(BLIND) == set(), "unseen by the recorder"
    assert not _UNSEEN & set(chaos.FILES)
