"""What a server says of its tool, in our words.

In: a tool's annotations. Out: four claims, each true or false; where the server is silent, what the protocol says of a
silent one. `filters` and `policy` ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolcrib.config.model import CLAIMS


def claims_of(annotations: Mapping[str, Any]) -> dict[str, bool]:
    def claim(name: str, *, default: bool) -> bool:
        value = annotations.get(CLAIMS[name])
        return value if isinstance(value, bool) else default

    # Nothing that only reads destroys, and it may be repeated.
    reads = claim("read_only", default=False)
    return {
        "read_only": reads,
        "destructive": claim("destructive", default=not reads),
        "idempotent": claim("idempotent", default=reads),
        "open_world": claim("open_world", default=True),
    }
