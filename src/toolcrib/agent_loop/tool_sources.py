"""The tools of a run: built-in ones, those of its servers, those of a crib.

In: open tool providers. Out: the offered tools by name, and events about connected servers, missing servers and name
conflicts. `run` calls it once, before the first model request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Count
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from toolcrib.agent_loop.event_queue import EventEmitter
from toolcrib.agent_loop.events import McpConnected, McpWarning, NameConflict
from toolcrib.agent_loop.models.endpoint import ToolFormat
from toolcrib.agent_loop.options import CONNECT_LIMIT, AgentOptions
from toolcrib.agent_loop.tool_calls import CallableTool
from toolcrib.catalog.offered_tool import OfferedTool
from toolcrib.catalog.schema_check import ArgumentChecker
from toolcrib.catalog.transforms import UnmatchedNames, common_errors
from toolcrib.core.toolbox import Tools
from toolcrib.errors import UsageError
from toolcrib.events import ServerStateChanged
from toolcrib.formats.definition import Provider
from toolcrib.servers.model import ServerState

if TYPE_CHECKING:
    from toolcrib.agent_loop.setup import RunSetup
    from toolcrib.core.provider import ToolProvider

log = logging.getLogger(__name__)

WHY_MISSING = {
    ServerState.CONNECTING: "It is not connected yet.",
    ServerState.UNAVAILABLE: "It is not connected.",
    ServerState.FAILED: "It could not be reached.",
}
"""Reasons for a crib's missing server without an error. Disabled servers are not reported."""
_INSTALLING = "It is still installing."


FORMATS: Mapping[ToolFormat, Provider] = {
    ToolFormat.OPENAI_CHAT: "openai",
    ToolFormat.OPENAI_RESPONSES: "openai",
    ToolFormat.ANTHROPIC: "anthropic",
    ToolFormat.GOOGLE: "google",
}


@dataclass(frozen=True, kw_only=True)
class CheckedTools:
    tools: Tools
    check: Callable[[OfferedTool, dict[str, Any]], dict[str, Any]]
    """Returns the tool's arguments; raises `InvalidArguments`."""


class MissingServers:
    """Reports each missing server once, as early as possible."""

    def __init__(self, emitter: EventEmitter) -> None:
        self._emitter = emitter
        self._reported: set[str] = set()

    def report(self, server: str, reason: str) -> None:
        if server not in self._reported:
            self._reported.add(server)
            self._emitter.emit(McpWarning, server=server, reason=reason)

    @contextmanager
    def reported_at_once(self, provider: ToolProvider) -> Iterator[None]:
        leave = provider.subscribe(self._note, ServerStateChanged)
        try:
            yield
        finally:
            leave()

    def _note(self, event: ServerStateChanged) -> None:
        if event.state == ServerState.FAILED:
            self.report(event.server, event.reason or WHY_MISSING[ServerState.FAILED])


async def collect_tools(
    setup: RunSetup, own: CheckedTools | None, missing: MissingServers, emitter: EventEmitter
) -> dict[str, CallableTool]:
    """Of tools with the same name, built-in ones come first, then those of the run's own servers."""
    options, connected = setup.options, list[str]()
    transformed: dict[ToolProvider, Tools] = {}
    if setup.kit is not None:
        connected += setup.kit.connected
        for server, reason in setup.kit.missing.items():
            missing.report(server, reason)
        transformed[setup.kit] = _transformed(setup.kit, options, emitter)
    if options.crib is not None:
        with missing.reported_at_once(options.crib):
            await wait_until_settled(options.crib, CONNECT_LIMIT)
        for server, status in options.crib.status().items():
            if status.state in (ServerState.READY, ServerState.IDLE):
                connected.append(server)
            elif status.state in WHY_MISSING:
                why = _INSTALLING if status.installing else WHY_MISSING[status.state]
                missing.report(server, status.last_error or why)
        transformed[options.crib] = _transformed(options.crib, options, emitter)
    _refuse_idle(transformed)
    check = _checked(ArgumentChecker())
    sources = [*([own] if own else []), *(CheckedTools(tools=tools, check=check) for tools in transformed.values())]
    tools, conflicts = _merged(sources, FORMATS[setup.endpoint.provider.format])
    if transformed:
        counted = Count(tool.offer.server for tool in tools.values() if tool.offer.server)
        emitter.emit(McpConnected, servers=tuple(connected), tools=dict(counted))
    for kept, left_out in conflicts:
        emitter.emit(NameConflict, name=left_out.name, kept=kept.tool.display, left_out=left_out.tool.display)
    return tools


async def wait_until_settled(provider: ToolProvider, limit: float) -> None:
    """Returns when no server is connecting any more, or after `limit` seconds."""
    changed = asyncio.Event()
    leave = provider.subscribe(lambda _: changed.set(), ServerStateChanged)
    try:
        async with asyncio.timeout(limit):
            while any(one.state is ServerState.CONNECTING for one in provider.status().values()):
                changed.clear()
                await changed.wait()
    except TimeoutError:
        # Late servers are reported as missing.
        return
    finally:
        leave()


def _transformed(provider: ToolProvider, options: AgentOptions, emitter: EventEmitter) -> Tools:
    def left_out(offer: OfferedTool, why: UsageError) -> None:
        # One server's tool must not end a run whose transform is meant for another's.
        emitter.emit(McpWarning, server=offer.server, reason=f"Its tool {offer.tool.name} was left out: {why.text()}")

    return provider.tools().transformed(
        keep=options.keep,
        drop=options.drop,
        transform=options.transform,
        unmatched=UnmatchedNames.TAKEN,
        on_skipped=left_out,
    )


def _refuse_idle(transformed: Mapping[ToolProvider, Tools]) -> None:
    """Allows a transform that is meant for only one of them, or for a missing server."""
    for error in common_errors(tools.unmatched for tools in transformed.values()):
        if all(provider.all_known for provider in transformed):
            raise error
        log.warning("%s", error.text())


def _checked(checker: ArgumentChecker) -> Callable[[OfferedTool, dict[str, Any]], dict[str, Any]]:
    """Runs before the approval. Transformed tools check their arguments when they undo the transform."""

    def check(offer: OfferedTool, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments if offer.undo else checker.check(offer.tool.shown, arguments)

    return check


def _merged(
    sources: Sequence[CheckedTools], provider: Provider
) -> tuple[dict[str, CallableTool], list[tuple[OfferedTool, OfferedTool]]]:
    merged: dict[str, CallableTool] = {}
    conflicts: list[tuple[OfferedTool, OfferedTool]] = []
    for source in sources:
        for offer in source.tools:
            if offer.name in merged:
                conflicts.append((merged[offer.name].offer, offer))
            else:
                merged[offer.name] = _callable(source, offer, provider)
    return merged, conflicts


def _callable(source: CheckedTools, offer: OfferedTool, provider: Provider) -> CallableTool:
    def real(given: Mapping[str, Any]) -> dict[str, Any]:
        return source.check(offer, source.tools.real_arguments(offer.name, given, provider=provider))

    return CallableTool(offer=offer, real=real, call=partial(source.tools.call_real, offer.name))
