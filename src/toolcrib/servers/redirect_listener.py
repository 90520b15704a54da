"""Receives the answer of an authorization server, to which the browser is redirected after a sign-in.

In: the state of the sign-in. Out: the answer's parameters, once. A small web server on loopback: it accepts one answer
with the right state, and a wrong one doesn't end the sign-in. The page shows nothing of what was sent. Used by
`sign_in`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

from toolcrib.http_server import AsgiServer

PATH = "/callback"
_LOOPBACK = "127.0.0.1"
_HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"connection", b"close"),
]
_PAGE = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Toolcrib</title><p>{text}</p></html>\n'
_DONE = "Toolcrib has received the answer. You can close this page; the terminal shows whether the sign-in succeeded."


class RedirectListener:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://{_LOOPBACK}:{port}{PATH}"
        self._state = ""
        self._answer: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    def expect(self, state: str) -> None:
        self._state = state

    async def answer(self) -> Mapping[str, str]:
        return await asyncio.shield(self._answer)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        status, text = self._take(scope)
        body = _PAGE.format(text=text).encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*_HEADERS, length]})
        await send({"type": "http.response.body", "body": body})

    def _take(self, scope: Mapping[str, Any]) -> tuple[int, str]:
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if hosts != [f"{_LOOPBACK}:{self.port}".encode()]:
            return 421, "This address is for the browser that signs in."
        if scope["path"] != PATH:
            return 404, "There is nothing here."
        if scope["method"] != "GET":
            return 405, "Only GET is supported."
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(pairs)
        state = given.get("state", "")
        if (
            len(given) != len(pairs)
            or not self._state
            or not secrets.compare_digest(state.encode(), self._state.encode())
        ):
            return (
                400,
                "This answer doesn't belong to the sign-in in progress. Open the newest address from the terminal.",
            )
        if self._answer.done():
            return 400, "This answer was already received."
        self._answer.set_result(given)
        return 200, _DONE


@contextlib.asynccontextmanager
async def redirect_listener(port: int) -> AsyncIterator[RedirectListener]:
    """Port 0 means any free one. Raises `OSError` if the port is taken."""
    with contextlib.closing(socket.create_server((_LOOPBACK, port))) as sock:
        listener = RedirectListener(sock.getsockname()[1])
        server = AsgiServer(listener)
        await server.start(sock)
        try:
            yield listener
        finally:
            await server.stop(1.0)
