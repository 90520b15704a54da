"""The logs of a project's runs, read again.

In: a project's root; what lies there may be anybody's work. Out: `RecordedRun`s, the newest first; the events of one,
or as they come. A log without an end belongs to a run that still goes on or was killed: its process decides. Every line
is checked before anything of it is shown; errors name file and line. Only sealed lines (`run_folder`) decide where a
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

_LONGEST_LINE = 64 * 1024 * 1024
_LONGEST_END = 8 * 1024 * 1024
"""Bytes of a first or last line: lists are made of these, and shall not cost more. What `log` writes stays below it."""
_PIECE = 64 * 1024
_MOST_LOOKED_AT = 10_000
_PATIENCE = 0.2
"""Seconds between two looks at a log that grows."""

LogEntry: TypeAlias = RunMetadata | AgentEvent | RunSummary

_KINDS: Mapping[str, type[LogEntry]] = {"metadata": RunMetadata, "event": AgentEvent, "summary": RunSummary}
_SESSION = b'{"session":'


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    root: Path
    """The project."""
    metadata: RunMetadata
    summary: RunSummary | None
    status: RunStatus
    sealed: bool
    """Whether its first line, and its last if it has ended, are as this person's Toolcrib wrote them here."""

    @property
    def run_id(self) -> str:
        return self.metadata.run_id

    @property
    def path(self) -> Path:
        return _path(self.root, self.run_id)


@dataclass(frozen=True, kw_only=True)
class ConversationState:
    """Where a conversation stands."""

    conversation: str
    provider: str
    profile: str = ""
    """Of its last run; empty where there was none."""
    session: str = ""
    """The program's own; empty where no run of the conversation left one."""
    used: TokenUsage = field(default_factory=TokenUsage)
    """Tokens of the program's session until then, where it counts so."""


def recorded_runs(
    root: Path, seals: LogSeals, on_problem: Callable[[ToolcribError], None] = lambda _: None
) -> Iterator[RecordedRun]:
    """The newest first, as they are asked for; a log that cannot be read is reported, and the rest go on."""
    for run_id in _ids(root)[:_MOST_LOOKED_AT]:
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
    """`last`, an id, or the beginning of one that no other has."""
    ids = _ids(root)
    if not ids:
        raise NotFound(f"No runs are on record in {root}.", remedy='`toolcrib run claude "…"` makes one.')
    fitting = ids if which == LAST else [one for one in ids if which and one.startswith(which)]
    if not fitting:
        raise NotFound(f"There is no run {which} in {root}.", remedy=f"The last one is {ids[0]}; `toolcrib runs`.")
    if which != LAST and len(fitting) > 1:
        raise UsageError(
            f"{len(fitting)} runs begin with {which}.", remedy=f"Say more of it: {', '.join(fitting[:3])} …"
        )
    for run_id in fitting:
        if (run := _read_ends(root, run_id, seals)) is not None:
            return run
    raise NotFound(f"{_path(root, fitting[0])} holds no line yet.", remedy="Look again in a moment.")


def conversation_state(root: Path, conversation: str, provider: str, seals: LogSeals) -> ConversationState:
    """Where a conversation can go on, `last` being that of the provider's newest run; any other may be another's.

    By logs of Toolcrib's own alone: what else lies in a project must not say what the next run is.
    """
    found: ConversationState | None = None
    others = 0
    for run in recorded_runs(root, seals):
        about = run.metadata
        meant = about.provider == provider if conversation == LAST else about.conversation == conversation
        if not run.sealed:
            others += meant
            continue
        if found is None and meant:
            found = ConversationState(conversation=about.conversation, provider=about.provider, profile=about.profile)
        if found is None or about.conversation != found.conversation or about.provider != found.provider:
            continue
        if session := session_of(run, seals):
            used = TokenUsage() if run.summary is None else run.summary.session_usage
            return replace(found, session=session, used=used)
    if found is None:
        raise _no_conversation(root, conversation, provider, others)
    return found


def log_entries(run: RecordedRun) -> Iterator[LogEntry]:
    """What the log holds now, line by line; half a line at its end is none."""
    with _opened(run.root, run.run_id) as stream:
        yield from _Lines(stream, run.path).entries()


def follow_log(run: RecordedRun, wait: Callable[[float], None] = time.sleep) -> Iterator[LogEntry]:
    """The same, and whatever is added, until the run ends or its process is gone."""
    with _opened(run.root, run.run_id) as stream:
        lines = _Lines(stream, run.path)
        while True:
            # Asked first: what it wrote before its end is then there to be read.
            goes_on = is_same_process(run.metadata.pid, run.metadata.pid_began)
            for entry in lines.entries():
                yield entry
                if isinstance(entry, RunSummary):
                    return
            if not goes_on:
                return
            wait(_PATIENCE)


class _Lines:
    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._number = 0
        self._begun = b""

    def entries(self) -> Iterator[LogEntry]:
        for line in self.more():
            # Only where a conversation goes on is it of use.
            if not line.startswith(_SESSION):
                yield _entry(*_decoded_line(line, self._path, self._number), self._path, self._number)

    def more(self) -> Iterator[bytes]:
        """The lines that are whole by now."""
        while piece := self._stream.readline(_LONGEST_LINE + 1 - len(self._begun)):
            self._begun += piece
            if len(self._begun) > _LONGEST_LINE:
                _unreadable(self._path, self._number + 1, "longer than any line of a log")
            if not self._begun.endswith(b"\n"):
                return
            line, self._begun = self._begun, b""
            self._number += 1
            yield line


def _ids(root: Path) -> list[str]:
    try:
        with entered_runs_folder(root, MissingFolder.TOLD) as folder:
            return run_ids(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _no_reading(runs_folder(root), error) from error


def _path(root: Path, run_id: str) -> Path:
    return runs_folder(root) / f"{run_id}{LOG_SUFFIX}"


def _read_ends(root: Path, run_id: str, seals: LogSeals) -> RecordedRun | None:
    """By its first and its last line alone. None: it does not have its first line yet."""
    path = _path(root, run_id)
    with _opened(root, run_id) as stream:
        first = stream.readline(_LONGEST_END)
        if not first.endswith(b"\n"):
            if len(first) == _LONGEST_END:
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
    """The last whole line after the first; nothing where there is none, or it is too long for a summary."""
    end = stream.seek(0, os.SEEK_END)
    tail = b""
    while end > start and len(tail) < _LONGEST_END:
        begin = max(start, end - max(_PIECE, len(tail)))
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
        with entered_runs_folder(root, MissingFolder.TOLD) as folder:
            descriptor = open_child(folder, path.name, os.O_RDONLY)
    except OSError as error:
        raise _no_reading(path, error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolcribError(f"{path} is no file.", remedy="Remove it.")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def _decoded_line(line: bytes, path: Path, number: int | None) -> tuple[str, Any]:
    """What kind of line it is, and its fields."""
    try:
        decoded = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        _unreadable(path, number, "no JSON" if isinstance(error, ValueError) else "nested too deeply")
    if not isinstance(decoded, dict) or len(decoded) != 1 or (kind := next(iter(decoded))) not in _KINDS:
        _unreadable(path, number, "neither metadata nor an event nor a summary")
    return kind, decoded[kind]


def _entry(kind: str, fields: Any, path: Path, number: int | None) -> LogEntry:
    try:
        return msgspec.convert(fields, _KINDS[kind])
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        _unreadable(path, number, f"no {kind} ({error})")


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def session_of(run: RecordedRun, seals: LogSeals) -> str:
    """The program's own session: as the log's end has it, or, of a run that has none, as it was noted on the way."""
    headless = next((one.headless for one in CLIENTS if one.name == run.metadata.provider), None)
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
            f"No log of Toolcrib's own in {root} has {which}; {others} that came from elsewhere, or were changed "
            "or moved, are not trusted.",
            remedy="Begin a new one: leave --conversation out.",
        )
    if conversation == LAST:
        return NotFound(
            f"There is no conversation with {provider} yet in {root}.", remedy="Leave --conversation out to begin one."
        )
    return NotFound(
        f"There is no conversation {conversation} in {root}.", remedy="`toolcrib runs` shows what there is."
    )


def _no_reading(path: Path, error: OSError) -> ToolcribError:
    return ToolcribError(f"{path} cannot be read: {error.strerror or error}.", remedy="It must be yours, and no link.")


def _unreadable(path: Path, number: int | None, what: str) -> NoReturn:
    line = "its last line" if number is None else f"line {number}"
    raise ToolcribError(
        f"{path}, {line}: this is {what}.", remedy="The file was changed, or is not a log of Toolcrib's: remove it."
    )
