"""What is asked of the sandbox and what comes back.

In: nothing. Out: the words that the sandbox and the tools share: a `Command` goes in, a `Finished` comes out; a
`Probe` is one thing that the self-test found.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolcrib.workspace.confined.folder import Spot


class Ending(enum.StrEnum):
    """Why a command is no longer there."""

    EXITED = "exited"
    """By itself, with a code or by a signal."""
    TIMEOUT = "time limit"
    MEMORY = "memory limit"
    PROCESSES = "process limit"
    OUTPUT = "output limit"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Command:
    argv: tuple[str, ...]
    seconds: float
    cwd: Spot = field(default_factory=lambda: Spot(()))
    writes: bool = True
    """Whether the folder is writable; never where the settings say read-only."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    reports: bool = False
    """Opens one pipe more. Its number is in TOOLCRIB_REPORT_FD inside; what comes is `Finished.report`, bounded,
    and all of it is given to `on_output` as it comes, as "report" (run_tests tells its progress by it)."""
    name: str = "command"
    """What the kept output is called after."""
    keeps: bool = True
    """Whether much output is kept as a file; not where we run a program of our own and take all that it prints."""


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One stream of a command: its beginning, its end, and how long it was."""

    head: bytes
    tail: bytes = b""
    total: int = 0
    kept: str | None = None
    """The file, relative to the root, that holds everything that the command printed on either stream."""

    @property
    def whole(self) -> bool:
        return len(self.head) + len(self.tail) == self.total

    def text(self, limit: int | None = None) -> str:
        """What was printed, cut in the middle to about `limit` bytes; what is left out is said."""
        if self.whole and (limit is None or self.total <= limit):
            return (self.head + self.tail).decode(errors="replace")
        data = self.head + self.tail if self.whole else b""
        head, tail = (data, data) if self.whole else (self.head, self.tail)
        half = (limit // 2) if limit is not None else max(len(head), len(tail))
        head, tail = head[:half], tail[max(0, len(tail) - half) :]
        where = f"; all of it: {self.kept}" if self.kept else ""
        left_out = self.total - len(head) - len(tail)
        return (
            head.decode(errors="replace")
            + f"\n[… {left_out} bytes left out{where} …]\n"
            + tail.decode(errors="replace")
        )


@dataclass(frozen=True, kw_only=True)
class Finished:
    ending: Ending
    code: int | None
    """The exit code; None where the command did not end by itself or ended by a signal."""
    signal: int | None
    stdout: Captured
    stderr: Captured
    report: bytes
    seconds: float
    notes: tuple[str, ...] = ()
    """What was put right afterwards because a person's git would have run it."""


@dataclass(frozen=True)
class Probe:
    """One thing that was tried inside, and whether the sandbox held."""

    name: str
    held: bool
    detail: str = ""
