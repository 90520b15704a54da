"""A stand-in for `CodeAgent` that plays a script and can be interrupted like a real run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Self

from parts.run_logs import metadata, summary
from toolcrib.coding_agents.run_log import ValueMasker
from toolcrib.coding_agents.run_result import ExecutionResult, RunMetadata, RunStatus, RunSummary
from toolcrib.run_events import AgentEvent

LOG = "/project/.toolcrib/runs/20261116-100000-00000a.jsonl"


@dataclass(kw_only=True)
class RunScript:
    events: tuple[AgentEvent, ...] = ()
    end: RunSummary = field(default_factory=summary)
    about: RunMetadata = field(default_factory=metadata)
    before: Callable[[], None] = lambda: None
    """Called before the run starts; may raise."""
    waits: bool = False
    """Continues after its events until it is interrupted."""
    secrets: tuple[str, ...] = ()
    stubborn: bool = False
    """Never ends."""


def code_agent(script: RunScript, made: list[dict[str, Any]]) -> type:
    """A class that replaces the real one and records its arguments and prompts in `made`."""

    class StandIn:
        def __init__(self, client: str, **given: Any) -> None:
            self.client = SimpleNamespace(name=client, title="Claude Code")
            made.append({"client": client, **given})

        def stream(self, prompt: str, *, conversation: str = "") -> Stream:
            made[-1] |= {"prompt": prompt, "conversation": conversation}
            return Stream(script)

        def run(self, prompt: str) -> ExecutionResult:
            async def collected() -> ExecutionResult:
                async with self.stream(prompt) as stream:
                    async for _ in stream:
                        pass
                return stream.result

            return asyncio.run(collected())

    return StandIn


class Stream:
    def __init__(self, script: RunScript) -> None:
        self._script = script
        self._events = self._play()
        self.metadata: RunMetadata | None = None
        self.result: ExecutionResult

    def mask(self, value: Any) -> Any:
        return ValueMasker(self._script.secrets)(value)

    def __aiter__(self) -> AsyncGenerator[AgentEvent, None]:
        return self._events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._events.aclose()

    async def _play(self) -> AsyncGenerator[AgentEvent, None]:
        self._script.before()
        self.metadata = self._script.about
        end = self._script.end
        try:
            for event in self._script.events:
                yield event
            if self._script.waits:
                await asyncio.Event().wait()
        except (asyncio.CancelledError, GeneratorExit):
            end = replace(end, status=RunStatus.INTERRUPTED, error="It was interrupted.")
            raise
        finally:
            if self._script.stubborn:
                sys.stderr.write("stubborn\n")
                await asyncio.shield(asyncio.Event().wait())
            self.result = _result(self._script, end)


def _result(script: RunScript, end: RunSummary) -> ExecutionResult:
    return ExecutionResult(
        text=end.text,
        raw_events=script.events,
        usage=end.usage,
        status=end.status,
        program_exit_code=end.program_exit_code,
        error=end.error,
        metadata={**script.about.to_json(), **end.to_json(), "log": LOG},
    )
