"""The endpoint `/mcp`: HTTP requests of both eras in, answers out.

In: ASGI. Out: ASGI. Every request passes the same gate (Host, Origin, path, token) before anything is read of it;
then the body decides the era. `desk` makes the answers, `streams` carries the long ones.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Mapping
from typing import Any

from toolcrib.crib import Crib
from toolcrib.errors import INVALID_REQUEST, PARSE_ERROR, ToolcribError
from toolcrib.gateway import eras
from toolcrib.gateway.desk import LIST_CHANGED, Client, Desk, Reply
from toolcrib.gateway.envelope import MAX_BODY, Message, Rejected, error_message, read_aside
from toolcrib.gateway.sessions import LegacySession, LegacySessions
from toolcrib.gateway.streams import EventStream, Exchange, Headers, Receive, Send, send_json, until_gone
from toolcrib.gateway.subscriptions import acknowledged, ended, listen_notice, wants_tools
from toolcrib.policy import OWNER, Caller
from toolcrib.servers.model import MODERN_VERSION, Era

log = logging.getLogger(__name__)

_SINGLE = frozenset({"host", "origin", "authorization", "mcp-session-id", "content-type", "content-length"})


class Refused(Exception):
    """A request that is turned away before its message is acted on."""

    def __init__(self, status: int, message: str, *, code: int = INVALID_REQUEST, extra: Headers | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.extra = extra


class HttpGateway:
    def __init__(self, crib: Crib, *, token: str, port: int) -> None:
        self._crib = crib
        self._desk = Desk(crib)
        # Kept, because asking for it costs a system call in some versions of Python.
        self._loop = asyncio.get_running_loop()
        self._token = token.encode()
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {f"http://{host}" for host in self._hosts}
        self._sessions = LegacySessions()
        self._streams: dict[EventStream, bytes | None] = {}
        """Open streams of notices, each with the last word that its era has for it."""
        self._closing = False

    def close(self) -> None:
        """Ends every stream of notices and takes no more requests."""
        self._closing = True
        for stream, last_word in tuple(self._streams.items()):
            if last_word is not None:
                stream.put(last_word)
            stream.close()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served here, not {scope['type']}")
        try:
            headers = _headers(scope["headers"])
            caller = self._admit(scope, headers)
            match scope["method"]:
                case "POST":
                    await self._post(headers, caller, receive, send)
                case "GET":
                    await self._get(headers, caller, receive, send)
                case "DELETE":
                    await self._delete(headers, caller, send)
                case _:
                    raise Refused(405, "Use POST, GET or DELETE.", extra=[(b"allow", b"POST, GET, DELETE")])
        except Refused as refused:
            await send_json(send, refused.status, error_message(b"null", refused.code, str(refused)), refused.extra)
        except Rejected as rejected:
            body = error_message(rejected.id, rejected.code, rejected.message, rejected.data)
            await send_json(send, eras.HTTP_STATUS.get(rejected.code, 400), body)
        except ToolcribError as error:
            await send_json(send, error.http_status, error_message(b"null", error.code, error.text()))

    def _admit(self, scope: Any, headers: Mapping[str, str]) -> Caller:
        if headers.get("host") not in self._hosts:
            raise Refused(421, "The Host header does not name this endpoint.")
        if "origin" in headers and headers["origin"] not in self._origins:
            raise Refused(403, "Requests from this origin are not served.")
        if scope["raw_path"] != b"/mcp":
            raise Refused(404, "There is nothing here; the endpoint is /mcp.")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self._token):
            raise Refused(
                401,
                "A token is needed: Authorization: Bearer <token>. `toolcrib status` names its file.",
                extra=[(b"www-authenticate", b'Bearer realm="toolcrib"')],
            )
        if self._closing:
            raise Refused(503, "Toolcrib is stopping.")
        label = headers.get("x-toolcrib-conversation")
        return OWNER if label is None else Caller(agent=OWNER.agent, profile=OWNER.profile, conversation=label)

    async def _post(self, headers: Mapping[str, str], caller: Caller, receive: Receive, send: Send) -> None:
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "The Content-Type must be application/json.")
        if not _accepts(headers, "application/json", "text/event-stream"):
            raise Refused(406, "Accept must name application/json and text/event-stream.")
        message = await read_aside(await _body(headers, receive))
        era = eras.era_of(message, headers.get("mcp-protocol-version"))
        if era is Era.MODERN:
            await self._modern(message, headers, caller, receive, send)
        else:
            await self._legacy(message, headers, caller, receive, send)

    async def _modern(
        self, message: Message, headers: Mapping[str, str], caller: Caller, receive: Receive, send: Send
    ) -> None:
        if message.id is None:
            version = headers.get("mcp-protocol-version", "")
            if version != MODERN_VERSION:
                raise eras.unsupported(version)
            await _accepted(send)
            return
        eras.check_modern(message, headers)
        client = Client(caller=caller, project=self._crib.home)
        if message.method == "subscriptions/listen":
            await self._listen(message, message.id, client, receive, send)
            return
        await self._answer(message, Era.MODERN, client, Exchange(self._loop, receive, send))

    async def _legacy(
        self, message: Message, headers: Mapping[str, str], caller: Caller, receive: Receive, send: Send
    ) -> None:
        if message.method == "initialize" and message.id is not None:
            newcomer = Client(caller=caller, project=self._crib.home)
            reply = await self._desk.answer(message, Era.LEGACY, newcomer, _no_notices)
            extra: Headers = []
            if reply.accepted:
                extra.append((b"mcp-session-id", self._sessions.begin(caller, self._crib.home).id.encode()))
            await send_json(send, reply.status, reply.body, extra)
            return
        session = self._session(headers, caller)
        if message.id is None:
            if message.method == "notifications/cancelled":
                session.cancel(message)
            await _accepted(send)
            return
        await self._answer(message, Era.LEGACY, session, Exchange(self._loop, receive, send))

    async def _answer(self, message: Message, era: Era, client: Client, exchange: Exchange) -> None:
        key = message.key
        if message.id is None or key is None:
            raise ValueError("only requests are answered")
        # A modern client cancels by going away; of a legacy one that means nothing, it says so in words.
        exchange.watch(gone_means_cancel=era is Era.MODERN)
        end = client.begin(key, exchange.take_back)
        reply: Reply | None = None
        try:
            reply = await self._desk.answer(message, era, client, exchange.notify)
        except asyncio.CancelledError:
            if not (exchange.taken_back or exchange.gone):
                raise
            task = asyncio.current_task(self._loop)
            if task is not None:
                task.uncancel()
            reply = self._desk.taken_back(message.id)
        except Exception:
            log.exception("%s failed", message.method)
            reply = self._desk.failed(message.id)
        finally:
            end()
        await exchange.finish(reply)

    def _session(self, headers: Mapping[str, str], caller: Caller) -> LegacySession:
        session_id = headers.get("mcp-session-id")
        if session_id is None:
            raise Refused(400, "Bad Request: Missing session ID. Begin with initialize.")
        session = self._sessions.find(session_id, caller)
        if session is None:
            raise Refused(404, "Session not found. Begin again with initialize.")
        version = headers.get("mcp-protocol-version", eras.ASSUMED_LEGACY_VERSION)
        if version not in eras.LEGACY_VERSIONS:
            raise Refused(400, f"Bad Request: Unsupported protocol version. Known: {', '.join(eras.LEGACY_VERSIONS)}.")
        return session

    async def _get(self, headers: Mapping[str, str], caller: Caller, receive: Receive, send: Send) -> None:
        if headers.get("mcp-protocol-version", eras.ASSUMED_LEGACY_VERSION) not in eras.LEGACY_VERSIONS:
            raise Refused(405, "Use POST.", extra=[(b"allow", b"POST")])
        if not _accepts(headers, "text/event-stream"):
            raise Refused(406, "Accept must name text/event-stream.")
        session = self._session(headers, caller)
        stream = EventStream(send, [(b"mcp-session-id", session.id.encode())])
        session.streams.add(stream)
        try:
            await self._carry(stream, session, LIST_CHANGED, None, receive)
        finally:
            session.streams.discard(stream)

    async def _delete(self, headers: Mapping[str, str], caller: Caller, send: Send) -> None:
        if headers.get("mcp-protocol-version", eras.ASSUMED_LEGACY_VERSION) not in eras.LEGACY_VERSIONS:
            raise Refused(405, "Use POST.", extra=[(b"allow", b"POST")])
        session = self._session(headers, caller)
        self._sessions.end(session)
        for take_back in tuple(session.under_way.values()):
            take_back()
        for stream in tuple(session.streams):
            stream.close()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def _listen(self, message: Message, request_id: bytes, client: Client, receive: Receive, send: Send) -> None:
        honoured = wants_tools(message)
        stream = EventStream(send)
        stream.put(acknowledged(request_id, tools=honoured))
        notice = listen_notice(request_id) if honoured else None
        await self._carry(stream, client, notice, ended(request_id), receive)

    async def _carry(
        self, stream: EventStream, client: Client, notice: bytes | None, last_word: bytes | None, receive: Receive
    ) -> None:
        """Sends the notice on the stream whenever the client's tools changed, until either side ends it."""
        unsubscribe = client.project.subscribe(lambda: stream.offer(notice)) if notice is not None else lambda: None
        self._streams[stream] = last_word
        writer = asyncio.create_task(stream.run())
        watcher = asyncio.create_task(until_gone(receive))
        try:
            await asyncio.wait({writer, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unsubscribe()
            del self._streams[stream]
            for task in (writer, watcher):
                task.cancel()
            await asyncio.gather(writer, watcher, return_exceptions=True)


def _headers(raw: Headers) -> dict[str, str]:
    """By lower-case name. Lists may come in parts; one that must be single is an attempt to be read in two ways.

    Two `Mcp-…` headers of one name are joined too, and so never match what the body says.
    """
    headers: dict[str, str] = {}
    for raw_name, value in raw:
        name = raw_name.decode("latin-1")
        # The parser keeps the white space around a value, which is no part of it.
        text = value.decode("latin-1").strip(" \t")
        if name in headers:
            if name in _SINGLE:
                raise Refused(400, f"The header {name} stands twice.")
            text = f"{headers[name]}, {text}"
        headers[name] = text
    return headers


def _accepts(headers: Mapping[str, str], *kinds: str) -> bool:
    accepted = {part.partition(";")[0].strip().lower() for part in headers.get("accept", "").split(",")}
    return "*/*" in accepted or all(k in accepted or f"{k.partition('/')[0]}/*" in accepted for k in kinds)


async def _body(headers: Mapping[str, str], receive: Receive) -> bytes:
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > MAX_BODY:
        raise _too_large()
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise Refused(400, "The request did not arrive whole.", code=PARSE_ERROR)
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            raise _too_large()
        if not event.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large() -> Refused:
    return Refused(413, f"The body is larger than {MAX_BODY} bytes.")


async def _accepted(send: Send) -> None:
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _no_notices(message: bytes) -> None:
    raise RuntimeError("an answer that comes at once has nothing to say before it")
