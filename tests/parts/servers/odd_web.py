"""A Streamable HTTP server of either era, written on aiohttp and run inside the test, that can misbehave.

A test sets its attributes; `requests` holds the received requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web
from multidict import CIMultiDictProxy

EXACT = (
    b'{"content":[{"type":"text","text":"h\\u00e9 \\ud83d\\ude00"} ], "structuredContent":{"n":1.0,"z":null},'
    b'"_meta":{"x":[ ]},"unknown":{"a":1e2}}'
)
NOISE = b': x\n\ndata: {"jsonrpc":"2.0","method":"notifications/message"}\n\n' * 1000
TOOL = b'{"name":"echo", "inputSchema":{"type":"object","x-unknown":[1.0,null]} ,"title":null}'
INFO = {"serverInfo": {"name": "odd", "version": "1"}}
PLAIN_ANSWERS: dict[str, dict[str, Any]] = {
    "html": {"text": "<html>", "content_type": "text/html"},
    "broken": {"text": "{", "content_type": "application/json"},
    "other": {"text": '{"jsonrpc":"2.0","id":77,"result":{}}', "content_type": "application/json"},
    "accepted": {"status": 202},
    "unauthorized": {"status": 401},
    "elsewhere": {"status": 307, "headers": {"Location": "http://example.invalid/mcp"}},
    "moved": {"status": 307, "headers": {"Location": "/mcp2"}},
}
SSE_ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {}, **INFO},
    "tools/list": {"tools": []},
    "tools/call": json.loads(EXACT),
}
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}


def text_of(size: int) -> bytes:
    return b'{"t":"' + b"x" * size + b'"}'


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


async def opened(request: web.Request, kind: str = "text/event-stream") -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": kind})
    await response.prepare(request)
    return response


@dataclass(frozen=True)
class Seen:
    headers: CIMultiDictProxy[str]
    message: dict[str, Any]


class OddWeb:
    def __init__(self, era: str) -> None:
        self.era = era
        self.port = 0
        self.requests: list[Seen] = []
        self.session = 0
        self.redirected: list[str] = []
        """The hosts of redirected requests."""
        self.status: int | None = None
        """If set, the status of every answer."""
        self.token = ""
        """If set, the bearer token that a request must have."""
        self.status_for_lost_session = 404
        self.opening = ""
        """What makes the answer to `initialize` too large: headers, gzip or body."""
        self.resumable = b""
        self.answered = asyncio.Event()
        """Set when the client has answered our request."""
        self.gets = 0
        self.status_for_get = 405
        self.endpoint = "/messages"
        self.flooding = asyncio.Event()
        """If set, standing streams send endless noise."""
        self.standing_stream: web.StreamResponse | None = None
        self.ended = 0
        """How many sessions the client has ended."""
        self.dropped: list[str] = []
        """The tools whose request the client abandoned."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def calls(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.message.get("method") == "tools/call"]

    async def post(self, request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read())
        self.requests.append(Seen(request.headers, message))
        if self.status is not None:
            return web.Response(status=self.status, text="no")
        if self.rejects(request):
            return web.Response(status=401, text="no")
        if "method" not in message:
            self.answered.set()
            return web.Response(status=202)
        method = message["method"]
        if method == "server/discover" and self.era == "modern":
            return self.result(message, json.dumps(DISCOVERED).encode())
        if method == "initialize" and self.era == "legacy":
            return self.swollen(self.initialized(message), self.opening)
        if self.era == "legacy" and request.headers.get("Mcp-Session-Id") != f"session-{self.session}":
            return self.error(
                message, -32000, "Bad Request: No valid session ID provided", self.status_for_lost_session
            )
        if method.startswith("notifications/"):
            return web.Response(status=202)
        if method == "tools/list":
            return self.result(message, b'{"tools":[' + TOOL + b"]}")
        if method == "tools/call":
            return await self.call(request, message)
        return self.error(message, -32601, "Method not found", 404 if self.era == "modern" else 400)

    def rejects(self, request: web.Request) -> bool:
        return bool(self.token) and request.headers.get("Authorization") != f"Bearer {self.token}"

    @staticmethod
    def swollen(response: web.Response, how: str) -> web.Response:
        if how == "headers":
            response.headers.update({f"X-{number}": "x" * 7000 for number in range(12)})
        elif how == "body":
            response.body = b" " * 2_000_000 + bytes(response.body)
        elif how == "gzip":
            response.body = gzip.compress(b" " * 5_000_000 + bytes(response.body), 1)
            response.headers["Content-Encoding"] = "gzip"
        return response

    def initialized(self, message: dict[str, Any]) -> web.Response:
        self.session += 1
        spoken = {"protocolVersion": message["params"]["protocolVersion"]}
        about = {**spoken, "capabilities": {"tools": {"listChanged": True}}, **INFO}
        response = self.result(message, json.dumps(about).encode())
        response.headers["Mcp-Session-Id"] = f"session-{self.session}"
        return response

    async def call(self, request: web.Request, message: dict[str, Any]) -> web.StreamResponse:
        name = message["params"]["name"]
        arguments = message["params"].get("arguments") or {}
        if name == "echo" or (name == "moved" and request.path == "/mcp2"):
            return self.result(message, EXACT)
        if name == "big":
            return self.result(message, text_of(arguments["size"]))
        if name in ("gzip", "headers"):
            return self.swollen(self.result(message, EXACT), name)
        if name in PLAIN_ANSWERS:
            return web.Response(**PLAIN_ANSWERS[name])
        return await self.streamed(request, message, name, arguments)

    async def streamed(
        self, request: web.Request, message: dict[str, Any], name: str, arguments: dict[str, Any]
    ) -> web.StreamResponse:
        kind = "application/json" if name == "bigchunks" else "text/event-stream; charset=utf-8"
        response = await opened(request, kind)
        answer = self.answer(message, text_of(arguments["size"]) if "size" in arguments else EXACT)
        if name == "events":
            progress = {"progressToken": message["params"]["_meta"]["progressToken"], "progress": 1}
            notice = {"jsonrpc": "2.0", "method": "notifications/progress", "params": progress}
            await response.write(b": hello\r\nevent: message\r\ndata: " + json.dumps(notice).encode() + b"\r\n\r")
            head, _, tail = answer.partition(b",")
            await response.write(b"\ndata: " + head + b",\ndata:" + tail + b"\n\n")
        elif name == "bigchunks":
            await response.write(answer)
        elif name == "biglines":
            await response.write(b"data: x\n" * (arguments["size"] // 2) + b"\n")
        elif name == "bigstream":
            await response.write(event(answer))
        elif name == "resumed":
            self.resumable = answer
            await response.write(b"id: e1\nretry: 10\ndata:\n\n")
        elif name == "asks":
            question = {"jsonrpc": "2.0", "id": "q9", "method": arguments["method"], "params": {}}
            await response.write(event(json.dumps(question).encode()))
            await self.answered.wait()
            await response.write(event(answer))
        elif name == "ends":
            await response.write(b": nothing\n\n")
        elif name == "flood":
            while True:
                await response.write(NOISE)
        elif name == "hang":
            try:
                await asyncio.sleep(600)
            finally:
                self.dropped.append(name)
        return response

    async def get(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Last-Event-ID") == "e1":
            response = await opened(request)
            await response.write(b"id: e2\n" + event(self.resumable))
            return response
        if self.status == 307:
            self.redirected.append(request.headers["Host"])
            return web.Response(status=307, headers={"Location": self.url.replace("127.0.0.1", "localhost")})
        if request.path == "/sse":
            # The stream of the older transport; messages come to /messages.
            self.session += 1
            self.standing_stream = response = await opened(request)
            await response.write(f"event: endpoint\ndata: {self.endpoint}?session={self.session}\n\n".encode())
            await self.flood(response)
        self.gets += 1
        if self.status_for_get == 200:
            await self.flood(await opened(request))
        return web.Response(status=self.status or self.status_for_get)

    async def flood(self, response: web.StreamResponse) -> NoReturn:
        await self.flooding.wait()
        while True:
            await response.write(NOISE)

    async def message(self, request: web.Request) -> web.Response:
        message = json.loads(await request.read())
        self.requests.append(Seen(request.headers, message))
        if self.rejects(request):
            return web.Response(status=401)
        if request.query["session"] != str(self.session):
            return web.Response(status=404)
        if "id" in message and self.standing_stream is not None:
            answer = self.answer(message, json.dumps(SSE_ANSWERS[message["method"]]).encode())
            await self.standing_stream.write(event(answer))
        return web.Response(status=202)

    async def delete(self, _request: web.Request) -> web.Response:
        self.ended += 1
        return web.Response(status=200)

    @staticmethod
    def answer(message: dict[str, Any], result: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":' + json.dumps(message["id"]).encode() + b',"result":' + result + b"}"

    def result(self, message: dict[str, Any], result: bytes) -> web.Response:
        return web.Response(body=self.answer(message, result), content_type="application/json")

    @staticmethod
    def error(message: dict[str, Any], code: int, words: str, status: int) -> web.Response:
        error = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": code, "message": words}}
        return web.json_response(error, status=status)


@contextlib.asynccontextmanager
async def running(odd: OddWeb, tls: ssl.SSLContext | None = None) -> AsyncIterator[OddWeb]:
    app = web.Application(client_max_size=0)
    for path in ("/mcp", "/mcp2"):
        app.router.add_post(path, odd.post)
        app.router.add_get(path, odd.get)
        app.router.add_delete(path, odd.delete)
    app.router.add_get("/sse", odd.get)
    app.router.add_post("/messages", odd.message)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", odd.port, ssl_context=tls)
    await site.start()
    odd.port = runner.addresses[0][1]
    try:
        yield odd
    finally:
        await runner.cleanup()
