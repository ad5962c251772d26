# SPDX-License-Identifier: BSD-4-Clause
"""``config.yml`` is as strict as a manifest."""

from __future__ import annotations

import pytest

from asf_lib.core import settings
from asf_lib.core.errors import ManifestError
from asf_lib.core.settings import Settings
from asf_lib.engine import yamlload


def _read(text: str) -> Settings:
    return settings.validate(yamlload.parse(text.encode(), "config.yml"), "config.yml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}\n"])
def test_an_empty_file_means_defaults(text: str) -> None:
    read = _read(text)
    assert (read.ca_bundle, read.resolver, read.limits.given()) == (None, None, {})


def test_all_keys() -> None:
    read = _read("ca_bundle: /etc/ssl/corp.pem\nresolver: 192.0.2.53\nlimits: {memory: 6g, pids: 100}\n")
    assert (read.ca_bundle, read.resolver) == ("/etc/ssl/corp.pem", "192.0.2.53")
    assert read.limits.given() == {"memory": 6 << 30, "pids": 100}


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("ca_bundel: /x\n", "ca_bundel", "did you mean ca_bundle?"),
        ("ca_bundle: relative.pem\n", "ca_bundle", "an absolute path"),
        ("resolver: dns.example.com\n", "resolver", "an IPv4 address"),
        ("resolver: '::1'\n", "resolver", "an IPv4 address"),
        ("resolver: 127.0.0.53\n", "resolver", "a loopback address"),
        ("limits: {memory: lots}\n", "limits.memory", "a size"),
        ("limits: {memroy: 8g}\n", "limits.memroy", "did you mean memory?"),
        ("- a\n", None, "a mapping belongs here"),
    ],
)
def test_wrong(text: str, key: str | None, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        _read(text)
    (problem,) = caught.value.problems
    assert problem.key == key
    assert words in problem.text()
