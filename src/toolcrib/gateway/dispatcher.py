"""Answers one client message, for every transport and protocol version.

In: a decoded `ClientMessage` and its `RequestContext`. Out: the answer's bytes and HTTP status. `http` and `pipe`
receive the messages and send the answers; tool calls continue through the door. A `PendingRequest` can be cancelled
or interrupted over either transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.calls import CallRequest, Door
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.errors import (
    INTERNAL_ERROR,
    AuditUnwritable,
    Denied,
    ErrorCase,
    InvalidArguments,
    ServerFailure,
    ToolcribError,
)
from toolcrib.events import ToolsListed
from toolcrib.gateway import protocol
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
    CALL_WAIT_SECONDS,
    FORWARDED,
    WATCHED,
    Notify,
    forward,
    instructions,
    log_wish,
    progress_to,
    watch,
)
from toolcrib.gateway.watching import Watching
from toolcrib.identity.principal import Principal, ReaderKind, RequestContext
from toolcrib.listing import OfferList
from toolcrib.servers.model import MODERN_VERSION, Era, LogWish, ServerAnswer

log = logging.getLogger(__name__)

_decode_name = msgspec.json.Decoder(str).decode

_LISTING_WAIT_SECONDS = 2.0
"""Clients give up on a server after five."""
_OWN_PARAMS = frozenset({"name", "arguments", "_meta"})
"""The params of tools/call that Toolcrib reads."""


class PendingRequest:
    """A request without an answer yet. Its client may cancel it or disconnect, and its session may end."""

    __slots__ = ("cancelled_by_leaving", "disconnected", "over", "stopped", "task")

    def __init__(self, task: asyncio.Task[Any] | None = None, *, cancelled_by_leaving: bool = False) -> None:
        self.task = task
        """The task that answers it."""
        self.cancelled_by_leaving = cancelled_by_leaving
        """Whether disconnecting cancels it."""
        self.stopped: ErrorCase | None = None
        """Why it was stopped early."""
        self.disconnected = False
        self.over = False

    def cancel(self) -> None:
        """Cancelled by its client."""
        self._stop(ErrorCase.CANCELLED)

    def interrupt(self) -> None:
        """Its session has ended."""
        self._stop(ErrorCase.ENDED)

    def disconnect(self) -> None:
        if not self.over:
            self.disconnected = True
            if self.cancelled_by_leaving:
                self._stop(ErrorCase.CANCELLED)

    def _stop(self, case: ErrorCase) -> None:
        if not self.over and self.stopped is None:
            self.stopped = case
            if self.task is not None:
                self.task.cancel(case)


class PendingRequests:
    """A connection's unanswered requests, by the id that its client can cancel them with."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str | int, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def begin(self, key: str | int, cancel: Callable[[], None]) -> Callable[[], None]:
        """Adds a request and returns the function that removes it."""
        self._by_id[key] = cancel

        def end() -> None:
            # If the client has reused the id, it means the newer request.
            if self._by_id.get(key) is cancel:
                del self._by_id[key]

        return end

    def cancel(self, message: ClientMessage) -> None:
        """Cancels the request named by `notifications/cancelled`, if it is still pending."""
        try:
            key = msgspec.json.decode(message.params["requestId"], type=str | int)
        except (KeyError, msgspec.ValidationError):
            return
        cancel = self._by_id.get(key)
        if cancel is not None:
            cancel()

    def cancel_all(self) -> None:
        for cancel in tuple(self._by_id.values()):
            cancel()


ProjectRequest = RequestContext[Project]


class Dispatcher:
    def __init__(self, crib: Crib) -> None:
        self._crib = crib
        self._door = crib.services.door
        self._sessions = crib.services.sessions

    async def context(
        self, principal: Principal, project: Project, conversation: str, reader: ReaderKind = ReaderKind.MODEL
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
        return RequestContext(principal, project, session, conversation, reader)

    async def answer(
        self,
        message: ClientMessage,
        era: Era,
        context: ProjectRequest,
        request: PendingRequest,
        notify: Notify,
        watching: Watching | None = None,
    ) -> Reply:
        """The answer to any request except `subscriptions/listen`, whose answer is a stream. A legacy connection has a
        `watching`."""
        if message.id is None:
            raise ValueError("a notification has no answer")
        session, interrupt = context.session, request.interrupt
        if session is not None:
            session.begin(interrupt)
        try:
            with context.project.in_use():
                answer = await self._answered(message, era, context, notify, watching)
                return _reply(message.id, answer, era)
        except Rejected as rejected:
            return rejected.reply(era, message.id)
        except ToolcribError as error:
            if context.reader is ReaderKind.PROGRAM:
                return error_for_program(error, message.id)
            return error_reply(error, None if context.reader is ReaderKind.HTTP else era, message.id)
        except asyncio.CancelledError:
            if request.stopped is None or request.task is None:
                raise
            request.task.uncancel()
            return Rejected(request.stopped).reply(era, message.id)
        except Exception:
            log.exception("%s failed", message.method)
            return Rejected(ErrorCase.FAILED).reply(era, message.id)
        finally:
            if session is not None:
                session.over(interrupt)

    async def _answered(
        self, message: ClientMessage, era: Era, context: ProjectRequest, notify: Notify, watching: Watching | None
    ) -> ServerAnswer:
        if message.method == "tools/call":
            return await self._call(message, era, context, notify, log_wish(message, watching, era, notify))
        if message.method in FORWARDED:
            return await forward(self._door, message, era, context, notify, log_wish(message, watching, era, notify))
        if watching is not None and message.method in WATCHED:
            return await watch(self._door, message, watching)
        return ServerAnswer(result=await self._result(message, era, context))

    def initialize(self, message: ClientMessage, principal: Principal, project: Project) -> Reply:
        """Answers `initialize`, which has no context yet."""
        request_id = message.id or b"null"
        try:
            return Reply(result_message(request_id, _initialize(message, instructions(project, principal))))
        except Rejected as rejected:
            return rejected.reply(Era.LEGACY, request_id)

    async def _result(self, message: ClientMessage, era: Era, context: ProjectRequest) -> bytes:
        match message.method:
            case "tools/list":
                _refuse_cursor(message)
                await context.project.wait_for_new_servers(_LISTING_WAIT_SECONDS)
                return protocol.list_result(era, "tools", self._tools(context))
            case "prompts/list":
                return await self._offers(message, era, context, "prompts", "prompts")
            case "resources/list":
                return await self._offers(message, era, context, "resources", "resources")
            case "resources/templates/list":
                return await self._offers(message, era, context, "templates", "resourceTemplates")
            case "initialize" if era is Era.LEGACY:
                return _initialize(message, instructions(context.project, context.principal))
            case "ping" if era is Era.LEGACY:
                return b"{}"
            case "server/discover" if era is Era.MODERN:
                return _discover(instructions(context.project, context.principal))
            case _:
                raise Rejected(ErrorCase.METHOD, method=message.method[:80])

    async def _offers(
        self, message: ClientMessage, era: Era, context: ProjectRequest, kind: OfferList, key: str
    ) -> bytes:
        _refuse_cursor(message)
        project = context.project
        await project.wait_for_new_servers(_LISTING_WAIT_SECONDS)
        listed = project.listings.offers(project.offers, context.principal.permission(), kind, context.reader)
        return protocol.list_result(era, key, listed)

    @property
    def door(self) -> Door:
        return self._door

    def _tools(self, context: ProjectRequest) -> bytes:
        catalog, listings = context.project.catalog, context.project.listings
        tools = listings.tools(catalog, context.principal.permission(), context.reader, context.project.offers)
        if context.session is not None:
            self._sessions.listed(context.session)
        if ToolsListed in self._crib.bus.heard:
            by_name = catalog.by_public(listings.style)
            self._crib.bus.publish(ToolsListed(agent=context.principal.name, tools=tools, by_name=by_name))
        return tools

    async def _call(
        self, message: ClientMessage, era: Era, context: ProjectRequest, notify: Notify, logs: LogWish | None
    ) -> ServerAnswer:
        params = dict(message.params)
        try:
            name = _decode_name(params.pop("name"))
        except (KeyError, msgspec.ValidationError) as error:
            raise Rejected(ErrorCase.ARGUMENT, why="params.name must be the name of a tool") from error
        for key in params:
            # Given both `Arguments` and `arguments`, a case-insensitive reader may take the one that wasn't checked.
            if key != "arguments" and key.casefold() in _OWN_PARAMS:
                raise Rejected(ErrorCase.ARGUMENT, why=f"params has a member {key[:20]!r}; write it in lower case")
        project = context.project
        asks = era is Era.MODERN and context.reader is not ReaderKind.PROGRAM
        request = CallRequest(
            tool=name,
            style=project.config.settings.names,
            params=params,
            meta=protocol.forwarded_meta(message.meta, asks=asks),
            takes_input=asks,
            on_progress=progress_to(message, notify),
            logs=logs,
        )
        try:
            if name not in project.catalog:
                await project.wait_for_new_servers(CALL_WAIT_SECONDS)
            made = await self._door.call(context, request)
            answer = made.answer
        except (InvalidArguments, ServerFailure, Denied, AuditUnwritable) as error:
            if context.reader is not ReaderKind.MODEL:
                raise
            answer = ServerAnswer(result=error_as_tool_result(error))
        if answer.result is not None:
            return ServerAnswer(result=protocol.tool_result(answer.result, client=era))
        return answer


def _reply(request_id: bytes, answer: ServerAnswer, era: Era) -> Reply:
    if answer.result is not None:
        return Reply(result_message(request_id, answer.result))
    error_bytes = answer.error or b'{"code":-32603,"message":"no error was given"}'
    return Reply(raw_error_message(request_id, error_bytes), _status_of(error_bytes, era))


class _Coded(msgspec.Struct):
    code: int = INTERNAL_ERROR


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


def _initialize(message: ClientMessage, instructions: str) -> bytes:
    try:
        wanted = msgspec.json.decode(message.params["protocolVersion"], type=str)
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(ErrorCase.ARGUMENT, why="params.protocolVersion must be a string") from error
    version = wanted if wanted in protocol.LEGACY_VERSIONS else protocol.LEGACY_VERSIONS[-1]
    return msgspec.json.encode(
        {
            "protocolVersion": version,
            "capabilities": protocol.CAPABILITIES,
            "serverInfo": protocol.SERVER_INFO,
            "instructions": instructions,
        }
    )


def _discover(instructions: str) -> bytes:
    return protocol.own_result(
        Era.MODERN,
        {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": protocol.CAPABILITIES,
            "instructions": instructions,
            "ttlMs": 0,
            "cacheScope": "private",
        },
    )
