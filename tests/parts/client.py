"""The SDK's MCP client, of either era, at the daemon's endpoint or through `toolcrib stdio`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from parts.daemon import PROGRAM, Daemon

MODES = {"modern": "2026-07-28", "legacy": "legacy"}
TIMEOUT = 30.0


@contextlib.asynccontextmanager
async def at_endpoint(daemon: Daemon, era: str, **options: Any) -> AsyncIterator[Client]:
    """Over HTTP with the owner's token."""
    # No proxies: everything here is on loopback.
    http = httpx2.AsyncClient(headers=daemon.headers, timeout=TIMEOUT, trust_env=False)
    async with over_http(daemon.endpoint, http, MODES[era], **options) as client:
        yield client


@contextlib.asynccontextmanager
async def over_http(url: str, http: httpx2.AsyncClient, mode: str, **options: Any) -> AsyncIterator[Client]:
    async with http:
        transport = streamable_http_client(url, http_client=http, max_sse_event_size=None)
        async with Client(transport, mode=mode, **options) as client:
            yield client


@contextlib.asynccontextmanager
async def through_bridge(daemon: Daemon, era: str, **options: Any) -> AsyncIterator[Client]:
    """Through `toolcrib stdio`, started in the project."""
    home = daemon.home
    server = StdioServerParameters(command=str(PROGRAM), args=["stdio"], env=home.environ(), cwd=home.project)
    async with Client(server, mode=MODES[era], **options) as client:
        yield client
