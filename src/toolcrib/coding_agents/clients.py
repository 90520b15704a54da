"""All known clients. A new one is a value in `known/`, listed here; see docs/coding-agents.md.

In: a name. Out: its `ClientSpec`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from toolcrib.coding_agents.client_spec import ARGS, COMMAND, ENV, HEADERS, URL, ClientFileFormat, ClientSpec
from toolcrib.coding_agents.known.claude import CLAUDE
from toolcrib.coding_agents.known.codex import CODEX
from toolcrib.coding_agents.known.gemini import GEMINI
from toolcrib.errors import NotFound

GENERIC = ClientSpec(
    name="generic",
    title="any other MCP client",
    format=ClientFileFormat.JSON,
    keys=("mcpServers",),
    places={},
    stdio_template={"command": COMMAND, "args": ARGS, "env": ENV},
    http_template={"type": "http", "url": URL, "headers": HEADERS},
    # The endpoint is plain HTTP on loopback, so nothing is verified now; an HTTPS address entered later is.
    private_template={
        "type": "streamable-http",
        "url": URL,
        "headers": HEADERS,
        "verifySsl": True,
        "retry": {"maxAttempts": 3, "backoffMs": 1000},
    },
    private_use="configure {file} as the client's server file",
    http_notes=("Many clients replace ${…} with a variable's value; check the syntax in your client's documentation.",),
)


CLIENTS: tuple[ClientSpec, ...] = (CLAUDE, CODEX, GEMINI, GENERIC)
RUNNABLE = tuple(client for client in CLIENTS if client.headless is not None)


def client_named(name: str, fitting: Iterable[ClientSpec] = CLIENTS) -> ClientSpec:
    """`fitting`: the clients that the error lists if the name is unknown."""
    for client in CLIENTS:
        if client.name == name:
            return client
    names = [client.name for client in fitting]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise NotFound(f"Unknown client {name!r}.", remedy=f"{hint}Known: {', '.join(names)}.")
