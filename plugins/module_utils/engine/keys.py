# SPDX-License-Identifier: BSD-2-Clause
"""Who reads the provider's key, and when: at the moment its Podman secret is made, and nobody keeps it."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from . import planning

Json = Dict[str, Any]


def reader(home: Optional[str], collection: str, plan: Json) -> Callable[[Json], str]:
    """A function from a secret's entry in the plan to its value; it raises SecretError when there is none."""
    return lambda entry: planning.provider_key(home, collection, plan)
