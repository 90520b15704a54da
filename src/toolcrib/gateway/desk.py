"""The desk: one client's message in, its answer out, whatever it came over and in whichever era.

In: a decoded `Message` and the `Client` it came from. Out: the bytes of the answer with the HTTP status that goes
with them. `http` and `pipe` bring the messages and carry the answers; every tool call goes on through the door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from toolcrib.agents.session import Session
from toolcrib.calls import Outcome, Request
from toolcrib.crib.crib import Crib
from toolcrib.crib.project import Project
from toolcrib.errors import (
    INTERNAL_ERROR,
    BookUnwritable,
    Case,
    Denied,
    InvalidArguments,
    ServerFailure,
    ToolcribError,
)
from toolcrib.events import ToolsListed
from toolcrib.gateway import eras
from toolcrib.gateway.answers import (
    Rejected,
    Reply,
    failure,
    raw_error_message,
    result_message,
    told_to_a_program,
    told_to_the_model,
)
from toolcrib.gateway.envelope import Message, notification
from toolcrib.gateway.reception import Guest
from toolcrib.listing import Reader
from toolcrib.policy import Caller
from toolcrib.servers.model import MODERN_VERSION, Answer, Era

_decode_name = msgspec.json.Decoder(str).decode

_LISTING_WAITS = 2.0
"""Seconds; below the five after which clients give a server up."""
_CALL_WAITS = 10.0

LIST_CHANGED = notification("notifications/tools/list_changed")


class Client(msgspec.Struct, frozen=True, eq=False):
    """Whoever a request came from: who it is, which project it works in, what it is counted in."""

    guest: Guest
    project: Project
    session: Session
    conversation: str
    reader: Reader = Reader.MODEL

    def caller(self) -> Caller:
        """With the permission of this moment; `Rejected` if the guest has none any more."""
        return self.guest.caller(self.conversation, self.session)


class UnderWay:
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

    def cancel(self, message: Message) -> None:
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


class Desk:
    def __init__(self, crib: Crib) -> None:
        self._crib = crib

    async def answer(self, message: Message, era: Era, client: Client, notify: Notify) -> Reply:
        """The answer to a request. `subscriptions/listen` is not answered here: its answer is a stream."""
        if message.id is None:
            raise ValueError("a notification has no answer")
        try:
            result = await self._result(message, message.id, era, client, notify)
        except Rejected as rejected:
            return rejected.reply(era, message.id)
        except ToolcribError as error:
            if client.reader is Reader.PROGRAM:
                return told_to_a_program(error, message.id)
            return failure(error, era, message.id)
        if isinstance(result, Reply):
            return result
        return Reply(result_message(message.id, result))

    def initialize(self, message: Message) -> Reply:
        """The answer to `initialize`, which needs no client yet."""
        request_id = message.id or b"null"
        try:
            return Reply(result_message(request_id, _initialize(message)))
        except Rejected as rejected:
            return rejected.reply(Era.LEGACY, request_id)

    async def welcome(self, guest: Guest, project: Project, conversation: str, reader: Reader = Reader.MODEL) -> Client:
        """The guest as a client in this conversation: its session is found, or begun and durable from here on."""
        sessions = self._crib.sessions
        session = sessions.find(guest.name, conversation)
        if session is None:
            # Nobody begins a session who lost the token on the way here.
            guest.permission()
            session = await sessions.begin(guest.name, conversation)
        sessions.used(session, catalog_version=project.catalog.version, permission_version=guest.permission().version)
        return Client(guest, project, session, conversation, reader)

    async def _result(
        self, message: Message, request_id: bytes, era: Era, client: Client, notify: Notify
    ) -> bytes | Reply:
        match message.method:
            case "tools/call":
                return await self._call(message, request_id, era, client, notify)
            case "tools/list":
                _refuse_cursor(message)
                await client.project.introduced(_LISTING_WAITS)
                return eras.listing(era, "tools", self._tools(client))
            case "prompts/list":
                _refuse_cursor(message)
                return eras.listing(era, "prompts", b"[]")
            case "resources/list":
                _refuse_cursor(message)
                return eras.listing(era, "resources", b"[]")
            case "resources/templates/list":
                _refuse_cursor(message)
                return eras.listing(era, "resourceTemplates", b"[]")
            case "prompts/get" | "resources/read":
                raise Rejected(Case.ARGUMENT, why="There is none: prompts and resources are not passed on yet")
            case "initialize" if era is Era.LEGACY:
                return _initialize(message)
            case "ping" if era is Era.LEGACY:
                return b"{}"
            case "server/discover" if era is Era.MODERN:
                return _discover()
            case _:
                raise Rejected(Case.METHOD, method=message.method[:80])

    def _tools(self, client: Client) -> bytes:
        caller, catalog, listings = client.caller(), client.project.catalog, self._crib.listings(client.project)
        tools = listings.tools(catalog, caller, client.reader)
        self._crib.sessions.listed(client.session)
        if self._crib.bus.hears(ToolsListed):
            by_name = catalog.by_public(listings.style)
            self._crib.bus.publish(ToolsListed(agent=caller.agent, tools=tools, by_name=by_name))
        return tools

    async def _call(
        self, message: Message, request_id: bytes, era: Era, client: Client, notify: Notify
    ) -> bytes | Reply:
        params = dict(message.params)
        try:
            name = _decode_name(params.pop("name"))
        except (KeyError, msgspec.ValidationError) as error:
            raise Rejected(Case.ARGUMENT, why="params.name must be the name of a tool") from error
        _refuse_twins(params)
        token = message.meta.get("progressToken")

        def progress(report: dict[str, Any]) -> None:
            notify(notification("notifications/progress", {"progressToken": token, **report}))

        request = Request(
            tool=name,
            style=client.project.config.settings.names,
            params=params,
            meta=eras.forwarded_meta(message.meta),
            takes_input=era is Era.MODERN and client.reader is Reader.MODEL,
            on_progress=None if token is None else progress,
        )
        try:
            answer = (await self._through_the_door(client, request)).answer
        except (InvalidArguments, ServerFailure, Denied, BookUnwritable) as error:
            if client.reader is Reader.PROGRAM:
                raise
            answer = Answer(result=told_to_the_model(error))
        if answer.result is None:
            error_bytes = answer.error or b'{"code":-32603,"message":"no error was given"}'
            return Reply(raw_error_message(request_id, error_bytes), _status_of(error_bytes, era))
        return eras.tool_result(answer.result, client=era)

    async def _through_the_door(self, client: Client, request: Request) -> Outcome:
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
    return eras.HTTP_STATUS.get(code, 200)


_READ_BY_US = frozenset({"name", "arguments", "_meta"})


def _refuse_twins(params: Mapping[str, msgspec.Raw]) -> None:
    """`Arguments` beside `arguments`: readers that ignore case take the last of them, and it is not what we checked."""
    for key in params:
        if key != "arguments" and key.casefold() in _READ_BY_US:
            raise Rejected(Case.ARGUMENT, why=f"params has a member {key[:20]!r}; it is written in small letters")


def _refuse_cursor(message: Message) -> None:
    """Lists come whole, so no cursor was ever handed out."""
    if "cursor" in message.params and bytes(message.params["cursor"]) != b"null":
        raise Rejected(Case.ARGUMENT, why="params.cursor is not one that was handed out here")


def _initialize(message: Message) -> bytes:
    try:
        wanted = msgspec.json.decode(message.params["protocolVersion"], type=str)
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(Case.ARGUMENT, why="params.protocolVersion must be a string") from error
    version = wanted if wanted in eras.LEGACY_VERSIONS else eras.LEGACY_VERSIONS[-1]
    return msgspec.json.encode(
        {
            "protocolVersion": version,
            "capabilities": eras.CAPABILITIES,
            "serverInfo": eras.SERVER_INFO,
            "instructions": eras.INSTRUCTIONS,
        }
    )


def _discover() -> bytes:
    return eras.complete(
        Era.MODERN,
        {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": eras.CAPABILITIES,
            "instructions": eras.INSTRUCTIONS,
            "ttlMs": 0,
            "cacheScope": "private",
        },
    )
