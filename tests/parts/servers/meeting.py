"""A legacy stdio server with two tools: `meet` answers when two calls wait, `refuse` always fails.

Standard library only, so that it starts fast.
"""

import json
import sys

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "title": "Meeting",
    "properties": {
        "who": {"$ref": "#/$defs/name", "description": "Who comes"},
        "mood": {"enum": ["good", "bad"], "default": "good"},
        "seat": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}], "title": "Seat"},
        "tags": {"type": "object", "additionalProperties": {"type": "string", "format": "date-time"}},
    },
    "required": ["who"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 1}},
}
TOOLS = [
    {"name": "meet", "description": "Meets another.", "inputSchema": SCHEMA},
    {"name": "refuse", "description": "Says no.", "inputSchema": {"type": "object"}},
]

waiting = {}


def put(ident, result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": ident, "result": result}) + "\n")
    sys.stdout.flush()


def words(text, *, failed=False):
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def call(ident, params):
    if params["name"] == "refuse":
        put(ident, words("no, thank you", failed=True))
        return
    waiting[ident] = params["arguments"]["who"]
    if len(waiting) == 2:
        for one, who in waiting.items():
            put(one, words(f"{who} met {' and '.join(sorted(set(waiting.values()) - {who}))}"))
        waiting.clear()


def main():
    for line in sys.stdin:
        message = json.loads(line)
        ident, method, params = message.get("id"), message.get("method"), message.get("params") or {}
        if method == "initialize":
            about = {"serverInfo": {"name": "meeting", "version": "1"}, "capabilities": {"tools": {}}}
            put(ident, {"protocolVersion": params["protocolVersion"], **about})
        elif method == "tools/list":
            put(ident, {"tools": TOOLS})
        elif method == "tools/call":
            call(ident, params)
        elif ident is not None:
            error = {"code": -32601, "message": "unknown method"}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": ident, "error": error}) + "\n")
            sys.stdout.flush()


main()
