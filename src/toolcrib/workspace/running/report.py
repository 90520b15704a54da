"""What a run of pytest tells, read with suspicion: the lines come from a process in which the project's code runs.

In: bytes of the report pipe, as `pytest_report` writes them, in pieces. Out: a `Tally` of what happened so far.
Whatever is no such line is passed over, and everything that is kept is bounded, so the worst that a hostile project
can do is to lie about its own tests.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec

from toolcrib.workspace.running.printed import clean

LONGEST = 64 * 1024
"""Bytes of a line; a longer one is passed over."""
MOST_BYTES = 64 * 1024 * 1024
MOST_LINES = 1_000_000
"""Of a whole report: some 300,000 tests. To read on would take the server's time from everybody else."""
MOST_FAILURES = 200
MOST_RUNNING = 64
MOST_CATEGORIES = 20

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
Text = Annotated[str, msgspec.Meta(max_length=5000)]
Name = Annotated[str, msgspec.Meta(max_length=600)]


class _Line(msgspec.Struct, tag_field="is"):
    """One line of the pipe."""


class _Missing(_Line, tag="missing"):
    pass


class _Collected(_Line, tag="collected"):
    total: Count
    deselected: Count


class _Start(_Line, tag="start"):
    id: Name


class _Finish(_Line, tag="finish"):
    id: Name


class _Outcome(_Line, tag="outcome"):
    category: Name


class FailureLine(_Line, tag="failure"):
    category: Name
    id: Name
    file: Name
    line: Count
    message: Text
    trace: Text = ""
    output: Text = ""


class _Internal(_Line, tag="internal"):
    trace: Text


class _End(_Line, tag="end"):
    code: Annotated[int, msgspec.Meta(ge=-255, le=255)]
    warnings: Count


_READ = msgspec.json.Decoder(_Missing | _Collected | _Start | _Finish | _Outcome | FailureLine | _Internal | _End)


class Tally:
    """What is known of a run of tests so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[FailureLine] = []
        self.running: dict[str, None] = {}
        self.total: int | None = None
        self.deselected = 0
        self.warnings = 0
        self.internal = ""
        self.is_missing = False
        self.code: int | None = None
        """What pytest itself said at its end; None: it never came to that."""
        self.done = 0
        self._bytes = 0
        self._lines = 0
        self._rest = b""
        self._is_skipping = False

    def take(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > MOST_BYTES or self._lines > MOST_LINES:
            return
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._lines += len(lines)
        for line in lines:
            if not self._is_skipping and len(line) <= LONGEST:
                self._read(line)
            self._is_skipping = False
        if len(rest) > LONGEST:
            rest, self._is_skipping = b"", True
        self._rest = rest

    def _read(self, raw: bytes) -> None:
        try:
            line = _READ.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            return
        match line:
            case _Outcome() | _Start() | _Finish() | FailureLine():
                self._of_a_test(line)
            case _Collected(total=total, deselected=deselected):
                self.total, self.deselected = total, deselected
            case _Internal(trace=trace):
                self.internal = clean(trace)
            case _Missing():
                self.is_missing = True
            case _End(code=code, warnings=warnings):
                self.code, self.warnings = code, warnings

    def _of_a_test(self, line: _Outcome | _Start | _Finish | FailureLine) -> None:
        match line:
            case _Outcome(category=category):
                if category in self.counts or len(self.counts) < MOST_CATEGORIES:
                    self.counts[category] += 1
            case _Start(id=name):
                if len(self.running) < MOST_RUNNING:
                    self.running[clean(name)] = None
            case _Finish(id=name):
                self.done += 1
                self.running.pop(clean(name), None)
            case FailureLine():
                if len(self.failures) < MOST_FAILURES:
                    self.failures.append(line)
