"""What every HTTP request of the workspace passes before the SDK sees it.

In: an ASGI request. Out: the same with its body whole, or a refusal. Host, Origin, path, token, content type, size, in
this order; the wording and statuses are those of the gateway (`errors.ANSWERS`).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from toolcrib.errors import ANSWERS, NOT_AUTHENTICATED, Case

LARGEST_BODY = 16 * 1024 * 1024
PATH = "/mcp"
_SINGLE = frozenset({"host", "origin", "authorization", "mcp-session-id", "content-type", "content-length"})
_HOW_TO_ENTER = "A token is needed: Authorization: Bearer <token>. The server says at its start which file holds it."

ASGIApp = Callable[[Any, Any, Any], Awaitable[None]]


class Refused(Exception):
    def __init__(self, case: Case, **words: Any) -> None:
        super().__init__(case)
        told = ANSWERS[case]
        self.status = told.modern or 400
        self.code = told.code
        self.text = told.text.format(**words)


class Gate:
    def __init__(self, *, hosts: frozenset[str], token: str | None) -> None:
        """Without a token whoever can reach the socket may use it: its file has mode 0600."""
        self._hosts = hosts
        self._origins = frozenset(f"http://{host}" for host in hosts) if token is not None else frozenset()
        self._token = token.encode() if token is not None else None
        self.app: ASGIApp | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.app is None:
            raise RuntimeError("the gate was opened before there was anything behind it")
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        answer = _Answer(send)
        try:
            headers = self._admit(scope)
            body = await _body(headers, receive)
            if body is not None:
                await self.app(scope, _replaying(body, receive), answer)
        except Refused as refused:
            await _refuse(refused, send)
        except asyncio.CancelledError:
            # The server ends, and did not wait any longer.
            if not answer.begun:
                await _refuse(Refused(Case.STOPPING), send)

    def _admit(self, scope: Any) -> dict[str, str]:
        headers = _single(scope["headers"])
        if headers.get("host") not in self._hosts:
            raise Refused(Case.HOST)
        if "origin" in headers and headers["origin"] not in self._origins:
            raise Refused(Case.ORIGIN)
        if scope["raw_path"] != PATH.encode():
            raise Refused(Case.PATH)
        if self._token is not None:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not token:
                raise Refused(Case.NO_TOKEN)
            if not hmac.compare_digest(token.strip().encode(), self._token):
                raise Refused(Case.BAD_TOKEN)
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refused(Case.CONTENT_TYPE)
        return headers


class _Answer:
    """Knows whether something was said already."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Any) -> None:
        self.begun = True
        await self._send(message)


def _single(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """By lower-case name. One that must be single but stands twice is an attempt to be read in two ways."""
    headers: dict[str, str] = {}
    for raw_name, value in raw:
        name = raw_name.decode("latin-1")
        if name in headers and name in _SINGLE:
            raise Refused(Case.HEADER_TWICE, name=name)
        headers[name] = value.decode("latin-1").strip(" \t")
    return headers


async def _body(headers: Mapping[str, str], receive: Any) -> bytes | None:
    """None: the client went away, or took too long to send it."""
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > LARGEST_BODY:
        raise Refused(Case.TOO_LARGE, most=f"{LARGEST_BODY} bytes")
    parts: list[bytes] = []
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        parts.append(event.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            raise Refused(Case.TOO_LARGE, most=f"{LARGEST_BODY} bytes")
        if not event.get("more_body", False):
            return b"".join(parts)


def _replaying(body: bytes, receive: Any) -> Any:
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _refuse(refused: Refused, send: Any) -> None:
    is_token = refused.code == NOT_AUTHENTICATED
    text = _HOW_TO_ENTER if is_token else refused.text
    error = {"code": refused.code, "message": text}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if is_token:
        headers.append((b"www-authenticate", b"Bearer"))
    # What is left of the body is not wanted.
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
