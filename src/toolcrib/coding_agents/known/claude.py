"""Claude Code: where its servers stand, how an entry looks there, and how it is run."""

from __future__ import annotations

from toolcrib.coding_agents.client import ARGS, COMMAND, ENV, HEADERS, URL, Client, Format, Place, Scope
from toolcrib.coding_agents.headless import Headless
from toolcrib.coding_agents.known.claude_launch import is_session, launch
from toolcrib.coding_agents.known.claude_reader import ClaudeReader

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
    headless=Headless(
        program="claude",
        oldest=(2, 1, 259),
        install="npm install -g @anthropic-ai/claude-code",
        keeps=("ANTHROPIC_", "CLAUDE_"),
        launch=launch,
        reader=ClaudeReader,
        call_mark="claudecode/toolUseId",
        is_session=is_session,
    ),
    project_notes=("Claude Code asks you once before it uses a server of a project's file.",),
)
