"""What a job's process is told, and what it says.

In: the daemon's JSON. Out: an `WorkerOrder`; `End` is the last line. `daemon.jobs` is at the other end of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LONGEST_TEXT = 300_000
"""Characters of a result that are sent: the daemon keeps a little less, and says so."""

SendLine = Callable[[Mapping[str, Any]], None]
"""Says a line."""


@dataclass(frozen=True, kw_only=True)
class WorkerOrder:
    job: str
    runs: str
    prompt: str = field(repr=False)
    model: str
    base_url: str
    api_key: str = field(repr=False)
    profile: str
    parent: str
    workdir: Path
    timeout: float
    max_steps: int

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> WorkerOrder:
        return cls(**{**told, "workdir": Path(told["workdir"])})


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    done: bool
    text: str = ""
    error: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        told = asdict(self) | {"status": "done" if self.done else "failed", "text": self.text[:LONGEST_TEXT]}
        del told["done"]
        return {"end": told}
