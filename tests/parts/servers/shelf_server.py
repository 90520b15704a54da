"""A stdio server with resources, templates and prompts. Standard library only, so that it starts in a few milliseconds.

In: newline-delimited JSON-RPC of the legacy era. `--seen FILE` gets each request as a JSON line. Out: answers. The tool
`add` lists another resource and announces it; `link` links to one that is in no list. With `--gate FILE` it waits for
this file before it answers anything; with `--tools` it has only tools.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

BINARY = bytes(range(256))
HIDDEN = "shelf://hidden"
TEXTS = {
    "shelf://1": "first\nline two\n",
    "shelf://own": "\x1b[31mred\x1b[0m",
    "shelf://dir/a": "a",
    HIDDEN: "found by its link",
}


class Shelf:
    def __init__(self, seen: Path | None, *, only_tools: bool) -> None:
        self.seen = seen
        self.only_tools = only_tools
        self.listed: list[Json] = [
            {"uri": "shelf://1", "name": "one", "title": "The first", "mimeType": "text/plain", "x-own": [1.0, None]},
            {"uri": "shelf://own", "name": "own", "description": "Has a colour.\nMore."},
            {"uri": "shelf://binary", "name": "binary", "mimeType": "application/x-all"},
            {"uri": "shelf://both", "name": "both"},
        ]
        arguments = [{"name": "topic", "description": "About what.", "required": True}, {"name": "tone"}]
        self.prompts: list[Json] = [{"name": "write", "description": "Write a text.", "arguments": arguments}]
        self.tools: list[Json] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("add", "link")]

    def answer(self, message: Json) -> None:
        if self.seen is not None:
            with self.seen.open("a") as file:
                file.write(json.dumps(message) + "\n")
        if "id" not in message or "method" not in message:
            return
        try:
            found: Json = {"result": self.result(message["method"], message.get("params") or {})}
        except LookupError as error:
            found = {"error": {"code": -32002, "message": f"Resource not found: {error}", "data": {"uri": str(error)}}}
        send({"id": message["id"], **found})

    def result(self, method: str, params: Json) -> Json:
        match method:
            case "initialize":
                offered = {"resources": {"listChanged": True, "subscribe": True}, "prompts": {}, "tools": {}}
                offered = {"tools": {}} if self.only_tools else offered
                info = {"name": "shelf", "version": "1"}
                about = {"serverInfo": info, "instructions": "Ask for one book at a time."}
                return {"protocolVersion": "2025-11-25", "capabilities": offered, **about}
            case "tools/list":
                return {"tools": self.tools}
            case "resources/list":
                return {"resources": self.listed}
            case "resources/templates/list":
                return {"resourceTemplates": [{"uriTemplate": "shelf://dir/{name}", "name": "dir"}]}
            case "prompts/list":
                return {"prompts": self.prompts}
            case "resources/read":
                return {"contents": self.contents(params["uri"]), "x-more": 1}
            case "prompts/get":
                return self.messages(params.get("arguments") or {})
            case "tools/call" if params["name"] == "add":
                self.listed.append({"uri": "shelf://added", "name": "added"})
                send({"method": "notifications/resources/list_changed"})
                return {"content": []}
            case "tools/call":
                return {"content": [{"type": "resource_link", "uri": HIDDEN, "name": "hidden"}]}
        return {}

    def contents(self, uri: str) -> list[Json]:
        if uri == "shelf://binary":
            return [{"uri": uri, "mimeType": "application/x-all", "blob": base64.b64encode(BINARY).decode()}]
        if uri == "shelf://both":
            return [{"uri": uri, "text": "a text"}, *self.contents("shelf://binary")]
        if uri == "shelf://dir/odd":
            return [{"uri": uri, "bytes": 3}]
        if uri not in TEXTS:
            raise LookupError(uri)
        return [{"uri": uri, "text": TEXTS[uri], "_meta": {"n": 1}}]

    def messages(self, arguments: Json) -> Json:
        text = {"type": "text", "text": f"Write about {arguments.get('topic')}, {arguments.get('tone', 'plain')}."}
        inside = {"type": "resource", "resource": {"uri": "shelf://1", "text": TEXTS["shelf://1"]}}
        said = [{"role": "user", "content": text}, {"role": "assistant", "content": inside}]
        return {"description": "A text.", "messages": said}


def send(message: Json) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seen", type=Path)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--tools", action="store_true")
    options = parser.parse_args()
    while options.gate is not None and not options.gate.exists():
        time.sleep(0.02)
    shelf = Shelf(options.seen, only_tools=options.tools)
    for line in sys.stdin:
        shelf.answer(json.loads(line))


if __name__ == "__main__":
    main()
