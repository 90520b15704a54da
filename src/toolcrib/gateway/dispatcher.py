"""The desk: one client's message in, its answer out, whatever it came over and in whichever era.

In: a decoded `ClientMessage` and the `RequestContext` it came from. Out: the bytes of the answer with the HTTP status
that goes
with them. `http` and `pipe` bring the messages and carry the answers; every tool call goes on through the door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolcrib.calls import CallOutcome, CallRequest
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
from toolcrib.gateway.auth import Principal
from toolcrib.gateway.messages import (
    ClientMessage,
    Rejected,
    Reply,
    error_as_tool_result,
    error_for_program,
    error_reply,
    notification,
    raw_error_message,
    result_message,
)
from toolcrib.identity.sessions import Session
from toolcrib.listing import ReaderKind
from toolcrib.policy import Caller
from toolcrib.servers.model import MODERN_VERSION, Era, ServerAnswer

_decode_name = msgspec.json.Decoder(str).decode

_LISTING_WAITS = 2.0
"""Seconds; below the five after which clients give a server up."""
_CALL_WAITS = 10.0

LIST_CHANGED = notification("notifications/tools/list_changed")


class RequestContext(msgspec.Struct, frozen=True, eq=False):
    """Whoever a request came from: who it is, which project it works in, what it is counted in."""

    guest: Principal
    project: Project
    session: Session
    conversation: str
    reader: ReaderKind = ReaderKind.MODEL

    def caller(self) -> Caller:
        """With the permission of this moment; `Rejected` if the guest has none any more."""
        return self.guest.caller(self.conversation, self.session)


class PendingRequests:
    """A connection's requests that are not answered yet, so that its client can take one back by its id."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str | int, Callable[[], None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def begin(self, key: str | int, take_back: Callable[[], None]) -> Callable[[], None]:
        """Notes a request; returns the call that notes its end."""
        self._by_id[key] = take_back

        def end() -> None:
            # A client that used the id again meanwhile means the newer one when it cancels.
            if self._by_id.get(key) is take_back:
                del self._by_id[key]

        return end

    def cancel(self, message: ClientMessage) -> None:
        """Takes back what a `notifications/cancelled` names, if it is still under way."""
        try:
            key = msgspec.json.decode(message.params["requestId"], type=str | int)
        except (KeyError, msgspec.ValidationError):
            return
        take_back = self._by_id.get(key)
        if take_back is not None:
            take_back()

    def cancel_all(self) -> None:
        for take_back in tuple(self._by_id.values()):
            take_back()


Notify = Callable[[bytes], None]
"""Sends a notification that belongs to the request being answered."""


class Dispatcher:
    def __init__(self, crib: Crib) -> None:
        self._crib = crib

    async def answer(self, message: ClientMessage, era: Era, client: RequestContext, notify: Notify) -> Reply:
        """The answer to a request. `subscriptions/listen` is not answered here: its answer is a stream."""
        if message.id is None:
            raise ValueError("a notification has no answer")
        try:
            result = await self._result(message, message.id, era, client, notify)
        except Rejected as rejected:
            return rejected.reply(era, message.id)
        except ToolcribError as error:
            if client.reader is ReaderKind.PROGRAM:
                return error_for_program(error, message.id)
            return error_reply(error, era, message.id)
        if isinstance(result, Reply):
            return result
        return Reply(result_message(message.id, result))

    def initialize(self, message: ClientMessage) -> Reply:
        """The answer to `initialize`, which needs no client yet."""
        request_id = message.id or b"null"
        try:
            return Reply(result_message(request_id, _initialize(message)))
        except Rejected as rejected:
            return rejected.reply(Era.LEGACY, request_id)

    async def welcome(
        self, guest: Principal, project: Project, conversation: str, reader: ReaderKind = ReaderKind.MODEL
    ) -> RequestContext:
        """The guest as a client in this conversation: its session is found, or begun and durable from here on."""
        sessions = self._crib.sessions
        session = sessions.find(guest.name, conversation)
        if session is None:
            # Nobody begins a session who lost the token on the way here.
            guest.permission()
            session = await sessions.begin(guest.name, conversation)
        sessions.used(session, catalog_version=project.catalog.version, permission_version=guest.permission().version)
        return RequestContext(guest, project, session, conversation, reader)

    async def _result(
        self, message: ClientMessage, request_id: bytes, era: Era, client: RequestContext, notify: Notify
    ) -> bytes | Reply:
        match message.method:
            case "tools/call":
                return await self._call(message, request_id, era, client, notify)
            case "tools/list":
                _refuse_cursor(message)
                await client.project.introduced(_LISTING_WAITS)
                return protocol.list_result(era, "tools", self._tools(client))
            case "prompts/list":
                _refuse_cursor(message)
                return protocol.list_result(era, "prompts", b"[]")
            case "resources/list":
                _refuse_cursor(message)
                return protocol.list_result(era, "resources", b"[]")
            case "resources/templates/list":
                _refuse_cursor(message)
                return protocol.list_result(era, "resourceTemplates", b"[]")
            case "prompts/get" | "resources/read":
                raise Rejected(ErrorCase.ARGUMENT, why="There is none: prompts and resources are not passed on yet")
            case "initialize" if era is Era.LEGACY:
                return _initialize(message)
            case "ping" if era is Era.LEGACY:
                return b"{}"
            case "server/discover" if era is Era.MODERN:
                return _discover()
            case _:
                raise Rejected(ErrorCase.METHOD, method=message.method[:80])

    def _tools(self, client: RequestContext) -> bytes:
        caller, catalog, listings = client.caller(), client.project.catalog, self._crib.listings(client.project)
        tools = listings.tools(catalog, caller, client.reader)
        self._crib.sessions.listed(client.session)
        if self._crib.bus.hears(ToolsListed):
            by_name = catalog.by_public(listings.style)
            self._crib.bus.publish(ToolsListed(agent=caller.agent, tools=tools, by_name=by_name))
        return tools

    async def _call(
        self, message: ClientMessage, request_id: bytes, era: Era, client: RequestContext, notify: Notify
    ) -> bytes | Reply:
        params = dict(message.params)
        try:
            name = _decode_name(params.pop("name"))
        except (KeyError, msgspec.ValidationError) as error:
            raise Rejected(ErrorCase.ARGUMENT, why="params.name must be the name of a tool") from error
        _refuse_twins(params)
        token = message.meta.get("progressToken")

        def progress(report: dict[str, Any]) -> None:
            notify(notification("notifications/progress", {"progressToken": token, **report}))

        request = CallRequest(
            tool=name,
            style=client.project.config.settings.names,
            params=params,
            meta=protocol.forwarded_meta(message.meta),
            takes_input=era is Era.MODERN and client.reader is ReaderKind.MODEL,
            on_progress=None if token is None else progress,
        )
        try:
            answer = (await self._through_the_door(client, request)).answer
        except (InvalidArguments, ServerFailure, Denied, AuditUnwritable) as error:
            if client.reader is ReaderKind.PROGRAM:
                raise
            answer = ServerAnswer(result=error_as_tool_result(error))
        if answer.result is None:
            error_bytes = answer.error or b'{"code":-32603,"message":"no error was given"}'
            return Reply(raw_error_message(request_id, error_bytes), _status_of(error_bytes, era))
        return protocol.tool_result(answer.result, client=era)

    async def _through_the_door(self, client: RequestContext, request: CallRequest) -> CallOutcome:
        if not client.project.knows(request.tool):
            await client.project.introduced(_CALL_WAITS)
        return await self._crib.door.call(client.project, client.caller(), request)


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


_READ_BY_US = frozenset({"name", "arguments", "_meta"})


def _refuse_twins(params: Mapping[str, msgspec.Raw]) -> None:
    """`Arguments` beside `arguments`: readers that ignore case take the last of them, and it is not what we checked."""
    for key in params:
        if key != "arguments" and key.casefold() in _READ_BY_US:
            raise Rejected(ErrorCase.ARGUMENT, why=f"params has a member {key[:20]!r}; it is written in small letters")


def _refuse_cursor(message: ClientMessage) -> None:
    """Lists come whole, so no cursor was ever handed out."""
    if "cursor" in message.params and bytes(message.params["cursor"]) != b"null":
        raise Rejected(ErrorCase.ARGUMENT, why="params.cursor is not one that was handed out here")


def _initialize(message: ClientMessage) -> bytes:
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
            "instructions": protocol.INSTRUCTIONS,
        }
    )


def _discover() -> bytes:
    return protocol.own_result(
        Era.MODERN,
        {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": protocol.CAPABILITIES,
            "instructions": protocol.INSTRUCTIONS,
            "ttlMs": 0,
            "cacheScope": "private",
        },
    )
