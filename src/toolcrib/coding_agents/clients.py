"""The clients we know. A new one is a value in `known/`, named here; docs/coding-agents.md says how.

In: a name. Out: its `Client`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from toolcrib.coding_agents.client import Client
from toolcrib.coding_agents.known.claude import CLAUDE
from toolcrib.coding_agents.known.codex import CODEX
from toolcrib.coding_agents.known.gemini import GEMINI
from toolcrib.coding_agents.known.generic import GENERIC
from toolcrib.errors import NotFound

CLIENTS: tuple[Client, ...] = (CLAUDE, CODEX, GEMINI, GENERIC)
RUNNABLE = tuple(client for client in CLIENTS if client.headless is not None)


def client_named(name: str, fitting: Iterable[Client] = CLIENTS) -> Client:
    """`fitting`: those that are named to whoever asks for one that there is not."""
    for client in CLIENTS:
        if client.name == name:
            return client
    names = [client.name for client in fitting]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise NotFound(f"No client {name!r} is known.", remedy=f"{hint}Known: {', '.join(names)}.")
