"""The messages between the daemon and a job's process.

In and out: JSON. A `WorkerOrder` goes to the process's stdin; a `WorkerResult` is the last line of its stdout. `worker`
is the daemon's side, `__main__` the process's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LONGEST_TEXT = 300_000
"""Maximum characters of a result to send. The daemon stores a little less and marks the cut."""

SendLine = Callable[[Mapping[str, Any]], None]
"""Writes a line to the daemon."""


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
    def read(cls, order: Mapping[str, Any]) -> WorkerOrder:
        return cls(**{**order, "workdir": Path(order["workdir"])})

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "workdir": str(self.workdir)}


@dataclass(frozen=True, kw_only=True)
class WorkerResult:
    done: bool
    text: str = ""
    error: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        status = "done" if self.done else "failed"
        text = self.text[:LONGEST_TEXT]
        return {"end": {"status": status, "text": text, "error": self.error, "usage": dict(self.usage)}}
