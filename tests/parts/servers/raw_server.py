"""A stdio server that misbehaves on request. Standard library only, so that it starts in a few milliseconds.

In: newline-delimited JSON-RPC on stdin, modern or legacy by `--era`. Out: answers, as the flags choose.
Flags change how the whole server behaves; the tools below misbehave once, when called:

    ok            {"ok": true} and the arguments          echo_raw      the bytes of `result`, a JSON text, as they are
    garbage       an invalid line, then the answer         not_utf8      bytes that are not UTF-8, then the answer
    deep          a result nested `depth` times            duplicate     a result with one key twice
    huge          a result of `bytes` bytes                wrong_id      an answer to no request, then the answer
    die           ends the process in the middle of a call never         no answer at all
    half          half a line, then the process ends       both          an answer with result and error
    flood         `n` list_changed notices, then answers   no_result     an answer with neither result nor error
    chatter       `bytes` bytes on stderr, then answers    grandchild    leaves a child process and returns its pid
    stubborn      then neither SIGTERM nor the end of stdin ends the process

`--tools N` adds N plain tools named `tool_00000`…; `--slow-start S` waits before the first answer; `--prefix P`
names them `P…`; `--page N` lists N at a time; `--deaf` never answers; `--exit CODE` ends at once;
`--seen FILE` (or TOOLCRIB_TEST_SEEN) gets each message received as a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from typing import Any, BinaryIO

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ODD_TOOLS = {
    "ok": {},
    "echo_raw": {"result": {"type": "string"}},
    "garbage": {},
    "not_utf8": {},
    "deep": {"depth": {"type": "integer"}},
    "duplicate": {},
    "huge": {"bytes": {"type": "integer"}},
    "wrong_id": {},
    "die": {},
    "never": {},
    "half": {},
    "both": {},
    "no_result": {},
    "flood": {"n": {"type": "integer"}},
    "chatter": {"bytes": {"type": "integer"}},
    "grandchild": {},
    "stubborn": {},
}


class RawServer:
    def __init__(self, options: argparse.Namespace, out: BinaryIO) -> None:
        self.options = options
        self.out = out
        self.modern = options.era == "modern"
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

    def line(self, data: bytes) -> None:
        self.out.write(data + b"\n")
        self.out.flush()

    def answer(self, request_id: Any, result: dict[str, Any]) -> None:
        if self.modern:
            result = {"resultType": "complete", **result}
        self.line(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode())

    def raw_result(self, request_id: Any, members: bytes) -> None:
        """An answer whose result holds these members, byte for byte."""
        kind = b'"resultType":"complete",' if self.modern else b""
        self.line(b'{"jsonrpc":"2.0","id":' + json.dumps(request_id).encode() + b',"result":{' + kind + members + b"}}")

    def refuse(self, request_id: Any, code: int, message: str, data: Any = None) -> None:
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        self.line(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode())

    def handle(self, message: dict[str, Any]) -> None:
        method, request_id = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if request_id is None or method is None or self.options.deaf:
            return
        known = {
            "initialize": self.initialize,
            "server/discover": self.discover,
            "tools/list": self.list_tools,
            "tools/call": self.call_tool,
            "subscriptions/listen": self.listen,
            "ping": self.ping,
        }.get(method)
        if known is None:
            self.refuse(request_id, -32601, "Method not found", method)
        else:
            known(request_id, params)

    def initialize(self, request_id: Any, params: dict[str, Any]) -> None:
        if self.modern:
            self.refuse(request_id, -32022, "Unsupported protocol version", {"supported": [MODERN]})
            return
        asked = params.get("protocolVersion", LEGACY)
        info = {"name": "raw", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        spoken = asked if asked <= LEGACY else LEGACY
        self.answer(request_id, {"protocolVersion": spoken, "capabilities": capabilities, "serverInfo": info})

    def discover(self, request_id: Any, _params: dict[str, Any]) -> None:
        if not self.modern:
            self.refuse(request_id, -32601, "Method not found")
            return
        capabilities = {"tools": {"listChanged": True}}
        stamp = {"io.modelcontextprotocol/serverInfo": {"name": "raw", "version": "1"}}
        hints = {"ttlMs": 0, "cacheScope": "private"}
        self.answer(request_id, {"supportedVersions": [MODERN], "capabilities": capabilities, "_meta": stamp, **hints})

    def ping(self, request_id: Any, _params: dict[str, Any]) -> None:
        self.answer(request_id, {})

    def listen(self, request_id: Any, params: dict[str, Any]) -> None:
        """The stream stays open: no answer until the process ends."""
        self.subscription = request_id
        self.notify("notifications/subscriptions/acknowledged", {"notifications": params.get("notifications", {})})

    def notify(self, method: str, params: dict[str, Any] | None = None) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if self.modern:
            subscription = getattr(self, "subscription", None)
            message["params"]["_meta"] = {"io.modelcontextprotocol/subscriptionId": subscription}
        self.line(json.dumps(message).encode())

    def list_tools(self, request_id: Any, params: dict[str, Any]) -> None:
        start = int(params.get("cursor") or 0)
        end = start + self.options.page if self.options.page else len(self.tools)
        more = {"nextCursor": str(end)} if end < len(self.tools) else {}
        hints = {"ttlMs": 0, "cacheScope": "private"} if self.modern else {}
        self.answer(request_id, {"tools": self.tools[start:end], **more, **hints})

    def call_tool(self, request_id: Any, params: dict[str, Any]) -> None:
        name, arguments = params.get("name", ""), params.get("arguments") or {}
        odd = getattr(self, f"odd_{name}", None)
        if odd is not None:
            odd(request_id, arguments)
        elif any(tool["name"] == name for tool in self.tools):
            self.ok(request_id, arguments)
        else:
            self.refuse(request_id, -32602, f"Unknown tool: {name}")

    def ok(self, request_id: Any, arguments: dict[str, Any] | None = None) -> None:
        result = {"ok": True, "arguments": arguments or {}}
        self.answer(
            request_id, {"content": [{"type": "text", "text": json.dumps(result)}], "structuredContent": result}
        )

    odd_ok = ok

    def odd_echo_raw(self, request_id: Any, arguments: dict[str, Any]) -> None:
        head = b'{"jsonrpc":"2.0","id":' + json.dumps(request_id).encode() + b',"result":'
        self.line(head + arguments["result"].encode("utf-8", "surrogatepass") + b"}")

    def odd_garbage(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        self.line(b"Starting up... {not json]")
        self.line(b"")
        self.line(b"[1, 2")
        self.ok(request_id)

    def odd_not_utf8(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        self.line(b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"\xff\xfe\xc3"}}')
        self.ok(request_id)

    def odd_deep(self, request_id: Any, arguments: dict[str, Any]) -> None:
        depth = arguments.get("depth", 100_000)
        nested = b"[" * depth + b"]" * depth
        self.raw_result(request_id, b'"content":[],"structuredContent":{"a":' + nested + b"}")

    def odd_duplicate(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        self.raw_result(request_id, b'"content":[],"content":[{"type":"text","text":"second"}]')

    def odd_huge(self, request_id: Any, arguments: dict[str, Any]) -> None:
        body = b"x" * arguments.get("bytes", 50_000_000)
        self.raw_result(request_id, b'"content":[{"type":"text","text":"' + body + b'"}]')

    def odd_wrong_id(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        self.answer("nobody-asked", {"content": []})
        self.answer(None, {"content": []})
        self.ok(request_id)

    def odd_die(self, _request_id: Any, _arguments: dict[str, Any]) -> None:
        sys.stderr.write("dying, as asked\n")
        sys.stderr.flush()
        os._exit(3)

    def odd_never(self, _request_id: Any, _arguments: dict[str, Any]) -> None:
        return

    def odd_half(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        self.out.write(b'{"jsonrpc":"2.0","id":' + json.dumps(request_id).encode() + b',"resu')
        self.out.flush()
        os._exit(4)

    def odd_both(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        both = {"result": {"content": [], "resultType": "complete"}, "error": {"code": 1, "message": "both"}}
        self.line(json.dumps({"jsonrpc": "2.0", "id": request_id, **both}).encode())

    def odd_no_result(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        self.line(json.dumps({"jsonrpc": "2.0", "id": request_id}).encode())

    def odd_flood(self, request_id: Any, arguments: dict[str, Any]) -> None:
        for _ in range(arguments.get("n", 1000)):
            self.notify("notifications/tools/list_changed")
        self.ok(request_id)

    def odd_chatter(self, request_id: Any, arguments: dict[str, Any]) -> None:
        for _ in range(arguments.get("bytes", 1_000_000) // 100):
            sys.stderr.write("c" * 99 + "\n")
        sys.stderr.flush()
        self.ok(request_id)

    def odd_grandchild(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        import subprocess  # costs a third of the start-up time, and only this tool needs it

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.DEVNULL)
        self.ok(request_id, {"pid": child.pid})

    def odd_stubborn(self, request_id: Any, _arguments: dict[str, Any]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.stubborn = True
        self.ok(request_id, {"pid": os.getpid()})

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
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--prefix", default="tool_")
    parser.add_argument("--plain", action="store_true", help="only the plain tools")
    parser.add_argument("--task", action="store_true", help="one more tool, which runs only as a task")
    parser.add_argument("--page", type=int, default=0)
    parser.add_argument("--slow-start", type=float, default=0.0)
    parser.add_argument("--deaf", action="store_true")
    parser.add_argument("--exit", type=int, default=None)
    parser.add_argument("--seen")
    options = parser.parse_args()
    if options.exit is not None:
        sys.stderr.write("ending at once, as asked\n")
        sys.exit(options.exit)
    time.sleep(options.slow_start)
    RawServer(options, sys.stdout.buffer).run()


if __name__ == "__main__":
    main()
