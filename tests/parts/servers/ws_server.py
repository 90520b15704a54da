"""A legacy WebSocket server, written on aiohttp, with the tools of `sdk_tools.py`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import WSMsgType, web
from sdk_tools import OptionParser, RpcError, Toolbox


class WebSocketPeer:
    """One connection, and its running requests."""

    def __init__(self, socket: web.WebSocketResponse, toolbox: Toolbox) -> None:
        self.socket = socket
        self.toolbox = toolbox
        self.tasks: dict[Any, asyncio.Task[None]] = {}

    async def say(self, **message: Any) -> None:
        await self.socket.send_str(json.dumps({"jsonrpc": "2.0", **message}))

    async def frame(self, data: bytes, *, opcode: int, last: bool) -> None:
        """One frame of a message: the library only writes whole messages."""
        transport = self.socket._req.transport
        assert transport is not None
        transport.write(bytes([opcode | (0x80 if last else 0), len(data)]) + data)
        await asyncio.sleep(0)

    async def answer(self, message: dict[str, Any]) -> None:
        try:
            result = await self.result(message["id"], message["method"], message.get("params") or {})
        except RpcError as error:
            reply = {"code": error.code, "message": error.message, "data": error.data}
            await self.say(id=message["id"], error=reply)
        else:
            await self.say(id=message["id"], result=result)

    async def result(self, own_id: Any, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "own-ws", "version": "1.0"},
            }
        if method == "tools/list":
            return {"tools": self.toolbox.tools}
        if method != "tools/call":
            raise RpcError(-32601, "Method not found")
        name, arguments, meta = params["name"], params.get("arguments") or {}, params.get("_meta") or {}
        if name == "flood":
            while True:
                if arguments.get("what") != "pings":
                    await self.say(method="notifications/message")
                await self.socket.ping()
        if name == "pieces":
            text = json.dumps({"jsonrpc": "2.0", "id": own_id, "result": {"content": []}}).encode()
            await self.frame(b" ", opcode=1, last=False)
            for _ in range(arguments["count"] - 2):
                await self.frame(b" ", opcode=0, last=False)
            await self.frame(text, opcode=0, last=True)
            await asyncio.Event().wait()
        return await self.toolbox.call(name, arguments, params.get("_meta"), Caller(self, meta.get("progressToken")))

    async def hear(self, message: dict[str, Any]) -> None:
        if message.get("method") == "notifications/cancelled":
            task = self.tasks.pop(message["params"]["requestId"], None)
            if task is not None:
                task.cancel()
        elif "id" in message and "method" in message:
            self.tasks[message["id"]] = asyncio.create_task(self.answer(message))


class Caller:
    def __init__(self, peer: WebSocketPeer, token: Any) -> None:
        self.peer = peer
        self.token = token

    async def progress(self, done: float, total: float, message: str) -> None:
        params = {"progressToken": self.token, "progress": done, "total": total, "message": message}
        await self.peer.say(method="notifications/progress", params=params)

    async def list_changed(self) -> None:
        await self.peer.say(method="notifications/tools/list_changed")


async def serve(port: int) -> None:
    toolbox = Toolbox()

    async def connect(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("mcp",), max_msg_size=0)
        await socket.prepare(request)
        if socket.ws_protocol != "mcp":
            await socket.close()
            return socket
        peer = WebSocketPeer(socket, toolbox)
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                await peer.hear(json.loads(frame.data))
        return socket

    app = web.Application()
    app.router.add_get("/ws", connect)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    print(f"listening on {runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(OptionParser().read().port))
