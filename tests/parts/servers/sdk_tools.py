"""The tools of our own test servers: `sdk_v1.py`, `sdk_v2.py` and `ws_server.py` serve them.

In: a tool's arguments and a `Caller`. Out: a tools/call result as plain JSON, which all of them send as it is.
Each call is appended to the file named by TOOLCRIB_TEST_SEEN as one JSON line, so that a test can assert what
the server received: {"method", "name", "arguments", "meta"}, with method `tools/call`, `cancelled` or `finished`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="

Json = dict[str, Any]


class RpcError(Exception):
    """Becomes a JSON-RPC error, not a result."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class NeedsInput(Exception):
    """A result of the modern era that asks the client, who makes the request again with the answers."""

    def __init__(self, questions: Json, state: str) -> None:
        super().__init__("input required")
        self.result = {"resultType": "input_required", "inputRequests": questions, "requestState": state}


class ModernRounds:
    """What a modern client has answered in this call. The request's state keeps the answers of earlier rounds."""

    def __init__(self, params: Json) -> None:
        self.begun = "requestState" in params
        self.known: Json = {**json.loads(params.get("requestState") or "{}"), **(params.get("inputResponses") or {})}

    def answers(self, questions: Json) -> Json:
        if missing := {key: question for key, question in questions.items() if key not in self.known}:
            raise NeedsInput(missing, json.dumps(self.known))
        return {key: self.known[key] for key in questions}


class Caller(Protocol):
    @property
    def capabilities(self) -> Json:
        """What the client declared that it can do."""
        ...

    @property
    def begun(self) -> bool:
        """Whether this is a later round of a call."""
        ...

    async def ask(self, questions: Json) -> Json:
        """The answers, by the keys of the questions, which are `{"method": …, "params": …}`."""
        ...

    async def progress(self, done: float, total: float, message: str) -> None: ...

    async def list_changed(self) -> None: ...

    async def updated(self, uri: str) -> None: ...

    async def log(self, level: str, data: str) -> None: ...


def _schema(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


def _tool(name: str, description: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": schema or _schema(), **more}


TOOLS: list[dict[str, Any]] = [
    _tool("echo", "Returns its arguments unchanged.", {"type": "object", "additionalProperties": True}),
    _tool("add", "Adds two numbers.", _schema(["a", "b"], a={"type": "number"}, b={"type": "number"})),
    _tool("fail", "Answers with isError.", _schema(message={"type": "string"})),
    _tool("boom", "Answers with a JSON-RPC error.", _schema(code={"type": "integer"})),
    _tool("progress", "Reports n steps, then answers.", _schema(["n"], n={"type": "integer", "minimum": 0})),
    _tool("slow", "Waits, and notes when it is cancelled.", _schema(["seconds"], seconds={"type": "number"})),
    _tool("big", "Answers with n bytes of text.", _schema(["n"], n={"type": "integer", "minimum": 0})),
    _tool(
        "rich",
        "Answers with every kind of content.",
        title="Rich content",
        annotations={"readOnlyHint": True, "x-odd-hint": "kept"},
        outputSchema={"type": "object", "properties": {"kept": {}}, "additionalProperties": True},
        _meta={"test/definition": {"nested": [1, None, {"deep": True}]}},
    ),
    _tool(
        "grow", "Adds a tool of the given name and announces that the list changed.", _schema(name={"type": "string"})
    ),
    _tool("touch", "Announces that a resource changed.", _schema(["uri"], uri={"type": "string"})),
    _tool(
        "say",
        "Logs a text at each of these levels.",
        _schema(["levels"], levels={"type": "array"}, text={"type": "string"}),
    ),
    _tool(
        "ask",
        "Asks the questions of each round at once, one round after the other.",
        _schema(["rounds"], rounds={"type": "array", "items": {"type": "object"}}, mark={"type": "string"}),
    ),
    _tool("whoami", "Tells the process's folder, environment names, pid and words."),
]

RICH: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "tekst ✓ \u0000 \U0001f9f0", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "image", "data": PIXEL, "mimeType": "image/png", "_meta": {"test/image": 1}},
        {"type": "audio", "data": SILENCE, "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "test://linked", "name": "linked", "size": 12, "x-odd": [None, 1.5e300]},
        {"type": "resource", "resource": {"uri": "test://embedded", "mimeType": "text/plain", "text": "inside"}},
        {"type": "resource", "resource": {"uri": "test://blob", "mimeType": "application/x-odd", "blob": PIXEL}},
    ],
    "structuredContent": {
        "kept": None,
        "list": [None, {"a": None}],
        "big": 9007199254740993,
        "empty": {},
        "float": 1.0,
    },
    "isError": False,
    "x-unknown": {"kept": None},
    "_meta": {"test/result": {"n": None}},
}


RESOURCES: list[dict[str, Any]] = [
    {"uri": "test://one", "name": "one", "mimeType": "text/plain", "x-odd": [1.5, None], "_meta": {"test/one": None}},
    {"uri": "test://pixel", "name": "pixel", "mimeType": "image/png", "size": 68},
]
TEMPLATES: list[dict[str, Any]] = [
    {"uriTemplate": "test://note/{id}", "name": "note", "description": "A note."},
    {"uriTemplate": "test://asking/{mark}", "name": "asking", "description": "A resource that asks for a colour."},
]
PROMPTS: list[dict[str, Any]] = [
    {"name": "greet", "description": "Greets.", "arguments": [{"name": "who", "required": True}], "x-odd": None},
    {"name": "consult", "description": "Asks for a colour.", "arguments": [{"name": "mark", "required": True}]},
]
COLOUR: Json = {
    "method": "elicitation/create",
    "params": {
        "mode": "form",
        "message": "Which colour?",
        "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
    },
}
CONTENTS: dict[str, dict[str, Any]] = {
    "test://one": {"mimeType": "text/plain", "text": "tekst ✓ \u0000 \U0001f9f0", "x-odd": {"kept": None}},
    "test://pixel": {"mimeType": "image/png", "blob": PIXEL},
}


async def offered(method: str, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """The result of a request about anything but tools."""
    note(method, str(params.get("uri") or params.get("name") or params.get("level")), params, params.get("_meta"))
    match method:
        case "resources/list":
            return {"resources": RESOURCES}
        case "resources/templates/list":
            return {"resourceTemplates": TEMPLATES}
        case "resources/read":
            uri = params["uri"]
            if uri.startswith("test://note/"):
                return {"contents": [{"uri": uri, "text": f"note {uri.removeprefix('test://note/')}"}]}
            if uri.startswith("test://asking/"):
                answers = await asked(uri.removeprefix("test://asking/"), [{"colour": COLOUR}], caller)
                return {"contents": [{"uri": uri, "text": json.dumps(answers)}]}
            if uri not in CONTENTS:
                raise RpcError(-32002, "Resource not found", {"uri": uri})
            return {"contents": [{"uri": uri, **CONTENTS[uri]}], "x-odd": {"kept": None}}
        case "prompts/list":
            return {"prompts": PROMPTS}
        case "prompts/get" if params["name"] == "consult":
            answers = await asked(params["arguments"]["mark"], [{"colour": COLOUR}], caller)
            return {"messages": [{"role": "user", "content": {"type": "text", "text": json.dumps(answers)}}]}
        case "prompts/get":
            content = {"type": "text", "text": f"Greet {params['arguments']['who']}."}
            return {"messages": [{"role": "user", "content": content}], "x-odd": {"kept": None}}
        case "completion/complete":
            return {"completion": {"values": [f"{params['argument']['value']}rld"], "total": 1, "hasMore": False}}
        case _:
            return {}


async def asked(mark: str, rounds: list[Json], caller: Caller) -> Json:
    if not caller.begun:
        note("asking", mark, caller.capabilities)
    answers: Json = {}
    try:
        for questions in rounds:
            answers |= await caller.ask(questions)
    except asyncio.CancelledError:
        note("cancelled", mark, answers)
        raise
    note("answered", mark, answers)
    return answers


OFFERED = (
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
)


def note(method: str, name: str, arguments: Any, meta: Any = None) -> None:
    if seen := os.environ.get("TOOLCRIB_TEST_SEEN"):
        note = {"method": method, "name": name, "arguments": arguments, "meta": meta, "pid": os.getpid()}
        with Path(seen).open("a") as file:
            file.write(json.dumps(note) + "\n")


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}], **more}


class Toolbox:
    """The tools of one server process; `grow` adds one."""

    def __init__(self) -> None:
        self.tools = list(TOOLS)

    async def call(self, name: str, arguments: dict[str, Any], meta: Any, caller: Caller) -> dict[str, Any]:
        note("tools/call", name, arguments, meta)
        if all(name != tool["name"] for tool in self.tools):
            raise RpcError(-32602, f"Unknown tool: {name}")
        method = getattr(self, f"_{name}", None)
        if method is None:
            return text(f"{name} was grown")
        result: dict[str, Any] = await method(arguments, caller)
        note("finished", name, arguments)
        return result

    async def _echo(self, arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        return text(json.dumps(arguments, ensure_ascii=False), structuredContent=arguments)

    async def _add(self, arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        total = arguments["a"] + arguments["b"]
        return text(str(total), structuredContent={"sum": total})

    async def _fail(self, arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        return text(arguments.get("message", "it failed, as asked"), isError=True)

    async def _boom(self, arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        raise RpcError(arguments.get("code", -31999), "boom, as asked", {"why": "asked", "none": None})

    async def _progress(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        n = arguments["n"]
        for step in range(1, n + 1):
            await caller.progress(step, n, f"step {step}")
        return text(f"{n} steps")

    async def _slow(self, arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        try:
            await asyncio.sleep(arguments["seconds"])
        except asyncio.CancelledError:
            note("cancelled", "slow", arguments)
            raise
        return text("done")

    async def _big(self, arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        return text("x" * arguments["n"])

    async def _rich(self, _arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        return RICH

    async def _grow(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        name = arguments.get("name", f"grown_{len(self.tools)}")
        self.tools.append(_tool(name, "A tool that was not there before."))
        await caller.list_changed()
        return text(name)

    async def _touch(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        await caller.updated(arguments["uri"])
        return text("touched")

    async def _say(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        for level in arguments["levels"]:
            await caller.log(level, arguments.get("text", ""))
        return text("said")

    async def _ask(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        answers = await asked(arguments.get("mark", ""), arguments["rounds"], caller)
        return text(json.dumps(answers), structuredContent=answers)

    async def _whoami(self, _arguments: dict[str, Any], _caller: Caller) -> dict[str, Any]:
        me = {"cwd": str(Path.cwd()), "env": sorted(os.environ), "pid": os.getpid(), "argv": sys.argv}
        return text(json.dumps(me), structuredContent=me)


class OptionParser(argparse.ArgumentParser):
    """The options of all three servers."""

    def __init__(self) -> None:
        super().__init__()
        self.add_argument("--transport", choices=["stdio", "http", "sse", "ws"], default="stdio")
        self.add_argument("--port", type=int, default=0)
        self.add_argument("--seen", help="the file that gets a line for each call")

    def read(self) -> argparse.Namespace:
        options = self.parse_args()
        if options.seen:
            os.environ["TOOLCRIB_TEST_SEEN"] = options.seen
        return options


def sse_app(run: Callable[[Any, Any], Awaitable[None]]) -> Any:
    """Legacy SSE at `/sse`, on the installed SDK. `run` serves one connection's streams."""
    from mcp.server.sse import SseServerTransport
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Mount, Route

    transport = SseServerTransport("/messages/")

    async def connect(request: Any) -> Response:
        async with transport.connect_sse(request.scope, request.receive, request._send) as streams:
            await run(streams[0], streams[1])
        return Response()

    return Starlette(routes=[Route("/sse", connect), Mount("/messages/", app=transport.handle_post_message)])


def serve(app: Any, port: int) -> None:
    """Prints `listening on PORT` when it is ready."""
    import uvicorn

    with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
        # asyncio does this only for sockets of its own making; otherwise a second message waits for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"listening on {listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, ws_max_size=1 << 28)
        uvicorn.Server(config).run(sockets=[listener])
