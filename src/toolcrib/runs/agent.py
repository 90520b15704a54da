"""`CodeAgent`: a coding agent of one's own, with Toolcrib's tools, from Python.

In: a client's name, a folder, a profile. Out: `run` gives an `ExecutionResult`, `stream` the events as they happen.
`toolcrib run` is the same from the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolcrib.agent_events import AgentEvent
from toolcrib.coding_agents.clients import RUNNABLE, client_named
from toolcrib.errors import UsageError
from toolcrib.runs.preparing import RunOrder
from toolcrib.runs.result import ExecutionResult, Metadata, OnMcpFailure
from toolcrib.runs.run import Run

TIMEOUT = 2 * 3600.0
LONGEST = 7 * 24 * 3600.0


class CodeAgent:
    """A run of Claude Code, Codex or Gemini CLI with the daemon's tools: `CodeAgent("claude").run("Tidy up.")`.

    `run` waits for the `ExecutionResult`; `async for event in agent.stream(prompt)` gives events as they happen.
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
    ) -> None:
        """`client` is claude, codex or gemini. `environ` is what the program is given (this process's unless said);
        `env` names variables that are passed on although Toolcrib's configuration uses them; `extra` are words for the
        program itself. `timeout` is in seconds."""
        self.client = client_named(client, RUNNABLE)
        self.workdir = Path(workdir).expanduser().resolve()
        self.profile = profile
        self.timeout = _seconds(timeout)
        self.on_mcp_failure = _one_of(on_mcp_failure)
        self._environ = environ
        self._env = tuple(env)
        self._env_file = None if env_file is None else Path(env_file).expanduser()
        self._extra = tuple(extra)

    def run(self, prompt: str, *, conversation: str = "") -> ExecutionResult:
        """Runs to the end. Where a loop runs already (a coroutine, a notebook) use `stream`."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            raise UsageError(
                "CodeAgent.run cannot wait inside a running event loop.",
                remedy="Use `async for event in agent.stream(prompt)` there.",
            )

        async def collected() -> ExecutionResult:
            async with self.stream(prompt, conversation=conversation) as stream:
                async for _ in stream:
                    pass
            return stream.result

        return asyncio.run(collected())

    def stream(self, prompt: str, *, conversation: str = "") -> Stream:
        """The events as they happen. `conversation`: one to go on in (`last`, or the id that a result names)."""
        if not prompt.strip():
            raise UsageError("There is no prompt.", remedy="Say what the agent shall do.")
        return Stream(
            Run(
                RunOrder(
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
                )
            )
        )


class Stream:
    """A run under way: `async for event in stream`, then `stream.result`.

    With `async with` the run has ended, and everything of it is gone, when the block is left, however that happens.
    """

    def __init__(self, run: Run) -> None:
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
    def metadata(self) -> Metadata | None:
        """Who runs what and where; known from the first event on."""
        return self._run.metadata

    def mask(self, value: Any) -> Any:
        """A text, or anything that is made of texts, without the run's secrets: its token, what `env` and `env_file`
        gave. The log is masked so; events are as they came."""
        return self._run.mask(value)

    @property
    def result(self) -> ExecutionResult:
        if self._run.result is None:
            raise UsageError("The run is not over yet.", remedy="Read its events to the end first.")
        return self._run.result


def _seconds(timeout: float) -> float:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
        raise UsageError(f"{timeout!r} is no time limit.", remedy=f"Give seconds, at most {LONGEST:.0f}.")
    return float(timeout)


def _one_of(choice: OnMcpFailure | str) -> OnMcpFailure:
    try:
        return OnMcpFailure(choice)
    except ValueError:
        raise UsageError(
            f"on_mcp_failure (--on-mcp-failure) cannot be {choice!r}.", remedy="Say stop or continue."
        ) from None
