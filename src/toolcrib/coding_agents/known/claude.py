"""Claude Code: where its servers stand, and how an entry looks there."""

from __future__ import annotations

from toolcrib.coding_agents.client import ARGS, COMMAND, ENV, HEADERS, URL, Client, Format, Place, Scope

CLAUDE = Client(
    name="claude",
    title="Claude Code",
    format=Format.JSON,
    keys=("mcpServers",),
    places={
        Scope.USER: Place(file=".claude.json", variable="CLAUDE_CONFIG_DIR"),
        Scope.PROJECT: Place(file=".mcp.json"),
    },
    stdio_shape={"type": "stdio", "command": COMMAND, "args": ARGS, "env": ENV},
    http_shape={"type": "http", "url": URL, "headers": HEADERS},
    private_shape={"type": "http", "url": URL, "headers": HEADERS},
    private_use="claude --mcp-config {file} --strict-mcp-config --allowedTools mcp__toolcrib",
    project_notes=("Claude Code asks you once before it uses a server of a project's file.",),
)
