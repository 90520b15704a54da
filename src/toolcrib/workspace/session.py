"""Usage of one workspace session: calls, seconds of commands, bytes written, and the files it has read.

In: the limits of the settings, and usage reported by the tools. Out: nothing, or a `WorkspaceError` when a limit is
reached. One session belongs to one connection, or to one session of an agent at the daemon. File tools run in threads,
so every counter is guarded by a lock.
"""

from __future__ import annotations

import enum
import math
import os
import threading
from dataclasses import dataclass

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.atomic_write import file_version
from toolcrib.workspace.settings.model import MB, Limits

_REMEDY = "Counters reset with each session; `limits.{key}` in .toolcrib/workspace.yml sets the limit."


class Overwriting(enum.Enum):
    """Which files may be replaced entirely."""

    ANY = enum.auto()
    KNOWN = enum.auto()
    """Files that this session read completely or wrote, and that are unchanged since."""


LineRange = tuple[int, float]
"""First and last line; infinity if the range reaches the end of the file."""
_WHOLE: LineRange = (1, math.inf)


@dataclass(frozen=True, slots=True)
class _Known:
    mark: tuple[int, ...]
    """The file's version when it was read or written."""
    shown: tuple[LineRange, ...]
    """The lines that were shown, in order."""


class WorkspaceSession:
    def __init__(self, limits: Limits, overwriting: Overwriting = Overwriting.ANY) -> None:
        self.limits = limits
        self.overwriting = overwriting
        self._known: dict[tuple[str, ...], _Known] = {}
        """By real path."""
        self._lock = threading.Lock()
        self.calls = 0
        self.seconds = 0.0
        self.written = 0

    def count_call(self) -> None:
        """Counts one call before it runs."""
        with self._lock:
            if self.calls >= self.limits.session_calls:
                raise _used_up(f"all {self.limits.session_calls} calls", "session_calls", "No more calls are possible.")
            self.calls += 1

    def count_written(self, count: int) -> None:
        """Counts bytes before they are written. If they don't fit, it raises and counts nothing."""
        with self._lock:
            left = self.limits.session_bytes - self.written
            if count > left:
                raise _used_up(
                    f"{_mb(self.written)} of its {_mb(self.limits.session_bytes)} write limit; "
                    f"{count} more bytes do not fit",
                    "session_mb",
                    f"At most {left} bytes can still be written.",
                )
            self.written += count

    def note_written(self, place: tuple[str, ...], status: os.stat_result) -> None:
        """Records that a file was written completely; `status` is its new status."""
        if self.overwriting is Overwriting.KNOWN:
            with self._lock:
                self._known[place] = _Known(file_version(status), (_WHOLE,))

    def note_shown(self, place: tuple[str, ...], status: os.stat_result, lines: LineRange) -> None:
        """Records that lines of a file were read while it had this `status`."""
        with self._lock:
            known = self._known.get(place)
            before = known.shown if known is not None and known.mark == file_version(status) else ()
            self._known[place] = _Known(file_version(status), _together(before, lines))

    def note_changed(self, place: tuple[str, ...], before: os.stat_result | None, after: os.stat_result) -> None:
        """Records a partial write: a file that was known completely still is."""
        with self._lock:
            if before is not None and self._known.get(place) == _Known(file_version(before), (_WHOLE,)):
                self._known[place] = _Known(file_version(after), (_WHOLE,))

    def check_known(self, place: tuple[str, ...], status: os.stat_result) -> None:
        """Raises unless an existing file may be replaced entirely."""
        with self._lock:
            known = self._known.get(place)
        name = "/".join(place)
        if known is None:
            raise WorkspaceError(f"{name} exists and has not been read yet.", remedy="Read it first.")
        if known.mark != file_version(status):
            raise WorkspaceError(f"{name} has changed since it was read.", remedy="Read it again.")
        if known.shown != (_WHOLE,):
            first, last = known.shown[0]
            line = 1 if first > 1 else last + 1
            raise WorkspaceError(
                f"{name} has not been read completely: line {line} was not shown.",
                remedy=f"Read it from line {line} to the end, or change only a part of it.",
            )

    def seconds_left(self) -> float:
        """Seconds left for commands, more than 0; raises if none are left."""
        with self._lock:
            left = self.limits.session_seconds - self.seconds
        if left <= 0:
            raise _used_up(
                f"all {self.limits.session_seconds:g} seconds of commands",
                "session_seconds",
                "The file tools still work.",
            )
        return left

    def count_seconds(self, seconds: float) -> None:
        """Counts the seconds of a finished command. `seconds_left` refuses the next one."""
        with self._lock:
            self.seconds += seconds


def _together(known: tuple[LineRange, ...], new: LineRange) -> tuple[LineRange, ...]:
    """Merges ranges, sorted."""
    made: list[LineRange] = []
    for first, last in sorted((*known, new)):
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return tuple(made)


def _mb(count: int) -> str:
    return f"{count / MB:.4g} MB"


def _used_up(what: str, key: str, still: str) -> WorkspaceError:
    return WorkspaceError(
        f"This session has used {what}. {still}", remedy=_REMEDY.format(key=key), data={"limit": f"limits.{key}"}
    )
