"""What both echo upstreams answer, whatever carries it.

In: one JSON-RPC message as a dict. Out: the HTTP status and the bytes of the answer, or None for a
notification. Answers that do not change are made once, so that the upstream costs as little as can be.
"""

from __future__ import annotations

import json
from typing import Any

from messages import (
    INVALID_PARAMS,
    LEGACY_VERSION,
    META_VERSION,
    METHOD_NOT_FOUND,
    MODERN,
    MODERN_VERSION,
    compact,
    tool_definitions,
)

NAME = {"name": "bench-echo", "version": "1"}
CACHE = {"ttlMs": 0, "cacheScope": "private"}


class Echo:
    """An MCP server of one era with `tools` tools; the other era's opening is refused as the era demands."""

    def __init__(self, era: str, tools: int) -> None:
        self._modern = era == MODERN
        tail: dict[str, Any] = {"resultType": "complete", **CACHE} if self._modern else {}
        self._fixed = {"tools/list": compact({"tools": tool_definitions(tools), **tail})}
        self._call_tail = b',"resultType":"complete"}' if self._modern else b"}"
        self._big: dict[int, bytes] = {}
        if self._modern:
            discover = {"supportedVersions": [MODERN_VERSION], "capabilities": {"tools": {}}, "serverInfo": NAME}
            self._fixed["server/discover"] = compact({**discover, **tail})
        else:
            hello = {"protocolVersion": LEGACY_VERSION, "capabilities": {"tools": {}}, "serverInfo": NAME}
            self._fixed["initialize"] = compact(hello)
            self._fixed["ping"] = b"{}"

    def answer(self, message: dict[str, Any]) -> tuple[int, bytes] | None:
        if "id" not in message:
            return None
        method, params = message.get("method"), message.get("params") or {}
        request_id = json.dumps(message["id"]).encode()
        if self._modern and params.get("_meta", {}).get(META_VERSION) != MODERN_VERSION:
            return 400, _error(request_id, INVALID_PARAMS, f"_meta must hold {META_VERSION} = {MODERN_VERSION}")
        if method == "tools/call":
            result = self._call(params)
            if result is None:
                return 200, _error(request_id, INVALID_PARAMS, "unknown tool or wrong arguments")
            return 200, _result(request_id, result)
        fixed = self._fixed.get(str(method))
        if fixed is None:
            return 404 if self._modern else 400, _error(request_id, METHOD_NOT_FOUND, f"no method {method}")
        return 200, _result(request_id, fixed)

    def _call(self, params: dict[str, Any]) -> bytes | None:
        arguments = params.get("arguments") or {}
        if params.get("name") == "echo" and isinstance(arguments.get("text"), str):
            text = json.dumps(arguments["text"]).encode()
        elif params.get("name") == "big" and isinstance(arguments.get("size"), int):
            size = arguments["size"]
            text = self._big.setdefault(size, b'"' + b"x" * size + b'"')
        else:
            return None
        return b'{"content":[{"type":"text","text":' + text + b"}]" + self._call_tail


def _result(request_id: bytes, result: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + result + b"}"


def _error(request_id: bytes, code: int, message: str) -> bytes:
    error = compact({"code": code, "message": message})
    return b'{"jsonrpc":"2.0","id":' + request_id + b',"error":' + error + b"}"
