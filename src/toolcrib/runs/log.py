"""The log of one run: `.toolcrib/runs/<run_id>.jsonl`, for the person alone.

In: the run's metadata, its events as they come, its summary. Out: one line of JSON each, on its way to the disk before
the next thing happens: a run that is killed leaves whole lines. A log that cannot be written does not end a run; it
says so once, in `failure`. Secrets are masked. `shelf` reads what is written here.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.events import AgentEvent, Kind
from toolcrib.runs.masking import Masking
from toolcrib.runs.place import ENDING, Missing, entered, folder_of, make, names
from toolcrib.runs.result import Metadata, Status, Summary
from toolcrib.runs.shelf import status_of

MOST_LOGS = 200
"""Of a project; the oldest go when another begins."""

_OURS = frozenset(
    {
        "run_id",
        "provider",
        "conversation",
        "agent",
        "profile",
        "own_tools",
        "kind",
        "tool_status",
        "decision",
        "status",
    }
)
"""Words of Toolcrib's own, by which a log is read: one that is also the value of some variable stays readable."""
_WITH_NAMES_OF_OURS = frozenset({"usage", "session_usage", "listing"})


class RunLog:
    def __init__(self, path: Path, provider: str, masking: Masking) -> None:
        self.path = path
        self.failure = ""
        """Why the log is not whole, once it is not; empty as long as it is."""
        self._provider = provider
        self._masking = masking
        self._descriptor: int | None = None
        self._lost = 0

    @classmethod
    def open(cls, root: Path, metadata: Metadata, *, secrets: Iterable[str] = ()) -> RunLog:
        """Never raises: where no log can be made, `failure` says why."""
        log = cls(folder_of(root) / f"{metadata.run_id}{ENDING}", metadata.provider, Masking(secrets))
        try:
            with entered(root, Missing.MADE) as folder:
                _clear(root, folder)
                log._descriptor = make(folder, log.path.name)
        except OSError as error:
            log._fails(error)
        log._put({"metadata": log._masked(metadata.to_json())})
        return log

    def event(self, event: AgentEvent) -> None:
        if self._descriptor is None:
            return
        if os.fstat(self._descriptor).st_nlink == 0:
            self.failure = self.failure or f"{self.path} was removed while the run went on."
        self._put({"event": self._masked(event.to_json())})

    def end(self, summary: Summary) -> None:
        """The last line; all of it is on the disk when this returns."""
        self._put({"summary": self._masked(summary.to_json())})
        if self._descriptor is None:
            return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._fails(error)
        finally:
            os.close(self._descriptor)
            self._descriptor = None

    def _gap(self) -> AgentEvent:
        lines = "1 line is" if self._lost == 1 else f"{self._lost} lines are"
        return AgentEvent(
            kind=Kind.LOG, provider=self._provider, role="toolcrib", text=f"{lines} missing here: {self.failure}"
        )

    def _put(self, record: Mapping[str, Any]) -> None:
        if self._descriptor is None:
            return
        data = _line(record)
        if self._lost:
            data = _line({"event": self._masked(self._gap().to_json())}) + data
        left = memoryview(data)
        before = os.fstat(self._descriptor).st_size
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError as error:
            self._fails(error)
            self._lost += 1
            # Half a line would spoil the next one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, before)
        else:
            self._lost = 0

    def _fails(self, error: OSError) -> None:
        self.failure = self.failure or f"{self.path} cannot be written: {error.strerror or error}."

    def _masked(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._field(name, value) for name, value in fields.items()}

    def _field(self, name: str, value: Any) -> Any:
        if name in _OURS:
            return value
        if name in _WITH_NAMES_OF_OURS and isinstance(value, Mapping):
            return self._masked(value)
        if isinstance(value, int | float) and math.isfinite(value):
            return value
        return self._masking(value)


def _line(record: Mapping[str, Any]) -> bytes:
    # A surrogate that stands alone has no bytes; JSON can spell it.
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def _clear(root: Path, folder: int) -> None:
    """Makes room for one more. A run that is still going on keeps its log, however old it is."""
    for run_id in names(folder)[MOST_LOGS - 1 :]:
        if status_of(root, run_id) is not Status.RUNNING:
            with contextlib.suppress(OSError):
                os.unlink(f"{run_id}{ENDING}", dir_fd=folder)
