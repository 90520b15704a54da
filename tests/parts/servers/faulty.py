"""A server with the faults of the matrix: over stdio, or with `--web` over HTTP, SSE and WebSocket on one port.

It speaks the legacy protocol; with `--modern` over stdio, and below `/modern` on the web, the modern one without
subscriptions. A call's tool names the fault. The file in `MODE` says how the server behaves when it starts. On the web,
a parent holds the port and replaces a server that has ended. Over stdio only the standard library is used, so that it
starts fast.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

NAMES = ("echo", "pid", "hang", "die", "garbage", "half", "drip", "line", "storm")
TOOLS = [{"name": name, "annotations": {"readOnlyHint": True}} for name in NAMES]
LINE = 10_000_000
MODERN = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def mode():
    return Path(os.environ["MODE"]).read_text()


pause = time.sleep
"""It runs one call at a time, as many servers do."""


async def answer(message, out):
    method, ident = message.get("method"), message.get("id")
    if method == "server/discover" and out.modern:
        await whole(out, ident, {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **MODERN})
    elif method == "initialize" and not out.modern:
        about = {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "faulty", "version": "1"}}
        await whole(out, ident, {"protocolVersion": message["params"]["protocolVersion"], **about})
    elif method == "tools/list":
        await whole(out, ident, {"tools": TOOLS, **MODERN})
        if mode() == "loop":
            pause(0.05)
            os._exit(3)
    elif method == "ping" and not out.modern:
        await whole(out, ident, {})
    elif method == "tools/call":
        await call(ident, message["params"]["name"], message["params"].get("arguments") or {}, out)
    elif ident is not None:
        await out.part(encode({"jsonrpc": "2.0", "id": ident, "error": {"code": -32601, "message": "unknown"}}))
        await out.finish()


async def call(ident, name, arguments, out):
    text = encode({"jsonrpc": "2.0", "id": ident, "result": {"content": [], "text": name, "resultType": "complete"}})
    if name == "hang":
        # Blocks the whole server.
        pause(arguments["seconds"])
    elif name == "die":
        os._exit(3)
    elif name == "garbage":
        text = b"hello \xc3\x28"
    elif name == "half":
        await out.part(text[: len(text) // 2])
        pause(0.05)
        await out.cut()
        return
    elif name == "drip":
        for byte in text[:-1]:
            await out.part(bytes([byte]))
            pause(0.003)
        text = text[-1:]
    elif name == "pid":
        text = text.replace(b'"pid"', str(os.getpid()).encode())
    elif name == "line":
        text = text.replace(b'"line"', b'"' + b"x" * LINE + b'"')
    elif name == "storm":
        for _ in range(2000):
            await out.part(CHANGED)
            await out.finish()
    await out.part(text)
    await out.finish()


async def whole(out, ident, result):
    await out.part(encode({"jsonrpc": "2.0", "id": ident, "result": result}))
    await out.finish()


def encode(message):
    return json.dumps(message).encode()


class Pipe:
    modern = "--modern" in sys.argv

    async def part(self, data):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    async def finish(self):
        await self.part(b"\n")

    async def cut(self):
        os._exit(4)


def on_stdio():
    if mode() == "refuse":
        sys.exit("Error: not today")
    if mode() == "hang":
        time.sleep(600)
    for line in sys.stdin:
        try:
            # Nothing here awaits anything.
            answer(json.loads(line), Pipe()).send(None)
        except StopIteration:
            continue


def on_the_web():
    import asyncio
    import logging

    from aiohttp import WSMsgType, web

    # Clients that leave early are expected here.
    logging.disable()

    class Http:
        def __init__(self, request, *, events, modern):
            kind = "text/event-stream" if events else "application/json"
            self.request, self.events, self.modern, self.begun = request, events, modern, False
            session = {} if modern else {"Mcp-Session-Id": str(os.getpid())}
            self.response = web.StreamResponse(headers={"Content-Type": kind, **session})

        async def part(self, data):
            if not self.begun:
                self.begun = True
                await self.response.prepare(self.request)
            await self.response.write(b"data: " + data if self.events else data)

        async def finish(self):
            if self.events:
                await self.response.write(b"\n\n")

        async def cut(self):
            self.request.transport.abort()

    class Sse:
        modern = False

        def __init__(self, stream, transport):
            self.stream, self.transport, self.inside = stream, transport, False

        async def part(self, data):
            await self.stream.write(data if self.inside else b"data: " + data)
            self.inside = True

        async def finish(self):
            self.inside = False
            await self.stream.write(b"\n\n")

        async def cut(self):
            self.transport.abort()

    class Ws:
        def __init__(self, peer, transport, *, modern):
            self.peer, self.transport, self.modern, self.held, self.cont = peer, transport, modern, b"", False

        async def part(self, data):
            if self.held:
                self.transport.write(bytes([0 if self.cont else 1, len(self.held)]) + self.held)
                self.cont = True
            self.held = data

        async def finish(self):
            if self.cont:
                self.transport.write(bytes([0x80, len(self.held)]) + self.held)
            else:
                await self.peer._writer.send_frame(self.held, 1)
            self.held, self.cont = b"", False

        async def cut(self):
            await self.part(b"")
            self.transport.abort()

    streams = {}

    async def post(request):
        message, modern = await request.json(), request.path.startswith("/modern")
        if (
            message["method"] != "initialize"
            and not modern
            and request.headers.get("Mcp-Session-Id") != str(os.getpid())
        ):
            return web.Response(status=404)
        if "id" not in message:
            return web.Response(status=202)
        out = Http(request, events=message.get("params", {}).get("name") == "storm", modern=modern)
        await answer(message, out)
        return out.response

    async def stream(request):
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        number = f"{os.getpid()}-{len(streams)}"
        streams[number] = Sse(response, request.transport)
        await response.write(f"event: endpoint\ndata: /messages?session={number}\n\n".encode())
        await asyncio.sleep(3600)

    async def posted(request):
        if request.query["session"] not in streams:
            return web.Response(status=404)
        message = await request.json()
        await answer(message, streams[request.query["session"]])
        return web.Response(status=202)

    async def socket_opened(request):
        peer = web.WebSocketResponse(protocols=("mcp",))
        await peer.prepare(request)
        async for frame in peer:
            if frame.type is WSMsgType.TEXT:
                out = Ws(peer, request.transport, modern=request.path.startswith("/modern"))
                await answer(json.loads(frame.data), out)
        return peer

    listener = socket.create_server(("127.0.0.1", 0))
    print("listening on", listener.getsockname()[1], flush=True)
    child = 0

    def end(*_):
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while child := os.fork():
        os.waitpid(child, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    app = web.Application()
    app.add_routes([web.get("/sse", stream), web.post("/messages", posted)])
    for prefix in ("", "/modern"):
        app.add_routes([web.post(f"{prefix}/mcp", post), web.get(f"{prefix}/ws", socket_opened)])
    web.run_app(app, sock=listener, print=None, handle_signals=False, access_log=None)


if "--web" in sys.argv:
    on_the_web()
else:
    on_stdio()
