"""Codex: where its servers stand, how an entry looks there, and how it is run."""

from __future__ import annotations

from toolcrib.coding_agents.client import ARGS, COMMAND, ENV, HEADERS, TOKEN_VARIABLE, URL, Client, Format, Place, Scope
from toolcrib.coding_agents.headless import Headless
from toolcrib.coding_agents.known.codex_launch import is_session, launch
from toolcrib.coding_agents.known.codex_reader import CodexReader

CODEX = Client(
    name="codex",
    title="Codex",
    format=Format.TOML,
    keys=("mcp_servers",),
    places={
        Scope.USER: Place(folder=".codex", file="config.toml", variable="CODEX_HOME"),
        Scope.PROJECT: Place(folder=".codex", file="config.toml"),
    },
    # Without `required` Codex waits one second and then goes on without the tools; a cold start of the daemon may
    # take longer, hence also the limit. Codex hands a server few variables: these say where our files are.
    stdio_shape={
        "command": COMMAND,
        "args": ARGS,
        "env": ENV,
        "env_vars": ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"],
        "required": True,
        "startup_timeout_sec": 20,
    },
    http_shape={
        "url": URL,
        "bearer_token_env_var": TOKEN_VARIABLE,
        "http_headers": HEADERS,
        "required": True,
        "startup_timeout_sec": 20,
    },
    authorization="",
    private_shape={
        "url": URL,
        "http_headers": HEADERS,
        "default_tools_approval_mode": "approve",
        "required": True,
        "startup_timeout_sec": 20,
    },
    private_use="ln -s {file} ~/.codex/toolcrib.config.toml, then codex --profile toolcrib",
    headless=Headless(
        program="codex",
        # What its features are called, and that words switch them off, was tried with this one.
        oldest=(0, 166, 0),
        install="npm install -g @openai/codex",
        keeps=("OPENAI_", "CODEX_"),
        launch=launch,
        reader=CodexReader,
        counts_session=True,
        is_session=is_session,
    ),
    stdio_notes=(
        "`required`: without it Codex waits one second for a server and then works without its tools.",
        'For runs that nobody watches (`codex exec`), add default_tools_approval_mode = "approve" yourself.',
    ),
    http_notes=('For runs that nobody watches, add default_tools_approval_mode = "approve" yourself.',),
    project_notes=("Codex reads a project's file only in a project that it trusts.",),
)
