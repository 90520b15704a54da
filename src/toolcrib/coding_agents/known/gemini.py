"""Gemini CLI: where its servers stand, how an entry looks there, and how it is run."""

from __future__ import annotations

import re

from toolcrib.coding_agents.client import ARGS, COMMAND, ENV, HEADERS, URL, Client, Format, Place, Scope
from toolcrib.coding_agents.headless import Headless
from toolcrib.coding_agents.known.gemini_launch import launch
from toolcrib.coding_agents.known.gemini_reader import GeminiReader

_SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

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
    headless=Headless(
        program="gemini",
        oldest=(0, 61, 0),
        install="npm install -g @google/gemini-cli",
        keeps=("GEMINI_", "GOOGLE_", "CODE_ASSIST_", "CLOUD_SHELL"),
        launch=launch,
        reader=GeminiReader,
        is_session=lambda text: _SESSION.fullmatch(text) is not None,
    ),
    stdio_notes=(
        'Gemini CLI leaves the tools out of runs that nobody watches unless the entry has "trust": true, '
        "which also ends its questions before each call: add it yourself if you want that.",
    ),
    http_notes=('For runs that nobody watches, add "trust": true to the entry yourself.',),
)
