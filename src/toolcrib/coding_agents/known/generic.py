"""Any other MCP client: where its servers stand, and how an entry looks there."""

from __future__ import annotations

from toolcrib.coding_agents.client import ARGS, COMMAND, ENV, HEADERS, URL, Client, Format

GENERIC = Client(
    name="generic",
    title="any other MCP client",
    format=Format.JSON,
    keys=("mcpServers",),
    places={},
    stdio_shape={"command": COMMAND, "args": ARGS, "env": ENV},
    http_shape={"type": "http", "url": URL, "headers": HEADERS},
    # The endpoint is plain HTTP on loopback, so there is nothing to verify now; an address put there later is.
    private_shape={
        "type": "streamable-http",
        "url": URL,
        "headers": HEADERS,
        "verifySsl": True,
        "retry": {"maxAttempts": 3, "backoffMs": 1000},
    },
    private_use="give {file} to the client as its file of servers",
    http_notes=("Many clients replace ${…} by a variable's value; look up how yours does it.",),
)
