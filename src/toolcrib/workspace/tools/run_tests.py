"""`run_tests`: runs the project's tests with pytest in the sandbox.

In: the tests to run, as a model names them. Out: counts, the first failures with file, line and traceback, and how the
run ended. `pytest_report` runs inside and writes events to a pipe. They come from a process that runs the project's
code, so invalid events are skipped and all data is bounded: the worst that a hostile project can do is lie about its
own tests. `runner` finds the Python.
"""

from __future__ import annotations

import functools
import os
import stat
from collections import Counter
from importlib import resources
from typing import Annotated, Literal

import msgspec

from toolcrib.errors import WorkspaceError
from toolcrib.workspace.folder import Folder
from toolcrib.workspace.sandbox.command import CommandEnding, SandboxResult
from toolcrib.workspace.text import ProgressThrottle, clean_text, count_text, head_and_tail
from toolcrib.workspace.tool import ToolContext, ToolResult
from toolcrib.workspace.tools.runner import (
    MAX_ARGUMENT_LENGTH,
    CommandRunner,
    ending_text,
    find_programs,
    forget_programs,
    missing_module_error,
    more_time_remedy,
    output_file,
    output_texts,
    real_path,
)

MAX_EVENT_LENGTH = 64 * 1024
"""Bytes of a line; a longer one is skipped."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
MAX_EVENTS = 1_000_000
"""Of a whole report: some 300,000 tests. Reading more would block other calls."""
MAX_FAILURES = 200
MAX_RUNNING = 64
MAX_CATEGORIES = 20

Count = Annotated[int, msgspec.Meta(ge=0, le=100_000_000)]
Text = Annotated[str, msgspec.Meta(max_length=5000)]
Name = Annotated[str, msgspec.Meta(max_length=600)]


class _Event(msgspec.Struct, tag_field="is"):
    """One line from the pipe."""


class _MissingEvent(_Event, tag="missing"):
    pass


class _CollectedEvent(_Event, tag="collected"):
    total: Count
    deselected: Count


class _StartEvent(_Event, tag="start"):
    id: Name


class _FinishEvent(_Event, tag="finish"):
    id: Name


class _OutcomeEvent(_Event, tag="outcome"):
    category: Name


class FailureEvent(_Event, tag="failure"):
    category: Name
    id: Name
    file: Name
    line: Count
    message: Text
    trace: Text = ""
    output: Text = ""


class _InternalEvent(_Event, tag="internal"):
    trace: Text


class _EndEvent(_Event, tag="end"):
    code: Annotated[int, msgspec.Meta(ge=-255, le=255)]
    warnings: Count


_READ = msgspec.json.Decoder(
    _MissingEvent
    | _CollectedEvent
    | _StartEvent
    | _FinishEvent
    | _OutcomeEvent
    | FailureEvent
    | _InternalEvent
    | _EndEvent
)


class PytestProgress:
    """The state of a test run so far."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[FailureEvent] = []
        self.running: dict[str, None] = {}
        self.total: int | None = None
        self.deselected = 0
        self.warnings = 0
        self.internal = ""
        self.is_missing = False
        self.code: int | None = None
        """pytest's own exit code; None if it never got that far."""
        self.done = 0
        self._bytes = 0
        self._lines = 0
        self._rest = b""
        self._is_skipping = False

    def take(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > MAX_EVENT_BYTES or self._lines > MAX_EVENTS:
            return
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._lines += len(lines)
        for line in lines:
            if not self._is_skipping and len(line) <= MAX_EVENT_LENGTH:
                self._read(line)
            self._is_skipping = False
        if len(rest) > MAX_EVENT_LENGTH:
            rest, self._is_skipping = b"", True
        self._rest = rest

    def _read(self, raw: bytes) -> None:
        try:
            line = _READ.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            return
        match line:
            case _OutcomeEvent() | _StartEvent() | _FinishEvent() | FailureEvent():
                self._of_a_test(line)
            case _CollectedEvent(total=total, deselected=deselected):
                self.total, self.deselected = total, deselected
            case _InternalEvent(trace=trace):
                self.internal = clean_text(trace)
            case _MissingEvent():
                self.is_missing = True
            case _EndEvent(code=code, warnings=warnings):
                self.code, self.warnings = code, warnings

    def _of_a_test(self, line: _OutcomeEvent | _StartEvent | _FinishEvent | FailureEvent) -> None:
        match line:
            case _OutcomeEvent(category=category):
                if category in self.counts or len(self.counts) < MAX_CATEGORIES:
                    self.counts[category] += 1
            case _StartEvent(id=name):
                if len(self.running) < MAX_RUNNING:
                    self.running[clean_text(name)] = None
            case _FinishEvent(id=name):
                self.done += 1
                self.running.pop(clean_text(name), None)
            case FailureEvent():
                if len(self.failures) < MAX_FAILURES:
                    self.failures.append(line)


NAME = "run_tests"
MAX_PATHS = 200
MAX_SHOWN_FAILURES = 50
"""Failures in a result; others are only counted."""
MAX_FAILURE_OUTPUT = 4000
"""Characters of pytest's output, if its report is not sufficient."""
SHORT_MESSAGE = 300
"""Characters of the message of a failure whose details don't fit."""

Outcome = Literal["passed", "failed", "no_tests", "interrupted", "usage_error", "internal_error", "stopped", "crashed"]

PYTEST_CODES: dict[int, Outcome] = {
    0: "passed",
    1: "failed",
    2: "interrupted",
    3: "internal_error",
    4: "usage_error",
    5: "no_tests",
}
_USUAL = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


class RunTestsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paths: Annotated[
        list[str],
        msgspec.Meta(description="Files, folders or single tests (`tests/test_a.py::test_b`). Default: all."),
    ] = []
    select: Annotated[str, msgspec.Meta(description="Only tests whose names match (pytest -k).")] = ""
    marker: Annotated[str, msgspec.Meta(description="Only tests with these marks (pytest -m).")] = ""
    last_failed: Annotated[bool, msgspec.Meta(description="Only tests that failed last time.")] = False
    max_failures: Annotated[int, msgspec.Meta(description="Stop after this many failures.", ge=1)] | None = None
    seconds: Annotated[float | None, msgspec.Meta(description="Time limit; never above the configured one.")] = None


class FailedTest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    kind: Literal["failed", "error"] = "failed"
    """An error is a failure outside the test itself: in a fixture or during collection."""
    file: str
    line: int
    message: str = ""
    """If the traceback doesn't contain it."""
    traceback: str = ""
    output: str = ""


class RunTestsResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    outcome: Outcome
    ending: str = ""
    """How it ended, if the outcome is not sufficient."""
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    xfailed: int = 0
    xpassed: int = 0
    warnings: int = 0
    deselected: int = 0
    collected: int | None = None
    """If not all of them finished."""
    seconds: float
    failures: list[FailedTest] = []
    more_failures: int = 0
    """Failures that are only counted; use `paths` or `max_failures` to see others."""
    running: list[str] = []
    """Tests that were running at the end."""
    other: dict[str, int] = {}
    """Outcomes that plugins add."""
    printed: str = ""
    """The end of the output, if the rest is not sufficient."""
    output_file: str | None = None
    """The file with the whole output, if it was long."""


async def run_tests(context: ToolContext, given: RunTestsArguments) -> ToolResult:
    arguments = pytest_arguments(context, given)
    turn = CommandRunner(context, NAME, given.seconds)
    found = await find_programs(turn, "pytest")
    python = found.start("pytest")
    if python is None:
        raise missing_module_error(context, found, "pytest")
    tally = PytestProgress()
    finished = await _run(turn, (python[0], "-c", plugin_source(), *arguments), tally)
    if tally.is_missing:
        forget_programs(context.folder)
        raise missing_module_error(context, found, "pytest")
    ran = run_tests_result(finished, tally, turn)
    text = run_tests_text(ran, context.settings.limits.output)
    return ToolResult(ran, text, failure="" if ran.outcome == "passed" else text.partition("\n")[0])


async def _run(turn: CommandRunner, argv: tuple[str, ...], tally: PytestProgress) -> SandboxResult:
    ticker = ProgressThrottle(turn.context.progress) if turn.context.progress else None
    last = ""

    def news() -> str:
        nonlocal last
        before, last = last, progress_text(tally)
        return last if last != before else ""

    def take(stream: str, chunk: bytes) -> None:
        if stream == "report":
            tally.take(chunk)
            if ticker is not None:
                ticker.soon(news)

    env = {"PYTHONDONTWRITEBYTECODE": "1"} if turn.context.settings.read_only else {}
    try:
        return await turn.run(argv, env=env, on_output=take, reports=True, keeps=True)
    finally:
        if ticker is not None:
            ticker.close()


@functools.cache
def plugin_source() -> str:
    """The source of `pytest_report`, which runs where this package cannot be imported."""
    return resources.files("toolcrib.workspace.tools").joinpath("pytest_report.py").read_text()


def pytest_arguments(context: ToolContext, given: RunTestsArguments) -> tuple[str, ...]:
    """pytest's arguments. A model's values cannot be mistaken for an option or an `@file`."""
    arguments = ["-q", "--tb=short", "--color=no"]
    for option, value in (("-k", given.select), ("-m", given.marker)):
        if value:
            arguments.append(f"{option}={_argument(value)}")
    if given.last_failed:
        arguments.append("--last-failed")
    elif context.settings.read_only:
        # The cache is not writable, and a project may turn that warning into an error.
        arguments += ("-p", "no:cacheprovider")
    if given.max_failures is not None:
        arguments.append(f"--maxfail={given.max_failures}")
    if len(given.paths) > MAX_PATHS:
        raise WorkspaceError(f"Too many paths ({len(given.paths)}).", remedy="Pass folders, or use `select`.")
    arguments += (_node(context.folder, path) for path in given.paths)
    return tuple(arguments)


def _node(folder: Folder, path: str) -> str:
    """Permission rules see it as one path, so pytest must interpret it the same way."""
    file, colons, test = path.partition("::")
    place = folder.path_of(file)
    status = folder.status(place)
    if "[" in file:
        raise WorkspaceError(
            f"{place}: pytest would treat the part before the [ as the path.",
            remedy="Name its parent folder, and use `select`.",
        )
    if colons and not stat.S_ISREG(status.st_mode):
        raise WorkspaceError(
            f"{place} is not a file, so it has no tests to name with `::`.", remedy="Name the file itself, not a link."
        )
    name, _, parameters = test.partition("[")
    if "/" in name or ".." in parameters.split("/"):
        raise WorkspaceError(
            f"{test!r} is not a test name: after `::`, use / only in [ ], and no `..` as a part.",
            remedy="Give it as pytest shows it: tests/test_a.py::TestB::test_c. `select` matches names.",
        )
    real = real_path(folder, file)
    return _argument(f"./{'/'.join(real.parts)}{colons}{test}")


def _argument(text: str) -> str:
    try:
        raw = text.encode(errors="strict")
    except UnicodeEncodeError:
        raise WorkspaceError("An argument is not valid Unicode.", remedy="Use the exact file names.") from None
    if b"\0" in raw or b"\n" in raw or len(raw) > MAX_ARGUMENT_LENGTH:
        raise WorkspaceError("An argument contains a NUL or a newline, or is too long.", remedy="Shorten it.")
    return text


def progress_text(tally: PytestProgress) -> str:
    if not tally.done and not tally.total:
        return "collecting tests"
    done = f"{tally.done}/{tally.total}" if tally.total is not None else f"{tally.done}"
    bad = ", ".join(f"{tally.counts[name]} {name}" for name in ("failed", "error") if tally.counts[name])
    return f"{done} tests done{', ' if bad else ''}{bad}"


def run_tests_result(finished: SandboxResult, tally: PytestProgress, turn: CommandRunner) -> RunTestsResult:
    """The outcome of the run: from pytest's exit code if there is one, or else from the sandbox."""
    context = turn.context
    outcome, ending = _outcome(finished, tally, turn)
    failures = _failures(tally, context.folder, context.settings.limits.output)
    counts = tally.counts
    says_enough = outcome in ("passed", "no_tests") or (outcome in ("failed", "interrupted") and failures)
    return RunTestsResult(
        outcome=outcome,
        ending=ending,
        passed=counts["passed"],
        failed=counts["failed"],
        errors=counts["error"],
        skipped=counts["skipped"],
        xfailed=counts["xfailed"],
        xpassed=counts["xpassed"],
        warnings=tally.warnings,
        deselected=tally.deselected,
        collected=tally.total if tally.total != tally.done else None,
        seconds=round(finished.seconds, 2),
        failures=failures,
        more_failures=max(0, counts["failed"] + counts["error"] - len(failures)),
        running=[] if tally.code is not None else list(tally.running),
        other={clean_text(name): count for name, count in counts.items() if name not in _USUAL},
        printed="" if says_enough else _last_words(finished, tally),
        output_file=output_file(finished),
    )


def _outcome(finished: SandboxResult, tally: PytestProgress, turn: CommandRunner) -> tuple[Outcome, str]:
    during = f" while running {next(reversed(tally.running))}" if tally.running and tally.code is None else ""
    if finished.ending is not CommandEnding.EXITED:
        remedy = f" {more_time_remedy(NAME)}" if finished.ending is CommandEnding.TIMEOUT else ""
        return "stopped", f"{ending_text(finished, turn)}{during}.{remedy}"
    if tally.code is None:
        return "crashed", f"The process ended before pytest did{during} ({ending_text(finished, turn)})."
    outcome = PYTEST_CODES.get(tally.code)
    if outcome is None:
        return "failed", f"pytest ended with exit code {tally.code}."
    meaning = {
        "interrupted": "pytest was interrupted" + (": tests could not be collected." if tally.counts["error"] else "."),
        "internal_error": "pytest had an internal error; a plugin or conftest.py may be the cause.",
        "usage_error": "pytest could not use its arguments or configuration.",
        "no_tests": "No test was collected, or all were deselected.",
    }
    return outcome, meaning.get(outcome, "")


def _failures(tally: PytestProgress, folder: Folder, room: int) -> list[FailedTest]:
    """With full details as long as they fit, then with one line each."""
    failures: list[FailedTest] = []
    for found in tally.failures[:MAX_SHOWN_FAILURES]:
        whole = _failure(found, folder)
        short = msgspec.structs.replace(
            whole, message=head_and_tail(clean_text(found.message), SHORT_MESSAGE), traceback="", output=""
        )
        shown = next((one for one in (whole, short) if len(msgspec.json.encode(one)) <= room), None)
        if shown is None:
            break
        room -= len(msgspec.json.encode(shown))
        failures.append(shown)
    return failures


def _failure(found: FailureEvent, folder: Folder) -> FailedTest:
    trace, message = clean_text(found.trace), clean_text(found.message)
    return FailedTest(
        id=clean_text(found.id),
        kind="error" if found.category == "error" else "failed",
        file=path_in_folder(folder, clean_text(found.file)),
        line=found.line,
        message="" if all(line.strip() in trace for line in message.split("\n")) else message,
        traceback=trace,
        output=clean_text(found.output),
    )


def path_in_folder(folder: Folder, file: str) -> str:
    """Relative to the folder, if it is inside."""
    root = f"{folder.root}/"
    return os.path.normpath(file.removeprefix(root)) if file else ""


def _last_words(finished: SandboxResult, tally: PytestProgress) -> str:
    stdout, stderr = output_texts(finished, MAX_FAILURE_OUTPUT)
    return head_and_tail(
        "\n".join(part.strip() for part in (tally.internal, stdout, stderr) if part.strip()), MAX_FAILURE_OUTPUT
    )


def run_tests_text(ran: RunTestsResult, limit: int) -> str:
    counted = {
        "failed": ran.failed,
        "error" if ran.errors == 1 else "errors": ran.errors,
        "passed": ran.passed,
        "skipped": ran.skipped,
        "xfailed": ran.xfailed,
        "xpassed": ran.xpassed,
        **ran.other,
        "deselected": ran.deselected,
        "warning" if ran.warnings == 1 else "warnings": ran.warnings,
    }
    counts = ", ".join(f"{count} {name}" for name, count in counted.items() if count) or "nothing ran"
    parts = [f"{ran.outcome.replace('_', ' ').upper()}: {counts} in {ran.seconds:g} s. {ran.ending}".rstrip()]
    for failure in ran.failures:
        details = (failure.message, failure.traceback, failure.output)
        parts.append(f"\n{failure.kind.upper()} {failure.id} ({failure.file}:{failure.line})")
        parts += (text.rstrip() for text in details if text)
    if ran.more_failures:
        more = count_text(ran.more_failures, "more failure")
        parts.append(f"\n{more}; use `paths` or `max_failures` to see others.")
    if ran.output_file:
        parts.append(f"\nFull output: {ran.output_file}")
    if ran.printed:
        parts.append(f"\nPrinted last:\n{ran.printed}")
    return head_and_tail("\n".join(parts), limit)
