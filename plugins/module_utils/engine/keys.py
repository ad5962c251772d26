# SPDX-License-Identifier: BSD-2-Clause
"""Who reads the operator's secrets, and when: at the moment a Podman secret is made of one, and nobody keeps it."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from . import planning

Json = Dict[str, Any]


def reader(home: Optional[str], collection: str, plan: Json) -> Callable[[Json], str]:
    """A function from a secret's entry in the plan to its value; it raises SecretError when there is none."""
    return lambda entry: planning.secret_value(home, collection, plan, entry)
