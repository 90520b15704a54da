"""`CodeAgent`: runs a coding agent with Toolcrib's tools, from Python.

In: a client's name, a folder, a profile. Out: `run` returns an `ExecutionResult`, `stream` yields events as they
happen. However a run ends (normally, by a time limit, Ctrl-C, a revoked identity or an internal error), the program and
all its child processes are stopped, the identity is revoked and its folder removed, and the log is completed.
`run_preparation` sets up the run, `run_lifecycle` runs it; `toolcrib run` uses this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolcrib.coding_agents.clients import RUNNABLE, client_named
from toolcrib.coding_agents.run_lifecycle import CodingAgentLifecycle, RunEnding
from toolcrib.coding_agents.run_preparation import PreparedRun, RunRequest, prepare_run
from toolcrib.coding_agents.run_result import ExecutionResult, OnMcpFailure, RunMetadata, RunStatus, RunSummary
from toolcrib.config.model import ListingMode
from toolcrib.core.answers import Answer
from toolcrib.errors import ToolcribError, UsageError
from toolcrib.run_events import AgentEvent, AgentEventKind


@dataclass(eq=False)
class CodingAgentRun:
    """For one use: `events` once, then `result`."""

    request: RunRequest
    metadata: RunMetadata | None = None
    result: ExecutionResult | None = None
    mask: Callable[[Any], Any] = field(default=lambda value: value)
    """Removes the run's secrets from a text or a nested value."""
    _events: list[AgentEvent] = field(default_factory=list)
    _log_failed: bool = False

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Raises if the run cannot start; later failures are in the result."""
        async with prepare_run(self.request) as ready:
            self.metadata = ready.metadata
            self.mask = ready.log.mask
            lifecycle = CodingAgentLifecycle(self.request, ready)
            try:
                async for event in lifecycle.events():
                    ready.log.session(lifecycle.session)
                    for noted in self._noted(event, ready):
                        yield noted
            except (GeneratorExit, asyncio.CancelledError):
                lifecycle.ending = RunEnding(status=RunStatus.INTERRUPTED, error="It was interrupted.")
                raise
            except BaseException as error:
                reason = error.text() if isinstance(error, ToolcribError) else f"{type(error).__name__}: {error}"
                lifecycle.ending = RunEnding(status=RunStatus.FAILED, error=reason)
                raise
            finally:
                await asyncio.shield(self._ended(ready, lifecycle))

    def _noted(self, event: AgentEvent, ready: PreparedRun) -> Iterable[AgentEvent]:
        """Logs the event and yields it, followed by one warning if the log is incomplete."""
        self._events.append(event)
        ready.log.event(event)
        yield event
        if ready.log.failure and not self._log_failed:
            self._log_failed = True
            text = f"The log is incomplete: {ready.log.failure}"
            warning = AgentEvent(kind=AgentEventKind.LOG, provider=event.provider, role="toolcrib", text=text)
            self._events.append(warning)
            yield warning

    async def _ended(self, ready: PreparedRun, lifecycle: CodingAgentLifecycle) -> None:
        def keep(event: AgentEvent) -> None:
            self._events.append(event)
            ready.log.event(event)

        # Both at once: the program must not continue while a slow daemon revokes its identity.
        closing = asyncio.create_task(ready.close())
        exit_code = await lifecycle.stop(keep)
        await closing
        await asyncio.to_thread(ready.sweep)
        lifecycle.finish(keep)
        summary = lifecycle.summary(exit_code, time.time() - ready.metadata.started_at)
        ready.log.end(summary)
        self.result = _result(ready, summary, self._events)


def _result(ready: PreparedRun, summary: RunSummary, events: Iterable[AgentEvent]) -> ExecutionResult:
    metadata: dict[str, Any] = {**ready.metadata.to_json(), **summary.to_json(), "log": str(ready.log.path)}
    for name in ("text", "usage", "status", "program_exit_code", "error"):
        del metadata[name]
    return ExecutionResult(
        text=summary.text,
        raw_events=tuple(events),
        usage=summary.usage,
        status=summary.status,
        program_exit_code=summary.program_exit_code,
        error=summary.error,
        metadata=metadata,
    )


TIMEOUT = 2 * 3600.0
MAX_TIMEOUT = 7 * 24 * 3600.0


class CodeAgent:
    """Runs Claude Code, Codex or Gemini CLI with the daemon's tools: `CodeAgent("claude").run("Tidy up.")`.

    `run` returns an `ExecutionResult`; `async for event in agent.stream(prompt)` yields events as they happen.
    """

    def __init__(
        self,
        client: str,
        *,
        workdir: str | Path = ".",
        profile: str = "developer",
        timeout: float = TIMEOUT,
        on_mcp_failure: OnMcpFailure | str = OnMcpFailure.STOP,
        environ: Mapping[str, str] | None = None,
        env: Sequence[str] = (),
        env_file: str | Path | None = None,
        extra: Sequence[str] = (),
        listing: ListingMode | str | None = None,
        answer: Answer | None = None,
    ) -> None:
        """`client` is claude, codex or gemini. `environ` is the program's environment (default: that of this process);
        `env` names variables to pass on even if Toolcrib's configuration uses them; `extra` are arguments for the
        program. `timeout` is in seconds. `listing` is how tools are listed: auto, full, thin, search or handshake
        (default: the agent's own setting). `answer` gets what servers ask during a call; without it, their questions
        wait for you: `toolcrib approvals`."""
        self.client = client_named(client, RUNNABLE)
        self.workdir = Path(workdir).expanduser().resolve()
        self.profile = profile
        self.timeout = _seconds(timeout)
        self.on_mcp_failure = _one_of(on_mcp_failure)
        self._environ = environ
        self._env = tuple(env)
        self._env_file = None if env_file is None else Path(env_file).expanduser()
        self._extra = tuple(extra)
        self._listing = None if listing is None else _listing_mode(listing)
        self._answer = answer

    def run(self, prompt: str, *, conversation: str = "") -> ExecutionResult:
        """Runs to the end. Inside a running event loop (a coroutine, a notebook), use `stream` instead."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError(
                "CodeAgent.run cannot wait inside a running event loop.",
                remedy="Use `async for event in agent.stream(prompt)` instead.",
            )

        async def collected() -> ExecutionResult:
            async with self.stream(prompt, conversation=conversation) as stream:
                async for _ in stream:
                    pass
            return stream.result

        return asyncio.run(collected())

    def stream(self, prompt: str, *, conversation: str = "") -> RunStream:
        """The events as they happen. `conversation`: the one to continue (`last`, or an id from a result)."""
        if not prompt.strip():
            raise UsageError("The prompt is empty.", remedy="Describe what the coding agent should do.")
        return RunStream(
            CodingAgentRun(
                RunRequest(
                    client=self.client,
                    prompt=prompt,
                    workdir=self.workdir,
                    profile=self.profile,
                    conversation=conversation,
                    timeout=self.timeout,
                    on_mcp_failure=self.on_mcp_failure,
                    environ=os.environ if self._environ is None else self._environ,
                    env=self._env,
                    env_file=self._env_file,
                    extra=self._extra,
                    listing=self._listing,
                    answer=self._answer,
                )
            )
        )


class RunStream:
    """A live run: `async for event in stream`, then `stream.result`.

    With `async with`, the run has ended and is cleaned up when the block exits, however it exits.
    """

    def __init__(self, run: CodingAgentRun) -> None:
        self._run = run
        self._events = run.events()

    def __aiter__(self) -> AsyncIterator[AgentEvent]:
        return self._events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._events.aclose()

    @property
    def metadata(self) -> RunMetadata | None:
        """The agent, program and folder of the run; available from the first event on."""
        return self._run.metadata

    def mask(self, value: Any) -> Any:
        """A text or nested value without the run's secrets: its token and the values from `env` and `env_file`. The log
        is masked this way; events are not."""
        return self._run.mask(value)

    @property
    def result(self) -> ExecutionResult:
        if self._run.result is None:
            raise UsageError("The run has not ended yet.", remedy="Read its events to the end first.")
        return self._run.result


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise UsageError(
            f"{timeout!r} is not a valid time limit.", remedy=f"Use a number of seconds, at most {MAX_TIMEOUT:.0f}."
        )
    return float(timeout)


def _listing_mode(name: ListingMode | str) -> ListingMode:
    try:
        return ListingMode(name)
    except ValueError:
        raise UsageError(f"listing is {name!r}.", remedy=f"Use one of {', '.join(ListingMode)}.") from None


def _one_of(choice: OnMcpFailure | str) -> OnMcpFailure:
    try:
        return OnMcpFailure(choice)
    except ValueError:
        raise UsageError(
            f"on_mcp_failure (--on-mcp-failure) cannot be {choice!r}.", remedy="Use stop or continue."
        ) from None
