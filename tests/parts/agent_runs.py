"""A model and servers in memory for runs of `run_agent`, which record their requests, calls, openings and closings."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from toolcrib.agent_loop import setup
from toolcrib.agent_loop.events import RunEvent
from toolcrib.agent_loop.models import opening
from toolcrib.agent_loop.options import AgentOptions
from toolcrib.agent_loop.run import run_agent
from toolcrib.catalog.snapshot import Catalog
from toolcrib.core.provider import ToolProvider
from toolcrib.core.results import Result, read_result
from toolcrib.errors import UnknownTool
from toolcrib.events import Bus
from toolcrib.servers.model import ServerState, ServerStatus

ToolFunction = Callable[[dict[str, Any]], Any]
"""Returns a text or a whole MCP result, or raises; may be async."""

NOWHERE = "http://127.0.0.1:9"
SERVERS: dict[str, Any] = {"mcp_servers": ["replaced by FakeServers"]}


@dataclass(frozen=True, kw_only=True)
class Calls:
    """The model calls a tool, with these arguments verbatim."""

    tool: str
    arguments: str = "{}"
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class Thinks:
    text: str


Piece = str | Calls | Thinks | Exception | Callable[[], Any]
"""A function is called or awaited at its place."""


def result(text: str = "", **fields: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}] if text else [], **fields}


class FakeServers(ToolProvider):
    """Servers whose tools are functions. Opening and closing take some turns of the event loop."""

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, ToolFunction]] | None = None,
        *,
        missing: Mapping[str, str] | None = None,
        definitions: Mapping[str, Mapping[str, Any]] | None = None,
        trusted: frozenset[str] = frozenset(),
    ) -> None:
        self.bus = Bus()
        self._functions = {server: dict(functions) for server, functions in (tools or {}).items()}
        self.missing = dict(missing or {})
        self.opened = self.closed = self.disturbed = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []

        def definition(name: str) -> bytes:
            more = (definitions or {}).get(name, {})
            return msgspec.json.encode({"name": name, "inputSchema": {"type": "object"}, **more})

        listings = {server: tuple(map(definition, functions)) for server, functions in self._functions.items()}
        self._catalog = Catalog.build(listings, version=1, trusted=trusted)

    @property
    def connected(self) -> tuple[str, ...]:
        return tuple(self._functions)

    async def __aenter__(self) -> FakeServers:
        try:
            await turns(3)
            self.opened += 1
            await turns(2)
        except BaseException:
            if self.opened:
                self.closed += 1
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await turns(4)
        except asyncio.CancelledError:
            self.disturbed += 1
            raise
        finally:
            self.closed += 1

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def status(self) -> dict[str, ServerStatus]:
        here = dict.fromkeys(self._functions, (ServerState.READY, ""))
        gone = {name: (ServerState.FAILED, why) for name, why in self.missing.items()}
        return {
            name: ServerStatus(name=name, state=state, transport="stdio", last_error=why)
            for name, (state, why) in {**here, **gone}.items()
        }

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Result:
        server, _, tool = name.partition(":")
        if tool not in self._functions.get(server, {}):
            raise UnknownTool(f'There is no tool "{name}".')
        given = dict(arguments or {})
        self.calls.append((tool, given))
        await turns(1)
        answer = self._functions[server][tool](given)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            answer = result(answer)
        return read_result(json.dumps(answer).encode())


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


@dataclass
class FakeModel:
    """A model that follows the turns; it repeats the last one."""

    asked: list[list[ModelMessage]] = field(default_factory=list)
    """The messages of each request."""
    offered: list[list[str]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    turns: Sequence[Sequence[Piece]] = ()

    @asynccontextmanager
    async def open_model(self, *_: Any) -> AsyncIterator[FunctionModel]:
        self.opened += 1
        try:
            await turns(1)
            yield FunctionModel(stream_function=self._answer)
        finally:
            try:
                await turns(2)
            finally:
                self.closed += 1

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self.asked.append(list(messages))
        self.offered.append([tool.name for tool in info.function_tools])
        number = sum(isinstance(message, ModelResponse) for message in messages)
        for place, piece in enumerate(self.turns[min(number, len(self.turns) - 1)]):
            await asyncio.sleep(0)
            match piece:
                case str():
                    yield piece
                case Thinks(text=text):
                    yield {place: DeltaThinkingPart(content=text)}
                case Calls(tool=tool, arguments=arguments, id=id):
                    call_id = id or f"c{number}_{place}"
                    yield {place: DeltaToolCall(name=tool, json_args=arguments, tool_call_id=call_id)}
                case Exception():
                    raise piece
                case _:
                    if inspect.isawaitable(done := piece()):
                        await done

    @property
    def results(self) -> list[ToolReturnPart]:
        """The tool results in the last request."""
        return [part for message in self.asked[-1] for part in message.parts if isinstance(part, ToolReturnPart)]


def in_memory(patch: pytest.MonkeyPatch, *says: Sequence[Piece], kit: FakeServers | None = None) -> FakeModel:
    """Replaces the model, and the servers that `mcp_servers` names."""
    model = FakeModel(turns=says)
    patch.setattr(opening, "open_model", model.open_model)
    patch.setattr(setup, "Kit", lambda *_, **__: kit)
    return model


def desk(**tools: Any) -> FakeServers:
    """One server, `desk`, with these tools."""
    return FakeServers({"desk": tools})


def options(**given: Any) -> AgentOptions:
    return AgentOptions(**{"model": "anthropic:scripted", "base_url": NOWHERE, **given})


async def run(prompt: str = "Go.", **given: Any) -> list[RunEvent]:
    async with asyncio.timeout(60):
        return [event async for event in run_agent(prompt, options(**given))]


def of(kind: type[Any], events: Sequence[RunEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def only(kind: type[Any], events: Sequence[RunEvent]) -> Any:
    [event] = of(kind, events)
    return event


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
