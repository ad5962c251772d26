# SPDX-License-Identifier: BSD-4-Clause
"""Rules of this repository that no linter knows: licences, layout of roles, words that must not appear."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MARK = "SPDX-License-" + "Identifier: "
#: files that cannot or need not carry a comment
BARE = {".json", ".sum", ".lock", ".patch", ".pem", ".jsonl", ".typed", ".png", ".svg"}
GPL, BSD2, BSD4 = "GPL-3.0-or-later", "BSD-2-Clause", "BSD-4-Clause"


def files():
    """Every file of the repository that git does not ignore."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    names = [name for name in done.stdout.decode().split("\0") if name]
    return [Path(name) for name in names if (ROOT / name).is_file() and not (ROOT / name).is_symlink()]


def licence_of(path):
    """The licence that a file of this place must have."""
    if path.parts[:2] == ("plugins", "module_utils"):
        return BSD2
    in_ansible = path.parts[0] == "plugins" or "library" in path.parts
    return GPL if in_ansible and path.suffix == ".py" else BSD4


def needs_mark(path):
    return path.parts[0] not in ("LICENSES",) and path.name != "LICENSE" and path.suffix not in BARE


def test_every_file_names_its_licence_first():
    wrong = []
    for path in filter(needs_mark, files()):
        head = (ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines()[:3]
        if not any(MARK + licence_of(path) in line for line in head):
            wrong.append(f"{path}: {MARK}{licence_of(path)} is missing at the top")
    assert not wrong, "\n".join(wrong)


def test_licence_texts_are_there():
    assert {path.stem for path in (ROOT / "LICENSES").glob("*.txt")} == {GPL, BSD2, BSD4}


def imports(path):
    """Modules that a Python file imports, relative ones as paths below the repository."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def python(folder):
    return [path for path in files() if path.suffix == ".py" and str(path).startswith(folder)]


def test_no_gpl_file_imports_bsd4_code_or_the_reverse():
    wrong = [
        f"{path} imports {name}"
        for path in python("plugins/")
        if "module_utils" not in path.parts
        for name in imports(path)
        if name.split(".")[0] in ("asf_cli", "asf_lib")
    ]
    modules = re.compile(r"(ansible_collections\.asf\.sandbox\.)?plugins\.(?!module_utils)")
    wrong += [f"{path} imports {name}" for path in python("asf_cli/") for name in imports(path) if modules.match(name)]
    assert not wrong, "\n".join(wrong)


FORBIDDEN_IN_CORE = {
    "os",
    "sys",
    "subprocess",
    "socket",
    "time",
    "random",
    "secrets",
    "pathlib",
    "io",
    "yaml",
    "ansible",
}


def test_the_core_is_pure():
    wrong = [
        f"{path} imports {name}"
        for path in python("plugins/module_utils/core/")
        for name in imports(path)
        if name.split(".")[0] in FORBIDDEN_IN_CORE or name.startswith("..")
    ]
    assert not wrong, "\n".join(wrong)


def test_shared_code_imports_relatively_and_only_the_standard_library():
    allowed = {
        "plugins/module_utils/engine/yamlload.py": {"yaml"},
        # programs of their own, which no process of ASF imports these into
        "plugins/module_utils/engine/askvault.py": {"ansible"},
        "plugins/module_utils/engine/askkeyring.py": {"keyring"},
    }
    wrong = [
        f"{path} imports {name}"
        for path in python("plugins/module_utils/")
        for name in imports(path)
        if name.split(".")[0]
        in {"asf_lib", "asf_cli", "ansible", "ansible_collections", "yaml", "keyring"} - allowed.get(str(path), set())
    ]
    assert not wrong, "\n".join(wrong)


def roles():
    return sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


@pytest.mark.parametrize("role", roles())
def test_role_has_the_same_shape_as_every_other(role):
    base = ROOT / "roles" / role
    for name in ("README.md", "defaults/main.yml", "meta/argument_specs.yml", "tasks/main.yml"):
        assert (base / name).is_file(), f"roles/{role}/{name} is missing"
    defaults = yaml.safe_load((base / "defaults/main.yml").read_text()) or {}
    specs = yaml.safe_load((base / "meta/argument_specs.yml").read_text())["argument_specs"]
    options = {name for spec in specs.values() for name in spec.get("options") or {}}
    required = {
        name
        for spec in specs.values()
        for name, option in (spec.get("options") or {}).items()
        if option.get("required")
    }
    assert options - required <= set(defaults) <= options, "defaults and argument specs name different variables"
    assert all(name.startswith("asf_") for name in options), "public variables start with asf_"


def test_nothing_names_a_registry_or_a_workplace():
    # written in halves, or this file would be the first to break the rule
    hosts = ["pypi" + r"\.org", "registry" + r"\.npmjs", "proxy" + r"\.golang"]
    words = re.compile("|".join([*hosts, "/wo" + "rk/", r"\.\./sha" + "red/"]))
    skip = {"go.sum"}
    wrong = []
    for path in files():
        if path.name in skip or path.suffix in BARE or path.parts[0] == "LICENSES":
            continue
        for number, text in enumerate((ROOT / path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if words.search(text):
                wrong.append(f"{path}:{number}: {text.strip()[:100]}")
    assert not wrong, "\n".join(wrong)
