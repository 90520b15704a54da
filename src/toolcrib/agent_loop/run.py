"""`run_agent`: an agent's run as a stream of events.

In: a prompt and `AgentOptions`. Out: an `AgentRun`, to be read with `async for`. The run has its own task:
`RunLifecycle` opens everything, runs the `loop`, and closes everything before the last event. A reader that stops
reading ends the run. Once closed or read to the end, it leaves no process, connection or task behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from contextvars import ContextVar
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from toolcrib.agent_loop import coding
from toolcrib.agent_loop.event_queue import EventEmitter, EventQueue, RunProgress
from toolcrib.agent_loop.events import AnyRunEvent, RunEnd, RunStarted
from toolcrib.agent_loop.models.endpoint import load_module
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.setup import RunSetup, prepare_run
from toolcrib.agent_loop.tool_calls import CallApproval, ToolCaller
from toolcrib.agent_loop.tool_sources import CheckedTools, MissingServers, collect_tools
from toolcrib.catalog.tool import Tool
from toolcrib.core.answers import answering, program_asker
from toolcrib.core.toolbox import Tools
from toolcrib.errors import ToolcribError, UsageError

if TYPE_CHECKING:
    from toolcrib.agent_loop.loop import Loop


log = logging.getLogger(__name__)


class RunLifecycle:
    def __init__(self, setup: RunSetup, queue: EventQueue, run_id: str) -> None:
        self._setup = setup
        self._queue = queue
        self._emitter = EventEmitter(
            run_id=run_id, provider=setup.endpoint.provider.name, key=setup.endpoint.key, queue=queue
        )
        self._loop: Loop | None = None
        self.closing = False
        """True while the run closes and must not be cancelled."""

    async def run(self) -> None:
        """Raises only before its first event, if the coding tools are not available."""
        how: RunEnd | Exception
        stack = AsyncExitStack()
        try:
            own = await self._coding_tools(stack)
            self._emitter.emit(RunStarted, model=self._setup.options.model, max_steps=self._setup.options.max_steps)
            how = await self._limited(stack, own)
        finally:
            self.closing = True
            await self._close(stack)
        self._report_end(how)

    async def _coding_tools(self, stack: AsyncExitStack) -> CheckedTools | None:
        if self._setup.coding is None:
            return None
        builtins = await stack.enter_async_context(coding.coding_tools(self._setup.coding))

        async def call(tool: Tool, arguments: dict[str, Any], *, timeout: float | None) -> Any:
            async with asyncio.timeout(timeout):
                return await builtins.call(tool.name, arguments)

        return CheckedTools(
            tools=Tools(builtins.offers, call=call),
            check=lambda offer, arguments: builtins.checked(offer.tool.name, arguments),
        )

    async def _limited(self, stack: AsyncExitStack, own: CheckedTools | None) -> RunEnd | Exception:
        limit = asyncio.timeout(self._setup.options.timeout)
        try:
            async with limit:
                return await self._whole(stack, own)
        except Exception as error:
            return RunEnd.TIMEOUT if limit.expired() else error

    async def _whole(self, stack: AsyncExitStack, own: CheckedTools | None) -> RunEnd:
        setup = self._setup
        # Loading the modules takes a second the first time; meanwhile the servers connect.
        loading = asyncio.get_running_loop().run_in_executor(None, _load, setup.endpoint.provider.module)
        try:
            missing = MissingServers(self._emitter)
            if setup.kit is not None:
                with missing.reported_at_once(setup.kit):
                    await stack.enter_async_context(setup.kit)
            tools = await collect_tools(setup, own, missing, self._emitter)
            opening, looping = await loading
        finally:
            loading.cancel()
        loop: Loop = looping.Loop(setup.prompt, setup.options, setup.past, emitter=self._emitter, queue=self._queue)
        self._loop = loop
        offers = {name: tool.offer for name, tool in tools.items()}
        model = await stack.enter_async_context(opening.open_model(setup.options, offers, self._emitter.retrying))
        return await loop.run(
            model, ToolCaller(tools, CallApproval(setup.options.approve)), setup.endpoint.provider.format
        )

    async def _close(self, stack: AsyncExitStack) -> None:
        try:
            await stack.aclose()
        except Exception as error:
            self._log("could not be closed", error)

    def _report_end(self, how: RunEnd | Exception) -> None:
        progress = self._loop.progress() if self._loop else RunProgress(messages=self._setup.options.history)
        if isinstance(how, RunEnd):
            self._emitter.finished(how, progress)
        elif isinstance(how, ToolcribError):
            self._emitter.failed(how.message, how.remedy, progress)
        else:
            failures = load_module("models.failures")
            if not failures.is_known_failure(how):
                self._log("failed", how)
            self._emitter.failed(failures.error_text(how), failures.error_remedy(how), progress)

    def _log(self, what: str, error: Exception) -> None:
        trace = "".join(traceback.format_exception(error))
        log.warning("run %s %s:\n%s", self._emitter.run_id, what, self._emitter.without_key(trace))


def _load(provider: str) -> tuple[ModuleType, ModuleType]:
    load_module(f"models.{provider}")
    return load_module("models.opening"), load_module("loop")


_running: set[asyncio.Task[None]] = set()
"""Kept until they end, since the event loop holds only weak references to tasks."""

_within: ContextVar[frozenset[str]] = ContextVar("_within", default=frozenset())
"""The runs that the current task belongs to."""


def run_agent(prompt: str, options: AgentOptions) -> AgentRun:
    """Runs an agent: the model answers and calls tools until it makes no more calls.

    The run starts when you read the first event. Invalid options raise a `UsageError` there; everything after that is
    an event, and the last one is `RunFinished` or `RunFailed`.

        async for event in run_agent("What time is it?", AgentOptions(model="anthropic:claude-sonnet-5-5")):
            print(event)

    Leaving the loop early ends the run, and so does cancelling the task that reads it. To be sure that it has ended,
    use `async with run_agent(…) as events`.
    """
    return AgentRun(prompt, options)


class AgentRun(AsyncIterator[AnyRunEvent]):
    """A run's events, for one reader with `async for`."""

    def __init__(self, prompt: str, options: AgentOptions) -> None:
        self.id = uuid.uuid4().hex
        self._prompt = prompt
        self._options = options
        self._queue = EventQueue()
        self._life: _Life | None = None
        self._over = False
        self._being_read = False

    async def __anext__(self) -> AnyRunEvent:
        if self._being_read:
            raise UsageError("Another task is reading this run.", remedy="Read it in one task and pass the events on.")
        if self._over:
            raise StopAsyncIteration
        self._being_read = True
        try:
            return await self._next()
        finally:
            self._being_read = False

    async def _next(self) -> AnyRunEvent:
        if self._life is None:
            self._life = _Life(self._prompt, self._options, self._queue, self.id)
        try:
            event = await self._queue.next()
        except BaseException:
            await self.aclose()
            raise
        if event is not None:
            return event
        if not self._over:
            self._over = True
            self._life.task.result()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Ends the run and returns when everything is closed. If called from within the run, as in `approve`, the
        caller is cancelled too, since it is part of the run."""
        self._over = True
        if self._life is not None:
            self._life.stop()
            if self.id in _within.get():
                await self._life.stopped_from_within()
            else:
                await self._life.stopped()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._life is not None and not self._life.task.done():
            # A closed event loop has no tasks to end.
            with contextlib.suppress(RuntimeError):
                self._life.task.get_loop().call_soon_threadsafe(self._life.stop)


class _Life:
    """A run in its own task, from checking the options to the end. Independent of its reader."""

    def __init__(self, prompt: str, options: AgentOptions, queue: EventQueue, run_id: str) -> None:
        self._lifecycle: RunLifecycle | None = None
        self.task = asyncio.create_task(self._whole(prompt, options, queue, run_id), name=f"run_agent {run_id}")
        _running.add(self.task)
        self.task.add_done_callback(_running.discard)
        self.task.add_done_callback(lambda _: queue.end())

    async def _whole(self, prompt: str, options: AgentOptions, queue: EventQueue, run_id: str) -> None:
        _within.set(_within.get() | {run_id})
        setup = await prepare_run(prompt, options)
        answering.set(program_asker(options.answer))
        self._lifecycle = RunLifecycle(setup, queue, run_id)
        await self._lifecycle.run()

    def stop(self) -> None:
        if not self._closing:
            self.task.cancel()

    @property
    def _closing(self) -> bool:
        return self._lifecycle is not None and self._lifecycle.closing

    async def stopped(self) -> None:
        """Waits for the end even if the caller is cancelled meanwhile, so that nothing stays open."""
        cancelled: asyncio.CancelledError | None = None
        while not self.task.done():
            try:
                await asyncio.wait({self.task})
            except asyncio.CancelledError as error:
                cancelled = error
        if not self.task.cancelled():
            # Retrieved, so that asyncio does not log it as never retrieved.
            self.task.exception()
        if cancelled is not None:
            raise cancelled

    async def stopped_from_within(self) -> None:
        """Waits to be cancelled, so that the caller does nothing more. While the run is closing, its tasks are not
        cancelled, and the run waits for them."""
        if not self._closing:
            await asyncio.wait({self.task})
