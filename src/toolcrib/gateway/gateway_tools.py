"""Answers the gateway's tools: find, describe, batch and result. `crib_call` is a call like any other.

In: a client's call of one of them. Out: its result. What they show is what the caller may use now, and each call that
they lead to passes through the door under the tool's own name. Used by `dispatcher`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from toolcrib.audit.entry import AuditEntry, EntryKind
from toolcrib.catalog.names import similar
from toolcrib.catalog.tool import Tool
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import InvalidArguments, ToolcribError, UnknownTool
from toolcrib.events import CallOutcome
from toolcrib.gateway.batch import MakeCall, run_batch
from toolcrib.gateway.large_results import LargeResults, limit_bytes
from toolcrib.gateway.messages import ReadLimiter, error_as_tool_result
from toolcrib.gateway.offer_requests import CALL_WAIT_SECONDS
from toolcrib.identity.principal import RequestContext
from toolcrib.identity.usage import KIND_BY_TOOL, TokenKind
from toolcrib.listing.cache import is_left_out
from toolcrib.listing.gateway_tools import MOST_DESCRIBED, MOST_HITS, NAMED_GATEWAY_TOOLS, GatewayTool, server_lines
from toolcrib.listing.signature import signature
from toolcrib.policy import Verdict

ProjectRequest = RequestContext[Project]

LISTING_WAIT_SECONDS = 2.0
"""Clients give up on a server after five."""
_LONGEST_QUERY = 1_000
_LONGEST_NAME = 100
"""Characters of a client's name for a tool that an answer repeats."""
_HITS = 8
_NOTHING = "You may use no tools. Ask the owner of this machine to allow some."
_RULE = "built-in: shows only what the agent may use"


class _Find(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    server: str = ""
    limit: int = _HITS


class _Describe(msgspec.Struct, forbid_unknown_fields=True):
    tools: list[str]


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    arguments: Raw = Raw(b"{}")


def for_search(error: UnknownTool) -> UnknownTool:
    """Without suggestions, it says how to find tools that no list may have."""
    if not error.data.get("nearest"):
        error.remedy = "Use crib_find to find tools by what they do."
    return error


A = TypeVar("A")


def inner_call(params: Mapping[str, Raw]) -> tuple[str, dict[str, Raw]]:
    """The name and the params of the call that `crib_call` makes."""
    given = _read(GatewayTool.CALL, params, _Call, '{"tool": "NAME", "arguments": {…}}')
    if NAMED_GATEWAY_TOOLS.get(given.tool) is GatewayTool.CALL:
        raise InvalidArguments(f"{given.tool} does not call itself.", remedy="Give the name of another tool.")
    return given.tool, {**params, "arguments": _unquoted(given.arguments)}


def _unquoted(arguments: Raw) -> Raw:
    """Models often write the arguments as a JSON text."""
    if bytes(arguments)[:1] != b'"':
        return arguments
    try:
        text = msgspec.json.decode(arguments, type=str).encode()
        return Raw(msgspec.json.encode(msgspec.json.decode(text, type=dict[str, Raw])))
    except (msgspec.MsgspecError, RecursionError):
        # The check of the arguments reports it.
        return arguments


async def wait_for_tool(project: Project, name: str) -> None:
    """Waits for servers that were never listed, if no other has a tool of this name."""
    if name not in project.catalog:
        await project.wait_for_new_servers(CALL_WAIT_SECONDS)
        # The first comparison of names imports a library, which would block the event loop.
        await asyncio.to_thread(list, similar("", ()))


class GatewayTools:
    def __init__(self, crib: Crib, large: LargeResults) -> None:
        self._crib = crib
        self._large = large
        self._searches = ReadLimiter()
        """Searches take turns like large messages: many at once would take all threads from other agents."""

    async def answer(
        self,
        tool: GatewayTool,
        params: Mapping[str, Raw],
        context: ProjectRequest,
        make: MakeCall,
    ) -> bytes:
        """The result of find, describe, batch or result. `make` makes one call of a batch."""
        began = time.monotonic()
        outcome = CallOutcome.OK
        try:
            match tool:
                case GatewayTool.FIND:
                    result = await self._find(params, context)
                case GatewayTool.DESCRIBE:
                    result = await self._describe(params, context)
                case GatewayTool.BATCH:
                    result = await run_batch(bytes(params.get("arguments", b"{}")), make, _reads_only(context))
                case _:
                    result = await self._result(params, context)
        except ToolcribError as error:
            outcome = CallOutcome.INVALID if isinstance(error, InvalidArguments) else CallOutcome.ERROR
            result = error_as_tool_result(error)
        except asyncio.CancelledError:
            self._record(tool, params, context, b"", CallOutcome.CANCELLED, time.monotonic() - began)
            raise
        self._record(tool, params, context, result, outcome, time.monotonic() - began)
        return result

    async def _find(self, params: Mapping[str, Raw], context: ProjectRequest) -> bytes:
        given = _read(GatewayTool.FIND, params, _Find, '{"query": "what the tool should do", "server": "NAME"}')
        if not 1 <= given.limit <= MOST_HITS:
            raise InvalidArguments(f"limit is {given.limit}.", remedy=f"Give 1 to {MOST_HITS}.")
        project = context.project
        await project.wait_for_new_servers(LISTING_WAIT_SECONDS)
        index = await project.search.index(project.catalog)
        shows = _shows(context)
        servers = dict.fromkeys(tool.server for tool in project.catalog.tools if shows(tool))
        if given.server and given.server not in servers:
            choice = f"Choose one of {', '.join(servers)}." if servers else _NOTHING
            raise InvalidArguments(f"There is no server {given.server[:80]!r}.", remedy=choice)
        async with self._searches.of(context.principal.name) as turn:
            with turn.pause_after():
                hits = await asyncio.to_thread(
                    index.find,
                    given.query[:_LONGEST_QUERY],
                    shown=shows,
                    server=given.server,
                    limit=given.limit,
                    used=self._crib.services.favorites.uses,
                )
        # The permission and the tools may have changed meanwhile.
        catalog, style, shows = project.catalog, project.listings.style, _shows(context)
        named = catalog.by_public(style)
        hits = [hit for hit in hits if named.get(hit.public(style)) is hit and shows(hit)]
        if context.session is not None:
            self._crib.services.sessions.searched(context.session, [hit.display for hit in hits])
        lines = [signature(hit, hit.public(style)) for hit in hits]
        if not lines:
            shown = [tool for tool in catalog.tools if shows(tool)]
            lines = ["No tool matches. Use other words. The servers:", *server_lines(shown, project.offers)]
            lines = lines if shown else [_NOTHING]
        return _text("\n".join(lines))

    async def _describe(self, params: Mapping[str, Raw], context: ProjectRequest) -> bytes:
        given = _read(GatewayTool.DESCRIBE, params, _Describe, '{"tools": ["NAME", …]}')
        if not 1 <= len(given.tools) <= MOST_DESCRIBED:
            raise InvalidArguments(f"There are {len(given.tools)} tools.", remedy=f"Name 1 to {MOST_DESCRIBED}.")
        for name in given.tools:
            await wait_for_tool(context.project, name)
        room = limit_bytes(context.client, context.project.config.settings.result_tokens)
        parts: list[str] = []
        for position, name in enumerate(given.tools):
            definition = self._definition(name, context)
            if parts and room and sum(map(len, (*parts, definition))) > room:
                left = ", ".join(name[:_LONGEST_NAME] for name in given.tools[position:])
                parts.append(f"Too long for one answer. Ask again for {left}.")
                break
            parts.append(definition)
        return _text("\n".join(parts))

    async def _result(self, params: Mapping[str, Raw], context: ProjectRequest) -> bytes:
        given = _read(GatewayTool.RESULT, params, dict[str, Any], '{"id": "…", "page": 2}')
        limit = limit_bytes(context.client, context.project.config.settings.result_tokens)
        return await self._large.read(given, context, limit)

    @staticmethod
    def _definition(name: str, context: ProjectRequest) -> str:
        project, permission = context.project, context.principal.permission()
        style = project.listings.style
        try:
            tool = project.find(name, permission.shows, style)
            if not permission.shows(tool):
                raise UnknownTool(f'There is no tool "{name[:_LONGEST_NAME]}".')
        except UnknownTool as error:
            return for_search(error).text()
        except ToolcribError as error:
            return error.text()
        shown = msgspec.json.decode(tool.render(tool.public(style)), type=dict[str, Raw])
        kept = {key: shown[key] for key in ("name", "description", "inputSchema") if key in shown}
        return msgspec.json.encode(kept).decode()

    def _record(
        self,
        tool: GatewayTool,
        params: Mapping[str, Raw],
        context: ProjectRequest,
        result: bytes,
        outcome: CallOutcome,
        duration: float,
    ) -> None:
        session, arguments = context.session, params.get("arguments")
        counted = arguments_counted = None
        if session is not None:
            kind = KIND_BY_TOOL.get(tool.display, TokenKind.RESULTS)
            counted, arguments_counted = (
                partial(session.add_tokens, kind),
                partial(session.add_tokens, TokenKind.ARGUMENTS),
            )
            if kind is not TokenKind.RESULTS:
                self._crib.services.sessions.count_answer(session, kind)
        self._crib.services.audit.note(
            AuditEntry(
                kind=EntryKind.OUTCOME,
                agent=context.principal.name,
                session="" if session is None else session.id,
                conversation=context.conversation,
                tool=tool.display,
                server=tool.display.partition(":")[0],
                decision=Verdict.ALLOW,
                rule=_RULE,
                mode="" if session is None else session.mode,
                arguments=None if arguments is None else bytes(arguments),
                outcome=outcome,
                duration=duration,
                size=len(result),
                # The arguments and results of a batch are counted one by one.
                result=None if tool is GatewayTool.BATCH else result,
                counted=counted,
                arguments_counted=None if tool is GatewayTool.BATCH else arguments_counted,
            )
        )


def _shows(context: ProjectRequest) -> Callable[[Tool], bool]:
    """Whether the agent may use a tool now, and its client has none of its own instead."""
    shows, without = context.principal.permission().shows, context.without
    return lambda tool: shows(tool) and not is_left_out(tool, without)


def _reads_only(context: ProjectRequest) -> Callable[[str], bool]:
    """Whether the tool of this name only reads. Names of unknown tools don't: their calls fail in their turn."""
    catalog = context.project.catalog

    def reads(name: str) -> bool:
        return name in catalog and catalog.find(name).reads_only

    return reads


def _read(tool: GatewayTool, params: Mapping[str, Raw], kind: type[A], example: str) -> A:
    try:
        return msgspec.json.decode(params.get("arguments", b"{}"), type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArguments(
            f"The arguments do not match {tool.display}: {error}.", remedy=f"Write {example}."
        ) from None


def _text(text: str) -> bytes:
    return msgspec.json.encode({"content": [{"type": "text", "text": text}]})
