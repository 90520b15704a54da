"""The words on the wire, in both eras: what the load client sends and what the echo upstreams know.

In: an era, a method, params. Out: bytes of JSON bodies and of whole HTTP requests. Standard library
only, and nothing at import but constants, because the stdio echo counts towards measured start times.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

MODERN = "modern"
LEGACY = "legacy"
ERAS = (MODERN, LEGACY)
MODERN_VERSION = "2026-07-28"
LEGACY_VERSION = "2025-11-25"
VERSION = {MODERN: MODERN_VERSION, LEGACY: LEGACY_VERSION}

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
META_CLIENT = "io.modelcontextprotocol/clientInfo"
CLIENT = {"name": "toolcrib-bench", "version": "1"}

ECHO_TEXT = "seven hammers hang on the wall of the crib"
BIG_RESULT = 5_000_000
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def params(era: str, **fields: Any) -> bytes:
    """The params of a request; a modern one says who it is in `_meta`."""
    if era == MODERN:
        fields["_meta"] = {META_VERSION: MODERN_VERSION, META_CAPABILITIES: {}, META_CLIENT: CLIENT}
    return compact(fields)


def call_params(era: str, tool: str, arguments: dict[str, Any]) -> bytes:
    return params(era, name=tool, arguments=arguments)


def initialize_params() -> bytes:
    return compact({"protocolVersion": LEGACY_VERSION, "capabilities": {}, "clientInfo": CLIENT})


def body(method: str, raw_params: bytes, request_id: bytes = b"1") -> bytes:
    return b'{"jsonrpc":"2.0","id":' + request_id + b',"method":' + compact(method) + b',"params":' + raw_params + b"}"


INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


def http_headers(era: str, method: str, *, tool: str = "", token: str = "", session: str = "") -> dict[str, str]:
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": VERSION[era],
    }
    if era == MODERN:
        headers["Mcp-Method"] = method
        if tool:
            headers["Mcp-Name"] = tool
    elif method == "initialize":
        del headers["MCP-Protocol-Version"]
    if session:
        headers["Mcp-Session-Id"] = session
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def http_head(url: str, headers: dict[str, str]) -> bytes:
    """The head of a POST, without Content-Length and the empty line: `http_request` adds them."""
    parts = urlsplit(url)
    lines = [f"POST {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n"


def http_request(head: bytes, content: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(content) + content


def json_of(content: bytes) -> Any:
    """The JSON-RPC answer in an HTTP body: plain JSON, or the last message of an event stream."""
    if content.lstrip()[:1] == b"{":
        return json.loads(content)
    data = [line[5:].strip() for line in content.splitlines() if line.startswith(b"data:")]
    messages = [json.loads(line) for line in data if line]
    answers = [message for message in messages if "result" in message or "error" in message]
    if not answers:
        raise ValueError(f"no JSON-RPC answer in {content[:200]!r}")
    return answers[-1]


def tool_definitions(count: int) -> list[dict[str, Any]]:
    """`echo`, `big`, and fillers of about 650 bytes each, the size of the tools of real servers."""
    text = {"type": "string", "description": "What shall come back."}
    size = {"type": "integer", "minimum": 0, "description": "Characters of the result."}
    tools: list[dict[str, Any]] = [
        {
            "name": "echo",
            "description": "Say it again.",
            "inputSchema": _object({"text": text}, ["text"]),
            "annotations": {"readOnlyHint": True},
        },
        {"name": "big", "description": "A long text.", "inputSchema": _object({"size": size}, ["size"])},
    ]
    return (tools + [_filler(number) for number in range(2, count)])[: max(count, 2)]


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _filler(number: int) -> dict[str, Any]:
    properties = {
        "path": {"type": "string", "description": "The file or folder to work on, relative to the root."},
        "depth": {"type": "integer", "minimum": 0, "maximum": 64, "default": 1, "description": "How far down to go."},
        "order": {"type": "string", "enum": ["name", "size", "time"], "description": "How to sort what was found."},
        "hidden": {"type": "boolean", "default": False, "description": "Whether names with a leading dot count."},
    }
    return {
        "name": f"tool_{number:05d}",
        "title": f"Tool number {number}",
        "description": f"Looks through place {number} and answers with what it found there, sorted as asked.",
        "inputSchema": _object(properties, ["path"]),
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }
