"""What tells a log that Toolcrib wrote here from one that was planted, changed or moved.

In: a key of the person's own, a line's kind, its run and its fields. Out: a seal for the line; whether one is right. A
project's files are anybody's work, and the next run of a conversation goes by them: `log` seals what `shelf` believes.
Whoever can read the key can seal; it lies where no tool of Toolcrib's reaches.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from toolcrib.book.key import make_key, read_key
from toolcrib.config.paths import Paths
from toolcrib.errors import StoreError

SEAL = "seal"
"""The field of a line."""


@dataclass(frozen=True)
class Seals:
    key: bytes | None = field(repr=False)
    """None: nothing is sealed, and nothing is believed."""

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Self:
        """For reading."""
        with contextlib.suppress(StoreError):
            return cls(read_key(Paths.of_user(environ).runs_key))
        return cls(None)

    @classmethod
    def made(cls, environ: Mapping[str, str]) -> Self:
        """For writing: the key is made where there is none."""
        file = Paths.of_user(environ).runs_key
        with contextlib.suppress(StoreError):
            return cls(read_key(file) or make_key(file))
        return cls(None)

    def sealed(self, root: Path, run_id: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields, and their seal."""
        if self.key is None:
            return dict(fields)
        return {**fields, SEAL: _seal(self.key, root, run_id, kind, fields)}

    def fits(self, root: Path, run_id: str, kind: str, fields: Mapping[str, Any]) -> bool:
        """Whether these fields, as they were read, carry the seal of just them."""
        seal = fields.get(SEAL)
        if self.key is None or not isinstance(seal, str):
            return False
        bare = {name: value for name, value in fields.items() if name != SEAL}
        try:
            right = _seal(self.key, root, run_id, kind, bare)
        except RecursionError:
            return False
        return hmac.compare_digest(right.encode(), seal.encode(errors="replace"))


def _seal(key: bytes, root: Path, run_id: str, kind: str, fields: Mapping[str, Any]) -> str:
    # The same text for what is about to be written and for what was read again.
    content = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    said = json.dumps([kind, os.fsencode(root.resolve()).hex(), run_id, content])
    return hmac.new(key, said.encode(), hashlib.sha256).hexdigest()
