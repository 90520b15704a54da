"""Reads the logs of a project's runs.

In: a project's root, whose files may be untrusted. Out: `RecordedRun`s, newest first; the events of one, stored or
live. A log without a summary belongs to a run that is still active or was killed, depending on its process. Every line
is checked before it is shown; errors name the file and line. Only sealed lines (`run_folder`) decide where a
conversation continues. `run_log` writes the logs.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeAlias

import msgspec

from toolcrib.coding_agents.client_spec import TokenUsage
from toolcrib.coding_agents.clients import CLIENTS
from toolcrib.coding_agents.process_alive import is_same_process
from toolcrib.coding_agents.run_folder import (
    LOG_SUFFIX,
    LogSeals,
    MissingFolder,
    entered_runs_folder,
    run_ids,
    runs_folder,
)
from toolcrib.coding_agents.run_result import RunMetadata, RunStatus, RunSummary
from toolcrib.errors import NotFound, ToolcribError, UsageError
from toolcrib.run_events import AgentEvent
from toolcrib.workspace.confined_open import open_child

LAST = "last"

_MAX_LINE_SIZE = 64 * 1024 * 1024
_MAX_END_SIZE = 8 * 1024 * 1024
"""Bytes of a first or last line. This bounds the cost of a list of runs; `run_log` writes less."""
_PIECE_SIZE = 64 * 1024
_MAX_LISTED_RUNS = 10_000
_POLL_INTERVAL = 0.2
"""Seconds between two reads of a growing log."""

LogEntry: TypeAlias = RunMetadata | AgentEvent | RunSummary

_KINDS: Mapping[str, type[LogEntry]] = {"metadata": RunMetadata, "event": AgentEvent, "summary": RunSummary}
_SESSION = b'{"session":'
_NOT_SHOWN = (_SESSION, b'{"token_usage":')
"""Session lines matter only for continuing a conversation; the summary repeats the token usage."""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    root: Path
    """The project."""
    metadata: RunMetadata
    summary: RunSummary | None
    status: RunStatus
    sealed: bool
    """Whether the seals prove that this user's Toolcrib wrote the first and last lines for this folder."""

    @property
    def run_id(self) -> str:
        return self.metadata.run_id

    @property
    def path(self) -> Path:
        return _path(self.root, self.run_id)


@dataclass(frozen=True, kw_only=True)
class ConversationState:
    """The state of a conversation after its last run."""

    conversation: str
    provider: str
    profile: str = ""
    """From its last run; empty if there was none."""
    session: str = ""
    """The program's session; empty if no run of the conversation left one."""
    used: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of the program's session so far, for programs that count per session."""


def recorded_runs(
    root: Path, seals: LogSeals, on_problem: Callable[[ToolcribError], None] = lambda _: None
) -> Iterator[RecordedRun]:
    """Newest first, read lazily; an unreadable log is reported and skipped."""
    for run_id in _ids(root)[:_MAX_LISTED_RUNS]:
        try:
            run = _read_ends(root, run_id, seals)
        except ToolcribError as error:
            on_problem(error)
        else:
            if run is not None:
                yield run


def count_runs(root: Path) -> int:
    return len(_ids(root))


def find_run(root: Path, which: str, seals: LogSeals) -> RecordedRun:
    """`which`: `last`, an id, or the unique beginning of one."""
    ids = _ids(root)
    if not ids:
        raise NotFound(f"{root} has no recorded runs.", remedy='Start one with `toolcrib run claude "…"`.')
    fitting = ids if which == LAST else [run_id for run_id in ids if which and run_id.startswith(which)]
    if not fitting:
        raise NotFound(
            f"There is no run {which} in {root}.", remedy=f"The last one is {ids[0]}; `toolcrib runs` lists all."
        )
    if which != LAST and len(fitting) > 1:
        raise UsageError(
            f"{len(fitting)} runs begin with {which}.", remedy=f"Use more of the id: {', '.join(fitting[:3])} …"
        )
    for run_id in fitting:
        if (run := _read_ends(root, run_id, seals)) is not None:
            return run
    raise NotFound(f"{_path(root, fitting[0])} is still empty.", remedy="Try again in a moment.")


def conversation_state(root: Path, conversation: str, provider: str, seals: LogSeals) -> ConversationState:
    """`last` is the conversation of the provider's newest run; any other may belong to another provider.

    Only sealed logs count: other files in a project must not influence the next run.
    """
    found: ConversationState | None = None
    others = 0
    for run in recorded_runs(root, seals):
        data = run.metadata
        matches = data.provider == provider if conversation == LAST else data.conversation == conversation
        if not run.sealed:
            others += matches
            continue
        if found is None and matches:
            found = ConversationState(conversation=data.conversation, provider=data.provider, profile=data.profile)
        if found is None or data.conversation != found.conversation or data.provider != found.provider:
            continue
        if session := session_of(run, seals):
            used = TokenUsage() if run.summary is None else run.summary.session_usage
            return replace(found, session=session, used=used)
    if found is None:
        raise _no_conversation(root, conversation, provider, others)
    return found


def log_entries(run: RecordedRun) -> Iterator[LogEntry]:
    """The log's current entries; an incomplete last line is ignored."""
    with _opened(run.root, run.run_id) as stream:
        yield from _Lines(stream, run.path).entries()


def follow_log(run: RecordedRun, wait: Callable[[float], None] = time.sleep) -> Iterator[LogEntry]:
    """The current and all later entries, until the run ends or its process is gone."""
    with _opened(run.root, run.run_id) as stream:
        lines = _Lines(stream, run.path)
        while True:
            # Check before reading, so that lines written just before the process ended are not missed.
            is_running = is_same_process(run.metadata.pid, run.metadata.pid_began)
            for entry in lines.entries():
                yield entry
                if isinstance(entry, RunSummary):
                    return
            if not is_running:
                return
            wait(_POLL_INTERVAL)


class _Lines:
    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._number = 0
        self._begun = b""

    def entries(self) -> Iterator[LogEntry]:
        for line in self.more():
            if not line.startswith(_NOT_SHOWN):
                yield _entry(*_decoded_line(line, self._path, self._number), self._path, self._number)

    def more(self) -> Iterator[bytes]:
        """The new complete lines."""
        while piece := self._stream.readline(_MAX_LINE_SIZE + 1 - len(self._begun)):
            self._begun += piece
            if len(self._begun) > _MAX_LINE_SIZE:
                _unreadable(self._path, self._number + 1, "too long for a log line")
            if not self._begun.endswith(b"\n"):
                return
            line, self._begun = self._begun, b""
            self._number += 1
            yield line


def _ids(root: Path) -> list[str]:
    try:
        with entered_runs_folder(root, MissingFolder.RAISE) as folder:
            return run_ids(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _no_reading(runs_folder(root), error) from error


def _path(root: Path, run_id: str) -> Path:
    return runs_folder(root) / f"{run_id}{LOG_SUFFIX}"


def _read_ends(root: Path, run_id: str, seals: LogSeals) -> RecordedRun | None:
    """Reads only the first and last lines. None if the first line is not complete yet."""
    path = _path(root, run_id)
    with _opened(root, run_id) as stream:
        first = stream.readline(_MAX_END_SIZE)
        if not first.endswith(b"\n"):
            if len(first) == _MAX_END_SIZE:
                _unreadable(path, 1, "too long")
            return None
        decoded = _decoded_line(first, path, 1)
        metadata = _entry(*decoded, path, 1)
        if not isinstance(metadata, RunMetadata) or metadata.run_id != run_id:
            _unreadable(path, 1, "not the metadata of this run")
        sealed = seals.fits(root, run_id, *decoded)
        summary: LogEntry | None = None
        last = _last_line(stream, len(first))
        if last.startswith(b'{"summary":'):
            decoded = _decoded_line(last, path, None)
            summary = _entry(*decoded, path, None)
            sealed = sealed and seals.fits(root, run_id, *decoded)
    if isinstance(summary, RunSummary):
        return RecordedRun(root=root, metadata=metadata, summary=summary, status=summary.status, sealed=sealed)
    status = RunStatus.RUNNING if is_same_process(metadata.pid, metadata.pid_began) else RunStatus.KILLED
    return RecordedRun(root=root, metadata=metadata, summary=None, status=status, sealed=sealed)


def _last_line(stream: BinaryIO, start: int) -> bytes:
    """The last complete line after the first; empty if there is none or it is too long for a summary."""
    end = stream.seek(0, os.SEEK_END)
    tail = b""
    while end > start and len(tail) < _MAX_END_SIZE:
        begin = max(start, end - max(_PIECE_SIZE, len(tail)))
        stream.seek(begin)
        tail = stream.read(end - begin) + tail
        end = begin
        if not tail.endswith(b"\n"):
            return b""
        if (cut := tail.rfind(b"\n", 0, -1)) >= 0:
            return tail[cut + 1 :]
    return tail if end <= start else b""


@contextlib.contextmanager
def _opened(root: Path, run_id: str) -> Iterator[BinaryIO]:
    path = _path(root, run_id)
    try:
        with entered_runs_folder(root, MissingFolder.RAISE) as folder:
            descriptor = open_child(folder, path.name, os.O_RDONLY)
    except OSError as error:
        raise _no_reading(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolcribError(f"{path} is not a regular file.", remedy="Remove it.")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _decoded_line(line: bytes, path: Path, number: int | None) -> tuple[str, Any]:
    """The kind of the line, and its fields."""
    try:
        decoded = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _unreadable(path, number, "not JSON" if isinstance(error, ValueError) else "nested too deeply")
    if not isinstance(decoded, dict) or len(decoded) != 1 or (kind := next(iter(decoded))) not in _KINDS:
        _unreadable(path, number, "neither metadata nor an event nor a summary")
    return kind, decoded[kind]


def _entry(kind: str, fields: Any, path: Path, number: int | None) -> LogEntry:
    try:
        return msgspec.convert(fields, _KINDS[kind])
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        _unreadable(path, number, f"not a valid {kind} ({error})")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def session_of(run: RecordedRun, seals: LogSeals) -> str:
    """The program's session: from the summary, or, if the log has none, from its last session line."""
    headless = next((client.headless for client in CLIENTS if client.name == run.metadata.provider), None)
    session = _noted_session(run, seals) if run.summary is None else run.summary.session
    return session if headless is not None and headless.is_session(session) else ""


def _noted_session(run: RecordedRun, seals: LogSeals) -> str:
    session = ""
    with contextlib.suppress(ToolcribError, ValueError, RecursionError), _opened(run.root, run.run_id) as stream:
        for line in _Lines(stream, run.path).more():
            if line.startswith(_SESSION):
                fields = json.loads(line)["session"]
                if isinstance(fields, dict) and seals.fits(run.root, run.run_id, "session", fields):
                    session = str(fields["session"])
    return session


def _no_conversation(root: Path, conversation: str, provider: str, others: int) -> NotFound:
    which = f"a conversation with {provider}" if conversation == LAST else f"the conversation {conversation}"
    if others:
        return NotFound(
            f"No trusted log in {root} contains {which}; a log that was changed, moved or copied from elsewhere is "
            f"not trusted ({others} found).",
            remedy="Omit --conversation to start a new one.",
        )
    if conversation == LAST:
        return NotFound(
            f"There is no conversation with {provider} yet in {root}.", remedy="Omit --conversation to start one."
        )
    return NotFound(f"There is no conversation {conversation} in {root}.", remedy="`toolcrib runs` lists them.")


def _no_reading(path: Path, error: OSError) -> ToolcribError:
    return ToolcribError(
        f"{path} cannot be read: {error.strerror or error}.", remedy="You must own it, and it must not be a link."
    )


def _unreadable(path: Path, number: int | None, what: str) -> NoReturn:
    line = "its last line" if number is None else f"line {number}"
    raise ToolcribError(
        f"{path}, {line}: this is {what}.", remedy="The file was changed or is not a Toolcrib log. Remove it."
    )
