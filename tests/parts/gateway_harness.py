"""The gateway called in-process over ASGI, without a port, with one server (`slow`) that a test can hold.

For states that can't be produced from outside: a change between two steps of one request, a limit of hours, an
internal failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from toolcrib.config.model import ConfigSource, Layer, ServerConfig, Transport
from toolcrib.config.paths import Paths
from toolcrib.core.crib import Crib
from toolcrib.core.project import Project
from toolcrib.gateway.http import HttpGateway
from toolcrib.identity.principal import RequestContext
from toolcrib.servers.model import Offers, OnProgress, ServerAnswer, ToolCall
from toolcrib.servers.questions import prepared, settled

PORT = 4321
MODERN = "2026-07-28"
META = {"io.modelcontextprotocol/protocolVersion": MODERN, "io.modelcontextprotocol/clientCapabilities": {}}
OWNERS_TOKEN = "o" * 43
LIMIT = 60.0


class Slow:
    """A server with three tools: `wait` answers when `go_on` is set, `where` returns the project of the call, `ask`
    asks a form with each of these messages at once and returns the answers."""

    name = "slow"
    tools = tuple(
        json.dumps({"name": name, "inputSchema": {"type": "object"}}).encode() for name in ("wait", "where", "ask")
    )

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.go_on = asyncio.Event()
        self.patience: float | None = None
        """Seconds that `ask` waits for the answers."""
        self.times = 0
        """How often `ask` was called."""

    def tools_in(self, project: Project) -> tuple[bytes, ...]:
        return self.tools

    def offers_in(self, project: Any) -> Offers:
        return Offers()

    def absence(self, project: Project) -> str:
        return ""

    async def call(
        self,
        request: RequestContext[Project],
        call: ToolCall,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> ServerAnswer:
        if call.name == "ask":
            return await self._ask(call, on_progress)
        if call.name == "wait":
            self.called.set()
            await self.go_on.wait()
        text = str(request.project.root)
        return ServerAnswer(result=json.dumps({"content": [{"type": "text", "text": text}]}).encode())

    async def _ask(self, call: ToolCall, on_progress: OnProgress | None) -> ServerAnswer:
        self.times += 1
        config = ServerConfig(name="slow", transport=Transport.STDIO, source=ConfigSource(layer=Layer.FLAGS))
        given = json.loads(bytes(call.params["arguments"]))

        async def answer(message: str) -> Any:
            question = prepared(
                config,
                "elicitation/create",
                {"message": message, "requestedSchema": {"type": "object", "properties": {}}},
            )
            return await settled(config, question, call.asker, None)

        answers: Any = "none in time"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                answers = await asyncio.gather(*map(answer, given["messages"]))
        if on_progress is not None:
            on_progress({"progress": 1})
        if given.get("wait"):
            self.called.set()
            await self.go_on.wait()
        return ServerAnswer(result=json.dumps({"content": [], "structuredContent": {"answers": answers}}).encode())

    def files(self, project: Project) -> tuple[Path, ...]:
        return ()

    def outdated(self, project: Project) -> bool:
        return False

    async def refresh(self, crib: Crib) -> None: ...

    async def close(self) -> None: ...


class Exchange:
    """One ASGI request; the client stays connected until `leave`."""

    def __init__(self, scope: Mapping[str, Any], body: bytes | None) -> None:
        self.scope = scope
        self.body: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        if body is not None:
            self.body.set_result(body)
        self.sent: list[dict[str, Any]] = []
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        self.asked = False

    async def receive(self) -> dict[str, Any]:
        if not self.asked:
            self.asked = True
            body = await self.body
            return {"type": "http.disconnect"} if body is None else {"type": "http.request", "body": body}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self._more.set()

    def leave(self) -> None:
        self._gone.set()

    def break_off(self) -> None:
        """The client disconnects before its request has arrived."""
        self.body.set_result(None)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def text(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    async def begun(self) -> None:
        """The head was sent: a stream is open."""
        await self.until(b"")

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(LIMIT):
            while not self.sent or text not in self.text:
                self._more.clear()
                await self._more.wait()


class GatewayHarness:
    """A crib with its gateway, without a process or a port."""

    owners_token = OWNERS_TOKEN

    def __init__(self, crib: Crib, slow: Slow) -> None:
        self.crib = crib
        self.slow = slow
        self.gateway = HttpGateway(crib, token=OWNERS_TOKEN, port=PORT)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        body: Mapping[str, Any] | None,
        token: str = OWNERS_TOKEN,
        headers: Mapping[str, str] | None = None,
        *,
        verb: str = "POST",
        late: bool = False,
    ) -> tuple[Exchange, asyncio.Task[None]]:
        """`late`: the body arrives when its future is set."""
        given = {
            "host": f"127.0.0.1:{PORT}",
            "authorization": f"Bearer {token}",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **(headers or {}),
        }
        scope = {
            "type": "http",
            "method": verb,
            "raw_path": b"/mcp",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }
        exchange = Exchange(scope, None if late else json.dumps(body).encode() if body is not None else b"")
        task = asyncio.create_task(self.gateway(scope, exchange.receive, exchange.send))
        self._tasks.add(task)
        return exchange, task

    async def ask(self, *args: Any, **more: Any) -> Exchange:
        exchange, task = self.begin(*args, **more)
        async with asyncio.timeout(LIMIT):
            await task
        return exchange

    async def modern(self, method: str, token: str = OWNERS_TOKEN, label: str | None = None, **params: Any) -> Exchange:
        return await self.ask(modern_body(method, **params), token, modern_headers(method, label, **params))

    async def legacy(self, session: str, method: str, token: str, **params: Any) -> Exchange:
        return await self.ask(legacy_body(method, **params), token, {"mcp-session-id": session})

    async def initialize(
        self, token: str, label: str | None = None, capabilities: Mapping[str, Any] | None = None
    ) -> str:
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities or {}}
        named = {} if label is None else {"x-toolcrib-conversation": label}
        answer = await self.ask(legacy_body("initialize", **params), token, named)
        assert answer.status == 200, answer.text
        return answer.headers["mcp-session-id"]

    async def agent(self, name: str, **more: Any) -> str:
        minted = await self.crib.services.agents.add(name, **{"profile": "developer", **more})
        return minted.token

    async def close(self) -> None:
        self.gateway.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def modern_body(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}


def modern_headers(method: str, label: str | None = None, **params: Any) -> dict[str, str]:
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    if method == "tools/call":
        headers["mcp-name"] = params["name"]
    if label is not None:
        headers["x-toolcrib-conversation"] = label
    return headers


def legacy_body(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


@contextlib.asynccontextmanager
async def opened(folder: Path, *more: Slow) -> AsyncIterator[GatewayHarness]:
    """`more`: further servers beside `slow`."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    slow = Slow()
    paths = Paths.of_user({"TOOLCRIB_HOME": str(folder / "t"), "HOME": str(home)})
    async with Crib(paths=paths, root=home, environ={}, builtins={one.name: one for one in (slow, *more)}) as crib:
        harness = GatewayHarness(crib, slow)
        yield harness
        slow.go_on.set()
        await harness.close()
