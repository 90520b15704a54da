"""The desk: one client's message in, its answer out, whatever it came over and in whichever era.

In: a decoded `Message` and the `Client` it came from. Out: the bytes of the answer with the HTTP status that goes
with them. `http` and `pipe` bring the messages and carry the answers; every tool call goes on through the door.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from toolcrib.calls import Outcome, Request
from toolcrib.crib import Crib, Project
from toolcrib.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Denied,
    InvalidArguments,
    ServerFailure,
    ToolcribError,
)
from toolcrib.gateway import eras
from toolcrib.gateway.envelope import (
    Message,
    Rejected,
    error_message,
    notification,
    raw_error_message,
    result_message,
)
from toolcrib.policy import Caller
from toolcrib.servers.model import MODERN_VERSION, Answer, Era

_TAKEN_BACK = -31499

_decode_name = msgspec.json.Decoder(str).decode

_LISTING_WAITS = 2.0
"""Seconds; below the five after which clients give a server up."""
_CALL_WAITS = 10.0

LIST_CHANGED = notification("notifications/tools/list_changed")


class Reply(msgspec.Struct, frozen=True):
    body: bytes
    status: int = 200
    accepted: bool = True
    """Whether it carries a result; an error otherwise."""


@dataclass(kw_only=True, eq=False)
class Client:
    """Whoever is at the other end: who it is, which project it works in, what it has under way."""

    caller: Caller
    project: Project
    under_way: dict[str | int, Callable[[], None]] = field(default_factory=dict)
    """By request id: the call that takes the request back."""

    def begin(self, key: str | int, take_back: Callable[[], None]) -> Callable[[], None]:
        """Notes a request as under way; returns the call that notes its end."""
        self.under_way[key] = take_back

        def end() -> None:
            # A client that used the id again meanwhile means the newer one when it cancels.
            if self.under_way.get(key) is take_back:
                del self.under_way[key]

        return end

    def cancel(self, message: Message) -> None:
        """Takes back what a `notifications/cancelled` names, if it is still under way."""
        try:
            key = msgspec.json.decode(message.params["requestId"], type=str | int)
        except (KeyError, msgspec.ValidationError):
            return
        take_back = self.under_way.get(key)
        if take_back is not None:
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
            return self.refuse(rejected, era, message.id)
        except ToolcribError as error:
            return self.refuse(Rejected(error.code, error.text(), data=error.data or None), era, message.id)
        if isinstance(result, Reply):
            return result
        return Reply(result_message(message.id, result))

    def refuse(self, rejected: Rejected, era: Era, request_id: bytes | None = None) -> Reply:
        status = eras.HTTP_STATUS.get(rejected.code, 200) if era is Era.MODERN else 200
        body = error_message(request_id or rejected.id, rejected.code, rejected.message, rejected.data)
        return Reply(body, status, accepted=False)

    def taken_back(self, request_id: bytes) -> Reply:
        """The answer to a request that its caller took back."""
        return Reply(error_message(request_id, _TAKEN_BACK, "The request was cancelled by its caller."))

    def failed(self, request_id: bytes) -> Reply:
        """The answer where we failed in a way nobody foresaw; the reason is in the log, not on the wire."""
        return Reply(error_message(request_id, INTERNAL_ERROR, "Toolcrib failed; `toolcrib logs` says why."))

    async def _result(
        self, message: Message, request_id: bytes, era: Era, client: Client, notify: Notify
    ) -> bytes | Reply:
        match message.method:
            case "tools/call":
                return await self._call(message, request_id, era, client, notify)
            case "tools/list":
                _refuse_cursor(message)
                await client.project.introduced(_LISTING_WAITS)
                tools = self._crib.listings.tools(client.project.catalog, client.caller)
                return eras.listing(era, "tools", tools)
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
                raise Rejected(INVALID_PARAMS, "There is none: prompts and resources are not passed on yet.")
            case "initialize" if era is Era.LEGACY:
                return _initialize(message)
            case "ping" if era is Era.LEGACY:
                return b"{}"
            case "server/discover" if era is Era.MODERN:
                return _discover()
            case _:
                raise Rejected(METHOD_NOT_FOUND, f"Method not found: {message.method[:80]}")

    async def _call(
        self, message: Message, request_id: bytes, era: Era, client: Client, notify: Notify
    ) -> bytes | Reply:
        params = dict(message.params)
        try:
            name = _decode_name(params.pop("name"))
        except (KeyError, msgspec.ValidationError) as error:
            raise Rejected(INVALID_PARAMS, "params.name must be the name of a tool.") from error
        token = message.meta.get("progressToken")

        def progress(report: dict[str, Any]) -> None:
            notify(notification("notifications/progress", {"progressToken": token, **report}))

        request = Request(
            tool=name,
            params=params,
            meta=eras.forwarded_meta(message.meta),
            on_progress=None if token is None else progress,
        )
        server_era: Era | None = None
        try:
            outcome = await self._through_the_door(client, request)
            answer = outcome.answer
            server_era = client.project.era_of(outcome.tool.server)
        except (InvalidArguments, ServerFailure, Denied) as error:
            answer = Answer(result=_told_to_the_model(error))
        if answer.result is None:
            error_bytes = answer.error or b'{"code":-32603,"message":"no error was given"}'
            return Reply(raw_error_message(request_id, error_bytes), _status_of(error_bytes, era))
        return eras.tool_result(answer.result, client=era, server=server_era)

    async def _through_the_door(self, client: Client, request: Request) -> Outcome:
        if not client.project.knows(request.tool):
            await client.project.introduced(_CALL_WAITS)
        return await self._crib.door.call(client.project, client.caller, request)


def _told_to_the_model(error: ToolcribError) -> bytes:
    """A failure that the model can do something about is a result, not a protocol error."""
    text = error.text()
    if isinstance(error, InvalidArguments) and "schema" in error.data:
        text += f"\nThe tool's schema: {msgspec.json.encode(error.data['schema']).decode()}"
    return msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})


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


def _refuse_cursor(message: Message) -> None:
    """Lists come whole, so no cursor was ever handed out."""
    if "cursor" in message.params and bytes(message.params["cursor"]) != b"null":
        raise Rejected(INVALID_PARAMS, "params.cursor is not one that was handed out here.")


def _initialize(message: Message) -> bytes:
    try:
        wanted = msgspec.json.decode(message.params["protocolVersion"], type=str)
    except (KeyError, msgspec.ValidationError) as error:
        raise Rejected(INVALID_PARAMS, "params.protocolVersion must be a string.") from error
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
