"""The words that `servers` and its neighbours above share.

In: nothing. Out: the shapes of a call to a server, its answer, and a server's state. What is made for every call is a
msgspec struct: as frozen as a dataclass, and made in a tenth of the time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

MODERN_VERSION = "2026-07-28"


class Era(enum.StrEnum):
    """Which of MCP's two ways the far side speaks."""

    MODERN = "modern"
    LEGACY = "legacy"


class ServerState(enum.StrEnum):
    CONNECTING = "connecting"
    READY = "ready"
    UNAVAILABLE = "unavailable"
    """Not connected; the supervisor tries again."""
    FAILED = "failed"
    """Not connected, and nothing is tried any more until a restart."""
    STOPPED = "stopped"


OnProgress = Callable[[dict[str, Any]], None]
"""Gets a progress notification's params without the token, which differs on each side."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tools/call as the server shall get it. What is raw stays raw."""

    name: str
    """The server's own name of the tool."""
    params: Mapping[str, Raw] = msgspec.field(default_factory=dict)
    """The caller's params as they came (`arguments` and whatever else), without `name` and `_meta`."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The caller's `_meta` without the keys that belong to the connection it came over."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """`Mcp-Param-*` headers made from the tool's schema; only modern HTTP servers get them."""


class ServerAnswer(msgspec.Struct, frozen=True):
    """What the server said: exactly one of the two, as raw JSON."""

    result: bytes | None = None
    error: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class ServerStatus:
    name: str
    state: ServerState
    transport: str
    root: str | None = None
    protocol_version: str | None = None
    pid: int | None = None
    tools: int = 0
    since: float | None = None
    """When the present state began (seconds since the epoch)."""
    last_seen: float | None = None
    """When the far side last answered anything."""
    last_error: str = ""
    attempts: int = 0
    server_info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str = ""
