"""An MCP server with one tool and no dependency: the time in a zone. Speaks MCP 2025-06-18 over stdio."""

import json
import sys
from datetime import datetime
from zoneinfo import ZoneInfo

NOW = {
    "name": "now",
    "description": "The time now in an IANA time zone.",
    "inputSchema": {
        "type": "object",
        "properties": {"zone": {"type": "string", "description": "For example Europe/Lisbon"}},
        "required": ["zone"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": False},
}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        info = {"name": "clock", "version": "1"}
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [NOW]}
    if method == "tools/call":
        try:
            text, failed = datetime.now(ZoneInfo(params["arguments"]["zone"])).isoformat(timespec="seconds"), False
        except (KeyError, ValueError) as error:
            text, failed = f"no such zone: {error}", True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    if method == "ping":
        return {}
    raise LookupError(method)


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        reply["result"] = answer(message["method"], message.get("params", {}))
    except LookupError as unknown:
        reply["error"] = {"code": -32601, "message": f"Method not found: {unknown}"}
    print(json.dumps(reply), flush=True)
