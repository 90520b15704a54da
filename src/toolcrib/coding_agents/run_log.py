"""The log of one run: `.toolcrib/runs/<run_id>.jsonl`, readable only by the user.

In: the run's metadata, its events as they happen, its summary. Out: one line of JSON each, written immediately, so a
killed run leaves complete lines. Secrets are masked at any depth. A log that cannot be written does not end a run; see
`failure`. The first line, the last line and the session lines are sealed (`run_folder`).
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

_MAX_DEPTH = 100


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
        if depth >= _MAX_DEPTH:
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
                # Masked keys can collide; neither replaces the other.
                name += "*"
            masked[name] = self(inner, depth + 1)
        return masked


def json_number(value: float) -> Any:
    """JSON has no infinity. An integer is always finite, but may be too large for a float."""
    return value if isinstance(value, int) or math.isfinite(value) else str(value)


def _as_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return "(nested too deeply to be logged)"


MAX_LOGS = 200
"""Per project; the oldest are deleted when a run starts. Logs that Toolcrib did not write are not counted and stay."""

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
        "mode",
    }
)
"""Fields with Toolcrib's values. They are not masked, even if some variable has the same value."""
_WITH_NAMES_OF_OURS = frozenset({"usage", "session_usage", "listing"})
_MAX_TEXT_LENGTH = 1024 * 1024
_MAX_FIELD_LENGTH = 64 * 1024
"""Characters of any other text, bytes of a mapping, in the first and last lines, from which lists of runs are made."""


class RunLog:
    def __init__(self, root: Path, metadata: RunMetadata, seals: LogSeals, masking: ValueMasker) -> None:
        self.path = runs_folder(root) / f"{metadata.run_id}{LOG_SUFFIX}"
        self.failure = ""
        """Why the log is incomplete; empty while it is complete."""
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
        """Never raises: if the log cannot be created, `failure` says why."""
        log = cls(root, metadata, seals, ValueMasker(secrets))
        try:
            with entered_runs_folder(root, MissingFolder.CREATE) as folder:
                _clear(root, folder, seals)
                log._descriptor = create_log(folder, log.path.name)
        except OSError as error:
            log._fails(error)
        log._put_sealed("metadata", metadata.to_json())
        return log

    def mask(self, value: Any) -> Any:
        """The value without secrets, as in the log."""
        return self._masking(value)

    def event(self, event: AgentEvent) -> None:
        if self._descriptor is None:
            return
        if os.fstat(self._descriptor).st_nlink == 0:
            self.failure = self.failure or f"{self.path} was removed during the run."
        self._put({"event": self._masked(event.to_json())})

    def session(self, session: str) -> None:
        """Logs the program's session as soon as it is known, because a killed run has no summary."""
        if session != self._session:
            self._session = session
            self._put_sealed("session", {"session": session})

    def end(self, summary: RunSummary) -> None:
        """Writes the last lines and syncs the file to disk."""
        if (usage := summary.token_usage()) is not None:
            self._put({"token_usage": self._masked(usage)})
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
            # An incomplete line would corrupt the next one.
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
    # A lone surrogate cannot be encoded; JSON can escape it.
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"


def _bounded(name: str, value: Any) -> Any:
    """Truncates long values, so that lists of runs stay fast; events have the full text."""
    if isinstance(value, str):
        limit = _MAX_TEXT_LENGTH if name == "text" else _MAX_FIELD_LENGTH
        return value if len(value) <= limit else f"{value[:limit]} … ({len(value)} characters in all)"
    if isinstance(value, Mapping):
        room = _MAX_FIELD_LENGTH
        return {key: inner for key, inner in value.items() if (room := room - len(_line({key: inner}))) >= 0}
    return value


def _clear(root: Path, folder: int, seals: LogSeals) -> None:
    """Deletes the oldest logs to make room for one more. A running run keeps its log, however old it is."""
    if len(run_ids(folder)) < MAX_LOGS:
        return
    with contextlib.suppress(ToolcribError):
        for run in [run for run in recorded_runs(root, seals) if run.sealed][MAX_LOGS - 1 :]:
            if run.status is not RunStatus.RUNNING:
                with contextlib.suppress(OSError):
                    os.unlink(run.path.name, dir_fd=folder)
