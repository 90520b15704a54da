"""The log of one run: `.toolcrib/runs/<run_id>.jsonl`, for the person alone.

In: the run's metadata, its events as they come, its summary. Out: one line of JSON each, on its way to the disk before
the next thing happens: a run that is killed leaves whole lines. A log that cannot be written does not end a run; it
says so once, in `failure`. Secrets are masked. What `shelf` believes of it is sealed: the first line, the last, and the
program's session as soon as it is known.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolcrib.agent_events import AgentEvent, Kind
from toolcrib.errors import ToolcribError
from toolcrib.runs.masking import Masking, number
from toolcrib.runs.place import ENDING, Missing, entered, folder_of, make, names
from toolcrib.runs.result import Metadata, Status, Summary
from toolcrib.runs.seal import Seals
from toolcrib.runs.shelf import runs

MOST_LOGS = 200
"""Of a project; the oldest go when another begins. Those that Toolcrib did not write count for nothing, and stay."""

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
_LONGEST_TEXT = 1024 * 1024
_LONGEST = 64 * 1024
"""Characters of any other text, bytes of a mapping, in the first and the last line: lists are made of these."""


class RunLog:
    def __init__(self, root: Path, metadata: Metadata, seals: Seals, masking: Masking) -> None:
        self.path = folder_of(root) / f"{metadata.run_id}{ENDING}"
        self.failure = ""
        """Why the log is not whole, once it is not; empty as long as it is."""
        self._root = root
        self._run_id = metadata.run_id
        self._provider = metadata.provider
        self._session = ""
        self._seals = seals
        self._masking = masking
        self._descriptor: int | None = None
        self._lost = 0

    @classmethod
    def open(cls, root: Path, metadata: Metadata, *, seals: Seals, secrets: Iterable[str] = ()) -> RunLog:
        """Never raises: where no log can be made, `failure` says why."""
        log = cls(root, metadata, seals, Masking(secrets))
        try:
            with entered(root, Missing.MADE) as folder:
                _clear(root, folder, seals)
                log._descriptor = make(folder, log.path.name)
        except OSError as error:
            log._fails(error)
        log._put_sealed("metadata", metadata.to_json())
        return log

    def mask(self, value: Any) -> Any:
        """Without secrets, as it stands in the log."""
        return self._masking(value)

    def event(self, event: AgentEvent) -> None:
        if self._descriptor is None:
            return
        if os.fstat(self._descriptor).st_nlink == 0:
            self.failure = self.failure or f"{self.path} was removed while the run went on."
        self._put({"event": self._masked(event.to_json())})

    def session(self, session: str) -> None:
        """The program's own, whenever it is known: a run that is killed has no last line that tells it."""
        if session != self._session:
            self._session = session
            self._put_sealed("session", {"session": session})

    def end(self, summary: Summary) -> None:
        """The last line; all of it is on the disk when this returns."""
        self._put_sealed("summary", summary.to_json())
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

    def _put_sealed(self, kind: str, fields: Mapping[str, Any]) -> None:
        told = {name: _bounded(name, value) for name, value in self._masked(fields).items()}
        self._put({kind: self._seals.sealed(self._root, self._run_id, kind, told)})

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
        if isinstance(value, int | float):
            return number(value)
        return self._masking(value)


def _line(record: Mapping[str, Any]) -> bytes:
    # A surrogate that stands alone has no bytes; JSON can spell it.
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def _bounded(name: str, value: Any) -> Any:
    """Of what a program or a person said at length, what still can be read with a list of runs; events have it all."""
    if isinstance(value, str):
        most = _LONGEST_TEXT if name == "text" else _LONGEST
        return value if len(value) <= most else f"{value[:most]} … ({len(value)} characters in all)"
    if isinstance(value, Mapping):
        left = _LONGEST
        return {key: inner for key, inner in value.items() if (left := left - len(_line({key: inner}))) >= 0}
    return value


def _clear(root: Path, folder: int, seals: Seals) -> None:
    """Makes room for one more. A run that is still going on keeps its log, however old it is."""
    if len(names(folder)) < MOST_LOGS:
        return
    with contextlib.suppress(ToolcribError):
        for run in [run for run in runs(root, seals) if run.sealed][MOST_LOGS - 1 :]:
            if run.status is not Status.RUNNING:
                with contextlib.suppress(OSError):
                    os.unlink(run.path.name, dir_fd=folder)
