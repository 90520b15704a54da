"""A stdio server that misbehaves on request. Standard library only, so that it starts in a few milliseconds.

In: newline-delimited JSON-RPC on stdin, modern or legacy by `--era`. Out: answers, as the flags choose. Each tool of
`ODD_TOOLS` misbehaves once, when called; `ok` and the plain tools return their arguments. `--seen FILE` (or
TOOLCRIB_TEST_SEEN) gets each message received as a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
CAPABILITIES = {"tools": {"listChanged": True}}
INFO = {"name": "raw", "version": "1"}
INTEGER = {"type": "integer"}
ODD_TOOLS: dict[str, dict[str, Any]] = {
    "ok": {},
    "echo_raw": {"result": {"type": "string"}},
    "garbage": {},
    "not_utf8": {},
    "wrong_id": {},
    "deep": {"depth": INTEGER},
    "duplicate": {},
    "huge": {"bytes": INTEGER},
    "die": {},
    "half": {},
    "never": {},
    "flood": {"n": INTEGER},
    "chatter": {"bytes": INTEGER},
    "stubborn": {},
}
LINES_BEFORE = {
    "garbage": b"Starting up... {not json]\n\n[1, 2",
    "not_utf8": b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\xff\xfe\xc3"}}',
    "wrong_id": b'{"jsonrpc":"2.0","id":"nobody-asked","result":{}}\n{"jsonrpc":"2.0","id":null,"result":{}}',
}
"""What some tools send before the answer."""


class RawServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.modern = options.era == "modern"
        self.complete = {"resultType": "complete"} if self.modern else {}
        self.hints = {"ttlMs": 0, "cacheScope": "private"} if self.modern else {}
        self.subscription: Any = None
        self.stubborn = False
        plain = [f"{options.prefix}{number:05d}" for number in range(options.tools)]
        described = {"type": "object", "properties": {"path": {"type": "string", "description": "Where to look."}}}
        self.tools = [{"name": name, "description": f"Does {name}.", "inputSchema": described} for name in plain]
        if options.task:
            self.tools.append({"name": "later", "inputSchema": {}, "execution": {"taskSupport": "required"}})
        if not options.plain:
            self.tools += [
                {"name": name, "description": f"Odd: {name}.", "inputSchema": {"type": "object", "properties": wants}}
                for name, wants in ODD_TOOLS.items()
            ]

    def write(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def send_raw(self, request_id: Any, result: bytes) -> None:
        self.write(b'{"jsonrpc":"2.0","id":' + json.dumps(request_id).encode() + b',"result":' + result + b"}\n")

    def answer(self, request_id: Any, **result: Any) -> None:
        self.send(id=request_id, result={**self.complete, **result})

    def refuse(self, request_id: Any, code: int, message: str, **data: Any) -> None:
        self.send(id=request_id, error={"code": code, "message": message, **data})

    def notify(self, method: str, **params: Any) -> None:
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": self.subscription}} if self.modern else {}
        self.send(method=method, params={**params, **meta})

    def handle(self, message: dict[str, Any]) -> None:
        method, request_id = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if request_id is None or method is None or self.options.deaf:
            return
        if method == "initialize" and self.modern:
            self.refuse(request_id, -32022, "Unsupported protocol version", data={"supported": [MODERN]})
        elif method == "initialize":
            spoken = min(params.get("protocolVersion", LEGACY), LEGACY)
            self.answer(request_id, protocolVersion=spoken, capabilities=CAPABILITIES, serverInfo=INFO)
        elif method == "server/discover" and self.modern:
            about = {"_meta": {"io.modelcontextprotocol/serverInfo": INFO}, **self.hints}
            self.answer(request_id, supportedVersions=[MODERN], capabilities=CAPABILITIES, **about)
        elif method == "tools/list":
            self.list_tools(request_id, int(params.get("cursor") or 0))
        elif method == "tools/call":
            self.call_tool(request_id, params.get("name", ""), params.get("arguments") or {})
        elif method == "subscriptions/listen":
            # The stream stays open: no answer until the process ends.
            self.subscription = request_id
            self.notify("notifications/subscriptions/acknowledged", notifications=params.get("notifications", {}))
        elif method == "ping":
            self.answer(request_id)
        else:
            self.refuse(request_id, -32601, "Method not found", data=method)

    def list_tools(self, request_id: Any, start: int) -> None:
        end = start + self.options.page if self.options.page else len(self.tools)
        more = {"nextCursor": str(end)} if end < len(self.tools) else {}
        self.answer(request_id, tools=self.tools[start:end], **more, **self.hints)

    def call_tool(self, request_id: Any, name: str, arguments: dict[str, Any]) -> None:
        kind = b'"resultType":"complete",' if self.modern else b""
        if all(tool["name"] != name for tool in self.tools):
            self.refuse(request_id, -32602, f"Unknown tool: {name}")
        elif name == "echo_raw":
            self.send_raw(request_id, arguments["result"].encode("utf-8", "surrogatepass"))
        elif name == "deep":
            depth = arguments.get("depth", 100_000)
            nested = b"[" * depth + b"]" * depth
            self.send_raw(request_id, b"{" + kind + b'"content":[],"structuredContent":{"a":' + nested + b"}}")
        elif name == "duplicate":
            second = b'"content":[],"content":[{"type":"text","text":"second"}]'
            self.send_raw(request_id, b"{" + kind + second + b"}")
        elif name == "huge":
            body = b"x" * arguments.get("bytes", 50_000_000)
            self.send_raw(request_id, b"{" + kind + b'"content":[{"type":"text","text":"' + body + b'"}]}')
        elif name == "die":
            sys.stderr.write("dying, as asked\n")
            sys.stderr.flush()
            os._exit(3)
        elif name == "half":
            self.write(b'{"jsonrpc":"2.0","id":' + json.dumps(request_id).encode() + b',"resu')
            os._exit(4)
        elif name != "never":
            self.answer_after(name, request_id, arguments)

    def answer_after(self, name: str, request_id: Any, arguments: dict[str, Any]) -> None:
        if name in LINES_BEFORE:
            self.write(LINES_BEFORE[name] + b"\n")
        elif name == "flood":
            for _ in range(arguments.get("n", 1000)):
                self.notify("notifications/tools/list_changed")
        elif name == "chatter":
            sys.stderr.write(("c" * 99 + "\n") * (arguments.get("bytes", 1_000_000) // 100))
            sys.stderr.flush()
        elif name == "stubborn":
            # From now on, neither SIGTERM nor the end of stdin ends the process.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self.stubborn = True
            arguments = {"pid": os.getpid()}
        result = {"ok": True, "arguments": arguments}
        self.answer(request_id, content=[{"type": "text", "text": json.dumps(result)}], structuredContent=result)

    def run(self) -> None:
        seen = self.options.seen or os.environ.get("TOOLCRIB_TEST_SEEN")
        while line := sys.stdin.buffer.readline():
            if seen:
                with open(seen, "ab") as file:  # noqa: PTH123 - pathlib would double the start-up time
                    file.write(line)
            try:
                message = json.loads(line)
            except ValueError:
                self.refuse(None, -32700, "Parse error")
                continue
            self.handle(message)
        while self.stubborn:
            time.sleep(60)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["modern", "legacy"], default="modern")
    parser.add_argument("--tools", type=int, default=0, help="how many plain tools, named tool_00000 and so on")
    parser.add_argument("--prefix", default="tool_")
    parser.add_argument("--plain", action="store_true", help="only the plain tools")
    parser.add_argument("--task", action="store_true", help="one more tool, which runs only as a task")
    parser.add_argument("--page", type=int, default=0, help="list this many at a time")
    parser.add_argument("--slow-start", type=float, default=0.0, help="seconds before the first answer")
    parser.add_argument("--deaf", action="store_true", help="never answer")
    parser.add_argument("--exit", type=int, default=None, help="end at once with this code")
    parser.add_argument("--seen")
    options = parser.parse_args()
    if options.exit is not None:
        sys.stderr.write("ending at once, as asked\n")
        sys.exit(options.exit)
    time.sleep(options.slow_start)
    RawServer(options).run()


if __name__ == "__main__":
    main()
