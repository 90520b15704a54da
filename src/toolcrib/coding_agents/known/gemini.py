"""Gemini CLI: where its servers stand, and how an entry looks there."""

from __future__ import annotations

from toolcrib.coding_agents.client import ARGS, COMMAND, ENV, HEADERS, URL, Client, Format, Place, Scope

GEMINI = Client(
    name="gemini",
    title="Gemini CLI",
    format=Format.JSON,
    keys=("mcpServers",),
    places={
        Scope.USER: Place(folder=".gemini", file="settings.json"),
        Scope.PROJECT: Place(folder=".gemini", file="settings.json"),
    },
    stdio_shape={"command": COMMAND, "args": ARGS, "env": ENV},
    # `url` would mean the old SSE transport.
    http_shape={"httpUrl": URL, "headers": HEADERS},
    private_shape={"httpUrl": URL, "headers": HEADERS, "trust": True},
    private_use="put what {file} holds into FOLDER/.gemini/settings.json, then GEMINI_CLI_HOME=FOLDER gemini",
    stdio_notes=(
        'Gemini CLI leaves the tools out of runs that nobody watches unless the entry has "trust": true, '
        "which also ends its questions before each call: add it yourself if you want that.",
    ),
    http_notes=('For runs that nobody watches, add "trust": true to the entry yourself.',),
)
