"""A run from the program's start to its end.

In: a `PreparedRun`. Out: events, from the program's output and from the gateway; how the run ended, and its summary.
`call_matching` merges both reports of a tool call; `code_agent` cleans up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from toolcrib.coding_agents.call_matching import CallMatcher
from toolcrib.coding_agents.client_spec import Launch, OutputParser, TokenUsage
from toolcrib.coding_agents.program_environment import without_proxy
from toolcrib.coding_agents.program_process import OutputLine, ProgramStream, RunningProgram
from toolcrib.coding_agents.run_preparation import PreparedRun, RunRequest
from toolcrib.coding_agents.run_result import REMEDIES, OnMcpFailure, RunStatus, RunSummary, ToolListSize
from toolcrib.config.model import WORKSPACE
from toolcrib.core.answers import ProgramAsker, ServerQuestion, program_asker
from toolcrib.daemon_client.lease import (
    AgentLease,
    CallSeen,
    LeaseEnded,
    LeaseEvent,
    LeaseLost,
    ListingSeen,
    QuestionSeen,
)
from toolcrib.errors import Denied, NotFound, ToolcribError
from toolcrib.run_events import AgentEvent, AgentEventKind, ToolStatus

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(dict[str, object]).decode


class RunTotals:
    def __init__(self) -> None:
        self.tools: Counter[str] = Counter()
        self.denials = 0
        self.failures = 0
        self.succeeded = 0
        """Successful calls of servers' tools."""
        self.listing = ToolListSize()

    def count(self, event: AgentEvent) -> None:
        if event.kind is not AgentEventKind.TOOL or event.tool_status is ToolStatus.STARTED:
            return
        self.tools[f"{event.server}:{event.tool_name}" if event.server else event.tool_name] += 1
        if event.tool_status is ToolStatus.DENIED:
            self.denials += 1
        elif event.tool_status is not ToolStatus.OK:
            self.failures += 1
        self.succeeded += event.tool_status is ToolStatus.OK and bool(event.server)

    def listed(self, note: ListingSeen) -> None:
        if note.bytes > self.listing.bytes:
            self.listing = ToolListSize(**{one.name: getattr(note, one.name) for one in fields(ToolListSize)})


_READ_AHEAD = 256
"""The maximum number of queued lines and notes. If events are not read, the program waits and memory stays bounded."""
_DRAIN_TIMEOUT = 1.0
"""Seconds to read the remaining output of a stopped program and the gateway's last notes."""
_LISTING_TIMEOUT = 10.0
"""Seconds after the model's first message within which the program must have requested its tools."""
_NOTES_TIMEOUT = 2.0
"""Seconds to wait for the gateway's notes on the last calls, once the program has ended."""


_AGAIN = "Run it again; `--conversation last` continues where it stopped."


@dataclass(frozen=True)
class _NoMoreLines:
    """The program has ended, or its output can no longer be read."""

    error: Exception | None = None


_Item = OutputLine | LeaseEvent | _NoMoreLines
Keep = Callable[[AgentEvent], None]


@dataclass(kw_only=True)
class RunEnding:
    status: RunStatus = RunStatus.FINISHED
    error: str = ""


@contextlib.contextmanager
def entered_workdir(request: RunRequest) -> Iterator[Path]:
    """The program's working folder. For a job it is held open, because the submitter could replace it with a link at
    any moment."""
    if not request.job:
        yield request.workdir
        return
    try:
        descriptor = os.open(request.workdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _gone(request) from error
    try:
        held = Path(f"/proc/self/fd/{descriptor}")
        if held.readlink() != request.workdir:
            raise _gone(request)
        yield held
    finally:
        os.close(descriptor)


def _gone(request: RunRequest) -> Denied:
    return Denied(
        f"{request.workdir} is no longer the folder that the job was submitted for.",
        remedy="Restore it, and submit the job again.",
    )


class CodingAgentLifecycle:
    def __init__(self, request: RunRequest, ready: PreparedRun) -> None:
        self.ending = RunEnding()
        self._request = request
        self._ready = ready
        self._provider = ready.client.name
        self._parser: OutputParser = ready.headless.parser()
        self._matcher = CallMatcher(self._provider, mark=ready.headless.call_mark)
        self._totals = RunTotals()
        self._running: RunningProgram | None = None
        self._items: asyncio.Queue[_Item] = asyncio.Queue(_READ_AHEAD)
        self._tasks: list[asyncio.Task[None]] = []
        self._asker = program_asker(request.answer)
        self._answers = set[asyncio.Task[None]]()
        """Questions that the program is answering."""
        self._without_tools = ready.lease is None
        self._asked = ready.lease is None
        """Whether the program has listed its tools: if that fails, some programs silently continue."""
        self._asks_until: float | None = None
        """The deadline for that, set at the model's first message."""
        self._unavailable = {} if ready.lease is None else dict(ready.lease.unavailable)

    @property
    def session(self) -> str:
        """The program's session, as soon as it is known."""
        return self._parser.report.session

    async def events(self) -> AsyncIterator[AgentEvent]:
        async for event in self._happening():
            self._totals.count(event)
            yield event

    async def _happening(self) -> AsyncIterator[AgentEvent]:
        lease = self._ready.lease
        for warning in (*self._ready.warnings, *(() if lease is None else lease.warnings)):
            yield self._log(warning)
        await self._start(self._ready.launch)
        if lease is not None:
            self._matcher.names = lease.names
            self._tasks.append(asyncio.create_task(self._read_notes(lease.events())))
        deadline = time.monotonic() + self._request.timeout
        while self.ending.status is RunStatus.FINISHED:
            item = await self._next(deadline)
            now = time.monotonic()
            for event in (*self._of(item, now), *self._matcher.overdue(now)):
                yield event
            if now >= deadline:
                self._stops(
                    RunStatus.TIMEOUT, f"The run took longer than {self._request.timeout:.0f} s.{self._trouble()}"
                )
            if isinstance(item, _NoMoreLines):
                if item.error is not None:
                    raise item.error
                if not self._refused_to_start():
                    break
                await self._start(await asyncio.to_thread(self._ready.without_tools))
            if self._asks_until is not None and now >= self._asks_until:
                for event in self._never_asked():
                    yield event
        if self.ending.status is RunStatus.FINISHED:
            async for event in self._last_notes():
                yield event

    async def _start(self, launch: Launch) -> None:
        with entered_workdir(self._request) as folder:
            self._running = await RunningProgram.start(
                (str(self._ready.program.path), *launch.args),
                environ=without_proxy({**self._ready.environ, **launch.environ}, self._ready.launch_request.url),
                cwd=folder,
                stdin=launch.stdin,
            )
        self._tasks.append(asyncio.create_task(self._read_lines(self._running)))

    def _trouble(self) -> str:
        """The program's last reported problem, if any."""
        last = self._parser.report.last_trouble
        return f" Its last problem: {last}" if last else ""

    def _refused_to_start(self) -> bool:
        """Whether the program exited at once because Toolcrib's tools were missing, and should continue without them.

        Only some programs require their servers; they exit before they send anything to a model.
        """
        mcp_failed, self._parser.report.mcp_failure = self._parser.report.mcp_failure, ""
        return (
            bool(mcp_failed)
            and not self._parser.report.text
            and self._running is not None
            and self._running.exit_code != 0
        )

    async def _next(self, deadline: float) -> _Item | None:
        """The next item; None when a deadline has passed."""
        due = min(deadline, self._matcher.next_due() or deadline, self._asks_until or deadline)
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                return await self._items.get()
        except TimeoutError:
            return None

    def _of(self, item: _Item | None, now: float) -> Iterable[AgentEvent]:
        match item:
            case OutputLine():
                yield from self._of_line(item, now)
            case CallSeen():
                yield from self._matcher.passed(item, now)
            case ListingSeen():
                self._asked, self._asks_until = True, None
                self._matcher.names = item.names
                self._totals.listed(item)
                for server, _ in item.names.values():
                    self._unavailable.pop(server, None)
            case QuestionSeen():
                yield from self._question(item)
            case LeaseLost():
                yield from self._no_tools(
                    RunStatus.NO_TOOLS, f"The connection to Toolcrib's daemon was lost: {item.why}"
                )
            case LeaseEnded():
                ended = f"The agent {self._ready.metadata.agent} was ended ({item.why})."
                yield from self._no_tools(RunStatus.REVOKED, ended)

    def _question(self, asked: QuestionSeen) -> Iterable[AgentEvent]:
        lease = self._ready.lease
        if self._asker is None or lease is None or asked.mode == "sampling":
            yield self._log(f"Server '{asked.server}' asks something in {asked.tool}: see `toolcrib approvals`.")
            return
        answering = asyncio.create_task(self._answer(self._asker, lease, asked.id))
        self._answers.add(answering)
        answering.add_done_callback(self._answers.discard)

    async def _answer(self, asker: ProgramAsker, lease: AgentLease, id: str) -> None:
        try:
            found = await lease.question(id)
            server, params = found["question"]["server"], found["question"]["params"]
            result = await asker.answered(ServerQuestion.of(server, found["tool"], params))
            approved = {"accept": True, "decline": False}.get(result["action"])
            await lease.answer(id, approved=approved, content=result.get("content"))
        except NotFound:
            log.debug("the question %s was answered elsewhere, or its call has ended", id)
        except Exception:
            log.warning("a server's question could not be answered, and waits for the owner", exc_info=True)

    def _of_line(self, line: OutputLine, now: float) -> Iterable[AgentEvent]:
        for event in self._parsed(line):
            if event.role == "assistant" and not self._asked and self._asks_until is None:
                self._asks_until = now + _LISTING_TIMEOUT
            yield from self._matcher.printed(event, now)
        if self._parser.report.mcp_failure and not self._without_tools:
            yield from self._no_tools(RunStatus.NO_TOOLS, self._parser.report.mcp_failure)

    def _parsed(self, line: OutputLine) -> Iterable[AgentEvent]:
        if line.stream is ProgramStream.ERR:
            return self._parser.parse_stderr(line.text)
        try:
            decoded = _decode(line.text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return (AgentEvent(kind=AgentEventKind.RAW, provider=self._provider, text=line.text, raw=line.text),)
        return self._parser.parse(decoded)

    def _no_tools(self, status: RunStatus, why: str) -> Iterable[AgentEvent]:
        self._without_tools = True
        if self._request.on_mcp_failure is OnMcpFailure.STOP:
            self._stops(status, why)
        yield self._log(f"{why} The run {'is stopped' if self.ending.error else 'continues without these tools'}.")

    def _never_asked(self) -> Iterable[AgentEvent]:
        self._asked, self._asks_until = True, None
        if not self._without_tools:
            title = self._ready.client.title
            yield from self._no_tools(RunStatus.NO_TOOLS, f"{title} has not connected to Toolcrib.")

    def _stops(self, status: RunStatus, why: str) -> None:
        if not self.ending.error:
            self.ending = RunEnding(status=status, error=why)

    def _log(self, text: str) -> AgentEvent:
        return AgentEvent(kind=AgentEventKind.LOG, provider=self._provider, role="toolcrib", text=text)

    async def _last_notes(self) -> AsyncIterator[AgentEvent]:
        """Waits for the gateway's notes on calls that the program has already printed."""
        deadline = time.monotonic() + _NOTES_TIMEOUT
        while (self._matcher.next_due() is not None or not self._asked) and time.monotonic() < deadline:
            item = await self._next(deadline)
            now = time.monotonic()
            for event in (*self._of(item, now), *self._matcher.overdue(now)):
                yield event
        if not self._asked and self._running is not None and self._running.exit_code == 0:
            for event in self._never_asked():
                yield event

    async def _read_lines(self, running: RunningProgram) -> None:
        try:
            async for line in running.lines():
                await self._items.put(line)
        except Exception as error:
            await self._items.put(_NoMoreLines(error))
            return
        await self._items.put(_NoMoreLines())

    async def _read_notes(self, notes: AsyncIterator[LeaseEvent]) -> None:
        try:
            async for note in notes:
                await self._items.put(note)
        except ToolcribError as error:
            await self._items.put(LeaseLost(why=error.text()))

    async def stop(self, keep: Keep) -> int | None:
        """Ends the program and its child processes; returns its exit code. Output printed meanwhile is kept."""
        for answering in self._answers:
            answering.cancel()
        noting = asyncio.create_task(self._keep_late(keep))
        if self._running is not None:
            await self._running.stop()
        if self._tasks:
            # The program's last lines and the gateway's last notes may still arrive.
            await asyncio.wait(self._tasks, timeout=_DRAIN_TIMEOUT)
        for task in (*self._tasks, noting):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._answers, noting, return_exceptions=True)
        while not self._items.empty():
            self._late(self._items.get_nowait(), keep)
        return None if self._running is None else self._running.exit_code

    async def _keep_late(self, keep: Keep) -> None:
        while True:
            self._late(await self._items.get(), keep)

    def _late(self, item: _Item, keep: Keep) -> None:
        for event in self._of(item, time.monotonic()) if isinstance(item, OutputLine | CallSeen) else ():
            self._totals.count(event)
            keep(event)

    def finish(self, keep: Keep) -> None:
        """Ends the calls that are still open."""
        for event in self._matcher.finish():
            self._totals.count(event)
            keep(event)

    def summary(self, exit_code: int | None, seconds: float) -> RunSummary:
        report = self._parser.report
        status, error = self.ending.status, self.ending.error
        remedy = REMEDIES.get(status, "")
        if status is RunStatus.FINISHED and (failure := self._failure(exit_code)):
            status, (error, remedy) = RunStatus.FAILED, failure
        return RunSummary(
            status=status,
            program_exit_code=exit_code,
            seconds=seconds,
            text=report.text,
            error=error,
            remedy=remedy,
            session=report.session,
            model=report.model,
            usage=report.usage.since(self._ready.used),
            session_usage=report.usage if self._ready.headless.counts_session else TokenUsage(),
            tools=dict(self._totals.tools),
            denials=self._totals.denials,
            failures=self._totals.failures,
            listing=self._totals.listing,
            unavailable=self._unavailable,
        )

    def _failure(self, exit_code: int | None) -> tuple[str, str] | None:
        """The error and remedy of a run whose program ended normally but which failed nevertheless."""
        report, title, lease = self._parser.report, self._ready.client.title, self._ready.lease
        if exit_code != 0:
            return report.failure or f"{title} exited with code {exit_code}.", report.remedy
        if report.failure and (report.ended or report.remedy):
            return report.failure, report.remedy
        if not report.ended:
            reported = f" It reported: {report.failure}" if report.failure else ""
            return (
                f"{title} exited without its final output line, so its answer is missing or incomplete.{reported}",
                _AGAIN,
            )
        called = any(name.startswith(f"{WORKSPACE}:") for name in self._totals.tools)
        if lease is not None and lease.broken and called and not self._totals.succeeded:
            return f"No tool call succeeded. {lease.broken}", "`toolcrib workspace check` shows the errors."
        return None
