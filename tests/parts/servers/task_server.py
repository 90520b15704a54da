"""A modern server with the tasks extension, on raw bytes, over stdio or HTTP. Standard library only.

In: MCP 2026-07-28. Out: the tools that the official suite's `tasks-*` scenarios call, and `steps`, whose task ends
after so many `looks` at it. A request that does not declare the extension gets no task: tools that need one
refuse it with -32021. `--seen` names the file that gets each message received as a JSON line. Over HTTP it prints
`listening on PORT` when it is ready.
"""

from __future__ import annotations

import argparse
import http.server
import json
import sys
import threading
import time
from typing import Any

Json = dict[str, Any]
MODERN = "2026-07-28"
EXTENSION = "io.modelcontextprotocol/tasks"
CREATED = "2026-11-19T10:00:00Z"
SCHEMA = {"type": "object"}
SYNC, OPTIONAL, REQUIRED = "sync", "optional", "required"
TOOLS = {
    "greet": SYNC,
    "slow_compute": OPTIONAL,
    "failing_job": REQUIRED,
    "protocol_error_job": OPTIONAL,
    "confirm_delete": OPTIONAL,
    "multi_input": OPTIONAL,
    "test_tool_with_task": REQUIRED,
    "steps": REQUIRED,
}


class Refused(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({} if data is None else {"data": data})}


def text(value: str, **more: Any) -> Json:
    return {"content": [{"type": "text", "text": value}], **more}


def form(field: str) -> Json:
    schema = {"type": "object", "properties": {field: {"type": "string"}}}
    params = {"mode": "form", "message": f"Which {field}?", "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


class Task:
    def __init__(self, id: str, tool: str, arguments: Json) -> None:
        self.id = id
        self.tool = tool
        self.arguments = arguments
        self.until = time.monotonic() + float(arguments.get("seconds", 0))
        self.looks = int(arguments.get("looks", 0))
        self.cancelled = False
        self.answers: Json = {}
        wanted = {"confirm_delete": ["confirm"], "multi_input": ["first", "second"]}.get(tool, [])
        self.asks = {field: form(field) for field in arguments.get("asks", wanted)}

    def seed(self) -> Json:
        pace = {"pollIntervalMs": int(self.arguments.get("poll", 50)), "vendor": {"kept": [1, 2.50]}}
        times = {"createdAt": CREATED, "lastUpdatedAt": CREATED, "ttlMs": self.arguments.get("ttl", 60_000)}
        return {"taskId": self.id, "status": "working", "statusMessage": "Begun.", **times, **pace}

    def look(self) -> Json:
        self.looks -= 1
        open_questions = {key: one for key, one in self.asks.items() if key not in self.answers}
        if self.cancelled:
            return {**self.seed(), "status": "cancelled", "statusMessage": "Stopped."}
        if open_questions:
            return {**self.seed(), "status": "input_required", "inputRequests": open_questions}
        if time.monotonic() < self.until or self.looks >= 0:
            return {**self.seed(), "statusMessage": f"{self.looks + 1} to go."}
        if self.tool == "protocol_error_job":
            return {**self.seed(), "status": "failed", "error": {"code": -32603, "message": "It broke."}}
        failed = {"isError": True} if self.tool == "failing_job" else {}
        done = text(f"{self.tool} done: {json.dumps({**self.arguments, **self.answers})}", **failed)
        return {**self.seed(), "status": "completed", "statusMessage": "Done.", "result": done}


class TaskServer:
    def __init__(self, seen: str | None) -> None:
        self.seen = seen
        self.tasks: dict[str, Task] = {}
        self.lock = threading.Lock()

    def hear(self, raw: bytes) -> bytes | None:
        with self.lock:
            if self.seen:
                with open(self.seen, "ab") as file:  # noqa: PTH123 - pathlib would double the start-up time
                    file.write(raw.strip() + b"\n")
            message = json.loads(raw)
            if "id" not in message or "method" not in message:
                return None
            try:
                answer = {"result": {"resultType": "complete", **self.answer(message["method"], message["params"])}}
            except Refused as refused:
                answer = {"error": refused.error}
            return json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode()

    def answer(self, method: str, params: Json) -> Json:
        declared = params.get("_meta", {}).get("io.modelcontextprotocol/clientCapabilities", {})
        takes = EXTENSION in declared.get("extensions", {})
        hints = {"ttlMs": 0, "cacheScope": "private"}
        if method == "server/discover":
            capabilities = {"tools": {}, "extensions": {EXTENSION: {}}}
            return {"supportedVersions": [MODERN], "capabilities": capabilities, **hints}
        if method == "tools/list":
            return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in TOOLS], **hints}
        if method == "tools/call":
            return self.call(params, takes=takes)
        if method not in ("tasks/get", "tasks/update", "tasks/cancel"):
            raise Refused(-32601, "Method not found")
        if not takes:
            raise self.missing()
        task = self.tasks.get(params["taskId"])
        if task is None:
            raise Refused(-32602, "Failed to retrieve task: Task not found")
        if method == "tasks/get":
            return task.look()
        if method == "tasks/update":
            task.answers |= {key: one for key, one in params["inputResponses"].items() if key in task.asks}
        else:
            task.cancelled = True
        return {}

    def missing(self) -> Refused:
        needed = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        return Refused(-32021, "Missing required client capability", needed)

    def call(self, params: Json, *, takes: bool) -> Json:
        tool, arguments = params["name"], params.get("arguments") or {}
        if tool == "greet":
            return text(f"Hello, {arguments.get('name')}!")
        if TOOLS[tool] == REQUIRED and not takes:
            raise self.missing()
        if tool == "test_tool_with_task":
            given = params.get("inputResponses")
            if not given:
                return {"resultType": "input_required", "inputRequests": {"user_name": form("name")}}
            arguments = given["user_name"]["content"]
        task = Task(f"secret-{len(self.tasks) + 1}", tool, arguments)
        if not takes:
            return text(f"{tool} at once")
        self.tasks[task.id] = task
        return {**task.seed(), "resultType": "task"}


def over_stdio(server: TaskServer) -> None:
    while line := sys.stdin.buffer.readline():
        if (answer := server.hear(line)) is not None:
            sys.stdout.buffer.write(answer + b"\n")
            sys.stdout.buffer.flush()


def over_http(server: TaskServer) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            message = json.loads(body)
            named = message.get("params", {}).get("taskId")
            if named is not None and self.headers.get("Mcp-Name") != named:
                error = {"code": -32020, "message": "Header mismatch"}
                answer: bytes | None = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
            else:
                answer = server.hear(body)
            self.send_response(202 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def do_GET(self) -> None:
            self.send_error(405)

        def log_message(self, *_: Any) -> None: ...

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"listening on {listening.server_port}", flush=True)
    listening.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", choices=["stdio", "http"], default="stdio")
    parser.add_argument("--seen")
    options = parser.parse_args()
    server = TaskServer(options.seen)
    if options.transport == "stdio":
        over_stdio(server)
    else:
        over_http(server)


if __name__ == "__main__":
    main()
