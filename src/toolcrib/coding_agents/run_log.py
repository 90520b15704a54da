"""The log of one run: `.toolcrib/runs/<run_id>.jsonl`, for the person alone.

In: the run's metadata, its events as they come, its summary. Out: one line of JSON each, on its way to the disk
before the next thing happens: a run that is killed leaves whole lines. Secrets are masked at any depth. A log that
cannot be written does not end a run; `failure` says so once. The first line, the last, and the program's session
are sealed (`run_folder`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolcrib.coding_agents.run_folder import (
    LOG_SUFFIX,
    LogSeals,
    MissingFolder,
    create_log,
    entered_runs_folder,
    run_ids,
    runs_folder,
)
from toolcrib.coding_agents.run_history import recorded_runs
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary
from toolcrib.config.masking import HIDDEN, Masker
from toolcrib.errors import ToolcribError
from toolcrib.run_events import AgentEvent, AgentEventKind

_DEEPEST = 100


class ValueMasker:
    def __init__(self, secrets: Iterable[str]) -> None:
        self._text = Masker(secrets).known

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int | float):
            return HIDDEN if self._text(str(value)) == HIDDEN else json_number(value)
        if depth >= _DEEPEST:
            return self._text(_as_text(value))
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple):
            return [self(inner, depth + 1) for inner in value]
        return self._text(str(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        masked: dict[str, Any] = {}
        for key, inner in value.items():
            name = self._text(str(key))
            while name in masked:
                # Two keys that look alike now: neither takes the other's place.
                name += "*"
            masked[name] = self(inner, depth + 1)
        return masked


def json_number(value: float) -> Any:
    """JSON knows no infinity; an integer has none, and may be too large for a float."""
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return "(nested too deeply to be kept)"


MOST_LOGS = 200
"""Of a project; the oldest go when another begins. Those that Toolcrib did not write count for nothing, and stay."""

_OURS = frozenset(
    {"run_id", "provider", "conversation", "agent", "profile", "own_tools", "kind", "tool_status", "decision", "status"}
)
"""Words of Toolcrib's own, by which a log is read: one that is also the value of some variable stays readable."""
_WITH_NAMES_OF_OURS = frozenset({"usage", "session_usage", "listing"})
_LONGEST_TEXT = 1024 * 1024
_LONGEST = 64 * 1024
"""Characters of any other text, bytes of a mapping, in the first and the last line: lists are made of these."""


class RunLog:
    def __init__(self, root: Path, metadata: RunMetadata, seals: LogSeals, masking: ValueMasker) -> None:
        self.path = runs_folder(root) / f"{metadata.run_id}{LOG_SUFFIX}"
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
    def open(cls, root: Path, metadata: RunMetadata, *, seals: LogSeals, secrets: Iterable[str] = ()) -> RunLog:
        """Never raises: where no log can be made, `failure` says why."""
        log = cls(root, metadata, seals, ValueMasker(secrets))
        try:
            with entered_runs_folder(root, MissingFolder.MADE) as folder:
                _clear(root, folder, seals)
                log._descriptor = create_log(folder, log.path.name)
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
        """The program's own, whenever it is known: a run that is killed has no last line that has it."""
        if session != self._session:
            self._session = session
            self._put_sealed("session", {"session": session})

    def end(self, summary: RunSummary) -> None:
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
            kind=AgentEventKind.LOG,
            provider=self._provider,
            role="toolcrib",
            text=f"{lines} missing here: {self.failure}",
        )

    def _put_sealed(self, kind: str, fields: Mapping[str, Any]) -> None:
        kept = {name: _bounded(name, value) for name, value in self._masked(fields).items()}
        self._put({kind: self._seals.sealed(self._root, self._run_id, kind, kept)})

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
            return json_number(value)
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


def _clear(root: Path, folder: int, seals: LogSeals) -> None:
    """Makes room for one more. A run that is still going on keeps its log, however old it is."""
    if len(run_ids(folder)) < MOST_LOGS:
        return
    with contextlib.suppress(ToolcribError):
        for run in [run for run in recorded_runs(root, seals) if run.sealed][MOST_LOGS - 1 :]:
            if run.status is not RunStatus.RUNNING:
                with contextlib.suppress(OSError):
                    os.unlink(run.path.name, dir_fd=folder)
