"""A legacy server with tasks, on the last SDK of the first generation (`mcp` 1.30): stdio or HTTP.

Out: the tools `later` (runs only as a task) and `maybe` (also as one), and `plain`. A task says its `messages`, asks
the `question` for a field and then ends with its arguments and the answer; `fails` with that text; or, with `stays`,
waits until it is cancelled. Runs in the `mcp-v1` part's own environment. `--seen` names the file that gets a line for
each request and each answer to a question.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server.experimental.task_context import ServerTaskContext
from mcp.server.lowlevel import Server
from sdk_tools import OptionParser, serve
from sdk_v1 import http_app, over_stdio

Json = dict[str, Any]
TOOLS = {"later": "required", "maybe": "optional", "plain": "forbidden"}


def note(method: str, **what: Any) -> None:
    with Path(os.environ["TOOLCRIB_TEST_SEEN"]).open("a") as file:
        file.write(json.dumps({"method": method, **what}) + "\n")


def build() -> Server[Any, Any]:
    server: Server[Any, Any] = Server("tasks-v1", version="1.0")
    server.experimental.enable_tasks()

    async def list_tools(_request: types.ListToolsRequest) -> types.ServerResult:
        tools = [
            {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
            for name, support in TOOLS.items()
        ]
        return types.ServerResult(types.ListToolsResult.model_validate({"tools": tools}))

    async def call_tool(request: types.CallToolRequest) -> types.ServerResult:
        name, arguments = request.params.name, request.params.arguments or {}
        experimental = server.request_context.experimental
        task = experimental.task_metadata
        note("tools/call", name=name, arguments=arguments, task=task and task.model_dump(exclude_none=True))
        experimental.validate_task_mode(TOOLS[name])

        session, meta = server.request_context.session, request.params.meta

        async def work(running: ServerTaskContext) -> types.CallToolResult:
            if meta is not None and meta.progressToken is not None:
                await session.send_progress_notification(meta.progressToken, 7, 9, "Counting.")
            for message in arguments.get("messages", ()):
                await running.update_status(message)
            answer: Json = {}
            if field := arguments.get("question"):
                schema = {"type": "object", "properties": {field: {"type": "string"}}}
                given = await running.elicit(f"Which {field}?", schema)
                answer = given.model_dump(exclude_none=True)
                note("answered", answer=answer)
            if arguments.get("stays"):
                await anyio.sleep_forever()
            if arguments.get("fails"):
                raise RuntimeError(arguments["fails"])
            return done({**arguments, "answer": answer})

        if task is None:
            return types.ServerResult(done(arguments))
        return types.ServerResult(await experimental.run_task(work, model_immediate_response="It runs."))

    server.request_handlers[types.ListToolsRequest] = list_tools
    server.request_handlers[types.CallToolRequest] = call_tool
    for kind in (types.GetTaskRequest, types.GetTaskPayloadRequest, types.CancelTaskRequest):
        server.request_handlers[kind] = noted(server.request_handlers[kind])
    return server


def noted(handler: Any) -> Any:
    async def handle(request: Any) -> types.ServerResult:
        note(request.method, task=request.params.taskId)
        answer: types.ServerResult = await handler(request)
        return answer

    return handle


def done(what: Json) -> types.CallToolResult:
    return types.CallToolResult.model_validate(
        {"content": [{"type": "text", "text": "done"}], "structuredContent": what, "_meta": {"vendor": 1}}
    )


def main() -> None:
    options = OptionParser().read()
    server = build()
    if options.transport == "stdio":
        anyio.run(over_stdio, server)
    else:
        serve(http_app(server), options.port)


if __name__ == "__main__":
    main()
