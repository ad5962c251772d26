# SPDX-License-Identifier: BSD-4-Clause
"""What an agent's own image adds: the files beside the manifest are pinned, and decide nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from asf_lib.core import images, manifest as manifest_core, packages
from asf_lib.core.errors import ManifestError
from asf_lib.engine import home as homes

HASH = "--hash=sha256:" + "a" * 64
PINS = yaml.safe_load((Path(__file__).parents[2] / "inventory/group_vars/all/pins.yml").read_text())["asf_image_pins"]
LOCK = {"lockfileVersion": 3, "packages": {"": {"name": "x"}, "node_modules/cowsay": {"integrity": "sha512-x"}}}
SCRIPT = {"integrity": "sha512-y", "hasInstallScript": True}


def declared(**more):
    return {"apt": (), "npm_scripts": (), **more}


def lines(text):
    return [problem.line for problem in packages.requirement_problems(text, "r.txt")]


@pytest.mark.parametrize(
    "text",
    [
        "a==1.0\nb==2.0+local\n",
        f"a==1.0 \\\n    {HASH}\nb[x,y]==2 ; python_version < '3.12' {HASH} {HASH}\n",
        "# comment\n\na == 1.0  # why\n",
        "Some.Name_x==1!2.0rc1\n",
    ],
)
def test_pinned_requirements_pass(text):
    assert packages.requirement_problems(text, "r.txt") == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("a\n", [1]),
        ("a>=1\n", [1]),
        ("a==1.*\n", [1]),
        ("a===1\n", [1]),
        ("a==1\nb~=2\n", [2]),
        ("a @ https://example.com/a.whl\n", [1]),
        ("./a.whl\n", [1]),
        ("--index-url https://example.com/simple\na==1\n", [1]),
        ("a==1\n-r other.txt\n-e .\n", [2, 3]),
        (f"a==1 {HASH}\nb==2\n", [2]),
        ("a==1 --hash=md5:aa\n", [1]),
        (f"a==1 --install-option=x {HASH}\n", [1]),
        ("a==1 --global-option=x\n", [1]),
        ("a==1 ; python_version > '3' --global-option=x\n", [1]),
        ("\n# nothing\n", [None]),
    ],
)
def test_what_is_not_pinned_is_refused_with_its_line(text, wrong):
    assert lines(text) == wrong


def test_comments_do_not_reach_pip_which_would_take_an_encoding_from_them():
    text = "# coding: utf-7\na==1+AAo-b  # why\n"
    found = packages.of("a", "generic", declared(pip="r.txt"), {"r.txt": text}, "/f")
    assert found.inputs == {packages.PIP: "a==1+AAo-b\n"}


def test_a_continued_line_has_the_number_of_its_first():
    assert lines(f"\na==1 \\\n  {HASH}\nb>=2 \\\n  {HASH}\n") == [4]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "not JSON"),
        (json.dumps({"lockfileVersion": 1, "dependencies": {}}), "no lock file"),
        (json.dumps({"packages": {"": {}}}), "names no package"),
        (json.dumps({"packages": {"node_modules/a": {"resolved": "git+ssh://x"}}}), "without integrity"),
        (json.dumps({"packages": {"node_modules/a": {"link": True, "resolved": "../a"}}}), "link"),
    ],
)
def test_an_npm_lock_that_pins_too_little_is_refused(document, words):
    _, problems = packages.lock_entries(document, "package-lock.json")
    assert len(problems) == 1 and words in problems[0].message and problems[0].key == "packages.npm"


def test_a_bundled_package_needs_no_integrity_of_its_own():
    entries = {"node_modules/a": {"integrity": "x"}, "node_modules/a/node_modules/b": {"inBundle": True}}
    assert packages.lock_entries(json.dumps({"packages": entries}), "f")[1] == []


def _npm(scripts, *, having):
    lock = {"packages": {**LOCK["packages"], **{f"node_modules/{name}": SCRIPT for name in having}}}
    texts = {"package.json": "{}", "package-lock.json": json.dumps(lock)}
    return packages.of("a", "generic", declared(npm="package-lock.json", npm_scripts=scripts), texts, "/f")


def test_install_scripts_are_named_and_run_only_where_asked_for():
    assert _npm((), having=["@x/esbuild"]).unrun == ("@x/esbuild",)
    assert "@x/esbuild" in _npm((), having=["@x/esbuild"]).notes()[0]
    asked = _npm(("@x/esbuild",), having=["@x/esbuild"])
    assert asked.unrun == () and asked.notes() == [] and asked.inputs[packages.NPM_SCRIPTS] == "@x/esbuild\n"
    with pytest.raises(ManifestError, match=r"npm_scripts\[0\]"):
        _npm(("cowsay",), having=["@x/esbuild"])


def test_the_image_stands_on_the_clients_and_has_its_check():
    found = packages.of("my-agent", "claude", declared(apt=("jq",)), {}, "/f")
    spec = found.spec()
    assert (spec.name, spec.parent, spec.wheels) == ("packages-my-agent", "agent-claude", ())
    assert spec.check == images.SPECS["agent-claude"].check and not spec.bare and spec.mapping == images.KEEP_ID
    assert packages.image_of("claude", found) == spec.name and packages.image_of("claude", None) == "agent-claude"


def _tag(found):
    specs = {**images.SPECS, found.name: found.spec()}
    sources = {**{name: "0" for name in images.SOURCES}, found.name: found.digest}
    return images.tags(PINS, sources, specs=specs)[found.name]


def test_the_tag_follows_the_files_and_not_the_agents_other_keys():
    one = packages.of("a", "generic", declared(pip="r.txt"), {"r.txt": "x==1\n"}, "/f")
    same = packages.of("a", "generic", declared(pip="r.txt"), {"r.txt": "x==1\n"}, "/elsewhere")
    other = packages.of("a", "generic", declared(pip="r.txt"), {"r.txt": "x==2\n"}, "/f")
    assert _tag(one) == _tag(same) != _tag(other)


@pytest.mark.parametrize("name", ["a-", "a_b", "a-_b", "x___y"])
def test_an_odd_agent_name_gives_a_valid_reference(name):
    found = packages.of(name, "generic", declared(apt=("jq",)), {}, "/f")
    place = images.repository(found.name)
    assert re.fullmatch(r"localhost/asf/[a-z0-9]+(-[a-z0-9]+)*", place), place


def _agent(tmp_path, body, **files):
    folder = tmp_path / "agents" / "mine"
    folder.mkdir(parents=True)
    (folder / "runtime.yml").write_text("name: mine\nllm: {mock: hi, protocol: openai}\n" + body)
    for name, text in files.items():
        (folder / name.replace("__", ".").replace("_", "-")).write_text(text)
    home = homes.Home(tmp_path, "ASF_HOME")
    return home, homes.load_manifest(home, "mine")


def test_files_are_read_beside_the_manifest(tmp_path):
    home, manifest = _agent(tmp_path, "packages: {pip: reqs.txt}\n", reqs__txt="a==1\n")
    found = homes.load_packages(home, manifest)
    assert found is not None and found.inputs == {"requirements.txt": "a==1\n"}
    assert homes.all_packages(home) == {"packages-mine": found}


def test_a_manifest_without_packages_has_the_clients_image(tmp_path):
    home, manifest = _agent(tmp_path, "packages: {}\n")
    assert homes.load_packages(home, manifest) is None and homes.all_packages(home) == {}


def test_every_file_that_is_missing_or_a_link_is_told(tmp_path):
    home, manifest = _agent(tmp_path, "packages:\n  pip: reqs.txt\n  npm: package-lock.json\n")
    (tmp_path / "agents/mine/package-lock.json").symlink_to("/etc/passwd")
    with pytest.raises(ManifestError) as raised:
        homes.load_packages(home, manifest)
    told = {problem.file.rpartition("/")[2]: problem for problem in raised.value.problems}
    assert sorted(told) == ["package-lock.json", "package.json", "reqs.txt"]
    assert "symbolic link" in told["package-lock.json"].message and "runtime.yml:4" in told["reqs.txt"].remedy


def test_scripts_without_npm_are_refused(tmp_path):
    with pytest.raises(ManifestError, match="npm_scripts"):
        _agent(tmp_path, "packages: {npm_scripts: [esbuild]}\n")


def test_the_manifests_default_is_as_before(tmp_path):
    _, manifest = _agent(tmp_path, "")
    assert manifest.packages is None and manifest_core.unbuilt(manifest) == []
