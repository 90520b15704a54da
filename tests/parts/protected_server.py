"""The MCP server behind `authorization_server.py`: the SDK's server, of both eras, behind a bearer check."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp.server.lowlevel.server import Server
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

READ, WRITE = "issues:read", "issues:write"


@dataclass(kw_only=True)
class Grant:
    """What one token or code stands for."""

    kind: str
    client_id: str
    family: int
    """The number of the sign-in, from 1."""
    scopes: frozenset[str]
    ends: float = float("inf")
    asked: dict[str, str] = field(default_factory=dict)
    used: bool = False


@dataclass(frozen=True, kw_only=True)
class McpRequest:
    method: str
    tool: str
    token: str
    status: int
    """The status of the bearer check: 200, 401 or 403."""


class Guarded:
    """The bearer check in front of the MCP server."""

    def __init__(self, app: ASGIApp, issuer: str, grants: dict[str, Grant], seen: list[McpRequest]) -> None:
        self.app = app
        self.issuer = issuer
        self.grants = grants
        self.seen = seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        message = json.loads(body) if body else {}
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        grant = self.grants.get(token)
        tool = (message.get("params") or {}).get("name", "") if message.get("method") == "tools/call" else ""
        metadata = f'resource_metadata="{self.issuer}/.well-known/oauth-protected-resource/mcp"'
        status, challenge = 200, ""
        if grant is None or grant.kind != "access" or grant.ends <= time.monotonic():
            status, challenge = 401, 'error="invalid_token", ' if token else ""
        elif tool == "write" and WRITE not in grant.scopes:
            status, challenge = 403, f'error="insufficient_scope", scope="{WRITE}", '
        method = message.get("method", request.method)
        self.seen.append(McpRequest(method=method, tool=tool, token=token, status=status))
        if status != 200:
            headers = {"WWW-Authenticate": f"Bearer {challenge}{metadata}"}
            await Response(status_code=status, headers=headers)(scope, receive, send)
            return
        scope["account"] = grant
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return unread.pop() if unread else await receive()

        await self.app(scope, again, send)


def mcp_server() -> Server[Any]:
    described = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "whoami", "write")]

    async def list_tools(_ctx: Any, _params: Any) -> Any:
        return {"tools": described, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> Any:
        text = json.dumps(params.arguments or {})
        if params.name == "whoami":
            text = f"sign-in {ctx.request.scope['account'].family}"
        return {"content": [{"type": "text", "text": text}], "resultType": "complete"}

    return Server("protected", version="1.0", on_list_tools=list_tools, on_call_tool=call_tool)
