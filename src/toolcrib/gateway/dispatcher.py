"""Answers one client message, for every transport and protocol version.

In: a decoded `ClientMessage` and its `RequestContext`. Out: the answer's bytes and HTTP status. `http` and `pipe`
receive the messages and send the answers; tool calls continue through the door. A `PendingRequest` can be cancelled
or interrupted over either transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import msgspec
from msgspec import Raw

from toolcrib.audit.row import MAX_COUNTED_BYTES
from toolcrib.calls import CallRequest, Door
from toolcrib.catalog.tool import Tool
from toolcrib.config.model import ListingMode
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import (
    INTERNAL_ERROR,
    AuditUnwritable,
    Denied,
    ErrorCase,
    InvalidArguments,
    NotFound,
    ServerFailure,
    ToolcribError,
    UnknownTool,
)
from toolcrib.events import ToolsListed
from toolcrib.gateway import protocol
from toolcrib.gateway.asking import declared_capabilities
from toolcrib.gateway.batch import BatchedCall, MadeCall
from toolcrib.gateway.gateway_tools import LISTING_WAIT_SECONDS, GatewayTools, for_search, inner_call, wait_for_tool
from toolcrib.gateway.large_results import SMALLEST_LIMIT, LargeResults, limit_bytes
from toolcrib.gateway.messages import (
    ClientMessage,
    Rejected,
    Reply,
    error_as_tool_result,
    error_for_program,
    error_reply,
    raw_error_message,
    result_message,
)
from toolcrib.gateway.offer_requests import (
    FORWARDED,
    WATCHED,
    Notify,
    forward,
    instructions,
    log_wish,
    progress_to,
    watch,
)
from toolcrib.gateway.parking import ASKED_METHODS, OF_RETRIES, STATE, Asking, Exchange, ParkedCall, Parking
from toolcrib.gateway.pending import PendingRequest
from toolcrib.gateway.task_requests import TASK_METHODS, TaskRequests
from toolcrib.gateway.watching import Watching
from toolcrib.identity.principal import Principal, ReaderKind, RequestContext
from toolcrib.identity.usage import TokenKind
from toolcrib.listing import NAMED_GATEWAY_TOOLS, GatewayTool, OfferList, wanted_mode
from toolcrib.servers.model import Era, LogWish, OnProgress, ServerAnswer
from toolcrib.servers.questions import Asker

log = logging.getLogger(__name__)

_decode_name = msgspec.json.Decoder(str).decode

_OWN_PARAMS = frozenset({"name", "arguments", "_meta"})
"""The params of tools/call that Toolcrib reads."""


ProjectRequest = RequestContext[Project]


class Dispatcher:
    def __init__(self, crib: Crib, parking: Parking) -> None:
        self._crib = crib
        self._parking = parking
        self._approvals = crib.services.approvals
        self._door = crib.services.door
        self._large = LargeResults(crib.services.results)
        self._tasks = TaskRequests(crib.services.door, crib.services.tasks)
        self._sessions = crib.services.sessions
        self._gateway_tools = GatewayTools(crib, self._large)

    async def context(
        self,
        principal: Principal,
        project: Project,
        conversation: str,
        reader: ReaderKind = ReaderKind.MODEL,
        client: str = "",
        listing: str = "",
        without: frozenset[str] = frozenset(),
        handshake: str = "",
    ) -> ProjectRequest:
        """The principal in this conversation, with its session. A new session is stored first."""
        session = self._sessions.find(principal.name, conversation)
        if session is None:
            # Raises if the token was revoked in the meantime: then no session may begin.
            principal.permission()
            session = await self._sessions.begin(principal.name, conversation)
        self._sessions.used(
            session, catalog_version=project.catalog.version, permission_version=principal.permission().version
        )
        return RequestContext(principal, project, session, conversation, reader, client, listing, without, handshake)

    async def answer_modern(
        self, message: ClientMessage, context: ProjectRequest, begin: Callable[[PendingRequest], Exchange]
    ) -> None:
        """Answers a modern client's request on the exchange that `begin` makes for it. If its server asks meanwhile,
        the result goes to a later request, which continues it."""
        agent = context.principal.name
        if STATE in message.params and message.method in ASKED_METHODS:
            try:
                parked = self._parking.resumed(message, agent)
            except ToolcribError as error:
                await begin(PendingRequest()).finish(self._refusal(error, Era.MODERN, context, message.id or b"null"))
                return
            if parked is not None:
                await parked.resume(message, begin(parked.pending))
                return
        # A modern client cancels by disconnecting.
        pending = PendingRequest(
            asyncio.current_task(), cancelled_by_leaving=True, progress_token=message.meta.get("progressToken")
        )
        exchange = begin(pending)
        claimed = message.meta.get(protocol.CAPABILITIES_KEY)
        if claimed and message.method in ASKED_METHODS and declared_capabilities(claimed):
            call = ParkedCall(self._parking, message, agent, pending, exchange)
            await call.finish(await self.answer(message, Era.MODERN, context, pending, call.notify, asker=call))
        else:
            await exchange.finish(await self.answer(message, Era.MODERN, context, pending, exchange.notify))

    async def answer(
        self,
        message: ClientMessage,
        era: Era,
        context: ProjectRequest,
        request: PendingRequest,
        notify: Notify,
        watching: Watching | None = None,
        asker: Asker | None = None,
    ) -> Reply:
        """The answer to any request except `subscriptions/listen`, whose answer is a stream. A legacy connection has a
        `watching`; the `asker` puts a server's questions to the client."""
        if message.id is None:
            raise ValueError("a notification has no answer")
        session, interrupt = context.session, request.interrupt
        if session is not None:
            session.begin(interrupt)
        try:
            with context.project.in_use():
                answer = await self._answered(message, era, context, request, notify, watching, asker)
                return _reply(message.id, answer, era)
        except Rejected as rejected:
            return rejected.reply(era, message.id)
        except ToolcribError as error:
            return self._refusal(error, era, context, message.id)
        except asyncio.CancelledError:
            if request.stopped is None or request.task is None:
                raise
            request.task.uncancel()
            return Rejected(request.stopped).reply(era, message.id)
        except Exception:
            log.exception("%s failed", message.method)
            return Rejected(ErrorCase.FAILED).reply(era, message.id)
        finally:
            request.over = True
            if session is not None:
                session.over(interrupt)

    def _refusal(self, error: ToolcribError, era: Era, context: ProjectRequest, request_id: bytes) -> Reply:
        if context.reader is ReaderKind.PROGRAM:
            reply = error_for_program(error, request_id)
        else:
            reply = error_reply(error, None if context.reader is ReaderKind.HTTP else era, request_id)
        self._count_repair(error, context, reply.body)
        return reply

    def _count_repair(self, error: ToolcribError, context: ProjectRequest, answer: bytes) -> None:
        if isinstance(error, InvalidArguments | NotFound) and context.session is not None:
            self._sessions.answered(context.session, TokenKind.REPAIRS, answer)

    async def _answered(
        self,
        message: ClientMessage,
        era: Era,
        context: ProjectRequest,
        request: PendingRequest,
        notify: Notify,
        watching: Watching | None,
        asker: Asker | None,
    ) -> ServerAnswer:
        if message.method in FORWARDED or message.method == "tools/call":
            agent = context.principal.name
            if agent in self._approvals.unattended:
                asker = self._approvals.asker(agent, context.conversation, asker)
            asking = Asking(message.params, asker, takes_input=isinstance(asker, ParkedCall))
            if not OF_RETRIES.isdisjoint(message.params) and message.method in ASKED_METHODS:
                asking = await self._parking.retry(message, era, agent, asking, context.project.root)
            logs, progress = log_wish(message, watching, era, notify), progress_to(request, notify)
            if message.method == "tools/call":
                answer = await self._call(message, era, context, asking, progress, logs)
            else:
                answer = await forward(self._door, message, era, context, asking, progress, logs)
            if answer.questions is None:
                return answer
            return ServerAnswer(result=self._parking.pass_on(message, agent, answer.questions))
        if watching is not None and message.method in WATCHED:
            return await watch(self._door, message, watching)
        if message.method in TASK_METHODS:
            return await self._tasks.answer(message, era, context, asker, progress_to(request, notify))
        return ServerAnswer(result=await self._result(message, era, context))

    def initialize(self, message: ClientMessage, principal: Principal, project: Project) -> Reply:
        """Answers `initialize`, which has no context yet."""
        request_id = message.id or b"null"
        try:
            return Reply(
                result_message(request_id, protocol.initialize_result(message, instructions(project, principal)))
            )
        except Rejected as rejected:
            return rejected.reply(Era.LEGACY, request_id)

    async def _result(self, message: ClientMessage, era: Era, context: ProjectRequest) -> bytes:
        match message.method:
            case "tools/list":
                _refuse_cursor(message)
                await context.project.wait_for_new_servers(LISTING_WAIT_SECONDS)
                return protocol.list_result(era, "tools", await self._tools(context))
            case "prompts/list":
                return await self._offers(message, era, context, "prompts", "prompts")
            case "resources/list":
                return await self._offers(message, era, context, "resources", "resources")
            case "resources/templates/list":
                return await self._offers(message, era, context, "templates", "resourceTemplates")
            case "initialize" if era is Era.LEGACY:
                return protocol.initialize_result(message, instructions(context.project, context.principal))
            case "ping" if era is Era.LEGACY:
                return b"{}"
            case "server/discover" if era is Era.MODERN:
                return protocol.discover_result(instructions(context.project, context.principal))
            case _:
                raise Rejected(ErrorCase.METHOD, method=message.method[:80])

    async def _offers(
        self, message: ClientMessage, era: Era, context: ProjectRequest, kind: OfferList, key: str
    ) -> bytes:
        _refuse_cursor(message)
        project = context.project
        await project.wait_for_new_servers(LISTING_WAIT_SECONDS)
        listed = project.listings.offers(project.offers, context.principal.permission(), kind, context.reader)
        return protocol.list_result(era, key, listed)

    @property
    def door(self) -> Door:
        return self._door

    async def _tools(self, context: ProjectRequest) -> bytes:
        project, principal = context.project, context.principal
        catalog, listings = project.catalog, project.listings
        if context.reader is ReaderKind.PROGRAM:
            mode, tools = ListingMode.FULL, listings.tools(catalog, principal.permission(), context.reader)
        else:
            wanted = wanted_mode(
                principal.permission().listing,
                project.config.settings.listing,
                client=context.client,
                requested=ListingMode(context.listing) if context.listing else None,
            )
            if wanted is ListingMode.HANDSHAKE and context.handshake:
                wanted = ListingMode(context.handshake)
            for_model = context.reader is ReaderKind.MODEL
            if wanted is ListingMode.AUTO and not for_model:
                wanted = ListingMode.FULL
            tools, mode = await listings.listed(
                catalog,
                principal,
                wanted,
                client=context.client,
                offers=project.offers,
                hints=self._crib.services.favorites,
                without=context.without,
                results=for_model and project.config.settings.result_tokens != 0,
            )
        if mode is ListingMode.SEARCH:
            project.search.prepare(catalog)
        if context.session is not None:
            self._sessions.listed(context.session, mode, tools)
        if ToolsListed in self._crib.bus.heard:
            by_name = catalog.by_public(listings.style)
            self._crib.bus.publish(ToolsListed(agent=context.principal.name, tools=tools, by_name=by_name, mode=mode))
        return tools

    async def _call(
        self,
        message: ClientMessage,
        era: Era,
        context: ProjectRequest,
        asking: Asking,
        on_progress: OnProgress | None,
        logs: LogWish | None,
    ) -> ServerAnswer:
        params = dict(asking.params)
        try:
            name = _decode_name(params.pop("name"))
        except (KeyError, msgspec.ValidationError) as error:
            raise Rejected(ErrorCase.ARGUMENT, why="params.name must be the name of a tool") from error
        for key in params:
            # Given both `Arguments` and `arguments`, a case-insensitive reader may take the one that wasn't checked.
            if key != "arguments" and key.casefold() in _OWN_PARAMS:
                raise Rejected(ErrorCase.ARGUMENT, why=f"params has a member {key[:20]!r}; write it in lower case")
        named = None if context.reader is ReaderKind.PROGRAM else NAMED_GATEWAY_TOOLS.get(name)
        if named is not None:
            if named is GatewayTool.CALL:
                try:
                    name, params = inner_call(params)
                except InvalidArguments as error:
                    return self._repair(error, context, era)
            if (inner := NAMED_GATEWAY_TOOLS.get(name)) is not None:
                make = partial(self._call_in_batch, message, context, asking, logs)
                result = await self._gateway_tools.answer(inner, params, context, make)
                return ServerAnswer(result=protocol.tool_result(result, client=era))
        try:
            return await self._forwarded(name, params, message, era, context, asking, on_progress, logs)
        except UnknownTool as error:
            # A client that names an unknown tool itself gets the protocol's error for that.
            if named is None:
                raise
            return self._repair(for_search(error), context, era)

    def _repair(self, error: ToolcribError, context: ProjectRequest, era: Era) -> ServerAnswer:
        """The refusal as a result for the model."""
        refusal = error_as_tool_result(error)
        self._count_repair(error, context, refusal)
        return ServerAnswer(result=protocol.tool_result(refusal, client=era))

    async def _forwarded(
        self,
        name: str,
        params: dict[str, Raw],
        message: ClientMessage,
        era: Era,
        context: ProjectRequest,
        asking: Asking,
        on_progress: OnProgress | None,
        logs: LogWish | None,
    ) -> ServerAnswer:
        project = context.project
        takes_task, task_wish = False, None
        if "task" in params or message.meta.get(protocol.CAPABILITIES_KEY):
            takes_task, task_wish = self._tasks.terms(message, params, era, context.principal.name)
        request = CallRequest(
            tool=name,
            takes_task=takes_task,
            task_wish=task_wish,
            style=project.config.settings.names,
            params=params,
            meta=protocol.forwarded_meta(message.meta),
            asker=asking.asker,
            takes_input=asking.takes_input,
            answered=asking.answered,
            on_progress=on_progress,
            logs=logs,
        )
        try:
            await wait_for_tool(project, name)
            made = await self._door.call(context, request)
            answer = made.answer
            if takes_task:
                answer = self._tasks.created(answer, made.tool, context.principal.name, era)
            if answer.result is not None and len(answer.result) > SMALLEST_LIMIT:
                given = bytes(params.get("arguments", b""))
                answer = ServerAnswer(result=await self._shortened(answer.result, made.tool, given, context))
        except (InvalidArguments, ServerFailure, Denied, AuditUnwritable) as error:
            if context.reader is not ReaderKind.MODEL or task_wish is not None:
                raise
            return self._repair(error, context, era)
        if answer.result is not None:
            return ServerAnswer(result=protocol.tool_result(answer.result, client=era))
        return answer

    async def _shortened(
        self, result: bytes, tool: Tool, arguments: bytes, context: ProjectRequest, shares: int = 0
    ) -> bytes:
        """The result as the agent gets it; in a batch, in one of the `shares` of what its client takes."""
        limit = limit_bytes(context.client, context.project.config.settings.result_tokens)
        made = await self._large.shortened(result, tool, arguments, context, limit, shares)
        if made is not result and context.session is not None:
            self._sessions.shortened(context.session, result if len(result) <= MAX_COUNTED_BYTES else b"", made)
        return made

    async def _call_in_batch(
        self,
        message: ClientMessage,
        context: ProjectRequest,
        asking: Asking,
        logs: LogWish | None,
        call: BatchedCall,
        shares: int,
    ) -> MadeCall:
        if call.tool in NAMED_GATEWAY_TOOLS:
            raise InvalidArguments(
                f"{call.tool} cannot be part of a batch.", remedy="Call it on its own, and other tools by their names."
            )
        arguments = msgspec.json.encode(call.arguments)
        request = CallRequest(
            tool=call.tool,
            style=context.project.config.settings.names,
            params={"arguments": Raw(arguments)},
            meta=protocol.forwarded_meta(message.meta),
            asker=asking.asker,
            logs=logs,
        )
        await wait_for_tool(context.project, call.tool)
        made = await self._door.call(context, request)
        result = made.answer.result
        if result is None:
            raise _as_failure(made.answer.error or b"{}")
        return MadeCall(result, await self._shortened(result, made.tool, arguments, context, shares))


def _reply(request_id: bytes, answer: ServerAnswer, era: Era) -> Reply:
    if answer.result is not None:
        return Reply(result_message(request_id, answer.result))
    error_bytes = answer.error or b'{"code":-32603,"message":"no error was given"}'
    return Reply(raw_error_message(request_id, error_bytes), _status_of(error_bytes, era))


class _Coded(msgspec.Struct):
    code: int = INTERNAL_ERROR
    message: str = ""


def _as_failure(error: bytes) -> ServerFailure:
    try:
        text = msgspec.json.decode(error, type=_Coded).message
    except (msgspec.MsgspecError, RecursionError):
        text = ""
    return ServerFailure(f"The server refused the call: {text or 'it gave no reason'}")


def _status_of(error: bytes, era: Era) -> int:
    if era is Era.LEGACY:
        return 200
    try:
        code = msgspec.json.decode(error, type=_Coded).code
    except (msgspec.MsgspecError, RecursionError):
        return 200
    return protocol.HTTP_STATUS.get(code, 200)


def _refuse_cursor(message: ClientMessage) -> None:
    """Lists aren't paginated, so every cursor is invalid."""
    if "cursor" in message.params and bytes(message.params["cursor"]) != b"null":
        raise Rejected(ErrorCase.ARGUMENT, why="params.cursor is invalid: lists are not paginated")
