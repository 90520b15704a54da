"""A stdio server with many or odd resources and prompts. Standard library only: it sends exactly the bytes it means.

In: newline-delimited JSON-RPC, modern or legacy by `--era`. Out: `--resources` resources and one prompt; their
addresses begin with `--scheme`. The tool `flood` announces changes for some seconds, a thousand times a second; `exit`
ends the process. `--seen FILE` gets each request as a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

MODERN = "2026-07-28"
EXACT = b'{"contents":[ {"uri":"@URI@","text":"h\\u00e9 \\ud83d\\ude00","n":1.0,"x":null}],"unknown":{"a":1e2}@MORE@}'
"""The result of a read; a client gets these bytes."""
STEP = 0.001


UPDATED = "notifications/resources/updated"
TOOLS = ("flood", "exit", "ok", "announce")


class OffersServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.modern = options.era == "modern"
        self.lock = threading.Lock()
        self.subscription: Any = None

    def put(self, line: bytes) -> None:
        with self.lock:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()

    def notify(self, method: str, **params: Any) -> None:
        if self.modern:
            params["_meta"] = {"io.modelcontextprotocol/subscriptionId": self.subscription}
        self.put(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def uri(self, name: Any) -> str:
        return f"{self.options.scheme}://{name}"

    def answer(self, id: Any, result: dict[str, Any]) -> None:
        if self.modern:
            result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **result}
        self.put(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}).encode())

    def hear(self, message: dict[str, Any]) -> None:
        id, method, params = message.get("id"), message.get("method", ""), message.get("params") or {}
        self.note(method, params.get("uri") or params.get("name"))
        if method == "resources/read":
            self.read(id, params["uri"])
        elif method == "tools/call":
            self.call(id, params["name"], params.get("arguments") or {})
        elif method == "subscriptions/listen":
            self.subscription = id
            wanted = params["notifications"]
            self.notify("notifications/subscriptions/acknowledged", notifications=wanted)
        elif method == ("initialize" if self.modern else "server/discover"):
            refused = {"code": -32601, "message": "Method not found"}
            self.put(json.dumps({"jsonrpc": "2.0", "id": id, "error": refused}).encode())
        elif id is not None:
            self.answer(id, self.listed(method))

    def note(self, method: str, about: str | None = None) -> None:
        if self.options.seen:
            with self.options.seen.open("a") as file:
                file.write(json.dumps({"method": method, "about": about}) + "\n")

    def listed(self, method: str) -> dict[str, Any]:
        capabilities = {
            "tools": {},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {"listChanged": True},
        }
        match method:
            case "initialize":
                about = {"name": "offers", "version": "1"}
                return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": about}
            case "server/discover":
                return {"supportedVersions": [MODERN], "capabilities": capabilities}
            case "tools/list":
                return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
            case "resources/list":
                return {"resources": [{"uri": self.uri(n), "name": str(n)} for n in range(self.options.resources)]}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": self.uri("t/{id}"), "name": "t"}]}
            case "prompts/list":
                return {"prompts": [{"name": "same"}]}
            case "prompts/get":
                return {"messages": [{"role": "user", "content": {"type": "text", "text": self.options.scheme}}]}
            case _:
                return {}

    def read(self, id: Any, uri: str) -> None:
        if "/big/" in uri:
            text = "x" * int(uri.rpartition("/")[2])
            self.answer(id, {"contents": [{"uri": uri, "text": text}]})
            return
        more = b',"resultType":"complete","ttlMs":7,"cacheScope":"public"' if self.modern else b""
        result = EXACT.replace(b"@URI@", uri.encode()).replace(b"@MORE@", more)
        self.put(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(id).encode(), result))

    def call(self, id: Any, name: str, arguments: dict[str, Any]) -> None:
        if name == "exit":
            os._exit(0)
        for params in arguments.get("announced", ()):
            self.put(json.dumps({"jsonrpc": "2.0", "method": UPDATED, "params": params}).encode())
        if name == "flood":
            threading.Thread(target=self.flood, args=(arguments["seconds"],), daemon=True).start()
        self.answer(id, {"content": [{"type": "text", "text": self.options.scheme}]})

    def flood(self, seconds: float) -> None:
        due = time.monotonic()
        end = due + seconds
        while due < end:
            self.notify(UPDATED, uri=self.uri(0))
            self.notify("notifications/resources/list_changed")
            due += STEP
            time.sleep(max(0.0, due - time.monotonic()))
        self.note("the flood has ended")
        self.notify(UPDATED, uri=self.uri(0))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=["modern", "legacy"], default="legacy")
    parser.add_argument("--scheme", default="test")
    parser.add_argument("--resources", type=int, default=3)
    parser.add_argument("--seen", type=Path)
    server = OffersServer(parser.parse_args())
    while line := sys.stdin.buffer.readline():
        server.hear(json.loads(line))


if __name__ == "__main__":
    main()
