#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-4-Clause
"""Make the front's price list out of the pinned LiteLLM's own map: ``tools/gen_prices.py MAP.json``.

MAP.json is ``litellm/model_prices_and_context_window_backup.json`` of the pinned release (in the broker's image). Only
facts are taken: USD per million tokens of models that answer chats, for providers whose host ASF knows. Writes
``roles/egress_caddy/files/caddy/front/prices.json``: ``{"source": …, "prices": {PROVIDER: {MODEL: {in, out, …}}}}``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import asf_cli  # noqa: F401  (gives asf_lib its name in a checkout)
from asf_lib.core.providers import DOMAINS

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "roles/egress_caddy/files/caddy/front/prices.json"
_PIN = re.compile(r"^litellm\[proxy\]==(\S+)$", re.M)
#: Our word for LiteLLM's, per token. What stands for nothing here is left out.
_FIELDS = {
    "in": "input_cost_per_token",
    "out": "output_cost_per_token",
    "read": "cache_read_input_token_cost",
    "write": "cache_creation_input_token_cost",
    "write_1h": "cache_creation_input_token_cost_above_1hr",
}
_OVER = re.compile(r"^input_cost_per_token_above_(\d+)k_tokens$")


def row(entry: dict[str, Any]) -> dict[str, float]:
    """One model's prices, USD per million tokens; with ``over`` (tokens of input) others hold, in ``*_over``."""
    found = {ours: entry[theirs] for ours, theirs in _FIELDS.items() if entry.get(theirs) is not None}
    found["out"] = max(found.get("out", 0), entry.get("output_cost_per_reasoning_token") or 0)
    steps = sorted(int(match.group(1)) for match in map(_OVER.match, entry) if match)
    out = {name: _million(price) for name, price in found.items()}
    if steps:
        out["over"] = steps[0] * 1000
        for ours, theirs in _FIELDS.items():
            if (price := entry.get(f"{theirs}_above_{steps[0]}k_tokens")) is not None:
                out[f"{ours}_over"] = _million(price)
    return out


def _million(price: float) -> float:
    value = round(price * 1e6, 6)
    return int(value) if value == int(value) else value


def prices(known: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """By provider, then by the model's name without the provider's."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, entry in sorted(known.items()):
        provider = entry.get("litellm_provider")
        if provider not in DOMAINS or entry.get("mode") not in ("chat", "responses"):
            continue
        if not entry.get("input_cost_per_token") and not entry.get("output_cost_per_token"):
            continue
        model = name.removeprefix(f"{provider}/")
        if model.startswith("ft:"):
            continue
        found.setdefault(provider, {})[model] = row(entry)
    return found


def main() -> int:
    """Write the list."""
    (source,) = sys.argv[1:]
    pin = _PIN.search((ROOT / "roles/image/files/litellm/requirements.in").read_text(encoding="utf-8"))
    assert pin is not None
    found = prices(json.loads(Path(source).read_text(encoding="utf-8")))
    lines = [
        f'  "{provider}": {{\n'
        + ",\n".join(f"   {json.dumps(m)}: {json.dumps(p)}" for m, p in models.items())
        + "\n  }"
        for provider, models in sorted(found.items())
    ]
    text = f'{{\n "source": "litellm {pin.group(1)}",\n "prices": {{\n' + ",\n".join(lines) + "\n }\n}\n"
    json.loads(text)
    TARGET.write_text(text, encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {sum(map(len, found.values()))} models of {len(found)} providers")
    return 0


if __name__ == "__main__":
    sys.exit(main())
