"""A server that sends exactly the requested bytes, over any transport and in either era.

In: MCP over `--transport` stdio, http, sse or ws. Out: for `tools/list`, the text of the file `--listing` (in which
`@OWN@` is replaced by the definitions below); for the tool `say`, its `lines`, each base64 of one message, in which
`@ID@` is replaced by the request's id. `seen` returns how often each method was called, `crowd` leaves two processes
behind: a child, and one that called setsid. Over stdio it needs the standard library only, so that it starts fast.
"""

from __future__ import annotations

import argparse
import base64
import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
OWN = ",".join(f'{{"name":"{name}","inputSchema":{{"type":"object"}}}}' for name in ("say", "seen", "crowd"))
SLEEP = "import time; time.sleep(600)"


class ServerScript:
    """A message in, the messages to say out."""

    def __init__(self, era: str, listing: str) -> None:
        self.modern = era == "modern"
        self.listing = listing.replace("@OWN@", OWN)
        self.counts: collections.Counter[str] = collections.Counter()

    def hear(self, raw: bytes) -> list[bytes]:
        message = json.loads(raw)
        method, request_id = message.get("method", "answer"), message.get("id")
        self.counts[method] += 1
        params = message.get("params") or {}
        if request_id is None:
            return []
        if method == "tools/list":
            return [self._answer(request_id, self.listing)]
        if method == "tools/call":
            return self._call(request_id, params["name"], params.get("arguments") or {})
        if method == "initialize" and not self.modern:
            about = {
                "serverInfo": {"name": "scripted", "version": "1"},
                "capabilities": {"tools": {"listChanged": True}},
            }
            spoken = min(params.get("protocolVersion", LEGACY), LEGACY)
            return [self._answer(request_id, json.dumps({"protocolVersion": spoken, **about}))]
        if method == "server/discover" and self.modern:
            about = {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            hints = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            return [self._answer(request_id, json.dumps({**about, **hints}))]
        refused = {"jsonrpc": "2.0", "id": request_id, "error": {"code": -32601, "message": "Method not found"}}
        return [json.dumps(refused).encode()]

    def _answer(self, request_id: Any, result: str) -> bytes:
        return f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"result":{result}}}'.encode()

    def _call(self, request_id: Any, name: str, arguments: dict[str, Any]) -> list[bytes]:
        if name == "say":
            raw_id = json.dumps(request_id).encode()
            return [base64.b64decode(line).replace(b"@ID@", raw_id) for line in arguments["lines"]]
        result: Any = dict(self.counts)
        if name == "crowd":
            quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            words = [sys.executable, "-c", SLEEP]
            result = [subprocess.Popen(words, start_new_session=apart, **quiet).pid for apart in (False, True)]
        kind = {"resultType": "complete"} if self.modern else {}
        return [self._answer(request_id, json.dumps({**kind, "content": [], "structuredContent": {"told": result}}))]


def over_stdio(script: ServerScript) -> None:
    while line := sys.stdin.buffer.readline():
        for message in script.hear(line):
            sys.stdout.buffer.write(message + b"\n")
            sys.stdout.buffer.flush()


def over_network(script: ServerScript, transport: str, *, streamed: bool) -> None:
    import asyncio

    from aiohttp import WSMsgType, web

    streams: list[web.StreamResponse] = []

    def event(message: bytes, kind: str = "message") -> bytes:
        return f"event: {kind}\n".encode() + b"data: " + message + b"\n\n"

    async def post(request: web.Request) -> web.StreamResponse:
        messages = script.hear(await request.read())
        if not messages:
            return web.Response(status=202)
        if not streamed:
            return web.Response(body=messages[-1], content_type="application/json", headers={"Mcp-Session-Id": "one"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Mcp-Session-Id": "one"})
        await response.prepare(request)
        for message in messages:
            await response.write(event(message))
        return response

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(event(b"/messages", "endpoint"))
        streams.append(response)
        await asyncio.Event().wait()
        return response

    async def messages(request: web.Request) -> web.Response:
        for message in script.hear(await request.read()):
            await streams[-1].write(event(message))
        return web.Response(status=202)

    async def socket(request: web.Request) -> web.StreamResponse:
        response = web.WebSocketResponse(protocols=["mcp"], max_msg_size=0)
        await response.prepare(request)
        async for frame in response:
            if frame.type is WSMsgType.TEXT:
                for message in script.hear(frame.data.encode()):
                    await response.send_str(message.decode())
        return response

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 28)
        if transport == "http":
            app.router.add_post("/mcp", post)
        elif transport == "sse":
            app.router.add_get("/sse", stream)
            app.router.add_post("/messages", messages)
        else:
            app.router.add_get("/ws", socket)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"listening on {runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(serve())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["modern", "legacy"], default="legacy")
    parser.add_argument("--transport", choices=["stdio", "http", "sse", "ws"], default="stdio")
    parser.add_argument("--streamed", action="store_true", help="over http, answer with a stream of events")
    parser.add_argument("--listing", type=Path)
    options = parser.parse_args()
    hints = '"resultType":"complete","ttlMs":0,"cacheScope":"private",' if options.era == "modern" else ""
    listing = options.listing.read_text() if options.listing else f'{{{hints}"tools":[@OWN@]}}'
    script = ServerScript(options.era, listing)
    if options.transport == "stdio":
        over_stdio(script)
    else:
        over_network(script, options.transport, streamed=options.streamed)


if __name__ == "__main__":
    main()
